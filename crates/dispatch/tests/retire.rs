//! Deleted subscriptions that leave dead letters behind.

mod world;

use klambda_core::event_codec::EventView;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::{LaneAction, Leftover, Refused};
use klambda_dispatch::replay::{Request, State};
use klambda_dispatch::views::Letters;
use klambda_dispatch::{Delivery, Token};
use klambda_store::disk::Disk;
use serde_json::{Value, json};
use world::{Rng, World};

const NAME: &str = "lambda.default.f";

fn function(ordering: &str) -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": NAME},
        "spec": {
            "target": {"function": {"namespace": "default", "name": "f"}},
            "ordering": ordering,
            "retry": {"attempts": 2, "backoff": "10ms"},
        },
    })
}

/// Every dead letter as `id event reason`, read page by page.
fn letters(world: &World) -> Vec<String> {
    let mut after = None;
    let mut found = Vec::new();
    loop {
        let mut page = Letters::new(Selector::default(), after, 2);
        while world.engine.list_dead_letters(&mut page).expect("read") {}
        let next = page.cut();
        found.extend(page.items.iter().map(|one| format!("{} {} {}", one.id, one.event_id, one.reason)));
        let Some(next) = next else { return found };
        let (name, position) = next.rsplit_once('.').expect("a cursor");
        after = Some((name.to_owned(), klambda_core::ids::Position(position.parse().expect("a number"))));
    }
}

fn id(delivery: &Delivery) -> String {
    let event = &delivery.record[delivery.event.clone()];
    EventView::decode(event).expect("an event").id().to_owned()
}

fn rounds(world: &mut World, n: u32, mut answer: impl FnMut(&Delivery) -> Option<CallOutcome>) {
    for _ in 0..n {
        world.pass(1000);
        for delivery in world.take_open() {
            if let Some(outcome) = answer(&delivery) {
                world.engine.outcome(delivery.ticket, outcome);
            }
        }
    }
}

fn replay(subscription: Option<&str>) -> Request {
    let selector = Selector { subscription: subscription.map(str::to_owned), ..Selector::default() };
    Request { selector, rate_per_second: 0, parallelism: 4 }
}

#[test]
fn events_pending_after_the_grace_period_become_dead_letters() {
    for ordering in ["ordered", "unordered"] {
        let mut world = World::new(1);
        world.put(function(ordering));
        for (key, id) in [("well", "e1"), ("sick", "e2"), ("sick", "e3"), ("open", "e4"), ("open", "e5")] {
            world.send_as(key, None, id);
        }
        // One event succeeds, one fails permanently, one hangs.
        let target = |delivery: &Delivery| match id(delivery).as_str() {
            "e1" => Some(world::ok()),
            "e2" => Some(world::error(422)),
            _ => None,
        };
        rounds(&mut world, 5, target);
        world.engine.retire_subscription(NAME, 30_000).expect("retired");
        world.send_as("well", None, "e6");
        rounds(&mut world, 20, target);
        assert_eq!(world.engine.view_subscription(NAME).expect("exists").status.phase, "draining");
        let again = Document::parse(&function(ordering)).expect("a valid document");
        assert!(matches!(world.engine.put_subscription(again, false), Err(Refused::Conflict(_))));
        rounds(&mut world, 15, target);
        assert!(world.engine.view_subscription(NAME).is_none(), "the name is free");
        let mut expected: Vec<String> = (2..=5)
            .map(|n| format!("{NAME}.{n} e{n} {}", if n == 2 { "poison" } else { "unavailable" }))
            .collect();
        assert_eq!(letters(&world), expected, "{ordering}");
        world.must_be_sound();
        let mut rng = Rng(1);
        world.restart(&mut |n| rng.below(n.max(1)));
        assert_eq!(letters(&world), expected, "{ordering}");

        // The dead letters can be read and deleted, but not replayed yet.
        let (of, position) = world.engine.dead_letter_id(&format!("{NAME}.3")).expect("exists");
        assert!(world.engine.view_dead_letter(of, position).expect("read").is_some());
        world.engine.delete_dead_letter(&format!("{NAME}.3")).expect("deleted");
        expected.remove(1);
        assert_eq!(letters(&world), expected);
        assert!(matches!(world.engine.create_replay(replay(Some(NAME))), Err(Refused::Conflict(_))));
        let job = world.engine.create_replay(replay(None)).expect("a replay job");
        rounds(&mut world, 3, |_| Some(world::ok()));
        let job = world.engine.replay(job).expect("exists");
        assert_eq!((job.state, job.skipped_reasons.get("noSubscription")), (State::Succeeded, Some(&3)));

        // A new subscription with the same name is independent. A replay moves the dead letters to it, except for
        // events that it already has.
        world.put(function(ordering));
        world.send_as("open", None, "e5");
        let mut calls = Vec::new();
        let mut note = |delivery: &Delivery| {
            calls.push((id(delivery), delivery.place.as_ref().map(|place| place.number.0)));
            Some(world::ok())
        };
        rounds(&mut world, 3, &mut note);
        let job = world.engine.create_replay(replay(Some(NAME))).expect("a replay job");
        rounds(&mut world, 5, &mut note);
        calls.sort();
        let place = |n: u64| (ordering == "ordered").then_some(n);
        let wanted = [("e2".to_owned(), place(1)), ("e4".into(), place(2)), ("e5".into(), place(1))];
        assert_eq!(calls, wanted, "{ordering}");
        let job = world.engine.replay(job).expect("exists");
        assert_eq!(
            (job.state, job.counts.replayed, job.counts.failed, job.counts.skipped),
            (State::Succeeded, 2, 0, 1)
        );
        assert!(letters(&world).is_empty());
        world.must_be_sound();
        let mut rng = Rng(2);
        world.restart(&mut |n| rng.below(n.max(1)));
        world.must_be_sound();
    }
}

