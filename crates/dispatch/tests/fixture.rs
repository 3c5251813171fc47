//! Data folders of released formats: this version opens them as they were left.
//!
//! A released format never changes, and neither does its fixture. A new format gets its own fixture, written by
//! `write_fixture`:
//!
//! ```sh
//! cargo test -p klambda-dispatch --test fixture -- --ignored write_fixture
//! ```

use klambda_core::event::{Attribute, Data, Event, Form, Value};
use klambda_core::event_codec::EventView;
use klambda_core::namespace::Within;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::LaneAction;
use klambda_dispatch::views::{LaneQuery, Letters};
use klambda_dispatch::{Completion, Config, Delivery, Engine, Sender, Status, Token, check};
use klambda_store::log::Options;
use klambda_store::manifest::{self, Manifest};
use klambda_store::real_disk::RealDisk;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const START: Millis = Millis(1_700_000_000_000);
/// When the folder was left and is opened again.
const END: Millis = Millis(START.0 + 60_000);

// ---- contents -------------------------------------------------------------------------------------------------

/// Lanes of all kinds in tables, and a log after them that changes some and adds others.
fn live(house: &mut House) {
    house.put("parks", json!({"ordering": "ordered", "filters": [{"prefix": {"type": "order."}}]}));
    let policy = json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": "1h", "action": "park"}});
    let filters = json!([{"exact": {"type": "step"}}]);
    house.put("steps", json!({"ordering": "ordered", "orderingPolicy": policy, "filters": filters}));
    house.put(
        "heap",
        json!({"filters": [{"exact": {"type": "note"}}], "target": {"url": "http://heap.test/"}}),
    );

    // Whole segments of delivered events.
    for n in 1..=40 {
        house.send("order.placed", "well", &format!("well-{n}"), None);
        house.run();
    }
    for id in ["sick-422", "sick-2", "sick-3"] {
        house.send("order.placed", "sick", id, None);
    }
    for id in ["slow-1", "slow-500", "slow-3"] {
        house.send("order.placed", "slow", id, None);
    }
    for sequence in [1, 2, 4, 5] {
        house.send("step", "gap", &format!("gap-{sequence}"), Some(sequence));
    }
    house.send("step", "gap", "gap-invalid", None);
    for id in ["note-1", "note-422", "note-500", "note-open"] {
        house.send("note", "n", id, None);
    }
    house.send("order.placed", "held", "held-1", None);
    house.run();
    house.engine.act_on_lane("parks", "held", LaneAction::Pause).expect("paused");
    house.checkpoint();

    for n in 41..=43 {
        house.send("order.placed", "well", &format!("well-{n}"), None);
    }
    house.send("order.placed", "sick", "sick-4", None);
    house.send("order.placed", "ill", "ill-1", None);
    house.send("order.placed", "ill", "ill-422", None);
    house.send("order.placed", "held", "held-2", None);
    house.send("step", "gap", "gap-7", Some(7));
    house.send("note", "n", "note-5", None);
    house.send("unwanted", "u", "unwanted-1", None);
    house.run();
}

const SUBSCRIPTIONS: &str = "\
heap: active, 2 waiting, 1 dead letters, 2 delivered
parks: active, 8 waiting, 2 dead letters, 46 delivered
steps: active, 3 waiting, 1 dead letters, 2 delivered
";

const LANES: &str = "\
parks/held: paused, 1 waiting, numbers up to 2
parks/ill: parked, 1 waiting, numbers up to 2, at ill-422 after 1 attempts: HTTP 422
parks/sick: parked, 4 waiting, numbers up to 4, at sick-422 after 1 attempts: HTTP 422
parks/slow: retrying, 2 waiting, numbers up to 3, at slow-500 after 1 attempts: HTTP 500
parks/well: open, 0 waiting, numbers up to 43
steps/gap: gap, 3 waiting, numbers up to 2, expects 3, 3 buffered, misses 3 to 3
";

const DEAD_LETTERS: &str = "\
heap.53: note-422 of -, poison: HTTP 422
parks.41: sick-422 of sick, poison: HTTP 422, holds its lane at 1
parks.62: ill-422 of ill, poison: HTTP 422, holds its lane at 2
steps.51: gap-invalid of gap, validation: the event does not have the sequence that the subscription requires, or the sequence is not a number
";

