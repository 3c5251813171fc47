//! An engine under load, with a record of what its producers and its target know.

use crate::mirror::Mirror;
use bytes::Bytes;
use klambda_core::event::{Attribute, Data, Event, Form, Value};
use klambda_core::event_codec::EventView;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::LaneAction;
use klambda_dispatch::views::Letters;
use klambda_dispatch::{Completion, Config, Delivery, Engine, Failure, Sender, Status, Token};
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::log::{self, SyncJob};
use klambda_store::recovery::Report;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Splitmix64.
#[derive(Clone)]
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

    pub fn split(&mut self) -> Rng {
        Rng(self.next())
    }
}

pub const KEYS: usize = 24;
/// The fifth event of this key fails permanently, so the lane parks.
const SICK: usize = 0;
const SICK_FROM: u64 = 5;

/// An event: its key, and its number within the key, starting at 1.
pub type Name = (usize, u64);

/// The event of this name; always the same.
pub fn event((key, number): Name) -> Event {
    let mut rng = Rng((key as u64) << 32 | number);
    let length = match rng.below(12) {
        0 => 2000 + rng.below(6000),
        _ => rng.below(400),
    };
    let bytes: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
    let attribute = |name: &str, value: String| Attribute { name: name.into(), value: Value::String(value) };
    Event {
        id: format!("{key}-{number}"),
        source: "/damage".into(),
        kind: if number.is_multiple_of(3) { "note" } else { "order" }.into(),
        attributes: vec![attribute("partitionkey", format!("k{key}"))],
        data: Some(Data { bytes: Bytes::from(bytes), form: Form::Binary }),
    }
}

pub fn is_note((_, number): Name) -> bool {
    number.is_multiple_of(3)
}

/// What the outside knows. Counts suffice: the events of a key are accepted and seen in order of their numbers.
#[derive(Clone, Debug)]
pub struct Told {
    pub answered: [u64; KEYS],
    pub seen: [u64; KEYS],
    /// Acknowledgements that not even a power cut may lose.
    pub settled: [u64; KEYS],
    pub notes_seen: BTreeSet<Name>,
    pub notes_settled: BTreeSet<Name>,
}

impl Default for Told {
    fn default() -> Told {
        let none = [0; KEYS];
        let (notes_seen, notes_settled) = Default::default();
        Told { answered: none, seen: none, settled: none, notes_seen, notes_settled }
    }
}

pub struct Load {
    mirror: Arc<Mirror>,
    /// Each with what was known when it was taken.
    pub pictures: Vec<(MemoryDisk, Told)>,
    pub engine: Engine,
    pub now: Millis,
    pub told: Told,
    /// As of the last finished sync, and of the one before. The difference is the last commit group.
    pub synced: Told,
    pub synced_before: Told,
    sent: [u64; KEYS],
    pending: BTreeMap<u64, Name>,
    next_token: u64,
    open: Vec<Delivery>,
    /// Acknowledged but not synced, and those that the running sync covers.
    acknowledged: Vec<(bool, Name)>,
    covered: Vec<(bool, Name)>,
    syncing: Option<SyncJob>,
}

pub fn config() -> Config {
    let log = log::Options { segment_bytes: 64 << 10, reserve_bytes: 4 << 10, tail_bytes: 8 << 10 };
    Config { memory_bytes: 1 << 20, log, retention_bytes: 6 * (64 << 10), ..Config::default() }
}

pub fn open(disk: Arc<dyn Disk>, now: Millis) -> Result<(Engine, Report), Failure> {
    Engine::open(disk, config(), now, [7; 16])
}

/// The name of a delivered event, whether it went to the unordered subscription, and whether all bytes are right.
pub fn read(delivery: &Delivery) -> (Name, bool, bool) {
    let bytes = &delivery.record[delivery.event.clone()];
    let view = EventView::decode(bytes).expect("an event");
    let (key, number) = view.id().split_once('-').expect("an id of ours");
    let name = (key.parse().expect("a key"), number.parse().expect("a number"));
    let mut wanted = Vec::new();
    event(name).encode(&mut wanted);
    (name, delivery.place.is_none(), bytes == wanted)
}

