//! Compares the engine's memory accounting with a counting allocator: the reported use is the real use, and it stays
//! within the configured limit.

use cap::Cap;
use klambda_core::event::{Attribute, Event, Value};
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::replay::Request;
use klambda_dispatch::{Completion, Config, Delivery, Engine, Sender, Status, Token};
use klambda_store::log::Options;
use klambda_store::real_disk::RealDisk;
use serde_json::json;
use std::alloc::System;
use std::sync::Arc;
use tempfile::TempDir;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const MEMORY: usize = 4 << 20;
/// Buffers, metrics and other parts of constant size.
const SLACK: usize = 160 << 10;

struct House {
    engine: Engine,
    now: Millis,
    /// Bytes in use before the engine was opened.
    before: usize,
    accepted: u64,
    sent: u64,
    /// The maximum of bytes in use.
    most: usize,
    _folder: TempDir,
}

impl House {
    fn new() -> House {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = Arc::new(RealDisk::open(folder.path()).expect("the folder is not locked"));
        // The schema of documents is built once and belongs to no engine.
        let _ = Document::parse(&json!({}));
        let before = ALLOCATOR.allocated();
        let log = Options { segment_bytes: 4 << 20, reserve_bytes: 64 << 10, tail_bytes: 64 << 10 };
        let config = Config { memory_bytes: MEMORY, log, ..Config::default() };
        let now = Millis(1_700_000_000_000);
        let engine = Engine::open(disk, config, now, [7; 16]).expect("opens").0;
        House { engine, now, before, accepted: 0, sent: 0, most: 0, _folder: folder }
    }

    fn put(&mut self, name: &str, spec: serde_json::Value) {
        let mut document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
            "spec": {"target": {"url": format!("http://{name}.test/")}, "filters": [{"exact": {"type": name}}]},
        });
        for (field, value) in spec.as_object().expect("an object") {
            document["spec"][field] = value.clone();
        }
        let document = Document::parse(&document).expect("a valid document");
        self.engine.put_subscription(document, false).expect("put");
        self.round(|_| None);
    }

    /// Sends events of one type, each with its own key, in batches. Each call ends with `answer`.
    fn send(&mut self, kind: &str, events: u64, answer: impl Fn(&Delivery) -> Option<CallOutcome>) {
        for batch in (0..events).collect::<Vec<_>>().chunks(250) {
            let batch = batch.iter().map(|_| Ok(self.event(kind))).collect();
            self.engine.accept(Token(1), &Sender::default(), batch);
            self.round(&answer);
        }
    }

    fn event(&mut self, kind: &str) -> Event {
        self.sent += 1;
        let n = self.sent;
        let attribute =
            |name: &str, value: String| Attribute { name: name.into(), value: Value::String(value) };
        let key = format!("{kind}-{n:0>60}");
        // The first event of a lane then waits for lower sequences.
        let attributes = vec![attribute("partitionkey", key), attribute("sequence", "7".into())];
        let id = format!("an id of usual length, {n:0>30}");
        Event { id, source: "/a/source/of/some/length".into(), kind: kind.into(), attributes, data: None }
    }

    /// Lets time pass, and syncs, stores and answers everything.
    fn round(&mut self, answer: impl Fn(&Delivery) -> Option<CallOutcome>) {
        self.now = self.now + 1100;
        for _ in 0..4 {
            self.engine.tick(self.now);
            self.engine.flush();
            for delivery in self.engine.take_deliveries() {
                if let Some(outcome) = answer(&delivery) {
                    self.engine.outcome(delivery.ticket, outcome);
                }
            }
            self.engine.run_jobs();
            for answer in self.engine.take_completions() {
                let Completion::Events(_, judged) = answer else { continue };
                let taken = judged.iter().filter(|one| matches!(one.status, Status::Accepted { .. }));
                self.accepted += taken.count() as u64;
            }
        }
        assert_eq!(self.engine.failure(), None);
        self.judge();
    }

    fn in_use(&self) -> usize {
        ALLOCATOR.allocated().saturating_sub(self.before)
    }

    fn judge(&mut self) {
        let (real, says) = (self.in_use(), self.engine.view_status().memory.used_bytes);
        self.most = self.most.max(real);
        assert!(real <= says * 11 / 10 + SLACK, "{real} bytes are in use, and the account says {says}");
        assert!(says <= real * 11 / 10 + SLACK, "{real} bytes are in use, and the account says {says}");
        assert!(
            real <= MEMORY + MEMORY / 16,
            "{real} bytes are in use, {MEMORY} are configured; the account says {says}"
        );
    }

    fn says(&mut self, what: &str) {
        let (real, says) = (self.in_use(), self.engine.view_status().memory.used_bytes);
        println!("{what}: {real} bytes in use, {} at most; reported {says}", self.most);
    }
}

fn failed(code: u16) -> impl Fn(&Delivery) -> Option<CallOutcome> {
    let detail =
        "an error that says at some length what went wrong, and where, and what could be done ".repeat(5);
    move |_| Some(CallOutcome::Status { code, retry_after_ms: None, detail: detail.clone() })
}

/// One test, because memory is counted for the whole process.
#[test]
fn memory_use_is_counted_and_bounded() {
    let mut house = House::new();
    let slow = json!({"attempts": "unlimited", "backoff": "1h", "maxBackoff": "1h"});
    house.put("retried", json!({"ordering": "ordered", "concurrency": 1000, "retry": slow}));
    house.put("alone", json!({"concurrency": 1000, "retry": slow}));
    house.put("parked", json!({"ordering": "ordered", "concurrency": 1000}));
    house.put("dead", json!({"concurrency": 1000, "deadLetters": {"maxEvents": 100_000}}));
    let policy = json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": "1h"}});
    house.put("early", json!({"ordering": "ordered", "orderingPolicy": policy}));
    let backlog = json!({"maxEvents": 2000, "onFull": "drop"});
    house.put("dropping", json!({"ordering": "ordered", "paused": true, "backlog": backlog}));
    let backlog = json!({"maxEvents": 500, "onFull": "lag"});
    house.put("behind", json!({"ordering": "ordered", "paused": true, "backlog": backlog}));
    house.says("empty");
    for (kind, events, code) in [
        ("retried", 5000, 500),
        ("alone", 5000, 500),
        ("parked", 3000, 400),
        ("dead", 3000, 400),
        ("early", 3000, 200),
        ("dropping", 4000, 200),
        ("behind", 4000, 200),
    ] {
        house.send(kind, events, failed(code));
        house.says(kind);
    }
    assert_eq!(house.accepted, house.sent);
    let request = |subscription: &str| Request {
        selector: Selector { subscription: Some(subscription.into()), ..Selector::default() },
        rate_per_second: 1,
        parallelism: 1,
    };
    for name in ["parked", "dead"] {
        house.engine.create_replay(request(name)).expect("created");
        (0..20).for_each(|_| house.round(failed(500)));
        house.says("replay");
    }
}
