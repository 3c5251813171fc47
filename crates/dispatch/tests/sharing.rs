//! Open calls are shared among the subscriptions that have work.

mod world;

use klambda_dispatch::{Config, Delivery};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use world::{World, ok, ordered};

/// A subscription to the events of one key prefix, with this concurrency.
fn of(prefix: &str, concurrency: u32) -> Value {
    let filters = json!([{"prefix": {"partitionkey": prefix}}]);
    ordered(prefix, &json!({"concurrency": concurrency, "filters": filters}))
}

fn world(concurrency: u32) -> World {
    World::with(1, Config { concurrency, ..world::config() })
}

fn send(world: &mut World, prefix: &str, keys: usize) {
    (0..keys).for_each(|n| world.send(&format!("{prefix}-{n}"), None));
}

/// The number of open calls by subscription.
fn open(open: &[Delivery]) -> BTreeMap<&str, usize> {
    let mut by_name = BTreeMap::new();
    open.iter().for_each(|delivery| *by_name.entry(delivery.document.name.as_str()).or_default() += 1);
    by_name
}

/// Answers `count` calls of a subscription.
fn answer(world: &mut World, all: Vec<Delivery>, name: &str, count: usize) -> Vec<Delivery> {
    let (its, mut left): (Vec<_>, Vec<_>) = all.into_iter().partition(|d| d.document.name == name);
    for (n, delivery) in its.into_iter().enumerate() {
        match n < count {
            true => world.engine.outcome(delivery.ticket, ok()),
            false => left.push(delivery),
        }
    }
    world.pass(1);
    left.extend(world.take_open());
    left
}

#[test]
fn a_subscription_that_alone_has_work_gets_its_whole_concurrency() {
    let mut world = world(1024);
    world.put(of("busy", 256));
    (0..1000).for_each(|n| world.put(of(&format!("idle{n}"), 256)));
    send(&mut world, "busy", 300);
    world.pass(1);
    assert_eq!(open(&world.take_open()), BTreeMap::from([("busy", 256)]));
}

#[test]
fn subscriptions_with_work_get_equal_shares_and_unused_slots() {
    let mut world = world(64);
    world.put(of("a", 64));
    world.put(of("b", 64));
    world.put(of("c", 64));
    send(&mut world, "a", 100);
    send(&mut world, "b", 100);
    send(&mut world, "c", 5);
    world.pass(1);
    // An eighth of 64 is reserved for subscriptions below their share. A third of the rest is 18; what `c` cannot use
    // goes to the others.
    let calls = world.take_open();
    let shares = open(&calls);
    assert_eq!(shares["c"], 5);
    assert!(shares["a"] + shares["b"] >= 51 && shares["a"].abs_diff(shares["b"]) <= 1, "{shares:?}");
}

#[test]
fn a_newcomer_never_waits_behind_calls_that_hang() {
    let mut world = world(64);
    world.put(of("hog", 64));
    world.put(of("new", 64));
    send(&mut world, "hog", 200);
    world.pass(1);
    let mut calls = world.take_open();
    assert_eq!(open(&calls), BTreeMap::from([("hog", 56)]));
    send(&mut world, "new", 200);
    world.pass(1);
    calls.extend(world.take_open());
    assert_eq!(open(&calls), BTreeMap::from([("hog", 56), ("new", 8)]));
    // Slots released by the first go to the subscription below its share, until both have half.
    let calls = answer(&mut world, calls, "hog", 10);
    assert_eq!(open(&calls), BTreeMap::from([("hog", 46), ("new", 18)]));
    let calls = answer(&mut world, calls, "hog", 18);
    assert_eq!(open(&calls), BTreeMap::from([("hog", 28), ("new", 28)]));
}

#[test]
fn a_subscription_that_cannot_call_has_no_share() {
    let mut world = world(64);
    world.put(of("busy", 64));
    world.put(of("paused", 64));
    world.engine.pause_subscription("paused", true).expect("paused");
    send(&mut world, "paused", 100);
    send(&mut world, "busy", 100);
    world.pass(1);
    assert_eq!(open(&world.take_open()), BTreeMap::from([("busy", 56)]));
}
