//! Events that outlive their segment, or that cannot be read: later events continue.

mod world;

use klambda_core::event_codec::EventView;
use klambda_core::subscription::Document;
use klambda_dispatch::operate::LaneAction;
use klambda_dispatch::{Config, Delivery};
use klambda_store::disk::Disk;
use klambda_store::log::Options;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use world::{Rng, World};

const DAY_MS: u64 = 24 * 3_600_000;

fn ordered(policy: Value) -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "orders"},
        "spec": {
            "target": {"url": "http://127.0.0.1:9000/"},
            "ordering": "ordered",
            "orderingPolicy": policy,
            "retry": {"attempts": 1},
        },
    })
}

/// Answers all open calls and those that follow. Returns the calls with their previous ids.
fn answer_all(world: &mut World, mut code: impl FnMut(&str) -> u16) -> Vec<(String, Option<String>)> {
    let mut called = Vec::new();
    for _ in 0..4 {
        world.pass(20);
        for delivery in world.take_open() {
            let id = id_of(&delivery);
            let place = delivery.place.clone().expect("ordered");
            world.engine.outcome(delivery.ticket, world::error(code(&id)));
            called.push((id, place.previous_id));
        }
    }
    called
}

fn id_of(delivery: &Delivery) -> String {
    let view = EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event");
    view.id().to_owned()
}

fn begins_with(world: &World, name: &str) -> bool {
    world.disk.list().expect("lists").iter().any(|file| file == name)
}

/// A lane parked by `first`, whose segment was deleted, so that only a copy is left.
fn parked_and_copied() -> World {
    let mut world = World::new(1);
    world.put(ordered(json!({})));
    world.send_as("sick", None, "first");
    answer_all(&mut world, |_| 422);
    for _ in 0..20 {
        (0..100).for_each(|n| world.send(&format!("well{n}"), None));
        answer_all(&mut world, |_| 200);
    }
    (0..60).for_each(|_| world.pass(DAY_MS / 4));
    assert!(!begins_with(&world, "log-0000000000000000"), "the first segment was deleted");
    world
}

/// One of the engine's jobs. Small steps allow more states in between.
fn small_step(world: &mut World, n: usize) {
    match n % 5 {
        0 => {
            world.now = world.now + 1000;
            world.engine.tick(world.now);
        }
        1 => world.engine.flush(),
        2 => {
            world.engine.run_sync();
        }
        3 => {
            world.engine.run_chore();
        }
        _ => {
            world.engine.run_prepare();
        }
    }
}

/// A scanned segment stays for a while: its copies must be durable, and a checkpoint must be past it. Until it is
/// deleted, a new subscription may take events from it. None of them is lost, whenever that happens.
#[test]
fn an_event_that_is_taken_up_while_its_segment_retires_stays() {
    let mut world = retiring(0);
    let is_gone = |n: &usize| {
        small_step(&mut world, *n);
        first_position(&world) > 1
    };
    let retired = 1 + (0..500).find(is_gone).expect("the segment is deleted");
    let mut taken_up = BTreeSet::new();
    for steps in retired.saturating_sub(15)..=retired {
        let mut world = retiring(steps);
        let parked = world.engine.waiting();
        let mut past = ordered(json!({}));
        past["metadata"]["name"] = json!("past");
        past["spec"]["from"] = json!("earliest");
        past["spec"]["paused"] = json!(true);
        let past = Document::parse(&past).expect("a valid document");
        world.engine.put_subscription(past, false).expect("put");
        (0..30).for_each(|_| world.pass(DAY_MS / 4));
        assert!(first_position(&world) > 1, "the first segment was deleted");
        let waiting = world.engine.waiting() - parked;
        taken_up.insert(waiting);
        world.engine.pause_subscription("past", false).unwrap();
        let delivered: usize = (0..10).map(|_| answer_all(&mut world, |_| 200).len()).sum();
        let letters = world.engine.dead_letters();
        assert_eq!(
            (delivered as u64, letters),
            (waiting, 1),
            "{steps} steps: all but those of the parked lane"
        );
    }
    assert!(taken_up.len() > 1, "the segment exists at first and is deleted at the end: {taken_up:?}");
}

/// Runs steps until the first segment is being deleted.
fn retiring(steps: usize) -> World {
    let log = Options { segment_bytes: 32 << 10, reserve_bytes: 4 << 10, tail_bytes: 4 << 10 };
    let mut world = World::with(1, Config { log, ..world::config() });
    world.put(ordered(json!({})));
    for _ in 0..12 {
        (0..40).for_each(|n| world.send(&format!("well{n}"), None));
        answer_all(&mut world, |id| if id == "e1" { 422 } else { 200 });
    }
    world.now = world.now + 8 * DAY_MS;
    (0..steps).for_each(|n| small_step(&mut world, n));
    world
}

fn first_position(world: &World) -> u64 {
    world.engine.view_status().positions.first.expect("events")
}

fn named(id: &str, previous: Option<&str>) -> (String, Option<String>) {
    (id.to_owned(), previous.map(str::to_owned))
}

