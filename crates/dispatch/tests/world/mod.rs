//! A world with one engine and a simulated disk, clock and target.
#![allow(dead_code)]

use klambda_core::event::{self, Attribute, Event};
use klambda_core::event_codec::EventView;
use klambda_core::ids::SubscriptionId;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_dispatch::check::{self, Report};
use klambda_dispatch::{Completion, Config, Delivery, Engine, Rejection, Sender, Status, Token};
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::log;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub struct World {
    pub disk: MemoryDisk,
    pub engine: Engine,
    pub now: Millis,
    config: Config,
    open: Vec<Delivery>,
    next_token: u64,
    next_event: u64,
    /// Events without an answer: token, key, event id.
    pending: BTreeMap<u64, (String, String, Option<u64>)>,
    /// Accepted ids of each key, in order of acceptance.
    pub accepted: BTreeMap<String, Vec<String>>,
    /// What the target received and acknowledged, in order: id, sequence.
    pub seen: BTreeMap<String, Vec<(String, Option<u64>)>>,
}

pub fn ok() -> CallOutcome {
    error(200)
}

pub fn error(code: u16) -> CallOutcome {
    CallOutcome::Status { code, retry_after_ms: None, detail: String::new() }
}

/// An ordered subscription with a single attempt, extended by `spec`.
pub fn ordered(name: &str, spec: &Value) -> Value {
    let mut document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
        "spec": {"target": {"url": "http://127.0.0.1:9000/"}, "ordering": "ordered", "retry": {"attempts": 1}},
    });
    for (member, value) in spec.as_object().expect("an object") {
        document["spec"][member] = value.clone();
    }
    document
}

pub fn config() -> Config {
    Config {
        memory_bytes: 1 << 20,
        log: log::Options { segment_bytes: 128 << 10, reserve_bytes: 4 << 10, tail_bytes: 16 << 10 },
        ..Config::default()
    }
}

fn open(disk: &MemoryDisk, config: Config, now: Millis, seed: u64) -> Engine {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    Engine::open(Arc::new(disk.clone()), config, now, key).expect("recovers").0
}

impl World {
    pub fn new(seed: u64) -> World {
        World::with(seed, config())
    }

