//! A full disk: new events are refused, accepted ones are delivered, and the server continues when there is space.

use crate::history::{End, Receiver, Verdicts};
use crate::producer::Sent;
use crate::random::Random;
use crate::support::eventually;
use crate::support::process::agent;
use crate::target::{Target, Trouble};
use crate::victim::Victim;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const BALLAST: usize = 16 << 20;
const CONFIG: &str = "
memory: 16Mi
limits: {bodyBytes: 1Mi}
store: {segmentBytes: 4Mi, reserveBytes: 1Mi}
log: {level: warn}
";
const FLOWS: Receiver = Receiver { subscription: "flows", kind: None, is_ordered: true };
const WAITS: Receiver = Receiver { subscription: "waits", kind: None, is_ordered: true };

#[test]
fn a_full_disk_refuses_events_and_still_drains() {
    let Some(disk) = SmallDisk::mount("48m") else { return };
    let ballast = disk.folder().join("ballast");
    std::fs::write(&ballast, vec![1; BALLAST]).expect("there is room at first");
    let target = Target::start(Trouble::default(), Random::new(1));
    let mut server = start(&disk);
    subscribe(&server, "flows", &target, false);
    subscribe(&server, "waits", &target, true);

    // The reserve holds the acknowledgements of all that fits on the disk: the events are large.
    let mut producer = Producer::new(8 << 10, 20);
    let problem = producer.send_until_refused(&server);
    assert!(
        problem["type"].as_str().is_some_and(|kind| kind.ends_with("/disk-full")) && problem["status"] == 507,
        "{problem}"
    );
    producer.send(&server).expect_err("all of it is refused");
    assert_eq!(server.status()["disk"]["full"], true);
    server.wait_for("flows", |status| status["waiting"] == 0);

    // No event of the second was delivered yet. Its acknowledgements use the reserved space.
    assert_eq!(server.subscription("waits")["waiting"], producer.accepted.len());
    server.post("subscriptions/waits/resume");
    server.wait_for("waits", |status| status["waiting"] == 0 && status["inFlight"] == 0);
    assert_eq!(server.status()["disk"]["full"], true, "nothing has made room");
    producer.verify(&target, &[FLOWS, WAITS]);

    std::fs::remove_file(&ballast).expect("removed");
    eventually("events are taken again", || producer.send(&server).map_err(|problem| problem.to_string()));
    for _ in 0..20 {
        producer.send(&server).expect("accepted");
    }
    server.wait_for("waits", |status| status["waiting"] == 0);
    server.stop();
    server.start();
    producer.send(&server).expect("accepted");
    server.drain();
    server.stop();
    server.check();
    crate::summarize(&format!("full disk: room again, {}", producer.verify(&target, &[FLOWS, WAITS])));
}

/// Killed while its disk is full, it starts again, delivers the accepted events and still refuses new ones.
#[test]
fn a_server_killed_on_a_full_disk_starts_again() {
    let Some(disk) = SmallDisk::mount("48m") else { return };
    let target = Target::start(Trouble::default(), Random::new(1));
    let mut server = start(&disk);
    subscribe(&server, "waits", &target, true);
    let mut producer = Producer::new(8 << 10, 20);
    producer.send_until_refused(&server);
    server.kill();
    server.start();
    assert_eq!(server.subscription("waits")["waiting"], producer.accepted.len());
    server.post("subscriptions/waits/resume");
    server.drain();
    producer.verify(&target, &[WAITS]);
    producer.send_until_refused(&server);
    server.drain();
    server.stop();
    server.check();
    crate::summarize(&format!("full disk: killed, {}", producer.verify(&target, &[WAITS])));
}

/// Many small events need more space for acknowledgements than the log has left. The server kept it free on the disk.
#[test]
fn a_backlog_larger_than_the_reserve_drains_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount("60m") else { return };
    let mut backlog = Backlog::fill(&disk, 10, json!({}));
    let segments = backlog.server.files("log-");
    backlog.drain();
    assert!(backlog.server.files("log-") > segments, "the acknowledgements fit into the reserve");
    backlog.go_on(&disk, "segments of acknowledgements");
}

/// The subscription has read a thousand events, and most of the backlog only waits in the log.
#[test]
fn an_unread_backlog_drains_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount("60m") else { return };
    let mut backlog = Backlog::fill(&disk, 10, json!({"maxEvents": 1000}));
    let status = backlog.server.subscription("waits");
    assert!(status["unread"]["events"].as_u64() > Some(50_000), "{status}");
    backlog.drain();
    backlog.go_on(&disk, "unread events");
}

/// Others have used the space that the server kept free. It deletes history early.
#[test]
fn a_backlog_drains_when_others_fill_the_disk() {
    const FOR_CHECKPOINTS: u64 = 6 << 20;
    let Some(disk) = SmallDisk::mount("60m") else { return };
    let mut backlog = Backlog::fill(&disk, 100, json!({}));
    let free = backlog.server.status()["disk"]["freeBytes"].as_u64().expect("a number");
    let ballast = vec![1; (free - FOR_CHECKPOINTS) as usize];
    std::fs::write(disk.folder().join("ballast"), ballast).expect("there is room for it");
    backlog.drain();
    assert!(!backlog.server.data.join("log-0000000000000000").exists(), "there was room for all of it");
    backlog.go_on(&disk, "history deleted");
}

