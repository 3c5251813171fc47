//! Backlog limits: the oldest event is dropped, and only for an event that is then accepted.

mod world;

use klambda_core::event::{Attribute, Data, Event, Form, Value};
use klambda_core::event_codec::EventView;
use klambda_core::outcome::CallOutcome;
use klambda_dispatch::operate::{LaneAction, Leftover};
use klambda_dispatch::{Completion, Delivery, Rejection, Sender, Status, Token};
use klambda_store::address::LogAddress;
use klambda_store::record::{Record, Step};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use world::{Rng, World, error, ok, ordered};

const DAY_MS: u64 = 24 * 3_600_000;

fn drops_at(events: u64) -> serde_json::Value {
    json!({"maxEvents": events, "onFull": "drop"})
}

fn event(id: &str, key: &str) -> Event {
    let key = Attribute { name: "partitionkey".into(), value: Value::String(key.into()) };
    Event { id: id.into(), source: "/test".into(), kind: "t".into(), attributes: vec![key], data: None }
}

fn sequenced(id: &str, key: &str, sequence: u64) -> Event {
    let mut event = event(id, key);
    let value = Value::String(sequence.to_string());
    event.attributes.push(Attribute { name: "sequence".into(), value });
    event
}

fn judge(world: &mut World, event: Event) -> Status {
    world.engine.accept(Token(u64::MAX), &Sender::default(), vec![Ok(event)]);
    world.engine.flush();
    world.engine.run_sync();
    world.engine.flush();
    let answers = world.engine.take_completions();
    let judged = answers.into_iter().find_map(|answer| match answer {
        Completion::Events(Token(u64::MAX), mut judged) => judged.pop(),
        _ => None,
    });
    judged.expect("an answer").status
}

fn waiting(world: &World, name: &str) -> u64 {
    world.engine.view_subscription(name).expect("a subscription").status.waiting
}

/// The positions dropped so far, in log order.
fn dropped(world: &World) -> Vec<u64> {
    dropped_since(world, &mut world.engine.reader().oldest().expect("a segment").start())
}

fn dropped_since(world: &World, at: &mut LogAddress) -> Vec<u64> {
    let reader = world.engine.reader();
    let mut found = Vec::new();
    while let Some(frame) = reader.frame(*at).expect("read") {
        for (_, range) in &frame.records {
            if let Record::Step { step: Step::DropOldest { position }, .. } =
                Record::decode(&frame.bytes[range.clone()]).expect("a record")
            {
                found.push(position.0);
            }
        }
        *at = frame.next;
    }
    found
}

/// A full and paused subscription that could drop all of its five events, the first of which `b` has in flight.
fn beside_one_that_cannot_drop() -> World {
    let mut world = World::new(1);
    world.put(ordered("a", &json!({"paused": true, "backlog": drops_at(5)})));
    let only = json!([{"exact": {"partitionkey": "b"}}]);
    world.put(ordered("b", &json!({"filters": only, "backlog": drops_at(1)})));
    for (id, key) in [("b0", "b"), ("a1", "a"), ("a2", "a"), ("a3", "a"), ("a4", "a")] {
        assert!(matches!(judge(&mut world, event(id, key)), Status::Accepted { .. }));
        world.pass(10);
    }
    world
}

#[test]
fn an_event_that_another_subscription_refuses_costs_nobody_anything() {
    let mut world = beside_one_that_cannot_drop();
    for _ in 0..6 {
        let status = judge(&mut world, event("x", "b"));
        let Status::Rejected(Rejection::Backlog { subscription, .. }) = &status else {
            panic!("{status:?}");
        };
        assert_eq!((subscription.as_str(), waiting(&world, "a")), ("b", 5));
    }
    assert!(dropped(&world).is_empty());
    assert!(matches!(judge(&mut world, event("x", "a")), Status::Accepted { .. }));
    world.pass(100);
    assert_eq!(dropped(&world), [1]);
    world.must_be_sound();
}

