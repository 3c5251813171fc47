//! `check` accepts every folder that the engine leaves behind, and finds every fault injected into one.

mod world;

use klambda_core::ids::{Position, Sequence, SubscriptionId};
use klambda_core::subscription::Document;
use klambda_dispatch::check::{self, ProblemKind, Report};
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::documents::{Expected, Write};
use klambda_dispatch::operate::{LaneAction, Leftover};
use klambda_dispatch::replay::Request;
use klambda_store::address::LogAddress;
use klambda_store::disk::{Disk, File, read_exact_at};
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::inspect;
use klambda_store::manifest::Manifest;
use klambda_store::record::{LaneRef, Record, Step};
use klambda_store::segment::{RECORD_HEADER, Segment, checksum};
use serde_json::json;
use std::sync::Arc;
use world::{Rng, World};

fn check(disk: &MemoryDisk) -> Report {
    check::check(Arc::new(disk.clone_image()), &mut |_| {}).expect("a folder that can be read")
}

fn check_is_ok(disk: &MemoryDisk, what: &str) -> Report {
    let report = check(disk);
    assert!(report.is_ok(), "{what}: {:#?}", report.problems);
    assert_eq!(report.duplicate_acknowledgements + report.order_violations + report.lost, 0, "{what}");
    report
}

fn subscription(name: &str, spec: serde_json::Value) -> serde_json::Value {
    let mut document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
        "spec": {
            "target": {"url": "http://127.0.0.1:9000/"},
            "retry": {"attempts": 2, "backoff": "10ms", "maxBackoff": "50ms"},
        },
    });
    for (key, value) in spec.as_object().expect("an object") {
        document["spec"][key] = value.clone();
    }
    document
}

/// Subscriptions of all kinds.
const NAMES: [&str; 7] = ["parks", "skips", "sequenced", "strict", "unordered", "small", "heap"];

fn document(name: &str) -> serde_json::Value {
    let sequence = |strict: bool, action: &str| {
        json!({"ordering": "ordered", "orderingPolicy": {
            "sequence": {"attribute": "sequence"}, "strict": strict,
            "gap": {"timeout": "100ms", "action": action}, "buffer": {"maxEvents": 5},
        }})
    };
    let spec = match name {
        "skips" => json!({"ordering": "ordered", "orderingPolicy": {"onFailure": "skip"}}),
        "sequenced" => sequence(false, "skip"),
        "strict" => sequence(true, "park"),
        "unordered" => json!({}),
        "small" => json!({"ordering": "ordered", "backlog": {"maxEvents": 20, "onFull": "drop"}}),
        "heap" => json!({"concurrency": 3, "backlog": {"maxEvents": 20, "onFull": "drop"}}),
        _ => json!({"ordering": "ordered"}),
    };
    subscription(name, spec)
}

/// A random operator action, sensible or not.
fn operate(world: &mut World, rng: &mut Rng) {
    let name = NAMES[rng.below(7) as usize];
    let key = format!("k{}", rng.below(5));
    let other = document(NAMES[rng.below(7) as usize]);
    let engine = &mut world.engine;
    // An action that does not fit the state is refused, which is fine.
    match rng.below(17) {
        0 | 1 => drop(engine.act_on_lane(name, &key, LaneAction::Resume)),
        2 | 3 => drop(engine.act_on_lane(name, &key, LaneAction::Skip)),
        4 => drop(engine.act_on_lane(name, &key, LaneAction::Purge)),
        5 => drop(engine.act_on_lane(name, &key, LaneAction::Pause)),
        6 => drop(engine.act_on_lane(name, &key, LaneAction::Reset { expected: Sequence(rng.below(30)) })),
        7 => drop(engine.pause_subscription(name, rng.below(3) == 0)),
        8 => drop(engine.purge_dead_letters(&Selector::default(), rng.below(2) == 0)),
        9..=11 => {
            let request = Request { selector: Selector::default(), rate_per_second: 0, parallelism: 3 };
            drop(engine.create_replay(request));
        }
        12 => {
            let leftover = [Leftover::Refuse, Leftover::Drain, Leftover::Discard][rng.below(3) as usize];
            drop(engine.delete_subscription(name, leftover));
        }
        // Creates the subscription again, or changes its rules.
        13 | 14 => {
            let mut changed = other;
            changed["metadata"]["name"] = json!(name);
            let parsed = Document::parse(&changed).expect("a valid document");
            drop(engine.put_subscription(parsed, rng.below(2) == 0));
        }
        _ => engine.request_checkpoint(),
    }
}