/// Small events that wait on a full disk.
struct Backlog {
    target: Target,
    server: Victim,
    producer: Producer,
}

impl Backlog {
    fn fill(disk: &SmallDisk, payload_bytes: usize, limits: Value) -> Backlog {
        let target = Target::start(Trouble::default(), Random::new(1));
        let server = start(disk);
        let spec = json!({"ordering": "ordered", "paused": true, "backlog": limits});
        server.put("waits", spec, &target.url);
        let mut producer = Producer::new(payload_bytes, 500);
        producer.send_until_refused(&server);
        let owed = producer.accepted.len() * 40;
        assert!(owed > 2 * (1 << 20), "{} events fit into the reserve", producer.accepted.len());
        Backlog { target, server, producer }
    }

    fn drain(&self) {
        self.server.post("subscriptions/waits/resume");
        self.server.drain();
        self.producer.verify(&self.target, &[WAITS]);
    }

    /// Events are accepted and delivered again when the disk has grown.
    fn go_on(&mut self, disk: &SmallDisk, what: &str) {
        disk.grow("120m");
        let Backlog { target, server, producer } = self;
        eventually("events are taken again", || producer.send(server).map_err(|problem| problem.to_string()));
        server.drain();
        server.stop();
        server.check();
        crate::summarize(&format!("full disk: {what}, {}", producer.verify(target, &[WAITS])));
    }
}

/// A file system of its own in memory. Unmounted when dropped, also by a test that fails.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "klambda-test"]).arg(folder.path());
        if mount.output().is_ok_and(|output| output.status.success()) {
            return Some(SmallDisk(folder));
        }
        eprintln!("skipped: this process may not mount a small disk (a tmpfs); run it as root");
        None
    }

    fn grow(&self, size: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,size={size}")]).arg(self.folder());
        assert!(mount.status().expect("mount").success());
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that still has a file open, here or in a child, keeps the disk only for itself.
        let _ = Command::new("umount").arg("--lazy").arg(self.folder()).status();
    }
}

fn start(disk: &SmallDisk) -> Victim {
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = Random::from_environment();
    let mut server = Victim::with_data(folder, disk.folder().join("data"), CONFIG, &mut random);
    server.start();
    server
}

fn subscribe(server: &Victim, name: &str, target: &Target, paused: bool) {
    server.put(name, json!({"ordering": "ordered", "paused": paused}), &target.url);
}

/// Fills the disk.
struct Producer {
    next: usize,
    payload: String,
    batch: usize,
    accepted: Vec<Sent>,
}

impl Producer {
    fn new(payload_bytes: usize, batch: usize) -> Producer {
        Producer { next: 0, payload: "x".repeat(payload_bytes), batch, accepted: Vec::new() }
    }

    fn send_until_refused(&mut self, server: &Victim) -> Value {
        loop {
            if let Err(problem) = self.send(server) {
                return problem;
            }
        }
    }

    /// A batch, of which each event is judged by itself: the disk may fill up within it.
    fn send(&mut self, server: &Victim) -> Result<(), Value> {
        let events: Vec<Sent> = (self.next..self.next + self.batch).map(event).collect();
        self.next += events.len();
        let request = agent().post(format!("{}/api/v1/events", server.url()));
        let mut answer = request
            .header("content-type", "application/cloudevents-batch+json")
            .send(Value::from_iter(events.iter().map(|event| self.json(event))).to_string())
            .expect("an answer");
        let status = answer.status();
        let body: Value = answer.body_mut().read_json().expect("JSON");
        let results = body["results"].as_array().cloned().unwrap_or_default();
        assert_eq!(results.len(), events.len(), "{status}: {body}");
        if results.iter().all(|result| result["status"] == "rejected") {
            assert_eq!(status, 507, "{body}");
        }
        let accepted = events.into_iter().zip(&results).filter(|(_, result)| result["status"] == "accepted");
        self.accepted.extend(accepted.map(|(event, _)| event));
        match results.iter().find(|result| result["status"] == "rejected") {
            None => assert!(status.is_success(), "{status}: {body}"),
            Some(refused) => return Err(refused["problem"].clone()),
        }
        Ok(())
    }

    fn json(&self, event: &Sent) -> Value {
        json!({
            "specversion": "1.0", "source": "/test", "type": event.kind, "id": event.id,
            "partitionkey": event.key, "data": self.payload,
        })
    }

    /// Every accepted event reached all of them, once and in order.
    fn verify(&self, target: &Target, receivers: &[Receiver]) -> Verdicts {
        let verdicts = Verdicts::of(&self.accepted, &target.calls(), receivers, End::Killed, &[]);
        verdicts.assert_clean();
        assert_eq!(verdicts.repeats, 0, "{verdicts}");
        verdicts
    }
}

fn event(n: usize) -> Sent {
    Sent {
        id: format!("e{n}"),
        kind: "filler",
        key: format!("k{}", n % 16),
        sequence: n as u64,
        position: None,
    }
}
