//! Single processes: their socket, their end, their limits, their leftovers.

use crate::support::{TESTBED, command, get, is_alive, spawner, until};
use klambda_local::logs::{Bounds, LogStore, Logs, Printer};
use klambda_local::process::limits::Groups;
use klambda_local::process::{Limits, listen};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

fn logs() -> Arc<Logs> {
    LogStore::in_memory(Bounds::default()).of("default/f")
}

fn printer(logs: &Arc<Logs>, replica: u64) -> Printer {
    Printer { logs: logs.clone(), replica, generation: 1 }
}

#[tokio::test]
async fn a_request_waits_in_the_socket_of_a_process_that_is_not_up() {
    let folder = TempDir::new().unwrap();
    let spawner = spawner(folder.path(), Groups::none());
    let (listener, address) = listen().unwrap();
    let early = tokio::spawn(get(address, "/environment"));
    let logs = logs();
    let command = command(&[("START_DELAY_MS", "50"), ("GIVEN", "yes")]);
    let process = spawner.spawn(Arc::new(command), Some(listener), printer(&logs, 1)).await.unwrap();
    let environment = early.await.unwrap().unwrap();
    let names: Vec<&str> = environment.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(names.contains(&"GIVEN") && names.contains(&"KLAMBDA_LISTEN_FD"), "{names:?}");
    assert!(!names.contains(&"CARGO_MANIFEST_DIR") && !names.contains(&"HOME"), "{names:?}");
    let exit = process.stop(Duration::from_secs(5)).await;
    assert_eq!(exit.signal, Some(15), "the process has no handler for the signal");
    assert_eq!(logs.last(9).iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), ["starting"]);
    assert_eq!(std::fs::read_dir(folder.path().join("children")).unwrap().count(), 0);
}

#[tokio::test]
async fn what_does_not_end_is_killed_with_all_it_started() {
    let folder = TempDir::new().unwrap();
    let spawner = spawner(folder.path(), Groups::none());
    let mut command = command(&[]);
    command.program = "sh".into();
    command.arguments =
        ["-c", "trap '' TERM; sleep 600 & echo $!; while :; do sleep 1; done"].map(String::from).to_vec();
    let logs = logs();
    let mut follower = logs.follow(0);
    let process = spawner.spawn(Arc::new(command), None, printer(&logs, 1)).await.unwrap();
    let started: i32 = follower.next().await.unwrap().text.parse().unwrap();
    assert!(is_alive(started));
    let exit = process.stop(Duration::from_millis(50)).await;
    assert_eq!(exit.signal, Some(9));
    until("its child is killed", || !is_alive(started)).await;
}

#[tokio::test]
async fn what_left_its_group_is_killed_too_and_nothing_of_others() {
    let folder = TempDir::new().unwrap();
    let spawner = spawner(folder.path(), Groups::none());
    let script = "setsid -f sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1'; exec sleep 600";
    let mut started = Vec::new();
    for replica in 0..4 {
        let command = klambda_local::process::Command {
            program: "sh".into(),
            arguments: ["-c", script].map(String::from).to_vec(),
            ..command(&[])
        };
        let logs = logs();
        let mut follower = logs.follow(0);
        let process = spawner.spawn(Arc::new(command), None, printer(&logs, replica)).await.unwrap();
        let stray: i32 = follower.next().await.unwrap().text.parse().unwrap();
        started.push((process, stray));
    }
    let (kept, stray_of_kept) = started.pop().unwrap();
    let ended = started.iter().map(|(process, _)| process.stop(Duration::from_secs(5)));
    futures_util::future::join_all(ended).await;
    assert!(
        started.iter().all(|(_, stray)| !is_alive(*stray)),
        "strays are killed before the end is reported"
    );
    assert!(is_alive(stray_of_kept));
    kept.stop(Duration::from_secs(5)).await;
    assert!(!is_alive(stray_of_kept));
}

/// Neither its group, its parent nor its environment shows who started it.
#[tokio::test]
async fn what_empties_its_environment_is_killed_too_and_nothing_of_others() {
    let folder = TempDir::new().unwrap();
    let spawner = spawner(folder.path(), Groups::none());
    let script =
        "setsid -f env -i PATH=\"$PATH\" sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1'; exec sleep 600";
    let mut started = Vec::new();
    for replica in 0..2 {
        let command = klambda_local::process::Command {
            program: "sh".into(),
            arguments: ["-c", script].map(String::from).to_vec(),
            ..command(&[])
        };
        let logs = logs();
        let mut follower = logs.follow(0);
        let process = spawner.spawn(Arc::new(command), None, printer(&logs, replica)).await.unwrap();
        started.push((process, follower.next().await.unwrap().text.parse::<i32>().unwrap()));
    }
    let (kept, stray_of_kept) = started.pop().unwrap();
    let (ended, stray) = started.pop().unwrap();
    ended.stop(Duration::from_secs(5)).await;
    assert!(!is_alive(stray) && is_alive(stray_of_kept));
    kept.stop(Duration::from_secs(5)).await;
    assert!(!is_alive(stray_of_kept));
}