#[test]
fn a_folder_is_opened_as_it_was_left() {
    let copy = copy_of_fixture();
    let report = check::check(Arc::new(disk(copy.path())), &mut |_| {}).expect("a data folder");
    assert!(report.is_ok(), "{:#?}", report.problems);
    let manifest = Manifest::load(&disk(copy.path())).expect("an intact manifest").expect("exists");
    assert!(manifest.checkpoint.0 > 0 && !manifest.rows.is_empty() && !manifest.marks.is_empty());

    let house = House::open(copy.path(), END);
    assert_eq!(subscriptions(&house.engine), SUBSCRIPTIONS);
    assert_eq!(lanes(&house.engine), LANES);
    assert_eq!(dead_letters(&house.engine), DEAD_LETTERS);
    let positions = house.engine.view_status().positions;
    assert_eq!((positions.first, positions.last), (Some(1), Some(66)));
}

#[test]
fn a_folder_knows_its_ids_and_continues() {
    let copy = copy_of_fixture();
    let mut house = House::open(copy.path(), END);
    let known = ["well-1", "well-43", "sick-422", "sick-4", "slow-3", "held-2"];
    for id in known {
        let key = id.split('-').next().expect("a key");
        house.send("order.placed", key, id, None);
    }
    house.send("step", "gap", "gap-7", Some(7));
    house.send("note", "n", "note-422", None);
    house.settle();
    let answers = std::mem::take(&mut house.answers);
    assert_eq!(answers, vec![Status::Skipped { reason: "duplicate" }; known.len() + 2]);

    house.is_well = true;
    for key in ["sick", "ill", "held"] {
        house.engine.act_on_lane("parks", key, LaneAction::Resume).expect("resumed");
    }
    house.send("step", "gap", "gap-3", Some(3));
    house.send("step", "gap", "gap-6", Some(6));
    house.send("order.placed", "well", "well-44", None);
    house.run();
    // Retries are due.
    house.now = house.now + 3_600_000;
    house.run();
    assert!(matches!(house.answers[..], [Status::Accepted { .. }, ..]), "{:?}", house.answers);
    let went = |key: &str| house.seen[key].join(" ");
    assert_eq!(went("sick"), "1:sick-422 2:sick-2<sick-422 3:sick-3<sick-2 4:sick-4<sick-3");
    assert_eq!(went("ill"), "2:ill-422<ill-1");
    assert_eq!(went("slow"), "2:slow-500<slow-1 3:slow-3<slow-500");
    assert_eq!(went("held"), "2:held-2<held-1");
    assert_eq!(went("gap"), "3:gap-3<gap-2 4:gap-4<gap-3 5:gap-5<gap-4 6:gap-6<gap-5 7:gap-7<gap-6");
    assert_eq!(went("well"), "44:well-44<well-43");
    assert_eq!(house.engine.waiting(), 0);
}

/// Marks of this format do not contain the positions of their events.
#[test]
fn a_folder_knows_what_waits_past_every_window() {
    let copy = copy_of_fixture();
    let mut house = House::open(copy.path(), END + 27 * 3_600_000);
    for _ in 0..3 {
        house.send("note", "n", "note-422", None);
        house.send("step", "gap", "gap-invalid", None);
        house.send("order.placed", "sick", "sick-422", None);
        house.send("order.placed", "sick", "sick-4", None);
        house.settle();
        let answers = std::mem::take(&mut house.answers);
        assert_eq!(answers, vec![Status::Skipped { reason: "duplicate" }; 4]);
        // The table of their marks is deleted.
        for _ in 0..20 {
            house.now = house.now + 1000;
            house.settle();
        }
    }
    house.send("order.placed", "well", "well-1", None);
    house.settle();
    assert!(matches!(house.answers[..], [Status::Accepted { .. }]), "{:?}", house.answers);
}

