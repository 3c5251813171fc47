//! Subscriptions whose ordering changes, with dead letters, replays, and events that arrive while they read the log.

mod world;

use klambda_core::event_codec::EventView;
use klambda_core::lane::Flag;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_dispatch::Delivery;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::{LaneAction, Leftover, Refused};
use klambda_dispatch::replay::{Request, State};
use serde_json::{Value, json};
use world::{World, error, ok, ordered};

const DAY_MS: u64 = 24 * 3_600_000;

/// A delivery: subscription, event, number, whether late.
type Seen = (String, String, Option<u64>, bool);

fn subscription(name: &str, spec: &Value) -> Value {
    let mut document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
        "spec": {"target": {"url": "http://10.0.0.1/"}, "retry": {"attempts": 1, "backoff": "10ms"}},
    });
    for (member, value) in spec.as_object().expect("an object") {
        document["spec"][member] = value.clone();
    }
    document
}

fn unordered() -> Value {
    json!({})
}

fn by(attribute: &str) -> Value {
    json!({"ordering": "ordered", "orderingPolicy": {"key": {"attribute": attribute}, "onFailure": "skip"}})
}

fn id(delivery: &Delivery) -> String {
    let event = &delivery.record[delivery.event.clone()];
    EventView::decode(event).expect("an event").id().to_owned()
}

/// Runs rounds until no call is made for a while. If `answer` returns `None`, the call stays open.
fn rounds(world: &mut World, mut answer: impl FnMut(&Delivery) -> Option<CallOutcome>) -> Vec<Seen> {
    let (mut seen, mut quiet) = (Vec::new(), 0);
    while quiet < 10 {
        world.pass(1000);
        quiet += 1;
        for delivery in world.take_open() {
            quiet = 0;
            let place = delivery.place.as_ref();
            let late = place.is_some_and(|place| place.flag == Flag::Late);
            let number = place.map(|place| place.number.0);
            seen.push((delivery.document.name.clone(), id(&delivery), number, late));
            if let Some(outcome) = answer(&delivery) {
                world.engine.outcome(delivery.ticket, outcome);
            }
        }
    }
    seen
}

fn replay_all(world: &mut World) -> u64 {
    let request = Request { selector: Selector::default(), rate_per_second: 0, parallelism: 4 };
    world.engine.create_replay(request).expect("a replay")
}

fn seen(name: &str, event: &str, number: Option<u64>, late: bool) -> Seen {
    (name.into(), event.into(), number, late)
}

#[test]
fn a_dead_letter_from_before_there_were_lanes_gets_a_number_of_its_own() {
    let mut world = World::new(1);
    world.put(subscription("s", &unordered()));
    for event in ["a", "b", "c"] {
        world.send_as("k", None, event);
    }
    rounds(&mut world, |delivery| Some(error(if id(delivery) == "b" { 400 } else { 200 })));
    world.put(subscription("s", &by("partitionkey")));
    for event in ["d", "e", "f"] {
        world.send_as("k", None, event);
    }
    rounds(&mut world, |_| Some(ok()));
    replay_all(&mut world);
    assert_eq!(rounds(&mut world, |_| Some(ok())), [seen("s", "b", Some(4), true)]);
    world.must_be_sound();
}

#[test]
fn a_dead_letter_goes_back_to_the_lane_of_the_rules_in_force() {
    let mut world = World::new(2);
    world.put(subscription("s", &by("partitionkey")));
    for event in ["a", "b"] {
        world.send_as("k", None, event);
    }
    rounds(&mut world, |delivery| Some(error(if id(delivery) == "b" { 400 } else { 200 })));
    world.put(subscription("s", &by("type")));
    world.send_as("k", None, "c");
    rounds(&mut world, |_| Some(ok()));
    replay_all(&mut world);
    // Number 2 of the lane of its type, not of the lane in which it failed.
    assert_eq!(rounds(&mut world, |_| Some(ok())), [seen("s", "b", Some(2), true)]);
    world.send_as("k", None, "d");
    assert_eq!(rounds(&mut world, |_| Some(ok())), [seen("s", "d", Some(3), false)]);
    world.must_be_sound();
}

/// A subscription with a call that is never answered, so that its new rules wait. Target and filters do not.
fn between_two_epochs(world: &mut World) {
    world.put(subscription("s", &by("partitionkey")));
    world.send_as("k", None, "first");
    world.settle();
    world.put(subscription("s", &by("type")));
}

#[test]
fn unread_events_stay_known_and_are_delivered_once() {
    let mut world = World::new(3);
    between_two_epochs(&mut world);
    world.send_as("k", None, "later");
    world.pass(DAY_MS + 1000);
    world.send_as("k", None, "later");
    world.settle();
    assert_eq!(world.accepted["k"], ["first", "later"]);
    let all = rounds(&mut world, |_| Some(ok()));
    let events: Vec<&str> = all.iter().map(|one| one.1.as_str()).collect();
    assert_eq!(events, ["first", "later"]);
    world.must_be_sound();
}

#[test]
fn an_event_known_at_acceptance_is_not_read_from_the_log() {
    let mut world = World::new(4);
    world.put(subscription("other", &unordered()));
    between_two_epochs(&mut world);
    // The other subscription delivers the event and forgets it; in this one it is pending all the time.
    let mine = |delivery: &Delivery| delivery.document.name == "s";
    rounds(&mut world, |delivery| (!mine(delivery)).then(ok));
    world.pass(2 * DAY_MS);
    world.send_as("k", None, "first");
    world.settle();
    assert_eq!(world.accepted["k"], ["first", "first"], "a new event for the other subscription");
    world.restart(&mut |_| 0);
    let all = rounds(&mut world, |_| Some(ok()));
    let mine = all.iter().filter(|one| one.0 == "s").count();
    assert_eq!(mine, 1, "{all:?}");
    world.must_be_sound();
}