#[test]
fn a_subscription_that_drains_in_time_is_removed() {
    let mut world = World::new(2);
    world.put(function("ordered"));
    world.send_as("k", None, "e1");
    world.settle();
    world.engine.retire_subscription(NAME, 30_000).expect("retired");
    rounds(&mut world, 5, |_| Some(world::ok()));
    assert!(world.engine.view_subscription(NAME).is_none());
    assert!(letters(&world).is_empty());
    world.put(function("ordered"));
    world.send_as("k", None, "e2");
    rounds(&mut world, 3, |delivery| {
        assert_eq!(delivery.place.as_ref().map(|place| place.number.0), Some(1));
        Some(world::ok())
    });
    world.must_be_sound();
}

#[test]
fn dead_letters_that_are_left_grow_old_like_any() {
    let mut world = World::new(3);
    world.put(function("ordered"));
    world.send_as("k", None, "e1");
    world.settle();
    world.engine.retire_subscription(NAME, 0).expect("retired");
    rounds(&mut world, 5, |_| None);
    assert_eq!(letters(&world).len(), 1);
    world.pass(8 * 24 * 3_600_000);
    world.pass(2000);
    world.pass(2000);
    assert!(letters(&world).is_empty());
    assert_eq!(world.engine.dead_letters(), 0);
    world.must_be_sound();
}

/// Long queues, gaps and power cuts: every event is delivered or becomes a dead letter, once.
#[test]
fn a_deleted_subscription_loses_no_event() {
    for seed in 0..12 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        let ordered = seed % 4 != 0;
        let mut document = function(if ordered { "ordered" } else { "unordered" });
        if seed % 2 == 1 {
            document["spec"]["orderingPolicy"] = json!({"sequence": {"attribute": "sequence"}, "buffer": {"maxEvents": 3}, "gap": {"action": "park"}});
        }
        world.put(document);
        let n = 200 + rng.below(400);
        for n in 1..=n {
            let key = format!("k{}", rng.below(3));
            world.send_as(&key, Some(n / 3 + rng.below(4)), &format!("e{n}"));
            if n % 50 == 0 {
                world.settle();
            }
        }
        world.engine.when_durable(Token(0));
        world.settle();
        world.engine.retire_subscription(NAME, 3000).expect("retired");
        let mut delivered: std::collections::BTreeSet<String> = Default::default();
        let mut is_up = true;
        for _ in 0..40 {
            rounds(&mut world, 1, |delivery| match rng.below(6) {
                0 => Some(world::error(500)),
                1 => None,
                _ => {
                    delivered.insert(id(delivery));
                    Some(world::ok())
                }
            });
            if rng.below(6) == 0 && is_up {
                let mut rng = Rng(rng.next());
                world.restart(&mut |n| rng.below(n.max(1)));
                is_up = rng.below(3) > 0;
            }
        }
        assert!(world.engine.view_subscription(NAME).is_none(), "seed {seed}");
        assert_eq!(world.engine.waiting(), 0, "seed {seed}");
        let dead: Vec<String> =
            letters(&world).iter().filter_map(|line| line.split(' ').nth(1).map(str::to_owned)).collect();
        let known = |n: u64| delivered.contains(&format!("e{n}")) || dead.contains(&format!("e{n}"));
        // A passed sequence may count as a duplicate by its watermark; such events are skipped on arrival.
        let accepted = world.accepted.values().flatten().count();
        let found = (1..=n).filter(|n| known(*n)).count();
        assert!(found >= accepted, "seed {seed}: {found} of {accepted}");
        world.must_be_sound();
    }
}

