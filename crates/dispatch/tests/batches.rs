//! Webhook endpoints that take several events of a workflow in one call.

mod world;

use klambda_core::event_codec::EventView;
use klambda_core::lane::Flag;
use klambda_core::outcome::CallOutcome;
use klambda_core::webhook::Document;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::deliveries::{DeliveryFilter, From};
use klambda_dispatch::operate::LaneAction;
use klambda_dispatch::replay::Request;
use klambda_dispatch::{Delivery, Token};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use world::{Rng, World, error, ok};

const NAME: &str = "webhook.partner";

fn endpoint(batch: Value) -> Value {
    endpoint_with(batch, &["0s", "1s"])
}

fn endpoint_with(batch: Value, schedule: &[&str]) -> Value {
    let document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "WebhookEndpoint", "metadata": {"name": "partner"},
        "spec": {"url": "http://127.0.0.1:9000/", "retry": {"schedule": schedule}, "batch": batch},
    });
    Document::parse(&document).expect("a valid endpoint").subscription().to_stored_json()
}

fn world(batch: Value) -> World {
    let mut world = World::new(1);
    world.put(endpoint(batch));
    world
}

fn send(world: &mut World, key: &str, numbers: std::ops::RangeInclusive<u64>) {
    numbers.for_each(|n| world.send_as(key, None, &format!("{key}{n}")));
    world.settle();
}

fn prefix(events: usize) -> CallOutcome {
    CallOutcome::Prefix { code: 200, events, detail: String::new() }
}

/// The numbers of the events of a call.
fn numbers(call: &Delivery) -> Vec<u64> {
    let first = call.place.as_ref().expect("ordered").number.0;
    std::iter::once(first).chain(call.following.iter().map(|event| event.number.0)).collect()
}

/// The producer's ids of the events of a call.
fn ids(call: &Delivery) -> Vec<String> {
    let first = std::iter::once((&call.record, &call.event));
    let all = first.chain(call.following.iter().map(|event| (&event.record, &event.event)));
    let id = |event: &[u8]| EventView::decode(event).expect("an event").id().to_owned();
    all.map(|(record, event)| id(&record[event.clone()])).collect()
}

/// The only open call.
fn call(world: &mut World) -> Delivery {
    let mut open = world.take_open();
    assert_eq!(open.len(), 1, "{open:?}");
    open.remove(0)
}

fn answer(world: &mut World, outcome: CallOutcome) -> Vec<String> {
    let call = call(world);
    world.engine.outcome(call.ticket, outcome);
    world.settle();
    ids(&call)
}

fn attempts(world: &World, succeeded: bool) -> usize {
    let filter = DeliveryFilter { succeeded: Some(succeeded), ..DeliveryFilter::default() };
    world.engine.read_deliveries(NAME, From::Newest, &filter, 2000).expect("an endpoint").items.len()
}

fn delivered(world: &World) -> u64 {
    world.engine.view_endpoint(NAME).expect("an endpoint").status.delivered
}

#[test]
fn a_call_carries_the_next_events_of_its_workflow_up_to_the_limit() {
    let mut world = world(json!({"maxEvents": 3}));
    send(&mut world, "a", 1..=5);
    assert_eq!(answer(&mut world, ok()), ["a1", "a2", "a3"]);
    assert_eq!((delivered(&world), attempts(&world, true)), (3, 3), "every event has its attempt");
    send(&mut world, "b", 1..=1);
    let open = world.take_open();
    let mut calls: Vec<Vec<String>> = open.iter().map(ids).collect();
    calls.sort();
    assert_eq!(calls, [vec!["a4", "a5"], vec!["b1"]], "workflows do not share a call");
    open.iter().for_each(|call| world.engine.outcome(call.ticket, ok()));
    world.settle();
    assert_eq!((world.engine.waiting(), delivered(&world)), (0, 6));
    send(&mut world, "a", 6..=6);
    let next = call(&mut world);
    let previous = next.place.as_ref().expect("ordered").previous_id.clone();
    let a5 = klambda_core::webhook::EventId::new("default", "/test", "a5").to_string();
    assert_eq!((numbers(&next), previous), (vec![6], Some(a5)));
    world.must_be_sound();
}