fn live(world: &mut World, rng: &mut Rng, rounds: u64, mut each: impl FnMut(&mut World, &mut Rng, u64)) {
    let mut next = [0; 5];
    for round in 0..rounds {
        for _ in 0..rng.below(4) {
            let key = rng.below(5) as usize;
            next[key] += 1 + u64::from(rng.below(12) == 0);
            let back = if rng.below(5) == 0 { rng.below(6) } else { 0 };
            let sequence = (rng.below(40) > 0).then_some(u64::saturating_sub(next[key], back));
            world.send(&format!("k{key}"), sequence);
        }
        world.step(rng, |rng, _| match rng.below(8) {
            0 => world::error(500),
            1 => world::error([422, 503][rng.below(2) as usize]),
            _ => world::ok(),
        });
        each(world, rng, round);
    }
}

#[test]
fn every_folder_of_the_engine_passes() {
    for seed in 0..15 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        NAMES.iter().for_each(|name| world.put(document(name)));
        live(&mut world, &mut rng, 250, |world, rng, round| {
            if rng.below(6) == 0 {
                operate(world, rng);
            }
            if rng.below(70) == 0 {
                world.crash(rng);
                check_is_ok(&world.disk, &format!("seed {seed}, after the crash in round {round}"));
            }
            if round % 90 == 89 {
                check_is_ok(&world.disk, &format!("seed {seed}, round {round}"));
            }
        });
        world.settle();
        let report = check_is_ok(&world.disk, &format!("seed {seed}"));
        assert!(report.events > 200 && report.delivered > 200 && report.cut.is_none(), "{report:?}");
        assert_eq!(report.waiting, world.engine.waiting(), "seed {seed}");
        assert_eq!(report.dead_letters, world.engine.dead_letters(), "seed {seed}");
    }
}

#[test]
fn history_read_from_the_log_passes() {
    for seed in 0..10 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        live(&mut world, &mut rng, 60, |_, _, _| {});
        world.put(subscription("late", json!({"ordering": "ordered", "from": "earliest"})));
        live(&mut world, &mut rng, 60, |world, rng, round| {
            if rng.below(20) == 0 {
                world.crash(rng);
            }
            check_is_ok(&world.disk, &format!("seed {seed}, round {round}"));
        });
    }
}

/// Old segments are deleted. Events that were pending in them are known from copies and tables, so they are counted
/// but not checked.
#[test]
fn a_log_whose_beginning_is_gone_passes() {
    let mut rng = Rng(3);
    let mut world = World::new(3);
    world.put(subscription("orders", json!({"ordering": "ordered", "retry": {"attempts": 1}})));
    world.send("sick", None);
    for _ in 0..20 {
        world.step(&mut rng, |_, _| world::error(422));
    }
    for _ in 0..25 {
        for n in 0..200 {
            world.send(&format!("well-{}", n % 40), None);
        }
        for _ in 0..60 {
            world.step(&mut rng, |_, _| world::ok());
        }
        world.now = world.now + 24 * 3_600_000;
        world.engine.request_checkpoint();
    }
    world.settle();
    let report = check_is_ok(&world.disk, "retention");
    assert!(report.first_position > Position(1), "{report:?}");
    assert_eq!((report.waiting, report.dead_letters), (1, 1));
    assert!(report.before_log > 0, "at least the parked event");
    assert_eq!(report.lanes, 41 - 1, "the parked lane has no steps in this log");
}