/// Regardless of what else the other version changed in the manifest.
#[test]
fn another_format_is_refused_and_left_alone() {
    let copy = copy_of_fixture();
    let mut newer = Manifest::load(&disk(copy.path())).expect("an intact manifest").expect("exists");
    newer.format += 1;
    for manifest in [newer.encode().expect("encoded"), b"8658788d\n{\"format\": 5}".to_vec()] {
        std::fs::write(copy.path().join(manifest::NAME), manifest).expect("written");
        let refused = refused(copy.path());
        assert_eq!(
            refused,
            "the data folder has format 5, but this version supports only format 4: use the version that wrote it"
        );
    }
    let older = copy_of(&fixture(2));
    assert_eq!(
        refused(older.path()),
        "the data folder has format 2, but this version supports only format 4: deliver all pending events with the \
         version that wrote it, then start this version with an empty folder"
    );
}

/// The reason why a folder is not opened. Nothing in it may change.
fn refused(folder: &Path) -> String {
    let before = contents(folder);
    let opened = Engine::open(Arc::new(disk(folder)), config(), END, [1; 16]);
    let refused = opened.err().expect("refused");
    assert_eq!(contents(folder), before);
    refused.to_string()
}

/// Writes the fixture of the current format.
#[test]
#[ignore = "writes files of the repository; for a new format only"]
fn write_fixture() {
    let folder = fixture(manifest::FORMAT);
    assert!(!folder.exists(), "{} exists, and a released format never changes", folder.display());
    let mut house = House::open(&folder, START);
    live(&mut house);
    assert!(house.now <= END);
    drop(house);
    // Not part of the fixture: the spare segment is created again, and the lock belongs to a process.
    for name in ["spare", "lock"] {
        let _ = std::fs::remove_file(folder.join(name));
    }
}

// ---- folders --------------------------------------------------------------------------------------------------

fn fixture(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/format-{format}"))
}

fn copy_of_fixture() -> TempDir {
    copy_of(&fixture(manifest::FORMAT))
}

fn copy_of(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for (name, bytes) in contents(folder) {
        std::fs::write(copy.path().join(name), bytes).expect("written");
    }
    copy
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let name = |entry: &std::fs::DirEntry| entry.file_name().into_string().expect("a name");
    let all = entries.filter(|entry| name(entry) != "lock");
    all.map(|entry| (name(&entry), std::fs::read(entry.path()).expect("read"))).collect()
}

fn disk(folder: &Path) -> RealDisk {
    RealDisk::open(folder).expect("the folder is not locked")
}

fn config() -> Config {
    let log = Options { segment_bytes: 16 << 10, reserve_bytes: 1 << 10, tail_bytes: 4 << 10 };
    Config { memory_bytes: 1 << 20, log, ..Config::default() }
}

// ---- an engine with a clock and a target ----------------------------------------------------------------------

struct House {
    engine: Engine,
    now: Millis,
    /// If false, the target answers with the status in the event's id.
    is_well: bool,
    answers: Vec<Status>,
    open: Vec<Delivery>,
    /// Acknowledged events by key: number, id and previous id.
    seen: BTreeMap<String, Vec<String>>,
}

impl House {
    fn open(folder: &Path, now: Millis) -> House {
        let (engine, _) = Engine::open(Arc::new(disk(folder)), config(), now, [7; 16]).expect("opens");
        let mut house = House {
            engine,
            now,
            is_well: false,
            answers: Vec::new(),
            open: Vec::new(),
            seen: BTreeMap::new(),
        };
        house.settle();
        house
    }