#[test]
fn the_rest_of_an_acknowledged_prefix_is_sent_next_and_nothing_failed() {
    let mut world = world(json!({"maxEvents": 4}));
    send(&mut world, "a", 1..=5);
    assert_eq!(answer(&mut world, prefix(2)), ["a1", "a2", "a3", "a4"]);
    let next = call(&mut world);
    assert_eq!((ids(&next), next.attempt), (vec!["a3".to_owned(), "a4".into(), "a5".into()], 1));
    world.engine.outcome(next.ticket, prefix(1));
    world.settle();
    assert_eq!(answer(&mut world, ok()), ["a4", "a5"]);
    assert_eq!((attempts(&world, true), attempts(&world, false)), (5, 0));
    assert_eq!(world.engine.view_endpoint(NAME).expect("there").status.failing_since, None);
}

#[test]
fn a_failed_call_is_an_attempt_of_its_first_event_only() {
    let mut world = world(json!({"maxEvents": 10}));
    send(&mut world, "a", 1..=3);
    let bad =
        CallOutcome::BadAcknowledgement { code: 200, why: "names an event that is not in the call".into() };
    assert_eq!(answer(&mut world, bad), ["a1", "a2", "a3"]);
    send(&mut world, "a", 4..=4);
    world.pass(1200);
    let retry = call(&mut world);
    assert_eq!((retry.attempt, numbers(&retry)), (2, vec![1, 2, 3, 4]), "the retry may carry more");
    world.engine.outcome(retry.ticket, error(500));
    world.settle();
    let status = world.engine.view_endpoint(NAME).expect("there").status;
    assert_eq!((status.parked, status.delivered), (1, 0), "the first event parks its workflow");
    assert_eq!((attempts(&world, false), world.engine.dead_letters()), (2, 1));
    world.engine.act_on_lane(NAME, "a", LaneAction::Skip).expect("skipped");
    world.engine.when_durable(Token(0));
    world.settle();
    let next = call(&mut world);
    assert_eq!((numbers(&next), next.attempt), (vec![2, 3, 4], 1));
    assert_eq!(next.place.as_ref().expect("ordered").flag, Flag::Gap);
    world.engine.outcome(next.ticket, error(410));
    world.settle();
    assert_eq!(world.engine.view_subscription(NAME).expect("there").status.phase, "disabled");
    world.must_be_sound();
}

#[test]
fn events_that_leave_during_a_call_stay_gone() {
    let mut world = world(json!({"maxEvents": 10}));
    send(&mut world, "a", 1..=4);
    let open = call(&mut world);
    world.engine.act_on_lane(NAME, "a", LaneAction::Purge).expect("purged");
    send(&mut world, "a", 5..=5);
    world.engine.outcome(open.ticket, ok());
    world.settle();
    assert_eq!(delivered(&world), 1, "only the event that had the turn");
    let next = call(&mut world);
    assert_eq!(
        (ids(&next), next.place.as_ref().map(|place| place.flag)),
        (vec!["a5".into()], Some(Flag::Gap))
    );
    world.must_be_sound();
}

/// The replayed event gets the turn as soon as the call ends, and the others of the call are acknowledged all the same.
#[test]
fn a_replay_during_a_call_waits_for_all_of_it() {
    let mut world = world(json!({"maxEvents": 10}));
    send(&mut world, "a", 1..=1);
    for _ in 0..2 {
        answer(&mut world, error(500));
        world.pass(1200);
    }
    send(&mut world, "a", 2..=4);
    world.engine.act_on_lane(NAME, "a", LaneAction::Skip).expect("skipped");
    world.engine.when_durable(Token(0));
    world.settle();
    let open = call(&mut world);
    assert_eq!(numbers(&open), [2, 3, 4]);
    let selector = Selector { subscription: Some(NAME.into()), ..Selector::default() };
    let request = Request { selector, rate_per_second: 100, parallelism: 1 };
    world.engine.create_replay(request).expect("a replay");
    for _ in 0..5 {
        world.pass(100);
    }
    world.engine.outcome(open.ticket, ok());
    world.settle();
    world.pass(200);
    assert_eq!((delivered(&world), attempts(&world, true)), (3, 3));
    send(&mut world, "a", 5..=5);
    let late = call(&mut world);
    assert_eq!((numbers(&late), late.place.as_ref().map(|place| place.flag)), (vec![1], Some(Flag::Late)));
    world.restart(&mut |_| 0);
    world.pass(100);
    assert_eq!(ids(&call(&mut world)), ["a1"], "a restart builds the same lane");
    world.must_be_sound();
}

