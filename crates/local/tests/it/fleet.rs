//! The fleet: scaling from zero and back, crashes, hand-over, waiting.

use crate::support::{Platform, command, get, is_alive, until, version};
use klambda_local::container::Image;
use klambda_local::fleet::{
    Endpoint, Error, HealthChecks, Phase, Reason, Run, Scaling, Version, VersionView,
};
use klambda_local::process::Limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn scaling() -> Scaling {
    Scaling { grace: Duration::from_millis(100), drain: Duration::from_secs(5), ..Scaling::default() }
}

fn pids(platform: &Platform) -> Vec<i32> {
    let files = std::fs::read_dir(platform.folder.path().join("children")).unwrap();
    files.filter_map(|file| file.ok()?.path().file_stem()?.to_str()?.parse().ok()).collect()
}

#[tokio::test]
async fn starts_from_zero_and_goes_back_to_it_and_stays_good_over_a_restart() {
    let platform = Platform::start();
    platform.fleet.deploy("f", version("1", &[("VERSION", "1")], scaling())).unwrap();
    assert_eq!(
        platform.call("f", "/").await.unwrap(),
        "1",
        "without another version, a starting replica receives the call"
    );
    let seen =
        platform.wait("f", |seen| seen.versions[0].phase == Phase::Good && seen.versions[0].ready == 0).await;
    assert!(seen.versions[0].serving && seen.in_flight == 0);
    until("no process is left", || pids(&platform).is_empty()).await;
    assert_eq!(platform.call("f", "/").await.unwrap(), "1");
    let folder = platform.end().await;

    let platform = Platform::in_folder(folder);
    platform.fleet.deploy("f", version("1", &[("VERSION", "1")], scaling())).unwrap();
    let seen = platform.fleet.observe("f").unwrap();
    assert_eq!(
        (seen.versions[0].phase, seen.versions[0].starting),
        (Phase::Good, 0),
        "known to be good without a start"
    );
    platform.fleet.forget("artifact-1");
    platform.fleet.deploy("g", version("1", &[], scaling())).unwrap();
    assert_eq!(platform.fleet.observe("g").unwrap().versions[0].phase, Phase::Proving);
    platform.end().await;
}

#[tokio::test]
async fn grows_with_what_is_open_and_serves_who_waits_in_order() {
    let platform = Arc::new(Platform::start());
    let limits = Scaling {
        max_replicas: 3,
        target_concurrency: 2,
        hard_concurrency: 2,
        waiting_max: 4,
        wait: Duration::from_secs(10),
        ..scaling()
    };
    platform.fleet.deploy("f", version("1", &[], limits)).unwrap();
    let mut leases = Vec::new();
    for _ in 0..6 {
        leases.push(platform.fleet.acquire("f").await.unwrap());
    }
    let mut replicas: Vec<u64> = leases.iter().map(|lease| lease.replica()).collect();
    replicas.sort_unstable();
    replicas.dedup();
    assert_eq!(replicas.len(), 3, "two requests for each replica");
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for number in 0..4 {
        let (own, order) = (platform.clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let lease = own.fleet.acquire("f").await.unwrap();
            order.lock().unwrap().push(number);
            lease
        }));
        platform.wait("f", |seen| seen.waiting == number + 1).await;
    }
    assert!(matches!(platform.fleet.acquire("f").await, Err(Error::TooManyWaiting(4))));
    // A caller that gives up does not delay the others.
    waiting.remove(1).abort();
    platform.wait("f", |seen| seen.waiting == 3).await;
    for left in (0..3).rev() {
        drop(leases.pop());
        platform.wait("f", |seen| seen.waiting == left).await;
        until("the next caller gets its turn", || order.lock().unwrap().len() == 3 - left).await;
    }
    assert_eq!(*order.lock().unwrap(), [0, 2, 3]);
    for waiting in waiting {
        drop(waiting.await.unwrap());
    }
    leases.clear();
    platform.wait("f", |seen| seen.versions[0].ready == 0 && seen.in_flight == 0 && seen.draining == 0).await;
}

#[tokio::test]
async fn who_waits_too_long_is_told() {
    let platform = Platform::start();
    let limits =
        Scaling { max_replicas: 1, hard_concurrency: 1, wait: Duration::from_millis(20), ..scaling() };
    platform.fleet.deploy("f", version("1", &[], limits)).unwrap();
    let lease = platform.fleet.acquire("f").await.unwrap();
    assert!(matches!(platform.fleet.acquire("f").await, Err(Error::NoRoom(_))));
    assert_eq!(platform.fleet.observe("f").unwrap().waiting, 0);
    drop(lease);
    platform.end().await;
}

