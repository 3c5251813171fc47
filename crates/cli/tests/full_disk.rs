//! A disk that is really full: events are refused, what was accepted is delivered, and room is enough to go on.

mod support;

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::process::{Process, agent, wait_until_ready};
use support::random::Random;
use support::target::{Target, Trouble, Verdict};
use support::{KLAMBDA, eventually, free_port};
use tempfile::TempDir;

const DISK: &str = "48m";
const BALLAST: usize = 16 << 20;
/// The reserve holds the acknowledgements of all that fits on the disk: its events are large.
const CONFIG: &str = "
memory: 16Mi
limits: {bodyBytes: 1Mi}
store: {segmentBytes: 4Mi, reserveBytes: 1Mi}
log: {level: warn}
";

#[test]
fn a_full_disk_refuses_events_and_still_drains() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: this process may not mount a small disk (a tmpfs); run it as root");
        return;
    };
    let ballast = disk.folder().join("ballast");
    std::fs::write(&ballast, vec![1; BALLAST]).expect("there is room at first");
    let target = Target::start(Trouble::default(), Random::new(1));
    let mut server = Server::start(&disk);
    server.subscribe("flows", &target.url, false);
    server.subscribe("waits", &target.url, true);

    let mut producer = Producer::default();
    let problem = producer.send_until_refused(&server);
    assert!(
        problem["type"].as_str().is_some_and(|kind| kind.ends_with("/disk-full")) && problem["status"] == 507,
        "{problem}"
    );
    producer.send(&server).expect_err("all of it is refused");
    assert_eq!(server.status()["disk"]["full"], true);
    server.wait_for("flows", |status| status["waiting"] == 0);

    // Nothing of the second has left yet: it drains on what is kept for acknowledgements.
    assert_eq!(server.subscription("waits")["waiting"], producer.accepted.len());
    server.post("subscriptions/waits/resume");
    server.wait_for("waits", |status| status["waiting"] == 0 && status["inFlight"] == 0);
    assert_eq!(server.status()["disk"]["full"], true, "nothing has made room");
    producer.verify(&target);

    std::fs::remove_file(&ballast).expect("removed");
    eventually("events are taken again", || producer.send(&server).map_err(|problem| problem.to_string()));
    for _ in 0..20 {
        producer.send(&server).expect("accepted");
    }
    server.wait_for("waits", |status| status["waiting"] == 0);
    server.restart();
    producer.send(&server).expect("accepted");
    server.wait_for("flows", |status| status["waiting"] == 0 && status["inFlight"] == 0);
    server.wait_for("waits", |status| status["waiting"] == 0 && status["inFlight"] == 0);
    producer.verify(&target);
    server.stop();
    check(&server.data);
}

/// Killed while its disk is full, it starts again, delivers what it had accepted and goes on refusing.
#[test]
fn a_server_killed_on_a_full_disk_starts_again() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: this process may not mount a small disk (a tmpfs); run it as root");
        return;
    };
    let target = Target::start(Trouble::default(), Random::new(1));
    let mut server = Server::start(&disk);
    server.subscribe("waits", &target.url, true);
    let mut producer = Producer::default();
    producer.send_until_refused(&server);
    server.process = None;
    server.restart();
    assert_eq!(server.subscription("waits")["waiting"], producer.accepted.len());
    server.post("subscriptions/waits/resume");
    server.wait_for("waits", |status| status["waiting"] == 0 && status["inFlight"] == 0);
    producer.verify(&target);
    producer.send_until_refused(&server);
    server.stop();
    check(&server.data);
}

// ---- the disk -------------------------------------------------------------------------------------------------

/// A file system of its own in memory. Unmounted when dropped, also by a test that fails.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<SmallDisk> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={DISK}"), "klambda-test"]).arg(folder.path());
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        is_mounted.then_some(SmallDisk(folder))
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: whoever still has a file open, here or in a child, keeps the disk only for itself.
        let _ = Command::new("umount").arg("--lazy").arg(self.folder()).status();
    }
}

// ---- the server -----------------------------------------------------------------------------------------------

struct Server {
    process: Option<Process>,
    /// What is not data is kept elsewhere.
    folder: TempDir,
    data: PathBuf,
    url: String,
}