pub fn answer(code: u16) -> CallOutcome {
    CallOutcome::Status { code, retry_after_ms: None, detail: String::new() }
}

impl Load {
    pub fn start(mirror: Arc<Mirror>) -> Load {
        let now = Millis(1_700_000_000_000);
        let engine = open(mirror.clone(), now).expect("a new folder").0;
        let mut load = Load {
            mirror,
            pictures: Vec::new(),
            engine,
            now,
            told: Told::default(),
            synced: Told::default(),
            synced_before: Told::default(),
            sent: [0; KEYS],
            pending: BTreeMap::new(),
            next_token: 1,
            open: Vec::new(),
            acknowledged: Vec::new(),
            covered: Vec::new(),
            syncing: None,
        };
        load.subscribe("lanes", json!({"ordering": "ordered"}));
        load.subscribe("notes", json!({"filters": [{"exact": {"type": "note"}}]}));
        load
    }

    fn subscribe(&mut self, name: &str, mut spec: serde_json::Value) {
        spec["target"] = json!({"url": "http://127.0.0.1:9000/"});
        spec["retry"] = json!({"attempts": "unlimited", "backoff": "10ms", "maxBackoff": "50ms"});
        let document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription",
            "metadata": {"name": name}, "spec": spec,
        });
        self.engine.put_subscription(Document::parse(&document).expect("a document"), false).expect("put");
        self.engine.flush();
        self.finish_sync();
    }

    /// Some events arrive, some calls end, some jobs run.
    pub fn round(&mut self, rng: &mut Rng) {
        self.now = self.now + rng.below(30);
        self.engine.tick(self.now);
        for _ in 0..rng.below(6) {
            self.send(rng);
        }
        let mut n = 0;
        while n < self.open.len() {
            if rng.below(3) == 0 {
                n += 1;
                continue;
            }
            let delivery = self.open.swap_remove(n);
            self.end(&delivery, rng);
        }
        self.engine.flush();
        self.collect();
        if rng.below(40) == 0 {
            self.engine.request_checkpoint();
        }
        self.run_jobs(rng);
    }

    fn send(&mut self, rng: &mut Rng) {
        if !self.engine.is_accepting() {
            return;
        }
        let key = rng.below(KEYS as u64) as usize;
        self.sent[key] += 1;
        let name = (key, self.sent[key]);
        self.pending.insert(self.next_token, name);
        self.engine.accept(Token(self.next_token), &Sender::default(), vec![Ok(event(name))]);
        self.next_token += 1;
    }

    /// Takes the new pictures before anything else becomes known.
    fn look(&mut self) {
        self.pictures.extend(self.mirror.pictures().into_iter().map(|picture| (picture, self.told.clone())));
    }

    fn end(&mut self, delivery: &Delivery, rng: &mut Rng) {
        self.look();
        let (name, is_alone, is_right) = read(delivery);
        assert!(is_right, "{name:?}");
        let code = match rng.below(10) {
            _ if !is_alone && name == (SICK, SICK_FROM) => 422,
            0 => 500,
            _ => 200,
        };
        if code == 200 {
            match is_alone {
                true => drop(self.told.notes_seen.insert(name)),
                false => self.told.seen[name.0] = name.1,
            }
            self.acknowledged.push((is_alone, name));
        }
        self.engine.outcome(delivery.ticket, answer(code));
    }

    fn collect(&mut self) {
        self.look();
        for answer in self.engine.take_completions() {
            if let Completion::Events(Token(token), judged) = answer {
                let (key, number) = self.pending.remove(&token).expect("a request");
                assert!(matches!(judged[0].status, Status::Accepted { .. }), "{judged:?}");
                assert_eq!(std::mem::replace(&mut self.told.answered[key], number) + 1, number);
            }
        }
        self.open.extend(self.engine.take_deliveries());
        assert_eq!(self.engine.failure(), None);
    }

    /// A sync takes a while, and frames are written meanwhile.
    fn run_jobs(&mut self, rng: &mut Rng) {
        if rng.below(3) == 0 {
            self.finish_sync();
        }
        if self.syncing.is_none() {
            self.syncing = self.engine.sync_job();
            if self.syncing.is_some() {
                self.covered.append(&mut self.acknowledged);
            }
        }
        self.engine.run_prepare();
        if rng.below(4) == 0
            && let Some(chore) = self.engine.chore()
        {
            let result = chore.run();
            self.engine.chore_done(result);
        }
    }

    fn finish_sync(&mut self) {
        let Some(job) = self.syncing.take().or_else(|| self.engine.sync_job()) else { return };
        let result = job.run();
        self.look();
        self.engine.sync_done(job.up_to, result);
        for (is_alone, name) in self.covered.drain(..) {
            match is_alone {
                true => drop(self.told.notes_settled.insert(name)),
                false => self.told.settled[name.0] = name.1,
            }
        }
        self.collect();
        self.synced_before = std::mem::replace(&mut self.synced, self.told.clone());
    }

    /// A clean stop: open calls are abandoned and a checkpoint is made.
    pub fn stop(&mut self, rng: &mut Rng) {
        self.engine.stop();
        for delivery in std::mem::take(&mut self.open) {
            self.engine.abandon(delivery.ticket);
        }
        while self.engine.is_checkpointing() || !self.engine.is_idle() {
            self.now = self.now + 10;
            self.engine.tick(self.now);
            self.engine.flush();
            self.collect();
            self.run_jobs(rng);
        }
    }
}