/// Pending events of a damaged segment cannot all be copied, so the segment is kept, however old it is.
#[test]
fn a_damaged_segment_is_kept_with_what_waits_in_it() {
    let mut rng = Rng(3);
    let mut world = World::new(3);
    world.put(subscription("orders", json!({"ordering": "ordered"})));
    for key in ["one", "two"] {
        world.engine.pause_subscription("orders", true).expect("paused");
        world.send(key, None);
        world.settle();
    }
    let damaged = last_byte(&world.disk, &Segment::name(LogAddress(0))) - 40;
    while world.engine.reader().segment_of(LogAddress(2 << 20)).is_none() {
        world.send("later", None);
        world.step(&mut rng, |_, _| world::ok());
    }
    world.engine.request_checkpoint();
    world.settle();
    // The end of the second event: the first can still be read.
    world.disk.flip_bit(&Segment::name(LogAddress(0)), 8 * damaged);
    for _ in 0..20 {
        world.now = world.now + 24 * 3_600_000;
        world.step(&mut rng, |_, _| world::ok());
        world.settle();
    }
    assert!(
        world.disk.list().expect("lists").contains(&Segment::name(LogAddress(0))),
        "the segment was deleted"
    );
    assert_eq!(kinds(&check(&world.disk)), [ProblemKind::Damage]);
}

/// The event in flight when the oldest of the queue was dropped must not be dropped after a restart.
#[test]
fn drops_of_an_unordered_queue_are_the_same_after_a_restart() {
    let mut world = World::new(5);
    world
        .put(subscription("heap", json!({"concurrency": 2, "backlog": {"maxEvents": 10, "onFull": "drop"}})));
    for _ in 0..14 {
        world.send("k", None);
        world.settle();
    }
    assert_eq!(world.engine.waiting(), 10);
    check_is_ok(&world.disk, "dropped");
    world.drain();
    let report = check_is_ok(&world.disk, "drained");
    assert_eq!((report.delivered, report.purged, report.waiting), (10, 4, 0));
}

// ---- injected faults ------------------------------------------------------------------------------------------

/// Ten events of one key, all delivered before a checkpoint, so that the engine does not read these steps again.
fn delivered() -> World {
    let mut rng = Rng(1);
    let mut world = World::new(1);
    world.put(subscription("one", json!({"ordering": "ordered"})));
    world.put(subscription("two", json!({"ordering": "ordered", "filters": [{"exact": {"type": "never"}}]})));
    for _ in 0..10 {
        world.send("k", None);
    }
    for _ in 0..100 {
        world.step(&mut rng, |_, _| world::ok());
    }
    world.drain();
    checkpoint(&mut world, &mut rng);
    world
}

fn checkpoint(world: &mut World, rng: &mut Rng) {
    world.engine.request_checkpoint();
    for _ in 0..20 {
        world.step(rng, |_, _| world::ok());
    }
    world.settle();
    let manifest = Manifest::load(&world.disk).expect("an intact manifest").expect("exists");
    assert!(manifest.checkpoint > LogAddress(96));
}