impl Server {
    fn start(disk: &SmallDisk) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("config.yaml"), CONFIG).expect("written");
        let url = format!("http://127.0.0.1:{}", free_port());
        let mut server = Server { process: None, folder, data: disk.folder().join("data"), url };
        server.restart();
        server
    }

    fn restart(&mut self) {
        self.stop();
        let mut command = Command::new(KLAMBDA);
        command.args(["serve", "--listen", self.url.trim_start_matches("http://"), "--data"]).arg(&self.data);
        command.arg("--config").arg(self.folder.path().join("config.yaml"));
        let mut process = Process::start(&mut command, &self.folder.path().join("serve.log"));
        wait_until_ready(&self.url, &mut process);
        self.process = Some(process);
    }

    fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            let status = process.stop();
            assert!(status.success(), "{status}");
        }
    }

    fn subscribe(&self, name: &str, target: &str, paused: bool) {
        let document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
            "spec": {"target": {"url": format!("{target}/{name}")}, "ordering": "ordered", "paused": paused},
        });
        let url = format!("{}/api/v1/subscriptions/{name}", self.url);
        assert_eq!(agent().put(url).send_json(&document).expect("an answer").status(), 201);
    }

    fn get(&self, path: &str) -> Value {
        let mut answer = agent().get(format!("{}/api/v1/{path}", self.url)).call().expect("an answer");
        answer.body_mut().read_json().expect("JSON")
    }

    fn post(&self, path: &str) {
        let answer = agent().post(format!("{}/api/v1/{path}", self.url)).send_empty().expect("an answer");
        assert_eq!(answer.status(), 200);
    }

    fn status(&self) -> Value {
        self.get("status")
    }

    fn subscription(&self, name: &str) -> Value {
        self.get(&format!("subscriptions/{name}"))["status"].take()
    }

    fn wait_for(&self, name: &str, is_so: impl Fn(&Value) -> bool) {
        eventually(name, || {
            let status = self.subscription(name);
            if is_so(&status) { Ok(()) } else { Err(format!("{status}\n{}", self.status())) }
        });
    }
}

fn check(data: &Path) {
    let output = Command::new(KLAMBDA).arg("check").arg(data).output().expect("check runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let is_ok = output.status.success() && printed.ends_with("\nok\n");
    assert!(is_ok, "{printed}{}", String::from_utf8_lossy(&output.stderr));
}

// ---- events ---------------------------------------------------------------------------------------------------

#[derive(Default)]
struct Producer {
    next: usize,
    accepted: Vec<String>,
}

impl Producer {
    fn send_until_refused(&mut self, server: &Server) -> Value {
        loop {
            if let Err(problem) = self.send(server) {
                return problem;
            }
        }
    }

    /// A batch, of which each event is judged by itself: the disk may fill up within it.
    fn send(&mut self, server: &Server) -> Result<(), Value> {
        let payload = "x".repeat(8 << 10);
        let events: Vec<Value> = (self.next..self.next + 20)
            .map(|n| {
                json!({
                    "specversion": "1.0", "source": "/test", "type": "filler", "id": format!("e{n}"),
                    "partitionkey": format!("k{}", n % 16), "data": payload,
                })
            })
            .collect();
        self.next += events.len();
        let request = agent().post(format!("{}/api/v1/events", server.url));
        let mut answer = request
            .header("content-type", "application/cloudevents-batch+json")
            .send(Value::from(events).to_string())
            .expect("an answer");
        let status = answer.status();
        let body: Value = answer.body_mut().read_json().expect("JSON");
        let results = body["results"].as_array().cloned().unwrap_or_default();
        for result in &results {
            if result["status"] == "accepted" {
                self.accepted.push(result["id"].as_str().expect("an id").to_owned());
            }
        }
        if results.iter().all(|result| result["status"] == "rejected") {
            assert_eq!(status, 507, "{body}");
        }
        match results.iter().find(|result| result["status"] == "rejected") {
            None => assert!(status.is_success(), "{status}: {body}"),
            Some(refused) => return Err(refused["problem"].clone()),
        }
        Ok(())
    }

    /// Every accepted event came to both subscriptions, once.
    fn verify(&self, target: &Target) {
        let accepted: BTreeSet<&str> = self.accepted.iter().map(String::as_str).collect();
        let calls = target.calls();
        assert!(calls.iter().all(|call| call.verdict == Verdict::Acknowledged));
        let subscriptions: BTreeSet<&str> = calls.iter().map(|call| call.subscription.as_str()).collect();
        for name in subscriptions {
            let seen = calls.iter().filter(|call| call.subscription == name);
            let seen: Vec<&str> = seen.map(|call| call.id.as_str()).collect();
            assert_eq!(seen.len(), accepted.len(), "{name}");
            assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), accepted, "{name}");
        }
    }
}