#[tokio::test]
async fn a_crash_breaks_its_requests_only_and_it_is_started_again() {
    let platform = Platform::start();
    let one = Scaling { min_replicas: 1, max_replicas: 1, ..scaling() };
    platform.fleet.deploy("f", version("1", &[("VERSION", "1")], one)).unwrap();
    for _ in 0..7 {
        // More often than a crash loop allows, but with a response in between.
        assert_eq!(platform.call("f", "/").await.unwrap(), "1");
        assert!(platform.call("f", "/crash").await.is_err());
        platform.wait("f", |seen| seen.in_flight == 0 && seen.versions[0].trouble.is_some()).await;
    }
    assert_eq!(platform.call("f", "/").await.unwrap(), "1");
    assert_eq!(platform.fleet.observe("f").unwrap().versions[0].trouble, None);
    platform.end().await;
}

#[tokio::test]
async fn too_much_memory_is_told_in_the_log() {
    let platform = Platform::start();
    let limits = Limits { memory_bytes: Some(48 << 20), cpu_millis: None };
    let command = klambda_local::process::Command { limits, ..command(&[]) };
    let run = Run::Process(Arc::new(command));
    platform.fleet.deploy("shop/f", Version { run, ..version("1", &[], scaling()) }).unwrap();
    let mut follower = platform.fleet.logs("shop/f").unwrap().follow(0);
    assert!(platform.call("shop/f", "/allocate").await.is_err());
    assert_eq!(follower.next().await.unwrap().text, "starting");
    let line: serde_json::Value = serde_json::from_str(&follower.next().await.unwrap().text).unwrap();
    assert_eq!((&line["level"], &line["reason"]), (&"error".into(), &"OutOfMemory".into()), "{line}");
    assert_eq!((&line["namespace"], &line["function"]), (&"shop".into(), &"f".into()), "{line}");
    let message = line["message"].as_str().unwrap();
    assert!(message.contains("exceeded its memory limit of 48Mi"), "{line}");
    platform.end().await;
}

fn impatient(call_max: &str) -> (Platform, Version) {
    let platform = Platform::with(TempDir::new().unwrap(), |options| {
        options.health_checks =
            HealthChecks { at_once: Duration::from_millis(150), at_least: Duration::from_millis(400) };
    });
    let one = Scaling { min_replicas: 1, max_replicas: 1, ..scaling() };
    (platform, version("1", &[("VERSION", "1"), ("KLAMBDA_TIMEOUT_MS", call_max)], one))
}

/// A call that its caller aborts after the replica has received it.
async fn give_up(platform: &Platform, path: &str) {
    let lease = platform.fleet.acquire("f").await.unwrap();
    let mut follower = platform.fleet.logs("f").unwrap().follow(0);
    let called = async { while !follower.next().await.unwrap().text.ends_with(path) {} };
    let call = get(lease.address().unwrap().clone(), path);
    tokio::select! {
        _ = call => panic!("the call must not finish"),
        () = called => {}
    }
}

