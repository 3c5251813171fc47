//! Breakers: which endpoint the outcome of a late call counts for.

mod world;

use klambda_core::outcome::CallOutcome;
use klambda_dispatch::Delivery;
use klambda_dispatch::operate::{LaneAction, Leftover};
use serde_json::{Value, json};
use world::World;

const PROBE_MS: u64 = 30_000;

fn to(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
        "spec": {
            "target": {"url": format!("http://127.0.0.1:{port}/")},
            "ordering": "ordered",
            "retry": {"attempts": "unlimited", "backoff": "10ms", "maxBackoff": "100ms"},
        },
    })
}

fn refused() -> CallOutcome {
    CallOutcome::Refused("refused".into())
}

/// Answers all open calls.
fn answer(world: &mut World, outcome: fn() -> CallOutcome) -> usize {
    world.pass(200);
    let open = world.take_open();
    let count = open.len();
    open.into_iter().for_each(|delivery| world.engine.outcome(delivery.ticket, outcome()));
    world.settle();
    count
}

/// The endpoint refuses calls until its breaker opens.
fn open_breaker(world: &mut World) {
    for _ in 0..5 {
        answer(world, refused);
    }
    assert_eq!(answer(world, refused), 0, "the breaker is open");
}

/// The breaker is open, and its probe is in flight.
fn probing() -> (World, Vec<Delivery>) {
    let mut world = World::new(1);
    world.put(to("a", 9000));
    world.send("k", None);
    open_breaker(&mut world);
    world.pass(PROBE_MS);
    let probe = world.take_open();
    assert_eq!(probe.len(), 1);
    (world, probe)
}

#[test]
fn a_probe_of_a_subscription_that_is_deleted_meanwhile_leaves_the_breaker_free() {
    for outcome in [world::ok as fn() -> CallOutcome, refused] {
        let (mut world, probe) = probing();
        world.put(to("b", 9000));
        world.send("k", None);
        world.settle();
        world.engine.delete_subscription("a", Leftover::Discard).unwrap();
        world.settle();
        probe.into_iter().for_each(|delivery| world.engine.outcome(delivery.ticket, outcome()));
        world.pass(PROBE_MS + 1000);
        assert_eq!(answer(&mut world, world::ok), 1, "the other subscription continues");
    }
}

#[test]
fn a_late_outcome_of_an_old_target_does_not_count_for_the_new_one() {
    let mut world = World::new(1);
    world.put(to("a", 9000));
    ["k", "l", "m", "n"].iter().for_each(|key| world.send(key, None));
    world.pass(10);
    let late = world.take_open();
    assert_eq!(late.len(), 4);
    world.put(to("a", 9001));
    late.into_iter().for_each(|delivery| world.engine.outcome(delivery.ticket, refused()));
    world.pass(1000);
    assert_eq!(answer(&mut world, world::ok), 4, "the new target is called");
}

#[test]
fn a_probe_that_is_under_way_while_the_target_changes_there_and_back_leaves_the_breaker_free() {
    let (mut world, probe) = probing();
    world.put(to("a", 9001));
    world.put(to("a", 9000));
    probe.into_iter().for_each(|delivery| world.engine.outcome(delivery.ticket, refused()));
    world.pass(PROBE_MS + 1000);
    assert_eq!(answer(&mut world, world::ok), 1);
}

#[test]
fn a_breaker_with_nothing_to_probe_with_wakes_nobody() {
    let mut world = World::new(1);
    world.put(to("a", 9000));
    world.send("k", None);
    open_breaker(&mut world);
    world.engine.act_on_lane("a", "k", LaneAction::Purge).unwrap();
    world.pass(PROBE_MS);
    world.pass(1000);
    assert!(world.engine.wake_at() > world.now);
}
