//! A server that is made to suffer.

use crate::random::Random;
use crate::support::process::{Process, agent};
use crate::support::{KLAMBDA, PATIENCE, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub struct Victim {
    folder: TempDir,
    pub data: PathBuf,
    address: String,
    pub process: Option<Process>,
    /// The number of starts. Every call carries it to the target.
    pub epoch: u64,
    /// Output before this offset is from an earlier process.
    printed_from: usize,
    pub binary: OsString,
    /// For the next start only.
    pub environment: Vec<(&'static str, OsString)>,
}

/// The binary under test.
fn binary() -> OsString {
    std::env::var_os("KLAMBDA_BIN").unwrap_or_else(|| KLAMBDA.into())
}

pub fn klambda() -> Command {
    Command::new(binary())
}

/// A port that nobody listens on, and that no connection of ours is given as its own while nobody does: servers and
/// targets come back to theirs.
pub fn quiet_port(random: &mut Random) -> u16 {
    /// By tests that run beside this one, and may not listen yet.
    static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = 10_000 + random.below(20_000) as u16;
        let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free && TAKEN.lock().expect("no one panics with it in hand").insert(port) {
            return port;
        }
    }
}

impl Victim {
    pub fn new(config: &str, random: &mut Random) -> Victim {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        Victim::with_data(folder, data, config, random)
    }

    /// Its data elsewhere than the rest.
    pub fn with_data(folder: TempDir, data: PathBuf, config: &str, random: &mut Random) -> Victim {
        std::fs::write(folder.path().join("config.yaml"), config).expect("written");
        let address = format!("127.0.0.1:{}", quiet_port(random));
        let (binary, environment) = (binary(), Vec::new());
        Victim { folder, data, address, process: None, epoch: 0, printed_from: 0, binary, environment }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("serve.log")
    }

    pub fn begin(&mut self) {
        self.printed_from = std::fs::read(self.log()).map_or(0, |printed| printed.len());
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--listen", &self.address, "--data"]).arg(&self.data);
        command.arg("--config").arg(self.folder.path().join("config.yaml"));
        command.env("EPOCH", self.epoch.to_string()).envs(self.environment.drain(..));
        self.process = Some(Process::start(&mut command, &self.log()));
        self.epoch += 1;
    }

    pub fn start(&mut self) {
        self.begin();
        let is_ready = self.wait_until_ready();
        assert!(is_ready, "the server ended: {}", self.printed());
    }

    /// Looks often. False if it has ended instead.
    pub fn wait_until_ready(&mut self) -> bool {
        let agent = agent();
        let url = format!("{}/readyz", self.url());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if agent.get(&url).call().is_ok_and(|answer| answer.status() == 200) {
                return true;
            }
            if self.has_ended() {
                return false;
            }
            assert!(Instant::now() < deadline, "it does not start: {}", self.printed());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::has_ended)
    }

    /// By the process that runs now, or ran last.
    pub fn printed(&self) -> String {
        let printed = std::fs::read(self.log()).unwrap_or_default();
        String::from_utf8_lossy(&printed[self.printed_from..]).into_owned()
    }

    /// It holds its folder, and reads it or has read it.
    pub fn wait_until_it_recovers(&self) {
        let id = self.process.as_ref().expect("it runs").id().to_string();
        let deadline = Instant::now() + PATIENCE;
        while std::fs::read_to_string(self.data.join("lock")).is_ok_and(|holder| holder.trim() != id) {
            assert!(Instant::now() < deadline, "{}", self.printed());
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// It has said that it is ready.
    pub fn has_recovered(&self) -> bool {
        self.printed().contains("listens on")
    }

    /// With -9, and waits until it is gone.
    pub fn kill(&mut self) {
        assert!(!self.has_ended(), "it ended by itself: {}", self.printed());
        self.process = None;
    }

    pub fn stop(&mut self) {
        let status = self.process.take().expect("it runs").stop();
        assert!(status.success(), "{status}: {}", self.printed());
    }

    pub fn put(&self, name: &str, spec: Value, target: &str) {
        assert!(self.try_put(name, spec, target), "{}", self.printed());
    }

    /// False if the server failed meanwhile.
    pub fn try_put(&self, name: &str, mut spec: Value, target: &str) -> bool {
        spec["target"] = json!({"url": format!("{target}/{name}"), "headers": {"x-epoch": {"env": "EPOCH"}}});
        let document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription",
            "metadata": {"name": name}, "spec": spec,
        });
        let url = format!("{}/api/v1/subscriptions/{name}", self.url());
        let Ok(mut answer) = agent().put(url).send_json(&document) else { return false };
        let is_unavailable = answer.status() == 503;
        let text = answer.body_mut().read_to_string().unwrap_or_default();
        assert!(answer.status().is_success() || is_unavailable, "{text}");
        !is_unavailable
    }

    pub fn get(&self, path: &str) -> Value {
        let mut answer = agent().get(format!("{}/api/v1/{path}", self.url())).call().expect("an answer");
        answer.body_mut().read_json().expect("JSON")
    }

    pub fn post(&self, path: &str) {
        let mut answer =
            agent().post(format!("{}/api/v1/{path}", self.url())).send_empty().expect("an answer");
        let text = answer.body_mut().read_to_string().unwrap_or_default();
        assert_eq!(answer.status(), 200, "{text}: {}", self.printed());
    }

    pub fn status(&self) -> Value {
        self.get("status")
    }

    pub fn subscription(&self, name: &str) -> Value {
        self.get(&format!("subscriptions/{name}"))["status"].take()
    }

    pub fn wait_for(&self, name: &str, is_so: impl Fn(&Value) -> bool) {
        eventually(name, || {
            let status = self.subscription(name);
            if is_so(&status) { Ok(()) } else { Err(format!("{status}\n{}", self.status())) }
        });
    }

    pub fn drain(&self) {
        let agent = agent();
        let deadline = Instant::now() + 3 * PATIENCE;
        loop {
            let answer = agent.get(format!("{}/api/v1/status", self.url())).call();
            let status: Value = answer.expect("an answer").body_mut().read_json().expect("JSON");
            if status["waiting"] == 0 && status["inFlight"] == 0 {
                return;
            }
            assert!(Instant::now() < deadline, "it does not drain: {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn files(&self, prefix: &str) -> usize {
        let entries = std::fs::read_dir(&self.data).expect("the data folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names.filter(|name| name.to_string_lossy().starts_with(prefix)).count()
    }

    /// The folder proves itself.
    pub fn check(&self) {
        check(&self.data);
    }
}

pub fn check(data: &Path) {
    let output = klambda().arg("check").arg(data).output().expect("check runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let is_ok = output.status.success() && printed.ends_with("\nok\n");
    assert!(is_ok, "{printed}{}", String::from_utf8_lossy(&output.stderr));
}
