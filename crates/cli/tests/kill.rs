//! The server is killed with -9 again and again while it takes events in and delivers them. What the producers were
//! told and what the target saw must fit together: nothing lost, nothing out of order, repeats as documented.

mod support;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::process::{Process, agent, wait_until_ready};
use support::producer::{Producer, Sent};
use support::random::Random;
use support::target::{Call, Target, Trouble, Verdict};
use support::{KLAMBDA, PATIENCE, eventually, free_port};
use tempfile::TempDir;

const KILLS: u64 = 28;
const PRODUCERS: u64 = 4;
const KEYS: u64 = 6;
/// Of each producer; there are as many for each of the three kinds.
const EVENTS: u64 = 1800;
/// Calls of a subscription open at once.
const CONCURRENCY: u64 = 200;
const KINDS: [&str; 3] = ["by-arrival", "by-sequence", "unordered"];

/// Small files, so that segments and checkpoints come and go under way. A breaker that opens is soon tried again.
const CONFIG: &str = "
memory: 16Mi
limits: {bodyBytes: 1Mi}
store: {segmentBytes: 3Mi, reserveBytes: 1Mi}
delivery: {breaker: {halfOpenAfter: 100ms}}
log: {level: warn}
";

#[test]
fn nothing_is_lost_or_reordered_by_kills() {
    let mut random = Random::from_environment();
    let target = Target::start(Trouble { refused: 15, hung: 1 }, random.split());
    let mut victim = Victim::new();
    victim.start();
    victim.wait_until_ready();
    KINDS.iter().for_each(|kind| victim.subscribe(kind, &target.url));
    let answered = AtomicU64::new(0);
    let sent: Vec<Sent> = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS * KINDS.len() as u64)
            .map(|n| {
                let kind = KINDS[n as usize % KINDS.len()];
                let window = if kind == "by-sequence" { 40 } else { 0 };
                let name = format!("{kind}-{n}");
                let producer = Producer::new(name, kind, &victim.url(), KEYS, random.split(), &answered);
                scope.spawn(move || producer.run(EVENTS, window))
            })
            .collect();
        let progress = || answered.load(Ordering::Relaxed) + target.acknowledged() as u64;
        victim.suffer(&mut random, progress);
        producers.into_iter().flat_map(|producer| producer.join().expect("a producer")).collect()
    });
    victim.drain();
    assert_eq!(sent.len() as u64, EVENTS * PRODUCERS * KINDS.len() as u64);
    assert!(victim.epoch >= 20);
    let (repeats, refused, hung) = verify(&sent, &target);
    println!(
        "{} kills, {} events, {repeats} repeats, {refused} refused, {hung} hung",
        victim.epoch,
        sent.len()
    );
    assert!(
        victim.files("rows-") > 0 && victim.files("log-") > 1,
        "neither checkpoints nor new segments were met"
    );
    victim.stop();
    victim.check();
}

// ---- the server -----------------------------------------------------------------------------------------------

struct Victim {
    folder: TempDir,
    address: String,
    process: Option<Process>,
    /// How often it was killed; told to the target with every call.
    epoch: u64,
}