#[test]
fn a_call_stays_within_the_size_and_a_long_queue_fills_it() {
    let mut small = world(json!({"maxEvents": 1000, "maxBytes": "1Ki"}));
    send(&mut small, "a", 1..=60);
    let open = call(&mut small);
    let bytes: usize = open.event.len() + open.following.iter().map(|event| event.event.len()).sum::<usize>();
    assert!(bytes <= 1024 && open.following.len() > 5, "{bytes} bytes in {:?}", numbers(&open));

    // Longer than the part of a queue that is in memory.
    let mut long = world(json!({"maxEvents": 1000}));
    send(&mut long, "a", 1..=900);
    let mut seen = Vec::new();
    while long.engine.waiting() > 0 {
        let call = call(&mut long);
        assert!(seen.len() > 256 || call.following.len() > 256, "{} events", call.following.len());
        seen.extend(numbers(&call));
        long.engine.outcome(call.ticket, ok());
        long.settle();
    }
    assert!(seen.iter().copied().eq(1..=900), "{seen:?}");
    assert_eq!(delivered(&long), 900);
    long.must_be_sound();
}

/// What a receiver knows: the last number of each workflow.
type Known = BTreeMap<String, u64>;

/// The receiver stores the first events of a call, and finds gaps and disorder by itself.
fn receive(known: &mut Known, call: &Delivery, stored: usize) {
    let workflow = call.place.as_ref().and_then(|place| place.workflow.as_deref()).expect("a workflow");
    let last = known.entry(workflow.to_owned()).or_default();
    for number in numbers(call).into_iter().take(stored) {
        assert!(number <= *last + 1, "{workflow}: {number} after {last}");
        *last = number.max(*last);
    }
}

#[test]
fn after_any_crash_a_receiver_misses_nothing_and_sees_no_disorder() {
    for seed in 0..8 {
        let (mut world, mut rng, mut known) = (World::new(seed), Rng(seed), Known::new());
        world.put(endpoint_with(json!({"maxEvents": 2 + seed}), &["0s"; 30]));
        let (mut sent, mut calls, mut events) = (0_u64, 0, 0);
        for _ in 0..200 {
            for _ in 0..rng.below(8) {
                world.send(&format!("k{}", rng.below(3)), None);
                sent += 1;
            }
            world.step_with(&mut rng, |rng, call| {
                let size = 1 + call.following.len();
                (calls, events) = (calls + 1, events + size);
                match rng.below(5) {
                    0 => error(503),
                    1 => {
                        let stored = 1 + rng.below(size as u64) as usize;
                        receive(&mut known, call, stored);
                        prefix(stored)
                    }
                    _ => {
                        receive(&mut known, call, size);
                        ok()
                    }
                }
            });
            // The answer may be lost, before or after it is written.
            if rng.below(30) == 0 {
                world.crash(&mut rng);
            }
        }
        for _ in 0..400 {
            if world.engine.waiting() == 0 {
                break;
            }
            world.pass(2000);
            for call in world.take_open() {
                receive(&mut known, &call, 1 + call.following.len());
                world.engine.outcome(call.ticket, ok());
            }
        }
        assert_eq!(world.engine.waiting(), 0, "seed {seed}");
        let stored: u64 = known.values().sum();
        assert!(stored > 200 && stored <= sent, "seed {seed}: {stored} of {sent}");
        assert!(events > calls + 50, "seed {seed}: {events} events in {calls} calls");
        let accepted: u64 = world.accepted.values().map(|ids| ids.len() as u64).sum();
        assert!(stored >= accepted, "seed {seed}: {stored} stored, {accepted} accepted");
        world.must_be_sound();
    }
}