    fn put(&mut self, name: &str, spec: serde_json::Value) {
        let mut document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
            "spec": {
                "target": {"url": "http://target.test/"},
                "retry": {"attempts": 5, "backoff": "1h", "maxBackoff": "1h"},
            },
        });
        for (field, value) in spec.as_object().expect("an object") {
            document["spec"][field] = value.clone();
        }
        let document = Document::parse(&document).expect("a valid document");
        self.engine.put_subscription(document, false).expect("put");
        self.settle();
    }

    fn send(&mut self, kind: &str, key: &str, id: &str, sequence: Option<u64>) {
        let attribute =
            |name: &str, value: String| Attribute { name: name.into(), value: Value::String(value) };
        let mut attributes = vec![attribute("partitionkey", key.into())];
        attributes.extend(sequence.map(|n| attribute("sequence", n.to_string())));
        let data = Some(Data { bytes: "x".repeat(500).into(), form: Form::Text });
        let event = Event { id: id.into(), source: "/test".into(), kind: kind.into(), attributes, data };
        self.settle();
        self.engine.accept(Token(1), &Sender::default(), vec![Ok(event)]);
    }

    /// Runs until nothing more happens.
    fn run(&mut self) {
        self.settle();
        while let Some(n) =
            self.open.iter().position(|delivery| self.is_well || !id_of(delivery).ends_with("-open"))
        {
            let delivery = self.open.remove(n);
            self.answer(delivery);
            self.settle();
        }
    }

    fn answer(&mut self, delivery: Delivery) {
        let id = id_of(&delivery);
        let asked = id.rsplit('-').next().and_then(|word| word.parse().ok()).filter(|code| *code >= 400);
        let code = asked.filter(|_| !self.is_well).unwrap_or(200);
        if code == 200 {
            let view = EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event");
            let key = view.attribute("partitionkey").expect("a key").into_owned();
            let place = delivery.place.as_ref().map(|place| {
                let previous = place.previous_id.as_ref().map(|previous| format!("<{previous}"));
                format!("{}:{id}{}", place.number.0, previous.unwrap_or_default())
            });
            self.seen.entry(key).or_default().push(place.unwrap_or(id));
        }
        self.engine.outcome(
            delivery.ticket,
            CallOutcome::Status { code, retry_after_ms: None, detail: String::new() },
        );
    }

    /// Writes, syncs and answers everything.
    fn settle(&mut self) {
        for _ in 0..4 {
            self.now = self.now + 1;
            self.engine.tick(self.now);
            self.engine.flush();
            self.engine.run_jobs();
            for answer in self.engine.take_completions() {
                if let Completion::Events(_, judged) = answer {
                    self.answers.extend(judged.into_iter().map(|judged| judged.status));
                }
            }
            self.open.extend(self.engine.take_deliveries());
        }
        assert_eq!(self.engine.failure(), None);
    }

    fn checkpoint(&mut self) {
        self.engine.request_checkpoint();
        while self.engine.is_checkpointing() {
            self.settle();
        }
    }
}

fn id_of(delivery: &Delivery) -> String {
    let view = EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event");
    view.id().to_owned()
}

// ---- state as text --------------------------------------------------------------------------------------------

fn subscriptions(engine: &Engine) -> String {
    let all = ["heap", "parks", "steps"].map(|name| {
        let status = engine.view_subscription(name).expect("exists").status;
        format!(
            "{name}: {}, {} waiting, {} dead letters, {} delivered\n",
            status.phase, status.waiting, status.dead_letters, status.delivered
        )
    });
    all.concat()
}

fn lanes(engine: &Engine) -> String {
    let query = LaneQuery { within: Within::All, subscription: None, state: None, after: None, limit: 100 };
    let page = engine.view_lanes(&query).expect("lanes");
    let mut text = String::new();
    for lane in page.items {
        let mut lane = engine.view_lane(&lane.subscription, &lane.key).expect("a lane").expect("exists");
        lane.resolve(&engine.reader());
        text += &format!("{}/{}: {}, {} waiting", lane.subscription, lane.key, lane.state, lane.depth);
        text += &format!(", numbers up to {}", lane.lane_sequence);
        if let Some(expected) = lane.expected_sequence {
            text += &format!(", expects {expected}, {} buffered", lane.buffered);
        }
        if let Some([from, to]) = lane.gap.and_then(|gap| gap.missing) {
            text += &format!(", misses {from} to {to}");
        }
        if let Some(head) = lane.head.filter(|head| head.attempts_total > 0) {
            let (id, error) = (head.id.unwrap_or_default(), head.last_error.unwrap_or_default());
            text += &format!(", at {id} after {} attempts: {error}", head.attempts_total);
        }
        text += "\n";
    }
    text
}

fn dead_letters(engine: &Engine) -> String {
    let mut letters = Letters::new(Selector::default(), None, 100);
    while engine.list_dead_letters(&mut letters).expect("dead letters") {}
    let mut text = String::new();
    for letter in letters.items {
        let key = letter.key.as_deref().unwrap_or("-");
        text +=
            &format!("{}: {} of {key}, {}: {}", letter.id, letter.event_id, letter.reason, letter.last_error);
        if letter.holds_lane {
            text += &format!(", holds its lane at {}", letter.lane_sequence.unwrap_or(0));
        }
        text += "\n";
    }
    text
}