/// Rewrites records of the log in place, with correct checksums.
fn forge(disk: &MemoryDisk, mut change: impl FnMut(Position, &mut Record<'_>)) -> usize {
    let mut forged = Vec::new();
    let from = Manifest::load(disk).expect("an intact manifest").expect("exists").checkpoint();
    inspect::inspect(disk, from, &mut |at, body, position| {
        let mut record = Record::decode(&body).expect("a record");
        change(position, &mut record);
        let mut new = Vec::new();
        record.encode(&mut new);
        if new != body[..] {
            assert_eq!(new.len(), body.len(), "a forged record has the same length");
            forged.push((at, new));
        }
        Ok(())
    })
    .expect("reads");
    for (at, body) in &forged {
        let (file, offset) = file_of(disk, *at);
        file.write_at(&checksum(*at, body).to_le_bytes(), offset + 4).expect("writes");
        file.write_at(body, offset + RECORD_HEADER as u64).expect("writes");
        file.sync().expect("syncs");
    }
    forged.len()
}

fn file_of(disk: &MemoryDisk, at: LogAddress) -> (Arc<dyn File>, u64) {
    let bases = disk.list().expect("lists").into_iter().filter_map(|name| Segment::base_of(&name));
    let base = bases.filter(|base| *base <= at).max().expect("a segment");
    (disk.open(&Segment::name(base)).expect("opens"), at.0 - base.0)
}

/// Changes the positions of acknowledgements.
fn forge_acknowledgements(disk: &MemoryDisk, of: impl Fn(u64) -> u64) {
    let forged = forge(disk, |_, record| {
        if let Record::Step { step: Step::Delivered { position, .. }, .. } = record {
            *position = Position(of(position.0));
        }
    });
    assert!(forged > 0);
}

fn kinds(report: &Report) -> Vec<ProblemKind> {
    let mut kinds: Vec<ProblemKind> = report.problems.listed.iter().map(|problem| problem.kind).collect();
    kinds.dedup();
    kinds
}

#[test]
fn an_event_acknowledged_twice_is_found_and_so_is_the_one_that_never_was() {
    let world = delivered();
    check_is_ok(&world.disk, "before");
    forge_acknowledgements(&world.disk, |position| if position == 7 { 4 } else { position });
    let report = check(&world.disk);
    assert_eq!(
        kinds(&report),
        [ProblemKind::DuplicateAcknowledgement, ProblemKind::Lost],
        "{:#?}",
        report.problems
    );
    assert_eq!((report.duplicate_acknowledgements, report.lost, report.order_violations), (1, 1, 0));
    assert_eq!(report.problems.listed[0].text, "one: event 4 was acknowledged twice, or after it left");
    assert_eq!(
        report.problems.listed[1].text,
        "one: event 7 is not delivered, not pending and not a dead letter"
    );
}

#[test]
fn a_delivery_out_of_order_is_found() {
    let world = delivered();
    forge_acknowledgements(&world.disk, |position| match position {
        3 => 4,
        4 => 3,
        other => other,
    });
    let report = check(&world.disk);
    assert_eq!(kinds(&report), [ProblemKind::OrderViolation], "{:#?}", report.problems);
    assert_eq!(report.order_violations, 1);
}

#[test]
fn a_replay_in_its_place_is_not_late() {
    for on_failure in ["park", "skip"] {
        let mut world = World::new(1);
        let policy = json!({"onFailure": on_failure});
        let retry = json!({"attempts": 1});
        world.put(subscription(
            "one",
            json!({"ordering": "ordered", "orderingPolicy": policy, "retry": retry}),
        ));
        world.send("k", None);
        world.send("k", None);
        world.settle();
        let first = world.take_open().pop().expect("the first is called");
        world.engine.outcome(first.ticket, world::error(500));
        world.settle();
        for second in world.take_open() {
            world.engine.outcome(second.ticket, world::ok());
        }
        let request = Request { selector: Selector::default(), rate_per_second: 0, parallelism: 1 };
        world.engine.create_replay(request).expect("a replay job");
        world.drain();
        let report = check_is_ok(&world.disk, on_failure);
        assert_eq!((report.delivered, report.late), (2, u64::from(on_failure == "skip")), "{on_failure}");
    }
}

#[test]
fn a_delivery_out_of_its_producers_order_is_found() {
    let mut rng = Rng(1);
    let mut world = World::new(1);
    let policy = json!({"ordering": "ordered", "orderingPolicy": {"sequence": {"attribute": "sequence"}}});
    world.put(subscription("one", policy));
    for sequence in [1, 3, 2, 5, 4, 6] {
        world.send("k", Some(sequence));
    }
    world.drain();
    checkpoint(&mut world, &mut rng);
    let report = check_is_ok(&world.disk, "before");
    assert_eq!((report.late, report.gaps), (0, 0));
    // Events 3 and 5 have the sequences 2 and 4.
    forge_acknowledgements(&world.disk, |position| match position {
        3 => 5,
        5 => 3,
        other => other,
    });
    let report = check(&world.disk);
    assert_eq!(kinds(&report), [ProblemKind::OrderViolation], "{:#?}", report.problems);
}

#[test]
fn an_acknowledgement_of_an_event_that_was_never_sent_there_is_found() {
    let world = delivered();
    let forged = forge(&world.disk, |_, record| {
        if let Record::Step { subscription, step: Step::Delivered { position: Position(5), .. }, .. } = record
        {
            *subscription = SubscriptionId(2);
        }
    });
    assert_eq!(forged, 1);
    let report = check(&world.disk);
    assert!(
        kinds(&report).contains(&ProblemKind::Unaccounted) && kinds(&report).contains(&ProblemKind::Lost),
        "{:#?}",
        report.problems
    );
}

/// The log says that an event was routed to the second subscription, but the state does not contain the event.
#[test]
fn an_event_that_waits_nowhere_is_found() {
    let mut rng = Rng(1);
    let mut world = delivered();
    world.engine.pause_subscription("one", true).expect("paused");
    world.send("k", None);
    world.settle();
    checkpoint(&mut world, &mut rng);
    check_is_ok(&world.disk, "before");
    let forged = forge(&world.disk, |position, record| {
        if let Record::Event { routes, .. } = record
            && position == Position(11)
        {
            routes[0].subscription = SubscriptionId(2);
        }
    });
    assert_eq!(forged, 1);
    let report = check(&world.disk);
    assert_eq!(kinds(&report), [ProblemKind::Unaccounted, ProblemKind::Lost], "{:#?}", report.problems);
    assert_eq!(report.lost, 1);
}

/// After the checkpoint the engine reads the log itself, and rejects impossible steps.
#[test]
fn a_state_that_cannot_follow_from_the_log_is_found() {
    let mut world = World::new(1);
    world.put(subscription("one", json!({"ordering": "ordered"})));
    world.send("k", None);
    world.drain();
    let forged = forge(&world.disk, |_, record| {
        if let Record::Step { lane: lane @ LaneRef::Key("k"), .. } = record {
            *lane = LaneRef::Key("q");
        }
    });
    assert!(forged > 0);
    let report = check(&world.disk);
    assert!(kinds(&report).contains(&ProblemKind::State), "{:#?}", report.problems);
    assert_eq!(report.duplicate_acknowledgements, 1);
}

#[test]
fn damage_is_named_and_a_torn_tail_is_not_damage() {
    let mut world = delivered();
    let segment = Segment::name(LogAddress(0));
    for _ in 0..3 {
        world.send("k", None);
        world.drain();
        world.settle();
    }

    let damaged = world.disk.clone_image();
    damaged.flip_bit(&segment, 8 * 150);
    let report = check(&damaged);
    assert_eq!(kinds(&report), [ProblemKind::Damage]);
    assert!(
        report.problems.listed[0].text.contains(&segment)
            && report.problems.listed[0].text.contains("offset 64"),
        "{:?}",
        report.problems
    );

    let table = world
        .disk
        .list()
        .expect("lists")
        .into_iter()
        .find(|name| name.starts_with("rows-"))
        .expect("a table");
    let damaged = world.disk.clone_image();
    damaged.flip_bit(&table, 8 * 20);
    let report = check(&damaged);
    assert_eq!(kinds(&report), [ProblemKind::Damage]);
    assert!(report.problems.listed[0].text.contains(&table), "{:?}", report.problems);

    let damaged = world.disk.clone_image();
    damaged.flip_bit("manifest", 8 * 20);
    assert_eq!(kinds(&check(&damaged)), [ProblemKind::Damage]);

    let torn = world.disk.clone_image();
    let end = last_byte(&torn, &segment);
    torn.open(&segment).expect("opens").write_at(b"torn", end + 64).expect("writes");
    let report = check_is_ok(&torn, "a torn tail");
    let cut = report.cut.expect("is named");
    assert_eq!(cut.file, segment);
    assert!(cut.bytes > 0 && cut.offset > end - 64);
}

fn last_byte(disk: &MemoryDisk, name: &str) -> u64 {
    let file = disk.open(name).expect("opens");
    let mut bytes = vec![0; file.len().expect("has a length") as usize];
    read_exact_at(&*file, &mut bytes, 0).expect("reads");
    bytes.iter().rposition(|byte| *byte != 0).expect("is not empty") as u64
}

#[test]
fn a_folder_without_data_is_no_data_folder() {
    let empty = check::check(Arc::new(MemoryDisk::new()), &mut |_| {});
    assert!(matches!(empty, Err(check::Error::Empty)));
}

#[test]
fn a_document_that_is_not_what_the_log_says_is_found() {
    let (mut rng, mut world) = (Rng(1), World::new(1));
    let put = |key: &str| Write {
        kind: "function".into(),
        key: key.into(),
        content: Some(b"{}".to_vec()),
        expected: Expected::Any,
    };
    world.engine.put_documents(&[put("one"), put("two")], &[]).expect("written");
    checkpoint(&mut world, &mut rng);
    check_is_ok(&world.disk, "before");
    let forged = forge(&world.disk, |_, record| {
        if let Record::Documents { changes, .. } = record {
            changes[0].key = "eno";
        }
    });
    assert_eq!(forged, 1);
    let report = check(&world.disk);
    assert_eq!(kinds(&report), [ProblemKind::State], "{:#?}", report.problems);
    assert!(report.problems.listed[0].text.starts_with("document function eno has version None"));
}