#[tokio::test]
async fn a_program_that_is_not_there_says_so() {
    let folder = TempDir::new().unwrap();
    let spawner = spawner(folder.path(), Groups::none());
    let mut command = command(&[]);
    command.program = "no-such-program".into();
    let logs = logs();
    let process = spawner.spawn(Arc::new(command), None, printer(&logs, 1)).await.unwrap();
    assert_eq!(process.exited().await.code, Some(127));
    assert!(logs.last(1)[0].text.contains("could not run"));
}

/// The contract for wrappers, in another language.
#[tokio::test]
async fn python_serves_from_the_socket_it_is_handed() {
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let script = "import os, socket\n\
        server = socket.socket(fileno=int(os.environ['KLAMBDA_LISTEN_FD']))\n\
        while True:\n    \
            client, _ = server.accept()\n    \
            client.recv(4096)\n    \
            client.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\nfrom python')\n    \
            client.close()\n";
    let folder = TempDir::new().unwrap();
    let spawner = spawner(folder.path(), Groups::none());
    let mut command = command(&[]);
    command.program = String::from_utf8(found.stdout).unwrap().trim().into();
    command.arguments = ["-c", script].map(String::from).to_vec();
    let (listener, address) = listen().unwrap();
    let process = spawner.spawn(Arc::new(command), Some(listener), printer(&logs(), 1)).await.unwrap();
    assert_eq!(get(address, "/").await.unwrap(), "from python");
    process.stop(Duration::from_secs(5)).await;
}

async fn grows_until_ended(groups: Groups) {
    let folder = TempDir::new().unwrap();
    let spawner = spawner(folder.path(), groups);
    let (listener, address) = listen().unwrap();
    let mut command = command(&[]);
    command.limits = Limits { memory_bytes: Some(48 << 20), cpu_millis: Some(1000) };
    let process = spawner.spawn(Arc::new(command), Some(listener), printer(&logs(), 1)).await.unwrap();
    get(address.clone(), "/").await.unwrap();
    assert!(get(address, "/allocate").await.is_err());
    let exit = process.exited().await;
    assert_eq!(exit.out_of_memory, Some(48 << 20), "{exit:?} {:?}", process.notes());
}

#[tokio::test]
async fn memory_over_its_limit_is_seen_without_control_groups() {
    grows_until_ended(Groups::none()).await;
}

#[tokio::test]
async fn memory_over_its_limit_is_refused_by_control_groups_where_there_are_some() {
    let groups = Groups::find();
    eprintln!("control groups: {groups:?}");
    grows_until_ended(groups).await;
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn parent(folder: &TempDir) -> (Killed, Vec<i32>) {
    let child =
        Command::new(TESTBED).arg("parent").arg(folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut parent = Killed(child);
    let mut line = String::new();
    BufReader::new(parent.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let files = std::fs::read_dir(folder.path().join("children")).unwrap();
    let pids: Vec<i32> = files
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().parse().unwrap())
        .collect();
    (parent, pids)
}

/// All processes of these groups.
fn members(groups: &[i32]) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let group = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(2)?.parse().ok())
    };
    pids.filter(|pid| group(pid).is_some_and(|group: i32| groups.contains(&group))).collect()
}

#[tokio::test]
async fn children_die_with_a_parent_that_is_killed() {
    let folder = TempDir::new().unwrap();
    let (parent, mut pids) = parent(&folder);
    pids.extend(members(&pids));
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 4, "two replicas with a child each");
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    drop(parent);
    until("all descendants are killed", || !pids.iter().any(|pid| is_alive(*pid))).await;
    let records = folder.path().join("children");
    until("no record is left", || std::fs::read_dir(&records).unwrap().count() == 0).await;
    assert!(folder.path().join("removed").exists(), "the container of the client is removed");
}

#[tokio::test]
async fn a_start_ends_what_is_left_of_its_own_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let records = folder.path().join("children");
    std::fs::create_dir_all(&records).unwrap();
    let sleep = |mark: &str| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("sleep");
        Killed(command.arg("600").process_group(0).env("KLAMBDA_REPLICA", mark).spawn().unwrap())
    };
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
    let note = |pid: u32, started: u64, boot: &str, mark: &str| {
        let record =
            serde_json::json!({"pid": pid, "started": started, "boot": boot, "mark": mark, "server": "1.1"});
        std::fs::write(records.join(format!("{pid}.json")), record.to_string()).unwrap();
    };
    let started = |pid: u32| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap()
    };
    let [own, other, earlier_boot, orphan] = ["a", "x", "c", "d"].map(sleep);
    note(own.0.id(), started(own.0.id()), &boot, "a");
    note(other.0.id(), started(other.0.id()) + 1, &boot, "b");
    note(earlier_boot.0.id(), started(earlier_boot.0.id()), "another", "c");
    // The leader has exited; only the mark shows who started it.
    note(4_000_000, 1, &boot, "d");
    let spawner = spawner(folder.path(), Groups::none());
    assert!(spawner.leftovers() >= 2);
    let pid = |killed: &Killed| killed.0.id() as i32;
    until("our processes are killed", || !is_alive(pid(&own)) && !is_alive(pid(&orphan))).await;
    assert!(is_alive(pid(&other)) && is_alive(pid(&earlier_boot)));
    assert_eq!(std::fs::read_dir(records).unwrap().count(), 0);
}
