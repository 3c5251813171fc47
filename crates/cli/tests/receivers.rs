//! The example receivers of `examples/webhooks`, each with the Standard Webhooks library of its language. The server and
//! the receiver are killed in the middle. The journal of the receiver tells whether it has every event once, in order.
//!
//! `./test` installs the libraries under `target/testbed` and runs these.

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::process::{Process, Server, agent};
use support::shell::Shell;
use support::{eventually, free_port, repository};

const WORKFLOWS: usize = 4;

/// A receiver that is up again gets calls at once.
const SETTINGS: [(&str, &str); 1] = [("KLAMBDA_DELIVERY_BREAKER_HALF_OPEN_AFTER", "200ms")];

#[test]
#[ignore = "needs the library: ./test installs it and runs this"]
fn python() {
    let mut command = Command::new(testbed().join("venv/bin/python"));
    command.arg(example("python/receiver.py"));
    has_every_event(command);
}

#[test]
#[ignore = "needs the library: ./test installs it and runs this"]
fn javascript() {
    // Node looks for packages beside the file.
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("receiver.mjs");
    std::fs::copy(example("javascript/receiver.mjs"), &script).expect("a copy");
    let installed = testbed().join("node_modules");
    std::os::unix::fs::symlink(installed, folder.path().join("node_modules")).expect("a link");
    let mut command = Command::new("node");
    command.arg(script);
    has_every_event(command);
}

#[test]
#[ignore = "needs the library: ./test installs it and runs this"]
fn go() {
    let built = testbed().join("receiver-go");
    let mut build = Command::new("go");
    succeeds(build.args(["build", "-o"]).arg(&built).arg(".").current_dir(example("go")));
    has_every_event(Command::new(built));
}

#[test]
#[ignore = "needs the library: ./test installs it and runs this"]
fn rust() {
    let target = testbed().join("receiver-rust");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--locked", "--target-dir"]).arg(&target).current_dir(example("rust"));
    succeeds(&mut build);
    has_every_event(Command::new(target.join("debug/webhook-receiver")));
}

fn testbed() -> PathBuf {
    let given = std::env::var_os("KLAMBDA_TESTBED").map(PathBuf::from);
    given.unwrap_or_else(|| repository().join("target/testbed"))
}

fn example(path: &str) -> PathBuf {
    repository().join("examples/webhooks").join(path)
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A server with one endpoint, and its receiver.
struct Trial {
    shell: Shell,
    /// How to start the receiver, with its arguments.
    program: Vec<std::ffi::OsString>,
    port: u16,
    secret: String,
    sent: usize,
}

impl Trial {
    fn new(receiver: &Command) -> Trial {
        let program = [receiver.get_program()].into_iter().chain(receiver.get_args());
        let program = program.map(Into::into).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let shell = Shell { server: Server::with(folder.path(), &SETTINGS), folder };
        let mut trial = Trial { shell, program, port: free_port(), secret: String::new(), sent: 0 };
        trial.secret = trial.create();
        trial
    }

    /// Creates the endpoint. Returns its signing secret.
    fn create(&self) -> String {
        let schedule: Vec<&str> = std::iter::once("0s").chain(std::iter::repeat_n("200ms", 99)).collect();
        let endpoint = json!({"name": "partner", "url": format!("http://127.0.0.1:{}/", self.port),
                              "types": ["order.*"], "workflowKey": {"attribute": "subject"},
                              "retry": {"schedule": schedule}});
        let url = format!("{}/api/v1/webhooks/endpoints", self.shell.server.url);
        let mut answer = agent().post(url).send_json(&endpoint).expect("an answer");
        let created: Value = answer.body_mut().read_json().expect("JSON");
        created["secret"].as_str().unwrap_or_else(|| panic!("no secret: {created}")).to_owned()
    }

    /// From now on a call may have several events.
    fn switch_to_batches(&self) {
        let url = format!("{}/api/v1/webhooks/endpoints/partner", self.shell.server.url);
        let mut endpoint: Value =
            agent().get(&url).call().expect("an answer").body_mut().read_json().expect("JSON");
        endpoint["spec"]["batch"] = json!({"maxEvents": 7});
        let [version, kind, spec] = ["apiVersion", "kind", "spec"].map(|member| endpoint[member].take());
        let document =
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": "partner"}, "spec": spec});
        assert_eq!(agent().put(&url).send_json(&document).expect("an answer").status(), 200);
    }

    fn start(&self) -> Process {
        let (program, arguments) = self.program.split_first().expect("a program");
        let feed = format!("{}/api/v1/webhooks/events?endpoint=partner", self.shell.server.url);
        let mut command = Command::new(program);
        command.args(arguments).arg(self.port.to_string()).arg(self.journal());
        command.env("WEBHOOK_SECRET", &self.secret).env("WEBHOOK_FEED", feed);
        let mut process = Process::start(&mut command, &self.shell.path().join("receiver.log"));
        eventually("the receiver listens", || {
            assert!(!process.has_ended(), "the receiver ended: {}", process.printed());
            std::net::TcpStream::connect(("127.0.0.1", self.port))
                .map(drop)
                .map_err(|error| error.to_string())
        });
        process
    }

    fn journal(&self) -> PathBuf {
        self.shell.path().join("journal.jsonl")
    }

    fn send(&mut self, count: usize) {
        let event = |number: usize| {
            json!({"specversion": "1.0", "id": number.to_string(), "source": "/shop", "type": "order.placed",
                   "subject": format!("order-{}", number % WORKFLOWS), "data": {"text": "größer €", "number": number}})
        };
        let batch: Vec<Value> = (self.sent..self.sent + count).map(event).collect();
        self.sent += count;
        let file = self.shell.write("batch.json", &Value::from(batch).to_string());
        self.shell.ok(&["event", "send", "-f", &file]);
    }

    fn wait_for(&self, what: &str, events: usize) {
        eventually(what, || match journaled(&self.journal()).len() {
            count if count >= events => Ok(()),
            count => Err(format!("{count} of {events} events")),
        });
    }

    /// Kills the server and starts it again, with another port.
    fn restart_server(&mut self) {
        self.shell.server.process.signal(Signal::KILL);
        eventually("the server ends", || match self.shell.server.process.has_ended() {
            true => Ok(()),
            false => Err("it runs".to_owned()),
        });
        self.shell.server = Server::with(self.shell.path(), &SETTINGS);
    }
}

/// The events in the journal, in order.
fn journaled(journal: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line.get("cursor").is_none()).collect()
}

