//! Memory: the engine's report of its memory use is accurate. The check fills an engine with one kind of content,
//! drops the engine, and compares the memory that the allocator gets back with the report.
//!
//! Memory limits are enforced on the reported use, so they work only if the report is accurate.

use super::{Verdict, Violation};
use crate::rng::Rng;
use crate::world::START;
use klambda_core::event::{Attribute, Event, Value};
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_dispatch::{Config, Engine, Sender, Token};
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::log;
use serde_json::{Value as Json, json};
use std::sync::Arc;

const NAME: &str = "memory";

/// The content of an engine.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// Lanes with one pending event.
    Waiting,
    /// Idle lanes.
    Idle,
    /// Lanes that wait for a retry.
    Retrying,
    /// One lane with many events.
    Deep,
    /// Lanes with early events.
    Early,
    /// Lanes with gaps that they gave up.
    Gaps,
    Unordered,
    /// Events of a subscription that lags.
    Unread,
}

const CONTENTS: [Content; 8] = [
    Content::Waiting,
    Content::Idle,
    Content::Retrying,
    Content::Deep,
    Content::Early,
    Content::Gaps,
    Content::Unordered,
    Content::Unread,
];

/// Fills an engine and compares its reported with its real memory use.
pub fn account_holds(seed: u64) -> Verdict {
    let mut rng = Rng::new(seed);
    let count = rng.between(1000, 3000);
    let (key_len, id_len) = (rng.between(4, 900) as usize, rng.between(4, 300) as usize);
    let filling = Filling::new(*rng.pick(&CONTENTS), count, key_len, id_len);
    let what = format!("{count} {:?} with keys of {key_len} and ids of {id_len} bytes", filling.kind);
    let Filling { engine, disk, .. } = filling.filled();
    let said = engine.view_status().memory.used_bytes as i64;
    let real = -allocation_counter::measure(|| drop(engine)).bytes_current;
    drop(disk);
    // Buffers, metrics and other memory of constant size are not counted.
    const FIXED: i64 = 160 << 10;
    if real <= said * 11 / 10 + FIXED && said <= real * 11 / 10 {
        return Ok(());
    }
    Err(Violation::new(NAME, format!("{what} use {real} bytes, but the engine reports {said}")))
}

struct Filling {
    kind: Content,
    engine: Engine,
    /// Kept separately, because the memory of the simulated disk does not count.
    disk: MemoryDisk,
    now: Millis,
    count: u64,
    key_len: usize,
    id_len: usize,
}

impl Filling {
    fn new(kind: Content, count: u64, key_len: usize, id_len: usize) -> Filling {
        let (disk, now) = (MemoryDisk::new(), Millis(START));
        let log = log::Options { segment_bytes: 1 << 20, reserve_bytes: 8 << 10, tail_bytes: 16 << 10 };
        let config = Config { log, ..Config::default() };
        let opened = Engine::open(Arc::new(disk.clone()), config, now, [0; 16]);
        let mut engine = opened.expect("a new folder opens").0;
        engine.put_subscription(document(kind), false).expect("a valid document is accepted");
        Filling { kind, engine, disk, now, count, key_len, id_len }
    }

    /// Adds all events, then finishes all work and writes the changes to tables.
    fn filled(mut self) -> Filling {
        const LANES: u64 = 20;
        const ROUNDS: u64 = 40;
        for n in 0..self.count {
            let (key, sequence) = match self.kind {
                Content::Waiting | Content::Idle | Content::Retrying => (n, 1),
                Content::Deep | Content::Unordered | Content::Unread => (0, 1),
                // Leaves out every other sequence.
                Content::Early | Content::Gaps => (n % LANES, n / LANES * 2 + 1),
            };
            let event = self.event(n, key, sequence);
            self.engine.accept(Token(n), &Sender::default(), vec![Ok(event)]);
            if n % LANES == 0 {
                self.round();
            }
        }
        (0..ROUNDS / 2).for_each(|_| self.round());
        self.engine.request_checkpoint();
        (0..ROUNDS / 2).for_each(|_| self.round());
        self
    }

    fn event(&self, n: u64, key: u64, sequence: u64) -> Event {
        let text = |name: &str, value: String| Attribute { name: name.into(), value: Value::String(value) };
        Event {
            id: format!("{n:0>width$}", width = self.id_len),
            source: "/shop".into(),
            kind: "order.placed".into(),
            attributes: vec![
                text("partitionkey", format!("{key:0>width$}", width = self.key_len)),
                text("sequence", sequence.to_string()),
            ],
            data: None,
        }
    }

    fn round(&mut self) {
        self.now = self.now + 10;
        self.engine.tick(self.now);
        self.engine.flush();
        self.engine.run_jobs();
        self.engine.take_completions();
        for delivery in self.engine.take_deliveries() {
            let (code, detail) = match self.kind {
                Content::Retrying => (500, "e".repeat(self.id_len)),
                _ => (200, String::new()),
            };
            self.engine.outcome(delivery.ticket, CallOutcome::Status { code, retry_after_ms: None, detail });
        }
    }
}

fn document(kind: Content) -> Document {
    let mut spec = json!({
        "target": {"url": "http://10.0.0.1/"}, "ordering": "ordered",
        "retry": {"attempts": "unlimited", "backoff": "1h", "maxBackoff": "1h"},
    });
    let gaps = |timeout: &str, action: &str| json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": timeout, "action": action}});
    match kind {
        Content::Waiting | Content::Deep => spec["paused"] = Json::Bool(true),
        Content::Idle | Content::Retrying => {}
        Content::Early => spec["orderingPolicy"] = gaps("1h", "park"),
        Content::Gaps => spec["orderingPolicy"] = gaps("1ms", "skip"),
        Content::Unordered => {
            spec["ordering"] = json!("unordered");
            spec["paused"] = Json::Bool(true);
        }
        Content::Unread => {
            spec["paused"] = Json::Bool(true);
            spec["backlog"] = json!({"maxEvents": 10});
        }
    }
    let document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "s"}, "spec": spec,
    });
    Document::parse(&document).expect("the simulation writes valid documents")
}
