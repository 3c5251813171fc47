//! The CloudEvents SDKs of other languages as producers: what they send in any mode arrives, in order and unchanged.
//!
//! `./test` installs the SDKs under `target/testbed` and runs these.

mod support;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use support::process::{Receiver, Server, agent};
use support::{eventually, repository};

#[test]
#[ignore = "needs the SDK: ./test installs it and runs this"]
fn python() {
    let python = testbed().join("venv/bin/python");
    arrives_in_order(|url| {
        let mut command = Command::new(python);
        command.arg(repository().join("testbed/sdk/send.py")).arg(url);
        command
    });
}

#[test]
#[ignore = "needs the SDK: ./test installs it and runs this"]
fn javascript() {
    arrives_in_order(|url| {
        let mut command = Command::new("node");
        command.arg(repository().join("testbed/sdk/send.mjs")).arg(url).arg(testbed());
        command
    });
}

fn testbed() -> PathBuf {
    let given = std::env::var_os("KLAMBDA_TESTBED").map(PathBuf::from);
    given.unwrap_or_else(|| repository().join("target/testbed"))
}

fn arrives_in_order(script: impl FnOnce(&str) -> Command) {
    let folder = tempfile::tempdir().expect("a folder");
    let receiver = Receiver::start(folder.path(), &[]);
    let server = Server::start(folder.path());
    subscribe(&server.url, &receiver.url);
    let output = script(&server.url).output().expect("the SDK's language is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let sent: Vec<&str> = said.lines().collect();
    assert!(!sent.is_empty());
    let received = eventually("all events arrive", || match receiver.received() {
        received if received.len() >= sent.len() => Ok(received),
        received => Err(format!("{} of {}", received.len(), sent.len())),
    });
    check_lanes(&sent, &received);
}

fn subscribe(server: &str, target: &str) {
    let document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1",
        "kind": "Subscription",
        "metadata": {"name": "sdk"},
        "spec": {
            "target": {"url": target},
            "ordering": "ordered",
            "orderingPolicy": {"key": {"attribute": "partitionkey"}},
        },
    });
    let answer = agent().put(format!("{server}/api/v1/subscriptions/sdk")).send_json(&document);
    assert_eq!(answer.expect("an answer").status(), 201);
}

/// Each event once, each lane in the order it was sent, numbered from 1 without a hole.
fn check_lanes(sent: &[&str], received: &[Value]) {
    let mut lanes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for event in received {
        let lane = lanes.entry(event["key"].as_str().expect("a key")).or_default();
        let previous = lane.last().copied();
        lane.push(event["id"].as_str().expect("an id"));
        assert_eq!(event["laneSequence"], lane.len(), "{event}");
        assert_eq!(event["previousId"].as_str(), previous, "{event}");
        assert!(event["orderStatus"].is_null(), "{event}");
    }
    assert_eq!(lanes.values().map(Vec::len).sum::<usize>(), sent.len());
    let place = |id: &str| sent.iter().position(|sent| *sent == id);
    for (key, ids) in &lanes {
        assert!(ids.iter().all(|id| place(id).is_some()), "{key}: {ids:?}");
        assert!(ids.is_sorted_by_key(|id| place(id)), "{key}: {ids:?}");
    }
}