#[test]
fn an_event_that_the_log_has_no_room_for_costs_nobody_anything() {
    let mut world = beside_one_that_cannot_drop();
    let mut large = event("large", "a");
    large.data = Some(Data { bytes: "x".repeat(100_000).into(), form: Form::Text });
    assert!(matches!(judge(&mut world, large), Status::Rejected(Rejection::TooLarge { .. })));
    assert_eq!(waiting(&world, "a"), 5);
    // Fills the disk with events that no other subscription matches.
    world.engine.pause_subscription("a", false).expect("resumed");
    world.engine.delete_subscription("a", Leftover::Drain).expect("draining");
    world.engine.pause_subscription("a", true).expect("paused again");
    world.engine.pause_subscription("b", true).expect("paused");
    world.disk.set_capacity(Some(world.disk.used_bytes() + (64 << 10)));
    world.put(ordered("full", &json!({"paused": true, "backlog": drops_at(5)})));
    let mut refused = 0;
    for n in 0..400 {
        let before = waiting(&world, "full");
        let mut event = event(&format!("f{n}"), "a");
        event.data = Some(Data { bytes: "x".repeat(4000).into(), form: Form::Text });
        match judge(&mut world, event) {
            Status::Accepted { .. } => {}
            Status::Rejected(Rejection::DiskFull) => {
                refused += 1;
                assert_eq!(waiting(&world, "full"), before);
            }
            other => panic!("{other:?}"),
        }
        world.pass(10);
    }
    assert!(refused > 50, "{refused}");
    assert_eq!(waiting(&world, "full"), 5);
}

#[test]
fn an_event_that_its_lane_has_passed_is_skipped_and_drops_nothing() {
    let mut world = World::new(2);
    let policy = json!({"sequence": {"attribute": "sequence"}});
    let ttl = json!({"ttl": "10s"});
    let spec = json!({"orderingPolicy": policy, "idempotency": ttl, "backlog": drops_at(2)});
    world.put(ordered("s", &spec));
    for n in 1..=6 {
        judge(&mut world, sequenced(&format!("e{n}"), "k", n));
        world.pass(11_000);
        for delivery in world.take_open() {
            world.engine.outcome(delivery.ticket, ok());
        }
    }
    world.engine.pause_subscription("s", true).expect("paused");
    for n in 7..=8 {
        judge(&mut world, sequenced(&format!("e{n}"), "k", n));
    }
    assert_eq!(waiting(&world, "s"), 2);
    let again = judge(&mut world, sequenced("again", "k", 1));
    assert_eq!(again, Status::Skipped { reason: "watermark" });
    assert_eq!((waiting(&world, "s"), dropped(&world)), (2, vec![]));
}

#[test]
fn an_old_dead_letter_that_parks_its_lane_does_not_empty_the_backlog() {
    let mut world = World::new(3);
    let backlog = json!({"maxAge": "60s", "onFull": "drop"});
    world.put(ordered("s", &json!({"backlog": backlog})));
    judge(&mut world, event("sick", "sick"));
    world.pass(100);
    let sick = world.take_open().pop().expect("a call");
    world.engine.outcome(sick.ticket, error(400));
    world.engine.pause_subscription("s", true).expect("paused");
    world.pass(50_000);
    for n in 0..10 {
        judge(&mut world, event(&format!("young{n}"), "well"));
    }
    assert!(dropped(&world).is_empty());
    // From here on the dead letter exceeds the age limit, but cannot be dropped.
    world.pass(20_000);
    for n in 0..5 {
        judge(&mut world, event(&format!("e{n}"), "well"));
    }
    assert_eq!((waiting(&world, "s"), dropped(&world)), (11, vec![2, 3, 4, 5, 6]));
}

#[test]
fn replies_drop_nothing_while_one_of_them_finds_no_room() {
    let mut world = World::new(4);
    let of = |kind: &str| json!([{"exact": {"type": kind}}]);
    world.put(ordered("first", &json!({"filters": of("t")})));
    let dropping = json!({"filters": of("kept"), "paused": true, "backlog": drops_at(3)});
    world.put(ordered("dropping", &dropping));
    let refusing =
        json!({"filters": of("late"), "paused": true, "backlog": {"maxEvents": 1, "onFull": "reject"}});
    world.put(ordered("refusing", &refusing));
    for (n, kind) in ["kept", "kept", "kept", "late"].into_iter().enumerate() {
        judge(&mut world, Event { kind: kind.into(), ..event(&format!("e{n}"), "k") });
    }
    judge(&mut world, event("cause", "k"));
    world.pass(10);
    let cause = world.take_open().pop().expect("a call");
    let reply = |kind: &str| Event { id: String::new(), kind: kind.into(), ..event("", "k") };
    let replies = vec![reply("kept"), reply("kept"), reply("late")];
    world.engine.outcome(cause.ticket, CallOutcome::Replied { status: 200, replies });
    for _ in 0..5 {
        world.pass(100);
        assert_eq!((waiting(&world, "first"), dropped(&world)), (1, vec![]));
    }
    world.engine.act_on_lane("refusing", "k", LaneAction::Purge).expect("purged");
    world.pass(100);
    let left = ["first", "dropping", "refusing"].map(|name| waiting(&world, name));
    assert_eq!((left, dropped(&world)), ([0, 3, 1], vec![1, 2]));
    world.must_be_sound();
}