/// In the middle of a long queue the dead letter is among younger events, so a search must not rely on their order.
#[test]
fn retention_keeps_a_dead_letter_that_moved_into_a_long_queue() {
    for ordering in ["ordered", "unordered"] {
        let mut world = World::new(7);
        world.put(function(ordering));
        world.send_as("sick", None, "letter");
        rounds(&mut world, 3, |_| Some(world::error(422)));
        world.engine.retire_subscription(NAME, 0).expect("retired");
        rounds(&mut world, 3, |_| None);
        assert_eq!(letters(&world).len(), 1, "{ordering}");
        // The successor gets no response, so that the queue grows.
        let mut document = function(ordering);
        document["spec"]["concurrency"] = json!(1);
        world.put(document);
        (0..600).for_each(|_| world.send("sick", None));
        world.settle();
        world.engine.create_replay(replay(Some(NAME))).expect("a replay job");
        (0..3).for_each(|_| world.pass(1000));
        assert_eq!(letters(&world).len(), 0, "{ordering}: the event is pending among the others");
        (0..600).for_each(|_| world.send("sick", None));
        world.settle();
        // Long enough for retention to copy the copies.
        for _ in 0..40 {
            world.pass(24 * 3_600_000);
            world.engine.request_checkpoint();
        }
        world.drain();
        let delivered = world.delivered("sick");
        assert_eq!(delivered.iter().filter(|id| *id == "letter").count(), 1, "{ordering}");
        assert_eq!(delivered.len(), 1201, "{ordering}: nothing else is missing");
        world.must_be_sound();
    }
}

/// Dead letters in flight at the crash, dead letters that the successor cannot place, and one that cannot be read.
#[test]
fn a_replay_to_a_successor_reports_every_dead_letter_through_damage_and_a_crash() {
    for ordering in ["ordered", "unordered"] {
        let mut world = World::new(4);
        world.put(function(ordering));
        world.engine.pause_subscription(NAME, true).expect("paused");
        (1..=250).for_each(|n| world.send_as(&format!("k{n}"), None, &format!("e{n}")));
        world.settle();
        world.engine.retire_subscription(NAME, 0).expect("retired");
        rounds(&mut world, 5, |_| None);
        assert_eq!(letters(&world).len(), 250);
        // A start reads the log from this checkpoint on, so earlier damage is found only when the event is read.
        world.engine.request_checkpoint();
        rounds(&mut world, 2, |_| None);
        let segment = world.disk.list().expect("lists").into_iter().find(|name| name.starts_with("log-"));
        world.disk.flip_bit(&segment.expect("a segment"), 8 * 4000);

        world.put(function(ordering));
        let request = Request { parallelism: 64, ..replay(Some(NAME)) };
        let job = world.engine.create_replay(request).expect("a replay job");
        rounds(&mut world, 3, |_| None);
        assert!(!world.engine.replay(job).expect("exists").open.is_empty());
        world.restart(&mut |_| 0);
        rounds(&mut world, 260, |_| Some(world::ok()));
        assert_eq!(world.engine.failure(), None);
        let job = world.engine.replay(job).expect("exists");
        let counts =
            (job.state, job.counts.selected, job.counts.replayed, job.counts.failed, job.counts.skipped);
        assert_eq!(counts, (State::Succeeded, 250, 249, 0, 1), "{ordering}: {job:?}");
        assert_eq!(job.skipped_reasons["unreadable"], 1);
        assert_eq!(letters(&world).len(), 1, "an unreadable dead letter is not moved");
    }
}

#[test]
fn a_dead_letter_that_a_successor_cannot_place_has_failed_again() {
    let mut world = World::new(5);
    world.put(function("ordered"));
    world.send_as("k", None, "e1");
    world.settle();
    world.engine.retire_subscription(NAME, 0).expect("retired");
    rounds(&mut world, 3, |_| None);
    let mut document = function("ordered");
    document["spec"]["orderingPolicy"] = json!({"key": {"attribute": "nokey"}});
    world.put(document);
    let job = world.engine.create_replay(replay(Some(NAME))).expect("a replay job");
    rounds(&mut world, 3, |_| Some(world::ok()));
    let job = world.engine.replay(job).expect("exists");
    assert_eq!((job.state, job.counts.selected, job.counts.failed), (State::Failed, 1, 1), "{job:?}");
    assert_eq!(letters(&world), [format!("{NAME}.1 e1 validation")]);
    world.must_be_sound();
}