#[tokio::test]
async fn a_replica_that_does_not_answer_is_replaced_and_nobody_else_is_sent_to_it() {
    let (platform, version) = impatient("50");
    platform.fleet.deploy("f", version).unwrap();
    platform.wait("f", |seen| seen.versions[0].ready == 1).await;
    let blocked = pids(&platform)[0];
    give_up(&platform, "/block/600000").await;
    for _ in 0..3 {
        assert_eq!(platform.call("f", "/").await.unwrap(), "1", "waits for another replica");
    }
    let seen = platform.wait("f", |seen| seen.versions[0].trouble.is_some()).await;
    assert_eq!(seen.versions[0].trouble.as_ref().unwrap().reason, Reason::NotResponding);
    until("the blocked replica is killed", || !is_alive(blocked)).await;
    let lines = platform.fleet.logs("f").unwrap().last(99);
    assert!(lines.iter().any(|line| line.text.contains(r#""reason":"NotResponding""#)), "{lines:?}");
    assert_eq!(platform.call("f", "/").await.unwrap(), "1");
    assert_eq!(platform.fleet.observe("f").unwrap().versions[0].trouble, None, "the other replica responds");

    // Nobody aborts this call, but it takes longer than the call timeout.
    let lease = platform.fleet.acquire("f").await.unwrap();
    let open = get(lease.address().unwrap().clone(), "/block/600000");
    let (broken, seen) = tokio::join!(open, platform.wait("f", |seen| seen.versions[0].trouble.is_some()));
    assert!(broken.is_err());
    assert_eq!(seen.versions[0].trouble.as_ref().unwrap().reason, Reason::NotResponding);
    assert_eq!(platform.call("f", "/").await.unwrap(), "1");
    platform.end().await;
}

#[tokio::test]
async fn a_call_that_keeps_a_replica_from_starting_keeps_no_other_from_it() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("good-artifacts"), "artifact-1\n").unwrap();
    let platform =
        Platform::with(folder, |options| options.health_checks.at_once = Duration::from_millis(50));
    let quick = Scaling { start_timeout: Duration::from_secs(1), ..scaling() };
    // It receives calls before it is up, as the first in its socket.
    let environment = [("VERSION", "1"), ("START_DELAY_MS", "100")];
    platform.fleet.deploy("f", version("1", &environment, quick)).unwrap();
    give_up(&platform, "/block/600000").await;
    assert_eq!(platform.fleet.observe("f").unwrap().versions[0].ready, 0, "the replica never was up");
    let blocked = pids(&platform)[0];
    assert_eq!(platform.call("f", "/").await.unwrap(), "1", "another replica responds");
    until("its start timeout is over", || !is_alive(blocked)).await;
    assert_eq!(platform.call("f", "/").await.unwrap(), "1");
    assert_eq!(platform.fleet.observe("f").unwrap().versions[0].phase, Phase::Good);
    platform.end().await;
}

#[tokio::test]
async fn a_replica_with_one_slow_call_stays_and_so_does_one_that_comes_back() {
    let (platform, version) = impatient("600000");
    platform.fleet.deploy("f", version).unwrap();
    platform.wait("f", |seen| seen.versions[0].ready == 1).await;
    let before = pids(&platform);
    give_up(&platform, "/slow").await;
    assert_eq!(platform.call("f", "/").await.unwrap(), "1");
    assert_eq!(pids(&platform), before, "it passes the health check");
    give_up(&platform, "/block/800").await;
    assert_eq!(platform.call("f", "/").await.unwrap(), "1", "another replica responds meanwhile");
    assert_eq!(pids(&platform).len(), 2);
    until("it recovered, and one replica is enough", || pids(&platform).len() == 1).await;
    assert_eq!(platform.call("f", "/").await.unwrap(), "1");
    assert_eq!(platform.fleet.observe("f").unwrap().versions[0].trouble, None);
    platform.end().await;
}

#[tokio::test]
async fn a_crash_loop_ends_in_a_state_with_code_and_last_lines() {
    let platform = Platform::start();
    platform.fleet.deploy("f", version("1", &[("EXIT_AT_START", "3")], scaling())).unwrap();
    let seen = platform.wait("f", |seen| seen.versions[0].phase == Phase::Failed).await;
    let trouble = seen.versions[0].trouble.clone().unwrap();
    assert_eq!((trouble.reason, trouble.exit_code), (Reason::CrashLoop, Some(3)));
    assert!(trouble.message.starts_with("5 times in a row, the process exited with code 3"), "{trouble}");
    assert!(trouble.last_lines.iter().any(|line| line == "starting"), "{trouble:?}");
    assert!(matches!(platform.fleet.acquire("f").await, Err(Error::Failed(_))), "callers fail immediately");
    assert!(pids(&platform).is_empty());
    platform.end().await;
}

#[tokio::test]
async fn bad_versions_leave_the_good_one_serving() {
    let platform = Platform::start();
    platform.fleet.deploy("f", version("good", &[("VERSION", "good")], scaling())).unwrap();
    platform.wait("f", |seen| seen.versions[0].phase == Phase::Good).await;
    let missing = Run::Process(Arc::new(klambda_local::process::Command {
        program: "no-such-runtime".into(),
        ..command(&[])
    }));
    let image = Run::Image(Arc::new(Image {
        reference: "example.com/none".into(),
        port: 8080,
        arguments: Vec::new(),
        environment: Vec::new(),
        limits: Limits::default(),
        files: None,
        mounts: Vec::new(),
        digest: Arc::default(),
    }));
    let quick = Scaling { start_timeout: Duration::from_millis(300), ..scaling() };
    let serve = |environment: &[(&str, &str)]| Run::Process(Arc::new(command(environment)));
    let mut cases = vec![
        ("unloadable", serve(&[("EXIT_AT_START", "78")]), Reason::HandlerNotFound, "no function main"),
        ("silent", serve(&[("NEVER_ANSWER", "1")]), Reason::NeverAnswered, "GET /healthz"),
        ("missing", missing, Reason::StartFailed, "could not run"),
    ];
    cases.push(match klambda_local::container::engine().await {
        Some(_) => ("image", image, Reason::ImageNotFound, "the container engine failed"),
        None => ("image", image, Reason::NoContainerEngine, "podman or docker"),
    });
    for (id, run, reason, words) in cases {
        let version =
            Version { id: id.into(), artifact: id.into(), generation: 1, run, scaling: quick.clone() };
        platform.fleet.deploy("f", version).unwrap();
        let seen = platform.wait("f", |seen| seen.versions.last().unwrap().phase == Phase::Failed).await;
        assert_eq!(seen.versions.iter().map(|view| &*view.id).collect::<Vec<_>>(), ["good", id]);
        assert!(seen.versions[0].serving && !seen.versions[1].serving);
        let trouble = seen.versions[1].trouble.clone().unwrap();
        assert_eq!(trouble.reason, reason);
        assert!(trouble.message.contains(words), "{trouble}");
        assert_eq!(platform.call("f", "/").await.unwrap(), "good");
    }
    platform.fleet.deploy("f", version("good", &[("VERSION", "good")], scaling())).unwrap();
    let seen = platform.fleet.observe("f").unwrap();
    assert_eq!(seen.versions.len(), 1, "deploying the serving version again hands over nothing");
    assert_eq!(seen.versions[0].phase, Phase::Good);
    platform.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_handed_over_under_load_without_a_failed_request() {
    let platform = Arc::new(Platform::start());
    let more = Scaling { target_concurrency: 3, max_replicas: 3, ..scaling() };
    let start =
        |id: &str| version(id, &[("VERSION", id), ("DELAY_MS", "3"), ("START_DELAY_MS", "30")], more.clone());
    platform.fleet.deploy("f", start("0")).unwrap();
    platform.wait("f", |seen| seen.versions[0].phase == Phase::Good).await;
    let (ended, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (platform, ended, calls) = (platform.clone(), ended.clone(), calls.clone());
            tokio::spawn(async move {
                let mut newest = 0;
                while !ended.load(Ordering::Relaxed) {
                    let answer: u32 =
                        platform.call("f", "/").await.expect("no request fails").parse().unwrap();
                    assert!(answer >= newest, "requests never go back to an older version");
                    newest = answer;
                    calls.fetch_add(1, Ordering::Relaxed);
                }
                newest
            })
        })
        .collect();
    for id in ["1", "2", "3"] {
        let before = calls.load(Ordering::Relaxed);
        until("there is load", || calls.load(Ordering::Relaxed) > before + 50).await;
        platform.fleet.deploy("f", start(id)).unwrap();
        platform.wait("f", |seen| seen.versions.len() == 1 && &*seen.versions[0].id == id).await;
    }
    let before = calls.load(Ordering::Relaxed);
    until("there is load", || calls.load(Ordering::Relaxed) > before + 50).await;
    ended.store(true, Ordering::Relaxed);
    for one in load {
        assert_eq!(one.await.unwrap(), 3);
    }
    platform.wait("f", |seen| seen.draining == 0).await;
}

#[tokio::test]
async fn a_deleted_function_ends_its_requests_first_but_not_for_ever() {
    let platform = Platform::start();
    platform.fleet.deploy("f", version("1", &[("DELAY_MS", "80"), ("VERSION", "1")], scaling())).unwrap();
    platform.wait("f", |seen| seen.versions[0].phase == Phase::Good).await;
    let open = platform.call("f", "/");
    let removal = async {
        platform.wait("f", |seen| seen.in_flight == 1).await;
        platform.fleet.remove("f", Duration::from_secs(5)).await;
    };
    let (answer, ()) = tokio::join!(open, removal);
    assert_eq!(answer.unwrap(), "1");
    assert!(matches!(platform.fleet.acquire("f").await, Err(Error::Unknown(_))));

    platform.fleet.deploy("f", version("1", &[], scaling())).unwrap();
    let lease = platform.fleet.acquire("f").await.unwrap();
    let started = Instant::now();
    platform.fleet.remove("f", Duration::from_millis(50)).await;
    assert!(started.elapsed() < Duration::from_secs(3));
    assert!(pids(&platform).is_empty());
    drop(lease);
    platform.end().await;
}

#[tokio::test]
async fn what_runs_elsewhere_needs_no_process() {
    let platform = Platform::start();
    let run = Run::Remote("http://example.com/f".into());
    let version = Version { id: "1".into(), artifact: "1".into(), generation: 1, run, scaling: scaling() };
    platform.fleet.deploy("f", version).unwrap();
    let lease = platform.fleet.acquire("f").await.unwrap();
    assert_eq!(lease.endpoint(), &Endpoint::Url("http://example.com/f".into()));
    assert_eq!(platform.fleet.observe("f").unwrap().versions[0].phase, Phase::Good);
    drop(lease);
    platform.fleet.remove("f", Duration::ZERO).await;
    platform.end().await;
}

#[tokio::test]
async fn more_replicas_than_allowed_in_all_wait_for_room() {
    let platform = Platform::with(TempDir::new().unwrap(), |options| options.replicas_max = 1);
    platform.fleet.deploy("a", version("1", &[("VERSION", "a")], scaling())).unwrap();
    platform.fleet.deploy("b", version("2", &[("VERSION", "b")], scaling())).unwrap();
    assert_eq!(platform.call("b", "/").await.unwrap(), "b", "a becomes idle, then b gets a replica");
    assert_eq!(platform.call("a", "/").await.unwrap(), "a");
    platform.end().await;
}

#[tokio::test]
async fn logs_are_kept_and_followed_beyond_the_end_of_a_replica() {
    let platform = Platform::start();
    platform.fleet.deploy("f", version("1", &[], scaling())).unwrap();
    let logs = platform.fleet.logs("f").unwrap();
    let mut follower = logs.follow(0);
    platform.call("f", "/one").await.unwrap();
    assert_eq!(follower.next().await.unwrap().text, "starting");
    assert_eq!(follower.next().await.unwrap().text, "called /one");
    let at_zero = |one: &VersionView| one.phase == Phase::Good && one.starting + one.ready == 0;
    platform.wait("f", |seen| at_zero(&seen.versions[0]) && seen.draining == 0).await;
    platform.call("f", "/two").await.unwrap();
    assert_eq!(follower.next().await.unwrap().text, "starting");
    assert_eq!(follower.next().await.unwrap().text, "called /two");
    assert_eq!(logs.last(9).len(), 4);
    platform.end().await;
    assert_eq!(follower.next().await, None, "the function is deleted");
}

#[tokio::test]
async fn functions_that_share_an_artifact_are_proven_once() {
    let platform = Platform::start();
    for number in 0..1000 {
        let version = Version { artifact: "shared".into(), ..version("1", &[], scaling()) };
        platform.fleet.deploy(&format!("f{number}"), version).unwrap();
    }
    for number in 0..1000 {
        platform.wait(&format!("f{number}"), |seen| seen.versions[0].phase == Phase::Good).await;
    }
    assert!(platform.fleet.logs("f0").unwrap().last(9).len() == 1, "it was started");
    assert!((1..1000).all(|number| platform.fleet.logs(&format!("f{number}")).unwrap().last(9).is_empty()));
    // An artifact that fails for one function is tested by the others.
    for number in 0..40 {
        let version =
            Version { artifact: "bad".into(), ..version("2", &[("EXIT_AT_START", "78")], scaling()) };
        platform.fleet.deploy(&format!("g{number}"), version).unwrap();
    }
    for number in 0..40 {
        platform.wait(&format!("g{number}"), |seen| seen.versions[0].phase == Phase::Failed).await;
    }
    platform.end().await;
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[tokio::test]
async fn a_thousand_idle_functions_cost_little() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("good-artifacts"), "artifact-1\n").unwrap();
    let platform = Platform::in_folder(folder);
    let before = resident_bytes();
    for number in 0..5000 {
        let environment =
            [("KLAMBDA_FUNCTION", "f"), ("KLAMBDA_HANDLER", "index.main"), ("TOKEN", "0123456789abcdef")];
        platform.fleet.deploy(&format!("default/f{number}"), version("1", &environment, scaling())).unwrap();
    }
    let each = (resident_bytes() - before) / 5000;
    eprintln!("{each} bytes for each idle function");
    assert!(each < 10 << 10, "{each} bytes each");
    assert_eq!(platform.fleet.observe("default/f4999").unwrap().versions[0].phase, Phase::Good);
    platform.end().await;
}

/// A deployment during shutdown neither starts anything nor delays the shutdown.
#[tokio::test]
async fn nothing_is_deployed_once_it_ends() {
    let platform = Platform::start();
    platform.fleet.deploy("old", version("1", &[], scaling())).unwrap();
    // An open request makes the shutdown take a moment.
    let lease = platform.fleet.acquire("old").await.unwrap();
    let deploy = async {
        let late = version("2", &[], Scaling { min_replicas: 1, ..scaling() });
        let answered = platform.fleet.deploy("new", late);
        assert!(matches!(answered, Err(Error::Ended)), "{answered:?}");
        drop(lease);
    };
    // The shutdown starts first.
    let both = async { tokio::join!(platform.fleet.shutdown(Duration::from_secs(5)), deploy) };
    tokio::time::timeout(crate::support::PATIENCE, both).await.expect("the shutdown completes");
    assert!(pids(&platform).is_empty());
}