/// What an observer knows of a subscription in order of arrival.
#[derive(Default)]
struct Model {
    positions: BTreeMap<String, u64>,
    waiting: BTreeSet<u64>,
    in_flight: BTreeSet<u64>,
    held: BTreeMap<u64, String>,
}

impl Model {
    fn oldest_droppable(&self) -> Option<u64> {
        let is_free =
            |position: &&u64| !self.in_flight.contains(position) && !self.held.contains_key(position);
        self.waiting.iter().find(is_free).copied()
    }

    fn position_of(&self, delivery: &Delivery) -> (u64, String) {
        let view = EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event");
        (self.positions[view.id()], view.attribute("partitionkey").expect("a key").into_owned())
    }
}

/// More lanes than fit into memory, some in flight, some parked and resumed, through restarts.
#[test]
fn the_oldest_that_can_go_is_dropped_wherever_its_lane_is() {
    for seed in 0..6 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        let limit = 900;
        world.put(ordered("s", &json!({"concurrency": 8, "backlog": drops_at(limit)})));
        let (mut model, mut open, mut drops) = (Model::default(), Vec::new(), 0);
        let mut seen = world.engine.reader().oldest().expect("a segment").start();
        let keys = if seed % 2 == 0 { 2000 } else { 40 };
        for n in 0..2400 {
            let expected = model.oldest_droppable().filter(|_| model.waiting.len() as u64 >= limit);
            let id = format!("e{n}");
            let status = judge(&mut world, event(&id, &format!("k{}", rng.below(keys))));
            let Status::Accepted { position } = status else { panic!("seed {seed}: {status:?}") };
            model.positions.insert(id, position.0);
            model.waiting.insert(position.0);
            if let Some(oldest) = expected {
                model.waiting.remove(&oldest);
            }
            world.pass(rng.below(20));
            open.extend(world.take_open());
            model.in_flight = open.iter().map(|delivery| model.position_of(delivery).0).collect();
            let found = dropped_since(&world, &mut seen);
            assert_eq!(found, Vec::from_iter(expected), "seed {seed}, event {n}");
            drops += usize::from(expected.is_some());
            if rng.below(4) == 0 && !open.is_empty() {
                let delivery = open.swap_remove(rng.below(open.len() as u64) as usize);
                let (position, key) = model.position_of(&delivery);
                model.in_flight.remove(&position);
                if rng.below(2) == 0 {
                    world.engine.outcome(delivery.ticket, ok());
                    model.waiting.remove(&position);
                } else {
                    world.engine.outcome(delivery.ticket, error(400));
                    model.held.insert(position, key);
                }
            }
            if rng.below(20) == 0
                && let Some((_, key)) = model.held.pop_first()
            {
                world.engine.act_on_lane("s", &key, LaneAction::Resume).expect("resumed");
            }
            if rng.below(300) == 0 {
                world.engine.request_checkpoint();
            }
            if rng.below(500) == 0 {
                world.engine.when_durable(Token(0));
                world.settle();
                world.restart(&mut |_| 0);
                (open, model.in_flight) = (Vec::new(), BTreeSet::new());
            }
            while !world.engine.is_accepting() {
                world.settle();
            }
        }
        assert!(drops > 500, "seed {seed}: {drops}");
        world.must_be_sound();
    }
}

/// Sends one event for each lane in batches, and returns how many rows that read.
fn send_lanes(world: &mut World, lanes: std::ops::Range<u64>) -> u64 {
    let before = world.engine.rows_read();
    let lanes: Vec<u64> = lanes.collect();
    for batch in lanes.chunks(200) {
        let events = batch.iter().map(|n| Ok(event(&format!("e{n}"), &format!("k{n}")))).collect();
        world.engine.accept(Token(u64::MAX), &Sender::default(), events);
        world.pass(10);
    }
    world.engine.rows_read() - before
}

