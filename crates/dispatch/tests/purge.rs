//! Long lanes that are purged, discarded or converted to dead letters: in parts, so that other work does not wait
//! long.

mod world;

use klambda_core::lane::Flag;
use klambda_core::subscription::Document;
use klambda_dispatch::Token;
use klambda_dispatch::operate::LaneAction;
use klambda_store::inspect;
use klambda_store::manifest::Manifest;
use klambda_store::record::{Record, Step};
use serde_json::{Value, json};
use world::World;

/// More than one step may remove.
const MANY: u64 = 5000;
const PART: u64 = 2048;

fn document(spec: Value) -> Value {
    let mut document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "s"},
        "spec": {"target": {"url": "http://127.0.0.1:9000/"}, "ordering": "ordered", "retry": {"attempts": 1}},
    });
    for (key, value) in spec.as_object().expect("an object") {
        document["spec"][key] = value.clone();
    }
    document
}

/// How many events each step removed from its lane.
fn parts(world: &World) -> Vec<u64> {
    let from = Manifest::load(&world.disk).expect("an intact manifest").expect("exists").checkpoint();
    let mut found = Vec::new();
    let read = inspect::inspect(&world.disk, from, &mut |_, body, _| {
        if let Ok(Record::Step { step, .. }) = Record::decode(&body) {
            match step {
                Step::Purge { events, .. } | Step::GiveUpPart { events } => found.push(events),
                Step::PurgePart { positions, .. } => found.push(positions.len() as u64),
                _ => {}
            }
        }
        Ok(())
    });
    read.expect("reads");
    found
}

fn must_be_parts(world: &World, sum: u64) {
    let parts = parts(world);
    assert!(parts.len() > 2 && parts.iter().all(|part| *part <= PART + 600), "{parts:?}");
    assert_eq!(parts.iter().sum::<u64>(), sum, "{parts:?}");
    assert_eq!(world.must_be_sound().purged, sum);
}

fn answer(world: &mut World, status: u16) {
    world.pass(200);
    for delivery in world.take_open() {
        world.engine.outcome(delivery.ticket, world::error(status));
    }
    world.settle();
}

fn durable(world: &mut World) {
    world.engine.when_durable(Token(0));
    world.settle();
}

/// A lane with `MANY` pending events.
fn long_lane(kind: &str) -> World {
    let mut world = World::new(1);
    world.put(document(match kind {
        "early" => json!({"orderingPolicy": {
            "sequence": {"attribute": "sequence"}, "gap": {"timeout": "100ms", "action": "park"}, "buffer": {"maxEvents": 3},
        }}),
        _ => json!({}),
    }));
    match kind {
        "parked" => {
            world.send("k", None);
            (0..2).for_each(|_| answer(&mut world, 422));
        }
        "early" => {
            world.send("k", Some(1));
            (0..2).for_each(|_| answer(&mut world, 200));
        }
        _ => {}
    }
    while world.engine.waiting() < MANY {
        let n = world.engine.waiting();
        world.send("k", (kind == "early").then_some(n + 3));
        if n.is_multiple_of(500) {
            world.settle();
        }
    }
    world.pass(200);
    world
}

#[test]
fn a_long_lane_is_purged_in_parts_and_nothing_of_it_is_left() {
    for (kind, is_cut) in
        [("parked", false), ("parked", true), ("flight", false), ("early", false), ("early", true)]
    {
        let what = format!("{kind}, cut: {is_cut}");
        let mut world = long_lane(kind);
        let open = world.take_open();
        assert_eq!(open.len(), usize::from(kind == "flight"), "{what}");
        assert_eq!(world.engine.waiting(), MANY, "{what}");
        assert_eq!(world.engine.purge_lane_part("s", "k").ok(), Some(true), "{what}");
        assert_eq!(world.engine.waiting(), MANY - PART, "{what}");
        durable(&mut world);
        if is_cut {
            world.restart(&mut |_| 0);
            assert_eq!(world.engine.waiting(), MANY - PART, "{what}: the rest is still pending");
            world.must_be_sound();
        }
        world.engine.act_on_lane("s", "k", LaneAction::Purge).expect("purged");
        world.settle();
        let stays = open.len() as u64;
        assert_eq!((world.engine.waiting(), world.engine.dead_letters()), (stays, 0), "{what}");
        open.into_iter().for_each(|delivery| world.engine.outcome(delivery.ticket, world::ok()));
        durable(&mut world);
        must_be_parts(&world, MANY - stays);
        world.restart(&mut |_| 0);
        assert_eq!(world.engine.waiting(), 0, "{what}");
        // The ids are released, and the lane continues.
        for id in ["e4", "e2500", "e4999"] {
            world.send_as("k", (kind == "early").then_some(MANY + 3), id);
        }
        world.settle();
        assert_eq!(world.engine.waiting(), 3, "{what}");
        world.drain();
        world.must_be_sound();
    }
}

#[test]
fn an_interrupted_purge_leaves_the_rest_in_order_after_a_hole() {
    let mut world = World::new(2);
    world.put(document(json!({"paused": true})));
    for n in 0..MANY {
        world.send("k", None);
        if n.is_multiple_of(500) {
            world.settle();
        }
    }
    world.settle();
    assert_eq!(world.engine.purge_lane_part("s", "k").ok(), Some(true));
    durable(&mut world);
    world.restart(&mut |_| 0);
    world.engine.pause_subscription("s", false).expect("resumed");
    for n in PART + 1..PART + 5 {
        (0..2).for_each(|_| world.pass(10));
        let open = world.take_open();
        let place = open.first().and_then(|delivery| delivery.place.clone()).expect("one event is in flight");
        assert_eq!((place.number.0, place.previous_id), (n, Some(format!("e{}", n - 1))));
        assert_eq!(place.flag == Flag::Gap, n == PART + 1, "the hole is flagged once");
        open.into_iter().for_each(|delivery| world.engine.outcome(delivery.ticket, world::ok()));
    }
    world.drain();
    assert_eq!(world.delivered("k").len() as u64, MANY - PART - 4);
    world.must_be_sound();
}