#[test]
fn a_subscription_that_waits_for_new_rules_is_deleted_when_everything_is_delivered() {
    let mut world = World::new(5);
    between_two_epochs(&mut world);
    world.send_as("k", None, "later");
    world.settle();
    let refused = world.engine.delete_subscription("s", Leftover::Refuse);
    assert!(matches!(refused, Err(Refused::EventsWaiting { waiting: 2, .. })), "{refused:?}");
    assert!(world.engine.delete_subscription("s", Leftover::Drain).is_ok_and(|gone| !gone));
    let all = rounds(&mut world, |_| Some(ok()));
    assert_eq!(all.len(), 2, "{all:?}");
    world.pass(2000);
    assert!(world.engine.view_subscription("s").is_none());
}

#[test]
fn filters_that_come_with_a_new_ordering_hold_at_once() {
    let mut world = World::new(6);
    world.put(subscription("s", &by("partitionkey")));
    world.send_as("k", None, "first");
    world.settle();
    let mut spec = by("type");
    spec["filters"] = json!([{"exact": {"type": "another"}}]);
    world.put(subscription("s", &spec));
    world.send_as("k", None, "not wanted");
    let all = rounds(&mut world, |_| Some(ok()));
    assert_eq!(all, [seen("s", "first", Some(1), false)]);
    world.must_be_sound();
}

#[test]
fn a_replay_ends_when_what_it_waits_for_is_purged_from_the_disk() {
    let mut world = World::new(7);
    world.put(subscription("s", &unordered()));
    world.send_as("k", None, "bad");
    rounds(&mut world, |_| Some(error(400)));
    world.put(subscription("s", &by("partitionkey")));
    // Long enough that the middle of the queue, with the dead letter, is on disk.
    for _ in 0..400 {
        world.send("k", None);
    }
    world.settle();
    let job = replay_all(&mut world);
    world.pass(10);
    for _ in 0..600 {
        world.send("k", None);
    }
    world.settle();
    world.engine.act_on_lane("s", "k", LaneAction::Purge).expect("purged");
    rounds(&mut world, |_| Some(ok()));
    let job = world.engine.replay(job).expect("a job");
    assert_eq!((job.state, job.skipped_reasons["purged"]), (State::Succeeded, 1));
    world.must_be_sound();
}

#[test]
fn a_limit_that_is_lowered_far_below_what_waits_is_reached_step_by_step() {
    let mut world = World::new(8);
    world.put(subscription("s", &by("partitionkey")));
    for _ in 0..20_000 {
        world.send("k", None);
    }
    world.settle();
    let mut spec = by("partitionkey");
    spec["backlog"] = json!({"maxEvents": 10, "onFull": "drop"});
    world.put(subscription("s", &spec));
    for _ in 0..400 {
        world.send("k", None);
    }
    world.settle();
    assert_eq!(world.engine.waiting(), 10);
    world.drain();
    world.must_be_sound();
}

#[test]
fn new_rules_start_with_new_sequences() {
    let by_sequence = json!({
        "ordering": "ordered",
        "orderingPolicy": {"key": {"attribute": "partitionkey"}, "sequence": {"attribute": "sequence"}},
    });
    for crash in [false, true] {
        let mut world = World::new(1);
        world.put(subscription("s", &by_sequence));
        (1..=20).for_each(|n| world.send_as("k", Some(n), &format!("a{n}")));
        rounds(&mut world, |_| Some(ok()));
        world.engine.request_checkpoint();
        world.pass(1000);
        if crash {
            world.restart(&mut |_| 0);
        }
        world.put(subscription("s", &by("partitionkey")));
        world.put(subscription("s", &by_sequence));
        if crash {
            world.restart(&mut |_| 0);
        }
        (1..=2).for_each(|n| world.send_as("k", Some(n), &format!("b{n}")));
        let expected = [seen("s", "b1", Some(21), false), seen("s", "b2", Some(22), false)];
        assert_eq!(rounds(&mut world, |_| Some(ok())), expected, "crash: {crash}");
    }
}

/// The next segment is not ready, so unread events cannot be discarded now, and the call does not wait for that.
#[test]
fn a_change_that_discards_unread_events_is_refused_without_room() {
    let mut world = World::new(9);
    let spec = json!({"backlog": {"maxEvents": 1, "onFull": "lag"}});
    world.put(ordered("s", &spec));
    let mut sent = 0;
    while world.engine.is_accepting() {
        world.send(&format!("k{}", sent % 7), None);
        sent += 1;
    }
    let mut other = ordered("s", &spec);
    other["spec"]["orderingPolicy"] = json!({"key": {"attribute": "subject"}});
    let document = Document::parse(&other).expect("a valid document");
    let refused = world.engine.put_subscription(document.clone(), true).expect_err("no room");
    assert!(matches!(refused, Refused::DiskFull), "{refused}");
    world.settle();
    world.engine.put_subscription(document, true).expect("there is room again");
    world.settle();
    assert_eq!(world.engine.failure(), None);
    assert!(world.engine.waiting() <= 1, "only events in flight are left of {sent}");
}