#[test]
fn an_event_that_was_copied_forward_is_named_by_the_next_one_also_after_a_crash() {
    for crash in [false, true] {
        let mut world = parked_and_copied();
        world.engine.act_on_lane("orders", "sick", LaneAction::Resume).unwrap();
        assert_eq!(answer_all(&mut world, |_| 200), [named("first", None)]);
        if crash {
            world.crash(&mut Rng(3));
        }
        world.send_as("sick", None, "second");
        assert_eq!(answer_all(&mut world, |_| 200), [named("second", Some("first"))], "crash: {crash}");
        world.engine.request_checkpoint();
        world.pass(1000);
        world.must_be_sound();
    }
}

#[test]
fn an_event_that_was_copied_forward_is_purged() {
    for crash in [false, true] {
        let mut world = parked_and_copied();
        world.engine.act_on_lane("orders", "sick", LaneAction::Purge).unwrap();
        world.pass(100);
        if crash {
            world.crash(&mut Rng(4));
        }
        world.send_as("sick", None, "second");
        assert_eq!(answer_all(&mut world, |_| 200), [named("second", Some("first"))], "crash: {crash}");
    }
}

#[test]
fn a_copy_goes_when_nothing_needs_it() {
    let mut world = parked_and_copied();
    world.engine.act_on_lane("orders", "sick", LaneAction::Resume).unwrap();
    answer_all(&mut world, |_| 200);
    world.engine.request_checkpoint();
    (0..10).for_each(|_| world.pass(1000));
    world.crash(&mut Rng(5));
    world.send_as("sick", None, "second");
    assert_eq!(answer_all(&mut world, |_| 200), [named("second", Some("first"))]);
}

#[test]
fn an_event_that_cannot_be_read_back_stops_nothing_but_itself() {
    let mut world = World::new(1);
    world.put(ordered(json!({"onFailure": "skip"})));
    world.engine.pause_subscription("orders", true).unwrap();
    ["damaged", "next", "last"].iter().for_each(|id| world.send_as("sick", None, id));
    // Enough events that the first ones are read from disk.
    (0..400).for_each(|n| world.send(&format!("well{n}"), None));
    world.settle();
    world.crash(&mut Rng(6));
    flip(&world, b"damaged");
    world.engine.pause_subscription("orders", false).unwrap();
    world.settle();
    let called = answer_all(&mut world, |_| 200);
    let sick: Vec<_> = called.into_iter().filter(|(id, _)| !id.starts_with('e')).collect();
    assert_eq!(sick, [named("next", None), named("last", Some("next"))]);
    assert_eq!(world.engine.dead_letters(), 1);
    world.engine.request_checkpoint();
    world.pass(1000);
    world.crash(&mut Rng(7));
    world.send_as("sick", None, "later");
    assert_eq!(answer_all(&mut world, |_| 200), [named("later", Some("last"))]);
}

/// The subscription retries at every tick, but the error is reported once.
#[test]
fn an_unreadable_unread_event_is_reported_once() {
    let mut world = World::new(1);
    let mut full = ordered(json!({}));
    full["spec"]["backlog"] = json!({"maxEvents": 2});
    world.put(full);
    world.engine.pause_subscription("orders", true).unwrap();
    for id in ["a", "b", "c", "damaged"] {
        world.send_as("sick", None, id);
        world.settle();
    }
    (0..400).for_each(|n| world.send(&format!("well{n}"), None));
    world.settle();
    flip(&world, b"damaged");
    world.engine.pause_subscription("orders", false).unwrap();
    for _ in 0..20 {
        answer_all(&mut world, |_| 200);
    }
    assert_eq!(world.engine.metrics().damaged, 1);
    let status = world.engine.view_subscription("orders").unwrap().status;
    assert!(
        status.messages.iter().any(|message| message.starts_with("event 4 cannot")),
        "{:?}",
        status.messages
    );
}

/// Damages the first occurrence of these bytes in the first segment.
fn flip(world: &World, bytes: &[u8]) {
    let name = "log-0000000000000000";
    let file = world.disk.open(name).expect("a segment");
    let mut content = vec![0; file.len().expect("a length") as usize];
    file.read_at(&mut content, 0).expect("reads");
    let at = content
        .windows(bytes.len())
        .position(|window| window == bytes)
        .expect("the segment contains the bytes");
    world.disk.flip_bit(name, 8 * at as u64);
}

#[test]
fn a_replayed_event_names_the_one_before_it() {
    for crash in [false, true] {
        let mut world = World::new(1);
        world.put(ordered(json!({"onFailure": "skip"})));
        ["a", "b", "c"].iter().for_each(|id| world.send_as("k", None, id));
        let called = [named("a", None), named("b", Some("a")), named("c", Some("b"))];
        assert_eq!(answer_all(&mut world, |_| 422), called);
        let selector = klambda_dispatch::dead_letters::Selector::default();
        let request = klambda_dispatch::replay::Request { selector, rate_per_second: 1000, parallelism: 16 };
        world.engine.create_replay(request).unwrap();
        world.pass(100);
        if crash {
            world.engine.request_checkpoint();
            world.pass(100);
            world.crash(&mut Rng(8));
        }
        assert_eq!(answer_all(&mut world, |_| 200), called, "crash: {crash}");
        world.send_as("k", None, "d");
        assert_eq!(answer_all(&mut world, |_| 200), [named("d", Some("c"))]);
    }
}