#[test]
fn pending_events_are_discarded_in_parts() {
    for ordering in ["ordered", "unordered"] {
        let mut world = World::new(3);
        world.put(document(json!({"ordering": ordering, "concurrency": 1})));
        for n in 0..MANY {
            world.send(if n % 10 == 0 { "other" } else { "k" }, None);
            if n.is_multiple_of(500) {
                world.settle();
            }
        }
        (0..2).for_each(|_| world.pass(10));
        let open = world.take_open();
        assert_eq!(open.len(), 1);
        let changed = Document::parse(&document(json!({
            "ordering": "ordered", "orderingPolicy": {"key": {"attribute": "source"}},
        })));
        let changed = changed.expect("a valid document");
        let mut next = Some(String::new());
        let mut rounds = 0;
        while let Some(from) = next {
            next = world.engine.discard_part(&changed, &from).expect("discarded");
            rounds += 1;
            world.settle();
        }
        assert!(rounds > 2, "{ordering}: {rounds}");
        world.engine.put_subscription(changed, true).expect("changed");
        world.settle();
        assert_eq!(world.engine.waiting(), 1, "{ordering}");
        open.into_iter().for_each(|delivery| world.engine.outcome(delivery.ticket, world::ok()));
        durable(&mut world);
        must_be_parts(&world, MANY - 1);
        world.restart(&mut |_| 0);
        assert_eq!(world.engine.waiting(), 0, "{ordering}");
        world.must_be_sound();
    }
}

#[test]
fn a_long_lane_is_given_up_in_parts() {
    let mut world = long_lane("parked");
    world.engine.retire_subscription("s", 0).expect("retired");
    world.pass(1000);
    let waits = world.engine.waiting();
    assert!(waits > 0 && waits < MANY, "{waits}");
    world.restart(&mut |_| 0);
    (0..4).for_each(|_| world.pass(1000));
    assert_eq!((world.engine.waiting(), world.engine.dead_letters()), (0, MANY));
    assert!(world.engine.view_subscription("s").is_none(), "the name is free");
    assert!(parts(&world).iter().all(|part| *part <= PART), "{:?}", parts(&world));
    world.must_be_sound();
    world.restart(&mut |_| 0);
    assert_eq!(world.engine.dead_letters(), MANY);
}

/// An event that was never delivered is not a duplicate, however long ago the lane passed its sequence.
#[test]
fn an_undelivered_event_may_be_sent_again_long_after_its_sequence_was_passed() {
    let delete = |world: &mut World| world.engine.delete_dead_letter("s.2").expect("deleted");
    let purge = |world: &mut World| world.engine.act_on_lane("s", "k", LaneAction::Purge).expect("purged");
    let skip_and_delete = |world: &mut World| {
        world.engine.act_on_lane("s", "k", LaneAction::Skip).expect("skipped");
        world.settle();
        world.engine.delete_dead_letter("s.2").expect("deleted");
    };
    let ways: [&dyn Fn(&mut World); 3] = [&delete, &purge, &skip_and_delete];
    for (n, leave) in ways.iter().enumerate() {
        for crash in [false, true] {
            let mut world = World::new(1);
            let policy = json!({"sequence": {"attribute": "sequence"}});
            world.put(document(json!({"orderingPolicy": policy, "idempotency": {"ttl": "1s"}})));
            world.send("k", Some(1));
            answer(&mut world, 200);
            world.send_as("k", Some(2), "two");
            answer(&mut world, 422);
            world.pass(5000);
            leave(&mut world);
            world.settle();
            world.pass(5000);
            if crash {
                world.restart(&mut |_| 0);
            }
            world.send_as("k", Some(1), "e1");
            world.send_as("k", Some(2), "two");
            world.settle();
            let open = world.take_open();
            assert!(!open.is_empty(), "way {n}, crash {crash}: the event counted as a duplicate");
            let place = open[0].place.as_ref().expect("a lane");
            assert_eq!(place.flag, Flag::Late, "way {n}, crash {crash}");
        }
    }
}

/// The next event in order tells the receiver about the hole.
#[test]
fn a_late_event_does_not_take_the_flag_of_a_gap() {
    let mut world = World::new(1);
    let policy = json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": "1h"}});
    world.put(document(json!({"orderingPolicy": policy})));
    world.send("k", Some(1));
    answer(&mut world, 200);
    world.send("k", Some(3));
    world.send("k", Some(4));
    world.settle();
    world.engine.act_on_lane("s", "k", LaneAction::Purge).expect("purged");
    world.settle();
    world.send_as("k", Some(3), "again");
    world.send("k", Some(5));
    let mut flags = Vec::new();
    for _ in 0..2 {
        world.pass(200);
        for delivery in world.take_open() {
            flags.push(delivery.place.as_ref().expect("a lane").flag);
            world.engine.outcome(delivery.ticket, world::ok());
        }
        world.settle();
    }
    assert_eq!(flags, [Flag::Late, Flag::Gap]);
}