fn has_every_event(receiver: Command) {
    let mut trial = Trial::new(&receiver);
    let mut process = trial.start();
    for round in 0..3 {
        trial.send(120);
        trial.wait_for("some events", round * 120 + 30);
        process.signal(Signal::KILL);
        drop(process);
        trial.send(20);
        if round == 1 {
            trial.restart_server();
            trial.switch_to_batches();
        }
        process = trial.start();
    }
    trial.wait_for("all events", trial.sent);
    sees_a_missing_event(&mut trial);
    refuses_a_forged_call(&trial);
    assert!(!process.printed().contains("lost"), "{}", process.printed());
    check(&journaled(&trial.journal()), trial.sent);
}

/// Another program acknowledges an event that this receiver never got. The receiver sees at the next call that it is
/// missing, and reads it from the feed.
fn sees_a_missing_event(trial: &mut Trial) {
    eventually("no event waits", || {
        let endpoint = trial.shell.json(&["get", "webhook", "partner"]);
        if endpoint["status"]["waiting"] == 0 { Ok(()) } else { Err(endpoint["status"].to_string()) }
    });
    let known = journaled(&trial.journal()).len();
    trial.shell.ok(&["webhook", "disable", "partner"]);
    trial.send(2 * WORKFLOWS);
    let feed = trial.shell.ok(&["webhook", "events", "partner", "--workflow", "order-0", "-o", "json"]);
    let feed: Vec<Value> = feed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let through = &feed[feed.len() - 2]["eventId"];
    let ack = agent().post(format!("{}/api/v1/webhooks/ack?endpoint=partner", trial.shell.server.url));
    let answer = ack.send_json(json!({"through": through, "workflowId": "order-0"})).expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(journaled(&trial.journal()).len(), known, "a disabled endpoint is not called");
    trial.shell.ok(&["webhook", "enable", "partner"]);
    trial.wait_for("the missing event", trial.sent);
}

fn refuses_a_forged_call(trial: &Trial) {
    let body = json!({"eventId": "x", "workflowId": "forged", "sequenceNumber": 1, "previousEventId": null});
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let call = agent()
        .post(format!("http://127.0.0.1:{}/", trial.port))
        .header("webhook-id", "x")
        .header("webhook-timestamp", now.as_secs().to_string())
        .header("webhook-signature", "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=");
    assert_eq!(call.send_json(&body).expect("an answer").status(), 401);
}

/// Every event is there once, and each workflow is in order.
fn check(events: &[Value], sent: usize) {
    let mut last: HashMap<&str, usize> = HashMap::new();
    for event in events {
        let workflow = event["workflowId"].as_str().expect("a workflow");
        let id: usize = event["id"].as_str().and_then(|id| id.parse().ok()).expect("a number");
        // What producers sent decides, not the numbers of the server.
        let expected = last.get(workflow).map_or(id % WORKFLOWS, |before| before + WORKFLOWS);
        assert_eq!((id, workflow), (expected, format!("order-{}", id % WORKFLOWS).as_str()), "{event}");
        last.insert(workflow, id);
    }
    assert_eq!(events.len(), sent);
}