impl Victim {
    fn new() -> Victim {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("config.yaml"), CONFIG).expect("written");
        Victim { folder, address: format!("127.0.0.1:{}", free_port()), process: None, epoch: 0 }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("serve.log")
    }

    fn start(&mut self) {
        let mut command = Command::new(KLAMBDA);
        command.args(["serve", "--listen", &self.address, "--data"]).arg(self.data());
        command.arg("--config").arg(self.folder.path().join("config.yaml"));
        command.env("EPOCH", self.epoch.to_string());
        self.process = Some(Process::start(&mut command, &self.log()));
    }

    fn wait_until_ready(&mut self) {
        let url = self.url();
        wait_until_ready(&url, self.process.as_mut().expect("it runs"));
    }

    /// With -9, and waits until it is gone.
    fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        assert!(!process.has_ended(), "it ended by itself: {}", process.printed());
        drop(process);
        self.epoch += 1;
    }

    fn subscribe(&self, kind: &str, target: &str) {
        let mut spec = json!({
            "concurrency": CONCURRENCY,
            "filters": [{"exact": {"type": kind}}],
            "target": {"url": format!("{target}/{kind}"), "headers": {"x-epoch": {"env": "EPOCH"}}},
            "retry": {"attempts": "unlimited", "backoff": "5ms", "maxBackoff": "50ms", "timeout": "3s"},
        });
        match kind {
            "by-arrival" => spec["ordering"] = "ordered".into(),
            "by-sequence" => {
                spec["ordering"] = "ordered".into();
                // No gap is ever given up: what is missing is on its way.
                spec["orderingPolicy"] = json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": "1h", "action": "park"}});
            }
            // It takes all events, so that some belong to two subscriptions at once.
            _ => spec["filters"] = json!([]),
        }
        let document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription",
            "metadata": {"name": kind}, "spec": spec,
        });
        let url = format!("{}/api/v1/subscriptions/{kind}", self.url());
        let mut answer = agent().put(url).send_json(&document).expect("an answer");
        assert_eq!(answer.status(), 201, "{:?}", answer.body_mut().read_to_string());
    }

    /// Killed at even parts of the way, at a random moment within each. Every fourth time it is killed again while it
    /// starts, and after some of those once more as soon as it is ready.
    fn suffer(&mut self, random: &mut Random, progress: impl Fn() -> u64) {
        let events = EVENTS * PRODUCERS * KINDS.len() as u64;
        let total = events + events + EVENTS * PRODUCERS * 2;
        let mut start_takes = Duration::from_millis(100);
        for part in 1.. {
            if self.epoch >= KILLS {
                break;
            }
            let goal = (total * part - random.below(total)) / (KILLS + 1);
            wait_for(goal, &progress);
            self.kill();
            if part % 4 == 0 {
                self.start();
                std::thread::sleep(start_takes * random.below(1000) as u32 / 1000);
                self.kill();
                self.check();
            }
            let began = Instant::now();
            self.start();
            self.wait_until_ready();
            start_takes = began.elapsed();
            if part % 8 == 4 {
                self.kill();
                self.start();
            }
        }
    }

    fn drain(&self) {
        let agent = agent();
        eventually("everything drains", || {
            let mut answer = agent
                .get(format!("{}/api/v1/status", self.url()))
                .call()
                .map_err(|error| error.to_string())?;
            let status: Value = answer.body_mut().read_json().map_err(|error| error.to_string())?;
            let is_quiet = status["waiting"] == 0 && status["inFlight"] == 0;
            if is_quiet { Ok(()) } else { Err(status.to_string()) }
        });
    }

    fn stop(&mut self) {
        let status = self.process.take().expect("it runs").stop();
        assert!(status.success(), "{status}: {}", std::fs::read_to_string(self.log()).unwrap_or_default());
    }

    fn files(&self, prefix: &str) -> usize {
        let entries = std::fs::read_dir(self.data()).expect("the data folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names.filter(|name| name.to_string_lossy().starts_with(prefix)).count()
    }

    /// The folder proves itself.
    fn check(&self) {
        check(&self.data());
    }
}