/// Far more lanes than fit into memory, with one event each: the work of a drop does not grow with them.
#[test]
fn a_drop_looks_at_few_lanes_however_many_there_are() {
    const LANES: u64 = 6000;
    const DROPS: u64 = 1000;
    let mut world = World::new(6);
    world.put(ordered("s", &json!({"paused": true, "backlog": drops_at(LANES)})));
    send_lanes(&mut world, 0..LANES);
    let read = send_lanes(&mut world, LANES..LANES + DROPS);
    assert_eq!(dropped(&world), (1..=DROPS).collect::<Vec<u64>>());
    // Its own row, the row by age, and the rows of the lane that is evicted for it.
    assert!(read < 8 * DROPS, "{DROPS} drops read {read} rows");
    world.engine.when_durable(Token(0));
    world.settle();
    world.restart(&mut |_| 0);
    let read = send_lanes(&mut world, LANES + DROPS..LANES + 2 * DROPS);
    assert_eq!(waiting(&world, "s"), LANES);
    assert!(read < 8 * DROPS, "after a restart {DROPS} drops read {read} rows");
    world.must_be_sound();
}

/// The subscription has no list of lanes by age yet, and builds one in parts.
#[test]
fn a_subscription_that_changes_to_dropping_drops_the_oldest() {
    const LANES: u64 = 3000;
    let mut world = World::new(7);
    world.put(ordered("s", &json!({"paused": true, "backlog": {"maxEvents": LANES, "onFull": "reject"}})));
    send_lanes(&mut world, 0..LANES);
    world.put(ordered("s", &json!({"paused": true, "backlog": drops_at(LANES)})));
    // With more lanes than one drop checks, the oldest of a part may be dropped first.
    send_lanes(&mut world, LANES..LANES + 10);
    let first = dropped(&world);
    assert_eq!(first.len(), 10);
    send_lanes(&mut world, LANES + 10..LANES + 500);
    let later = dropped(&world).split_off(10);
    let oldest = (1..).filter(|position| !first.contains(position)).take(later.len());
    assert_eq!(later, oldest.collect::<Vec<u64>>());
    world.must_be_sound();
}

/// The log remembers events accepted for a subscription that was deleted or no longer matches them.
#[test]
fn the_log_knows_an_event_that_no_subscription_matches_any_more() {
    let mut world = World::new(5);
    for name in ["deleted", "changed"] {
        world.put(ordered(name, &json!({"filters": [{"exact": {"partitionkey": name}}]})));
        assert!(matches!(judge(&mut world, event(name, name)), Status::Accepted { .. }));
    }
    world.engine.delete_subscription("deleted", Leftover::Discard).expect("deleted");
    world.put(ordered("changed", &json!({"filters": [{"exact": {"partitionkey": "other"}}]})));
    for _ in 0..2 {
        for name in ["deleted", "changed"] {
            assert_eq!(judge(&mut world, event(name, name)), Status::Skipped { reason: "duplicate" });
        }
        world.engine.request_checkpoint();
        world.pass(10);
        world.settle();
        world.restart(&mut |_| 0);
    }
    assert!(matches!(judge(&mut world, event("new", "deleted")), Status::Accepted { .. }));
    world.pass(DAY_MS);
    assert!(matches!(judge(&mut world, event("deleted", "deleted")), Status::Accepted { .. }));
}

/// Events that arrive while new rules wait are in no lane yet, but count.
#[test]
fn unread_events_count() {
    let by = |attribute: &str| {
        json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "s"},
            "spec": {
                "target": {"url": "http://127.0.0.1:9000/"},
                "paused": true,
                "backlog": {"maxEvents": 5, "onFull": "reject"},
                "ordering": "ordered",
                "orderingPolicy": {"key": {"attribute": attribute}},
            },
        })
    };
    let mut world = World::new(1);
    world.put(by("partitionkey"));
    (0..2).for_each(|_| world.send("k", None));
    world.settle();
    world.put(by("source"));
    (0..20).for_each(|_| world.send("k", None));
    world.settle();
    assert_eq!(world.accepted["k"].len(), 5);
    let waiting = |world: &World| world.engine.view_subscription("s").expect("exists").status.waiting;
    assert_eq!(waiting(&world), 5);
    world.crash(&mut Rng(1));
    assert_eq!(waiting(&world), 5);
    world.engine.pause_subscription("s", false).expect("resumed");
    world.drain();
    world.pass(1000);
    assert_eq!(waiting(&world), 0);
    world.check_all_seen(1);
}
