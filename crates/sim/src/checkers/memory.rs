//! Memory: what the engine says that it holds is about what it holds. An engine is filled with one kind of thing; what the
//! allocator gets back when that engine is dropped is held against what it said of itself.
//!
//! Limits on memory are limits on what is said: they mean something only as long as this holds.

use super::{Verdict, Violation};
use crate::rng::Rng;
use crate::world::START;
use klambda_core::event::{Attribute, Event, Value};
use klambda_core::outcome::Outcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_dispatch::{Config, Engine, Sender, Token};
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::log;
use serde_json::{Value as Json, json};
use std::sync::Arc;

const NAME: &str = "memory";

/// What an engine is filled with.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Lanes with one event that waits.
    Waiting,
    /// Lanes with nothing to do.
    Idle,
    /// Lanes that try again later.
    Retrying,
    /// One lane with many events.
    Deep,
    /// Lanes with events that came early.
    Early,
    /// Lanes with gaps that were given up.
    Gaps,
    Unordered,
    /// Events of a subscription that is behind.
    Unread,
}

const KINDS: [Kind; 8] = [
    Kind::Waiting,
    Kind::Idle,
    Kind::Retrying,
    Kind::Deep,
    Kind::Early,
    Kind::Gaps,
    Kind::Unordered,
    Kind::Unread,
];

/// Fills an engine and looks what that took.
pub fn account_holds(seed: u64) -> Verdict {
    let mut rng = Rng::new(seed);
    let count = rng.between(1000, 3000);
    let (key_len, id_len) = (rng.between(4, 900) as usize, rng.between(4, 300) as usize);
    let filling = Filling::new(*rng.pick(&KINDS), count, key_len, id_len);
    let what = format!("{count} {:?} with keys of {key_len} and ids of {id_len} bytes", filling.kind);
    let Filling { engine, disk, .. } = filling.filled();
    let said = engine.view_status().memory.used_bytes as i64;
    let real = -allocation_counter::measure(|| drop(engine)).bytes_current;
    drop(disk);
    // Buffers, metrics and what else does not grow are not counted.
    const FIXED: i64 = 160 << 10;
    if real <= said * 11 / 10 + FIXED && said <= real * 11 / 10 {
        return Ok(());
    }
    Err(Violation::new(NAME, format!("{what} take {real} bytes, and the engine says {said}")))
}

struct Filling {
    kind: Kind,
    engine: Engine,
    /// What is on disk is not in memory, whatever this disk is made of.
    disk: MemoryDisk,
    now: Millis,
    count: u64,
    key_len: usize,
    id_len: usize,
}

impl Filling {
    fn new(kind: Kind, count: u64, key_len: usize, id_len: usize) -> Filling {
        let (disk, now) = (MemoryDisk::new(), Millis(START));
        let log = log::Options { segment_bytes: 1 << 20, reserve_bytes: 8 << 10, tail_bytes: 16 << 10 };
        let config = Config { log, ..Config::default() };
        let opened = Engine::open(Arc::new(disk.clone()), config, now, [0; 16]);
        let mut engine = opened.expect("a new folder opens").0;
        engine.put_subscription(document(kind), false).expect("a good document is taken");
        Filling { kind, engine, disk, now, count, key_len, id_len }
    }

    /// With everything in it, nothing under way, and what changed in tables.
    fn filled(mut self) -> Filling {
        const LANES: u64 = 20;
        const ROUNDS: u64 = 40;
        for n in 0..self.count {
            let (key, sequence) = match self.kind {
                Kind::Waiting | Kind::Idle | Kind::Retrying => (n, 1),
                Kind::Deep | Kind::Unordered | Kind::Unread => (0, 1),
                // Every other sequence is left out.
                Kind::Early | Kind::Gaps => (n % LANES, n / LANES * 2 + 1),
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
        self.engine.take_answers();
        for delivery in self.engine.take_deliveries() {
            let (code, detail) = match self.kind {
                Kind::Retrying => (500, "e".repeat(self.id_len)),
                _ => (200, String::new()),
            };
            self.engine.outcome(delivery.ticket, Outcome::Status { code, retry_after_ms: None, detail });
        }
    }
}

fn document(kind: Kind) -> Document {
    let mut spec = json!({
        "target": {"url": "http://10.0.0.1/"}, "ordering": "ordered",
        "retry": {"attempts": "unlimited", "backoff": "1h", "maxBackoff": "1h"},
    });
    let gaps = |timeout: &str, action: &str| json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": timeout, "action": action}});
    match kind {
        Kind::Waiting | Kind::Deep => spec["paused"] = Json::Bool(true),
        Kind::Idle | Kind::Retrying => {}
        Kind::Early => spec["orderingPolicy"] = gaps("1h", "park"),
        Kind::Gaps => spec["orderingPolicy"] = gaps("1ms", "skip"),
        Kind::Unordered => {
            spec["ordering"] = json!("unordered");
            spec["paused"] = Json::Bool(true);
        }
        Kind::Unread => {
            spec["paused"] = Json::Bool(true);
            spec["backlog"] = json!({"maxEvents": 10});
        }
    }
    let document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "s"}, "spec": spec,
    });
    Document::parse(&document).expect("the simulation writes good documents")
}