fn check(data: &Path) {
    let output = Command::new(KLAMBDA).arg("check").arg(data).output().expect("check runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let is_ok = output.status.success() && printed.ends_with("\nok\n");
    assert!(is_ok, "{printed}{}", String::from_utf8_lossy(&output.stderr));
}

/// Looks often: the moment counts.
fn wait_for(goal: u64, progress: impl Fn() -> u64) {
    let deadline = Instant::now() + PATIENCE;
    while progress() < goal {
        assert!(Instant::now() < deadline, "{} of {goal}", progress());
        std::thread::sleep(Duration::from_micros(500));
    }
}

// ---- what must hold -------------------------------------------------------------------------------------------

/// Answers how many calls were repeats, refused and hung.
fn verify(sent: &[Sent], target: &Target) -> (usize, usize, usize) {
    let overlaps = target.overlaps();
    assert!(overlaps.is_empty(), "a lane had two calls open: {overlaps:?}");
    let calls = target.calls();
    let mut of_lanes: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in &calls {
        let lane = if call.subscription == "unordered" { &call.id } else { &call.key };
        if call.subscription == "unordered" {
            assert_eq!((call.lane_sequence, &call.previous_id), (None, &None), "{call:?}");
        }
        assert_eq!(call.order_status, None, "{call:?}");
        // Ids are keys with a number, so that both fit into one map.
        of_lanes.entry(lane).or_default().push(call);
    }
    let mut repeats = 0;
    for (key, ids) in wanted(sent) {
        repeats += verify_lane(key, &ids, lane_of(&of_lanes, key));
    }
    let singles = sent.iter().map(|event| verify_single(event, lane_of(&of_lanes, &event.id)));
    let repeated: usize = singles.sum();
    assert!(repeated as u64 <= CONCURRENCY * KILLS, "{repeated} repeats: more than were in flight");
    repeats += repeated;
    let count = |verdict| calls.iter().filter(|call| call.verdict == verdict).count();
    (repeats, count(Verdict::Refused), count(Verdict::Hung))
}

fn lane_of<'a>(lanes: &'a BTreeMap<&str, Vec<&'a Call>>, name: &str) -> &'a [&'a Call] {
    lanes.get(name).map_or(&[], Vec::as_slice)
}

/// The ids of each ordered key in the order they must arrive.
fn wanted(sent: &[Sent]) -> BTreeMap<&str, Vec<&str>> {
    let mut keys: BTreeMap<&str, Vec<&Sent>> = BTreeMap::new();
    for event in sent.iter().filter(|event| event.kind != "unordered") {
        keys.entry(&event.key).or_default().push(event);
    }
    for events in keys.values_mut() {
        // Its producer sent a key's events in order of their numbers, or said that this is the order.
        events.sort_by_key(|event| event.sequence);
        if events[0].kind == "by-arrival" {
            assert!(events.iter().filter_map(|event| event.position).is_sorted(), "{events:?}");
        }
    }
    keys.into_iter()
        .map(|(key, events)| (key, events.iter().map(|event| event.id.as_str()).collect()))
        .collect()
}

/// Each call is for the event of the call before it, which was not acknowledged or is repeated after a kill, or for
/// the one that follows it. Answers the repeats: by this rule at most one for each kill.
fn verify_lane(key: &str, ids: &[&str], calls: &[&Call]) -> usize {
    let mut place = 0;
    let mut repeats = 0;
    let mut last: Option<&Call> = None;
    for call in calls {
        let is_same = last.is_some_and(|last| last.id == call.id);
        place += usize::from(!is_same);
        let context = || format!("{key}: {call:?} after {last:?}");
        assert!(place <= ids.len(), "{}", context());
        assert_eq!(call.id, ids[place - 1], "{}", context());
        assert_eq!(call.lane_sequence, Some(place as u64), "{}", context());
        let previous = (place > 1).then(|| ids[place - 2]);
        assert_eq!(call.previous_id.as_deref(), previous, "{}", context());
        if let Some(last) = last {
            let is_repeat = is_same && last.verdict == Verdict::Acknowledged;
            assert!(!is_repeat || last.epoch < call.epoch, "{}", context());
            repeats += usize::from(is_repeat);
        }
        last = Some(call);
    }
    let acknowledged =
        |id: &&str| calls.iter().any(|call| call.id == **id && call.verdict == Verdict::Acknowledged);
    let lost: Vec<&&str> = ids.iter().filter(|id| !acknowledged(id)).collect();
    assert!(lost.is_empty(), "{key}: lost {lost:?}");
    repeats
}

/// An event without a lane: nothing comes after its acknowledgement unless the server was killed.
fn verify_single(event: &Sent, calls: &[&Call]) -> usize {
    let acknowledged = calls.iter().filter(|call| call.verdict == Verdict::Acknowledged).count();
    assert!(acknowledged > 0, "lost {event:?}");
    for pair in calls.windows(2) {
        let is_repeat = pair[0].verdict == Verdict::Acknowledged;
        assert!(!is_repeat || pair[0].epoch < pair[1].epoch, "{pair:?}");
    }
    acknowledged - 1
}