/// An unordered queue is in order of arrival, but a moved dead letter is an older event.
#[test]
fn a_restart_finds_what_was_on_its_way_beside_an_older_dead_letter() {
    for discards in [false, true] {
        let mut world = World::new(6);
        let mut document = function("unordered");
        document["spec"]["concurrency"] = json!(if discards { 2 } else { 3 });
        world.put(document.clone());
        world.send_as("k", None, "old");
        world.settle();
        world.engine.retire_subscription(NAME, 0).expect("retired");
        rounds(&mut world, 3, |_| None);
        world.put(document);
        (1..=2).for_each(|n| world.send_as("k", None, &format!("new{n}")));
        world.settle();
        world.engine.create_replay(replay(Some(NAME))).expect("a replay job");
        (0..3).for_each(|_| world.pass(1000));
        let open = world.take_open();
        assert_eq!(open.len(), if discards { 2 } else { 3 });
        if discards {
            let ordered = Document::parse(&function("ordered")).expect("a valid document");
            world.engine.put_subscription(ordered, true).expect("changed");
        }
        let first = if discards { "new2" } else { "old" };
        for delivery in open.iter().filter(|delivery| id(delivery) == first) {
            world.engine.outcome(delivery.ticket, world::ok());
        }
        world.engine.when_durable(Token(0));
        world.settle();
        let waiting = world.engine.waiting();
        assert_eq!(waiting, if discards { 1 } else { 2 });
        world.restart(&mut |_| 0);
        assert_eq!(world.engine.waiting(), waiting);
        world.must_be_sound();
    }
}

#[test]
fn dead_letters_outlive_a_subscription_that_is_deleted_unless_they_are_not_wanted() {
    for (leftover, stay) in [(Leftover::Refuse, true), (Leftover::Drain, true), (Leftover::Discard, false)] {
        let mut world = World::new(1);
        world.put(function("unordered"));
        world.send_as("k", None, "e1");
        rounds(&mut world, 3, |_| Some(world::error(422)));
        assert!(world.engine.delete_subscription(NAME, leftover).expect("deleted"));
        rounds(&mut world, 3, |_| None);
        assert!(world.engine.view_subscription(NAME).is_none());
        let left = if stay { vec![format!("{NAME}.1 e1 poison")] } else { vec![] };
        assert_eq!(letters(&world), left, "{leftover:?}");
    }
}

#[test]
fn dead_letters_of_a_draining_subscription_outlive_it() {
    let mut world = World::new(1);
    world.put(function("unordered"));
    world.send_as("k", None, "e1");
    world.pass(10);
    assert!(!world.engine.delete_subscription(NAME, Leftover::Drain).expect("drains"));
    rounds(&mut world, 5, |_| Some(world::error(422)));
    assert!(world.engine.view_subscription(NAME).is_none());
    assert_eq!(letters(&world), [format!("{NAME}.1 e1 poison")]);
    world.crash(&mut Rng(3));
    assert_eq!(letters(&world), [format!("{NAME}.1 e1 poison")]);
}

#[test]
fn an_event_skipped_by_an_operator_has_that_reason_after_a_crash() {
    let mut world = World::new(1);
    world.put(function("ordered"));
    world.send_as("k", None, "e1");
    rounds(&mut world, 1, |_| Some(world::error(500)));
    world.engine.act_on_lane(NAME, "k", LaneAction::Skip).expect("skipped");
    world.engine.when_durable(Token(0));
    world.settle();
    assert_eq!(letters(&world), [format!("{NAME}.1 e1 skipped")]);
    world.restart(&mut |_| 0);
    assert_eq!(letters(&world), [format!("{NAME}.1 e1 skipped")]);
}

/// The producer sent the event again, and the new subscription has delivered it.
#[test]
fn a_dead_letter_that_its_successor_knows_is_not_delivered_twice() {
    for ordering in ["ordered", "unordered"] {
        let mut world = World::new(5);
        world.put(function(ordering));
        ["e1", "e2"].iter().for_each(|id| world.send_as(id, None, id));
        rounds(&mut world, 5, |_| Some(world::error(422)));
        world.engine.retire_subscription(NAME, 0).expect("retired");
        rounds(&mut world, 5, |_| None);
        assert_eq!(letters(&world).len(), 2);
        world.put(function(ordering));
        world.send_as("e1", None, "e1");
        rounds(&mut world, 2, |_| Some(world::ok()));

        let job = world.engine.create_replay(replay(Some(NAME))).expect("a replay job");
        let mut called = Vec::new();
        rounds(&mut world, 5, |delivery| {
            called.push(id(delivery));
            Some(world::ok())
        });
        assert_eq!(called, ["e2"], "{ordering}");
        let job = world.engine.replay(job).expect("exists");
        assert_eq!(
            (job.state, job.counts.replayed, job.skipped_reasons.get("known")),
            (State::Succeeded, 1, Some(&1))
        );
        assert!(letters(&world).is_empty());
        world.must_be_sound();
    }
}