/// What an opened folder still delivers, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Drained {
    pub lanes: Vec<Vec<u64>>,
    pub notes: Vec<Name>,
    /// Delivered with wrong bytes.
    pub wrong: Vec<Name>,
    pub failure: Option<String>,
    /// Failed heads with their errors, and the number of pending events.
    pub parked: Vec<String>,
    pub waiting: u64,
    /// Why the parked lane could not be resumed the last time.
    pub refused: Option<String>,
}

/// Delivers everything to a target that accepts all events.
pub fn drain(mut engine: Engine, mut now: Millis) -> Drained {
    const ROUNDS_MAX: usize = 20_000;
    const STILL_MAX: usize = 5;
    const RESUMED_MAX: usize = 10;
    let (mut still, mut resumed) = (0, 0);
    let mut drained = Drained { lanes: vec![Vec::new(); KEYS], ..Drained::default() };
    for _ in 0..ROUNDS_MAX {
        now = now + 20;
        engine.tick(now);
        engine.flush();
        let deliveries = engine.take_deliveries();
        drop(engine.take_completions());
        let is_quiet = deliveries.is_empty() && engine.is_idle() && engine.waiting() == 0;
        let is_stuck = deliveries.is_empty() && engine.is_idle() && engine.waiting() > 0;
        still = if is_stuck { still + 1 } else { 0 };
        if still == 1 && resumed < RESUMED_MAX {
            // In some folders the lane is not parked, and there is nothing to do. The number of attempts is limited
            // because an unreadable event parks the lane again.
            resumed += 1;
            let refused = engine.act_on_lane("lanes", &format!("k{SICK}"), LaneAction::Resume).err();
            drained.refused = refused.map(|why| why.to_string());
        }
        for delivery in deliveries {
            drained.note(&delivery);
            engine.outcome(delivery.ticket, answer(200));
        }
        engine.run_jobs();
        drained.failure = engine.failure().map(str::to_owned);
        if is_quiet || drained.failure.is_some() || still > STILL_MAX {
            drained.parked = dead_letters(&engine);
            drained.waiting = engine.waiting();
            return drained;
        }
    }
    panic!("the folder does not drain: {} pending", engine.waiting());
}

fn dead_letters(engine: &Engine) -> Vec<String> {
    let mut letters = Letters::new(Selector::default(), None, 1000);
    // Dead letters that cannot be listed show up as pending events.
    while engine.list_dead_letters(&mut letters).unwrap_or(false) {}
    letters.items.into_iter().map(|letter| format!("{}: {}", letter.id, letter.last_error)).collect()
}

impl Drained {
    fn note(&mut self, delivery: &Delivery) {
        let (name, is_alone, is_right) = read(delivery);
        if !is_right {
            self.wrong.push(name);
        }
        match is_alone {
            true => self.notes.push(name),
            false => self.lanes[name.0].push(name.1),
        }
    }
}