    pub fn with(seed: u64, config: Config) -> World {
        let disk = MemoryDisk::new();
        let now = Millis(1_700_000_000_000);
        let engine = open(&disk, config.clone(), now, seed);
        World {
            disk,
            engine,
            now,
            config,
            open: Vec::new(),
            next_token: 1,
            next_event: 1,
            pending: BTreeMap::new(),
            accepted: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    pub fn put(&mut self, document: serde_json::Value) {
        let document = Document::parse(&document).expect("a valid document");
        self.engine.put_subscription(document, false).expect("put");
        self.engine.when_durable(Token(0));
        self.settle();
    }

    /// An independent reader finds no problem in the folder.
    pub fn must_be_sound(&self) -> Report {
        let report = check::check(Arc::new(self.disk.clone_image()), &mut |_| {}).expect("a data folder");
        assert!(report.is_ok(), "{:#?}", report.problems);
        report
    }

    pub fn id(&self, name: &str) -> SubscriptionId {
        self.engine.subscription_id(name).expect("a known subscription")
    }

    pub fn send(&mut self, key: &str, sequence: Option<u64>) {
        let id = format!("e{}", self.next_event);
        self.next_event += 1;
        self.send_as(key, sequence, &id);
    }

    pub fn send_as(&mut self, key: &str, sequence: Option<u64>, id: &str) {
        let attribute =
            |name: &str, value: String| Attribute { name: name.into(), value: event::Value::String(value) };
        let mut attributes = vec![attribute("partitionkey", key.into())];
        attributes.extend(sequence.map(|n| attribute("sequence", n.to_string())));
        let event = Event {
            id: id.into(),
            source: "/test".into(),
            kind: "order.placed".into(),
            attributes,
            data: None,
        };
        while !self.engine.is_accepting() {
            self.engine.flush();
            self.collect();
            self.jobs(|| true);
        }
        let token = self.next_token;
        self.next_token += 1;
        self.pending.insert(token, (key.into(), id.into(), sequence));
        self.engine.accept(Token(token), &Sender::default(), vec![Ok(event)]);
    }

    /// One round: the engine's jobs may run, and open calls may end.
    pub fn step(&mut self, rng: &mut Rng, mut target: impl FnMut(&mut Rng, &str) -> CallOutcome) {
        self.now = self.now + rng.below(30);
        self.engine.tick(self.now);
        let mut n = 0;
        while n < self.open.len() {
            if rng.below(3) == 0 {
                n += 1;
                continue;
            }
            let delivery = self.open.swap_remove(n);
            self.answer(delivery, |key| target(rng, key));
        }
        self.engine.flush();
        self.collect();
        self.jobs(|| rng.below(3) > 0);
    }

    /// Like `step`, with a target that gets the whole delivery.
    pub fn step_with(&mut self, rng: &mut Rng, mut target: impl FnMut(&mut Rng, &Delivery) -> CallOutcome) {
        self.now = self.now + rng.below(30);
        self.engine.tick(self.now);
        for delivery in std::mem::take(&mut self.open) {
            if rng.below(3) == 0 {
                self.open.push(delivery);
                continue;
            }
            let outcome = target(rng, &delivery);
            self.engine.outcome(delivery.ticket, outcome);
        }
        self.engine.flush();
        self.collect();
        self.jobs(|| rng.below(3) > 0);
    }

    /// The open calls, for the caller to answer.
    pub fn take_open(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.open)
    }

    /// Lets time pass, and syncs and answers everything.
    pub fn pass(&mut self, ms: u64) {
        self.now = self.now + ms;
        self.engine.tick(self.now);
        self.settle();
    }

    /// Kills and restarts the process. `choose` decides which unsynced data survives.
    pub fn restart(&mut self, choose: &mut dyn FnMut(u64) -> u64) {
        self.open.clear();
        self.pending.clear();
        self.disk.crash(choose);
        self.engine = open(&self.disk, self.config.clone(), self.now, 1);
    }

    fn answer(&mut self, delivery: Delivery, target: impl FnOnce(&str) -> CallOutcome) {
        let view = EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event");
        let key = view.attribute("partitionkey").unwrap_or_default().into_owned();
        let outcome = target(&key);
        if matches!(outcome, CallOutcome::Status { code: 200, .. }) {
            let sequence = view.attribute("sequence").and_then(|text| text.parse().ok());
            self.seen.entry(key).or_default().push((view.id().to_owned(), sequence));
        }
        self.engine.outcome(delivery.ticket, outcome);
    }

    fn collect(&mut self) {
        for answer in self.engine.take_completions() {
            if let Completion::Events(Token(token), judged) = answer
                && let Some((key, id, _)) = self.pending.remove(&token)
            {
                match &judged[0].status {
                    Status::Accepted { .. } => self.accepted.entry(key).or_default().push(id),
                    Status::Skipped { .. } | Status::Rejected(Rejection::Backlog { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        self.open.extend(self.engine.take_deliveries());
        assert_eq!(self.engine.failure(), None);
    }

    fn jobs(&mut self, mut run: impl FnMut() -> bool) {
        if run() {
            self.engine.run_sync();
        }
        if run() {
            self.engine.run_prepare();
        }
        if run() {
            self.engine.run_chore();
        }
    }

    /// Syncs and answers everything.
    pub fn settle(&mut self) {
        for _ in 0..4 {
            self.engine.flush();
            self.collect();
            self.jobs(|| true);
        }
        self.collect();
    }

    /// Kills the process. The disk keeps synced data and any part of the rest.
    pub fn crash(&mut self, rng: &mut Rng) {
        let lost = std::mem::take(&mut self.pending);
        self.open.clear();
        self.disk.crash(&mut |n| if n == 0 { 0 } else { rng.below(n) });
        self.engine = open(&self.disk, self.config.clone(), self.now, rng.next());
        // Producers send unanswered events again.
        for (key, id, sequence) in lost.into_values() {
            self.send_as(&key, sequence, &id);
        }
    }

    /// The faults stop, and everything must complete within a bound.
    pub fn drain(&mut self) {
        for _ in 0..20_000 {
            self.now = self.now + 20;
            self.engine.tick(self.now);
            for delivery in std::mem::take(&mut self.open) {
                self.answer(delivery, |_| ok());
            }
            self.engine.flush();
            self.collect();
            self.jobs(|| true);
            let quiet = self.pending.is_empty() && self.open.is_empty() && self.engine.is_idle();
            if quiet && self.engine.waiting() == 0 && !self.engine.is_catching_up() {
                return;
            }
        }
        panic!("did not drain: {} waiting, {} open", self.engine.waiting(), self.open.len());
    }

    pub fn delivered(&self, key: &str) -> Vec<String> {
        self.seen.get(key).map(|seen| seen.iter().map(|(id, _)| id.clone()).collect()).unwrap_or_default()
    }

    /// The first deliveries of a key are its accepted events, all of them, in order of acceptance.
    pub fn check_order(&self, seed: u64) {
        for (key, accepted) in &self.accepted {
            let mut known = BTreeSet::new();
            let first: Vec<String> =
                self.delivered(key).into_iter().filter(|id| known.insert(id.clone())).collect();
            let wanted: Vec<String> = first.iter().filter(|id| accepted.contains(id)).cloned().collect();
            let mut sorted = wanted.clone();
            sorted.sort_by_key(|id| id[1..].parse::<u64>().expect("ids are numbered"));
            assert_eq!(wanted, sorted, "seed {seed} key {key}: out of order");
            for id in accepted {
                assert!(known.contains(id), "seed {seed} key {key}: {id} lost");
            }
        }
    }

    pub fn check_all_seen(&self, seed: u64) {
        for (key, accepted) in &self.accepted {
            let seen = self.delivered(key);
            let lost: Vec<&String> = accepted.iter().filter(|id| !seen.contains(id)).collect();
            assert!(lost.is_empty(), "seed {seed} key {key}: {lost:?} lost");
        }
    }

    pub fn check_sequences(&self, seed: u64, keys: u64, each: u64) {
        for key in 0..keys {
            let key = format!("k{key}");
            let mut known = BTreeSet::new();
            let all = self.seen[&key].iter().filter_map(|(_, sequence)| *sequence);
            let sequences: Vec<u64> = all.filter(|sequence| known.insert(*sequence)).collect();
            assert_eq!(sequences, (1..=each).collect::<Vec<_>>(), "seed {seed} key {key}");
        }
    }
}
