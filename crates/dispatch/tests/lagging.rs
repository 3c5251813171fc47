//! Lagging subscriptions: other subscriptions are not affected, and unread events are read later, in order.

mod world;

use klambda_core::event::{Attribute, Event, Value};
use klambda_core::event_codec::EventView;
use klambda_core::ids::Position;
use klambda_core::lane::Flag;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::documents::{DocumentEvent, Expected, Write};
use klambda_dispatch::operate::{LaneAction, Leftover};
use klambda_dispatch::views::Subscription;
use klambda_dispatch::{Config, Delivery, Sender, Token};
use serde_json::{Value as Json, json};
use world::{Rng, World, error, ok, ordered};

const DAY_MS: u64 = 24 * 3_600_000;

fn lags_at(events: u64) -> Json {
    json!({"maxEvents": events})
}

fn view(world: &World, name: &str) -> Subscription {
    world.engine.view_subscription(name).expect("a subscription")
}

fn unread(world: &World, name: &str) -> u64 {
    view(world, name).status.unread.map_or(0, |unread| unread.events)
}

fn id(delivery: &Delivery) -> String {
    EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event").id().to_owned()
}

/// Runs rounds until nothing is delivered. Returns the deliveries in order: id, number and flag.
fn rounds(world: &mut World, mut answer: impl FnMut(&str) -> CallOutcome) -> Vec<(String, u64, Flag)> {
    let (mut seen, mut still) = (Vec::new(), 0);
    while still < 20 {
        world.pass(20);
        let open = world.take_open();
        still = if open.is_empty() { still + 1 } else { 0 };
        for delivery in open {
            let place = delivery.place.as_ref();
            let (number, flag) = place.map_or((0, Flag::None), |place| (place.number.0, place.flag));
            seen.push((id(&delivery), number, flag));
            world.engine.outcome(delivery.ticket, answer(&id(&delivery)));
        }
    }
    seen
}

fn ids(seen: &[(String, u64, Flag)]) -> Vec<&str> {
    seen.iter().map(|(id, ..)| id.as_str()).collect()
}

fn durable(world: &mut World) {
    world.engine.when_durable(Token(0));
    world.settle();
}

#[test]
fn a_full_subscription_costs_others_nothing_and_loses_nothing() {
    let mut world = World::new(1);
    world.put(ordered("full", &json!({"paused": true, "backlog": lags_at(5)})));
    world.put(ordered("other", &json!({})));
    for n in 0..50 {
        world.send_as(&format!("k{}", n % 3), None, &format!("e{n}"));
    }
    world.settle();
    assert_eq!(world.accepted.values().map(Vec::len).sum::<usize>(), 50, "no event is rejected");
    assert_eq!(rounds(&mut world, |_| ok()).len(), 50, "the other subscription gets all events");
    world.engine.pause_subscription("full", false).expect("resumed");
    let now = view(&world, "full").status;
    assert_eq!((now.phase, now.waiting, unread(&world, "full")), ("behind", 50, 45));
    assert!(now.unread.is_some_and(|unread| unread.bytes > 0));
    assert!(now.messages.iter().any(|text| text.contains("behind: 45 events")), "{:?}", now.messages);
    world.engine.pause_subscription("full", true).expect("paused");
    // Unread events stay known, however long that takes.
    for round in 0..3 {
        world.pass(2 * DAY_MS);
        world.send_as("k1", None, "e49");
        world.settle();
        let again = world.accepted["k1"].iter().filter(|id| *id == "e49").count();
        assert_eq!(again, 2 + round, "the other subscription has forgotten the id");
        assert_eq!(view(&world, "full").status.waiting, 50, "the lagging subscription still knows the id");
        world.engine.delete_subscription("other", Leftover::Discard).expect("deleted");
        world.put(ordered("other", &json!({})));
        world.engine.request_checkpoint();
        world.pass(10);
        world.restart(&mut |_| 0);
        world.must_be_sound();
    }
    world.engine.delete_subscription("other", Leftover::Discard).expect("deleted");
    world.engine.pause_subscription("full", false).expect("resumed");
    let all = rounds(&mut world, |_| ok());
    for key in 0..3 {
        let expected: Vec<String> = (0..50).filter(|n| n % 3 == key).map(|n| format!("e{n}")).collect();
        let of_key = |id: &&str| id[1..].parse::<u64>().expect("a number") % 3 == key;
        assert_eq!(ids(&all).into_iter().filter(of_key).collect::<Vec<&str>>(), expected);
    }
    assert_eq!((view(&world, "full").status.phase, view(&world, "full").status.waiting), ("active", 0));
    world.must_be_sound();
}

/// Small limits, crashes at any time, and more unread events than the list in memory holds.
#[test]
fn everything_is_read_in_order_through_crashes() {
    for seed in 0..12 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        let backlog = match seed % 3 {
            0 => json!({"maxEvents": 1}),
            1 => json!({"maxEvents": 40}),
            _ => json!({"maxBytes": "1Ki"}),
        };
        let mut spec = json!({"backlog": backlog, "retry": {"attempts": "unlimited", "backoff": "5ms"}});
        if seed % 4 == 3 {
            spec["ordering"] = json!("unordered");
        }
        world.put(ordered("s", &spec));
        let events = if seed % 2 == 0 { 2500 } else { 400 };
        for n in 0..events {
            world.send(&format!("k{}", rng.below(7)), None);
            let is_slow = (n / 300) % 2 == 0;
            if !is_slow || rng.below(20) == 0 {
                world.step(&mut rng, |rng, _| if rng.below(4) == 0 { error(503) } else { ok() });
            }
            if rng.below(200) == 0 {
                world.engine.request_checkpoint();
            }
            if rng.below(150) == 0 {
                world.crash(&mut rng);
            }
        }
        world.settle();
        assert!(seed % 2 == 1 || unread(&world, "s") > 0, "seed {seed}");
        world.must_be_sound();
        world.drain();
        assert_eq!(world.engine.unread(), 0, "seed {seed}");
        if seed % 4 == 3 {
            world.check_all_seen(seed);
        } else {
            world.check_order(seed);
        }
        world.must_be_sound();
    }
}

#[test]
fn a_lagging_subscription_reads_below_nine_tenths_and_up_to_its_limit() {
    let mut world = World::new(2);
    world.put(ordered("s", &json!({"backlog": lags_at(20), "concurrency": 1})));
    for n in 0..60 {
        world.send_as(&format!("k{n}"), None, &format!("e{n}"));
    }
    world.pass(10);
    assert_eq!(unread(&world, "s"), 40);
    for left in [19, 18, 17] {
        let open = world.take_open().pop().expect("a call");
        world.engine.outcome(open.ticket, ok());
        world.settle();
        assert_eq!((world.engine.waiting(), unread(&world, "s")), (left, 40));
        if left > 17 {
            world.pass(10);
        }
    }
    world.pass(10);
    assert_eq!((world.engine.waiting(), unread(&world, "s")), (20, 37));
}

#[test]
fn a_gap_waits_for_what_is_unread() {
    let mut world = World::new(3);
    let policy = json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": "1s", "action": "skip"}});
    world.put(ordered("s", &json!({"orderingPolicy": policy, "backlog": lags_at(3)})));
    for (id, key, sequence) in [("a1", "a", 1), ("a3", "a", 3), ("b1", "b", 1)] {
        world.send_as(key, Some(sequence), id);
    }
    world.settle();
    for (id, key, sequence) in [("b2", "b", 2), ("a2", "a", 2)] {
        world.send_as(key, Some(sequence), id);
    }
    world.settle();
    assert_eq!(unread(&world, "s"), 2);
    let open = world.take_open();
    // The call of b1 hangs and nothing can be read, so the gap timer does not run.
    for delivery in open.into_iter().filter(|delivery| id(delivery) == "a1") {
        world.engine.outcome(delivery.ticket, ok());
    }
    let calm = ordered("s", &json!({"orderingPolicy": policy, "backlog": {"maxEvents": 1}}));
    world.put(calm);
    for _ in 0..10 {
        world.pass(5000);
        assert_eq!(world.take_open().len(), 0);
    }
    world.restart(&mut |_| 0);
    let all = rounds(&mut world, |_| ok());
    assert_eq!(all.iter().filter(|(_, _, flag)| *flag != Flag::None).count(), 0, "{all:?}");
    let of_a: Vec<&str> = ids(&all).into_iter().filter(|id| id.starts_with('a')).collect();
    assert_eq!(of_a, ["a2", "a3"]);
    // The subscription is live again, so the gap times out.
    world.send_as("a", Some(5), "a5");
    let all = rounds(&mut world, |_| ok());
    assert!(all.is_empty(), "{all:?}");
    world.pass(2000);
    assert_eq!(rounds(&mut world, |_| ok()), [("a5".into(), 4, Flag::Gap)]);
    world.must_be_sound();
}

#[test]
fn where_nothing_can_be_delivered_it_reads_to_twice_its_limit() {
    let mut world = World::new(4);
    let policy = json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": "1s", "action": "skip"}});
    world.put(ordered("s", &json!({"orderingPolicy": policy, "backlog": lags_at(4)})));
    world.send_as("sick", Some(1), "sick");
    world.pass(10);
    let sick = world.take_open().pop().expect("a call");
    world.engine.outcome(sick.ticket, error(400));
    for n in 2..=12 {
        world.send_as("gap", Some(n * 10), &format!("g{n}"));
    }
    for n in 0..4 {
        world.send_as("well", Some(n + 1), &format!("w{n}"));
    }
    world.pass(10);
    // All events before those of `well` wait for an operator or a gap, so the subscription reads up to twice the
    // limit.
    assert_eq!((world.engine.waiting(), unread(&world, "s")), (8, 8));
    let text = view(&world, "s").status.messages.join("\n");
    assert!(text.contains("\"sick\"") && text.contains("\"gap\""), "{text}");
    // At this point the gap timer runs again.
    let mut seen = Vec::new();
    for _ in 0..30 {
        world.pass(1100);
        for delivery in world.take_open() {
            seen.push(id(&delivery));
            world.engine.outcome(delivery.ticket, ok());
        }
    }
    assert!(seen.iter().any(|id| id == "w3") && seen.iter().any(|id| id == "g12"), "{seen:?}");
    assert_eq!((world.engine.waiting(), view(&world, "s").status.phase), (1, "active"));
    world.must_be_sound();
}

#[test]
fn unread_events_keep_the_rules_that_they_were_accepted_under() {
    let by = |attribute: &str| {
        let policy = json!({"key": {"attribute": attribute}});
        json!({"orderingPolicy": policy, "backlog": lags_at(2), "paused": true})
    };
    let send = |world: &mut World, n: u64| world.send_as(&format!("k{}", n % 2), None, &format!("e{n}"));
    for crashes in [false, true] {
        let mut world = World::new(5);
        world.put(ordered("s", &by("partitionkey")));
        (0..8).for_each(|n| send(&mut world, n));
        world.settle();
        world.put(ordered("s", &by("type")));
        (8..12).for_each(|n| send(&mut world, n));
        world.settle();
        if crashes {
            world.engine.request_checkpoint();
            world.pass(10);
            world.restart(&mut |_| 0);
        }
        world.engine.pause_subscription("s", false).expect("resumed");
        let all = rounds(&mut world, |_| ok());
        assert_eq!(all.len(), 12, "{all:?}");
        let numbers = |wanted: &dyn Fn(u64) -> bool| -> Vec<u64> {
            let of = |id: &str| id[1..].parse::<u64>().expect("a number");
            all.iter().filter(|(id, ..)| wanted(of(id))).map(|(_, number, _)| *number).collect()
        };
        assert_eq!(numbers(&|n| n < 8 && n % 2 == 0), [1, 2, 3, 4], "{all:?}");
        assert_eq!(numbers(&|n| n < 8 && n % 2 == 1), [1, 2, 3, 4], "{all:?}");
        assert_eq!(numbers(&|n| n >= 8), [1, 2, 3, 4], "{all:?}");
        world.must_be_sound();
    }
}

#[test]
fn a_lagging_subscription_can_be_deleted() {
    for how in ["drain", "retire", "discard"] {
        let mut world = World::new(6);
        world.put(ordered("s", &json!({"backlog": lags_at(3), "concurrency": 1})));
        (0..10).for_each(|n| world.send_as(&format!("k{n}"), None, &format!("e{n}")));
        world.pass(10);
        assert_eq!(unread(&world, "s"), 7);
        match how {
            "drain" => assert!(!world.engine.delete_subscription("s", Leftover::Drain).expect("draining")),
            "retire" => world.engine.retire_subscription("s", 60_000).expect("retiring"),
            _ => assert!(world.engine.delete_subscription("s", Leftover::Discard).expect("deleted")),
        }
        durable(&mut world);
        world.restart(&mut |_| 0);
        world.send_as("new", None, "new");
        world.settle();
        let seen = match how {
            "retire" => {
                world.pass(61_000);
                (0..10).for_each(|_| world.pass(1100));
                drop(world.take_open());
                assert_eq!(world.engine.dead_letters(), 10, "undelivered events are dead letters");
                0
            }
            _ => rounds(&mut world, |_| ok()).len(),
        };
        assert_eq!(seen, if how == "drain" { 10 } else { 0 }, "{how}");
        world.pass(2000);
        assert!(world.engine.view_subscription("s").is_none(), "{how}");
        world.must_be_sound();
    }
}

#[test]
fn new_rules_can_discard_unread_events() {
    let mut world = World::new(7);
    world.put(ordered("s", &json!({"backlog": lags_at(3), "paused": true})));
    (0..10).for_each(|n| world.send_as("k", None, &format!("e{n}")));
    world.settle();
    let policy = json!({"key": {"attribute": "type"}});
    let other = Document::parse(&ordered("s", &json!({"orderingPolicy": policy}))).expect("a valid document");
    let mut from = String::new();
    while let Some(next) = world.engine.discard_part(&other, &from).expect("discarded") {
        from = next;
    }
    world.engine.put_subscription(other, true).expect("changed");
    durable(&mut world);
    assert_eq!((world.engine.waiting(), world.engine.unread()), (0, 0));
    world.send_as("k", None, "e5");
    let all = rounds(&mut world, |_| ok());
    assert_eq!(ids(&all), ["e5"], "the id was released");
    world.must_be_sound();
}

#[test]
fn retention_removes_what_is_unread_and_says_so() {
    let mut world = World::with(8, Config { retention_age_ms: DAY_MS, ..world::config() });
    world.put(ordered("s", &json!({"backlog": lags_at(4), "paused": true})));
    (0..40).for_each(|n| world.send_as(&format!("k{}", n % 2), None, &format!("e{n}")));
    world.settle();
    // The log grows without the subscription.
    world.put(ordered("other", &json!({})));
    for n in 0..3000 {
        let mut event = Event {
            id: format!("o{n}"),
            source: "/test".into(),
            kind: "t".into(),
            attributes: vec![],
            data: None,
        };
        event.attributes.push(Attribute { name: "note".into(), value: Value::String("x".repeat(100)) });
        while !world.engine.is_accepting() {
            world.settle();
        }
        if n == 0 {
            world.put(ordered("s", &json!({"backlog": lags_at(4), "paused": true, "filters": [{"exact": {"type": "order.placed"}}]})));
        }
        world.engine.accept(Token(1_000_000 + n), &Sender::default(), vec![Ok(event)]);
        if n % 50 == 0 {
            world.pass(10);
        }
    }
    (0..100).for_each(|_| world.pass(3_600_000));
    world.must_be_sound();
    world.restart(&mut |_| 0);
    assert_eq!(unread(&world, "s"), 0);
    assert_eq!(view(&world, "s").status.waiting, 4, "events in lanes are kept");
    let text = view(&world, "s").status.messages.join("\n");
    assert!(text.contains("retention deleted 36 events"), "{text}");
    world.engine.delete_subscription("other", Leftover::Discard).expect("deleted");
    world.engine.pause_subscription("s", false).expect("resumed");
    (0..3).for_each(|n| world.send_as(&format!("k{}", n % 2), None, &format!("e{}", 30 + n)));
    let all = rounds(&mut world, |_| ok());
    let flags = |id: &str| all.iter().find(|one| one.0 == id).map(|one| one.2);
    assert_eq!(all.len(), 7, "{all:?}");
    assert_eq!(
        ["e0", "e3", "e30", "e31", "e32"].map(flags),
        [Some(Flag::None), Some(Flag::None), Some(Flag::Gap), Some(Flag::Gap), Some(Flag::None)]
    );
    world.must_be_sound();
}

#[test]
fn replies_events_of_the_system_and_full_dead_letters_follow() {
    let mut world = World::new(9);
    let of = |kind: &str| json!([{"exact": {"type": kind}}]);
    world.put(ordered("first", &json!({"filters": of("order.placed")})));
    world.put(ordered("paid", &json!({"filters": of("paid"), "paused": true, "backlog": lags_at(1)})));
    let made = |kind: &str, id: &str| Event {
        id: id.into(),
        source: "/test".into(),
        kind: kind.into(),
        attributes: vec![Attribute { name: "partitionkey".into(), value: Value::String("k".into()) }],
        data: None,
    };
    world.send_as("k", None, "e1");
    world.pass(10);
    let cause = world.take_open().pop().expect("a call");
    let replies = vec![made("paid", "r1"), made("paid", "r2"), made("paid", "r3")];
    world.engine.outcome(cause.ticket, CallOutcome::Replied { status: 200, replies });
    world.pass(10);
    assert_eq!((view(&world, "first").status.waiting, view(&world, "paid").status.waiting), (0, 3));
    let write =
        Write { kind: "k".into(), key: "a".into(), content: Some(b"1".to_vec()), expected: Expected::Any };
    world
        .engine
        .put_documents(&[write], &[DocumentEvent { namespace: "default".into(), event: made("paid", "s1") }])
        .expect("written");
    durable(&mut world);
    assert_eq!((view(&world, "paid").status.waiting, unread(&world, "paid")), (4, 3));
    world.restart(&mut |_| 0);
    world.engine.pause_subscription("paid", false).expect("resumed");
    assert_eq!(ids(&rounds(&mut world, |_| ok())), ["r1", "r2", "r3", "s1"]);

    let letters = json!({"maxEvents": 2, "overflow": "reject"});
    let skips = json!({"onFailure": "skip"});
    let spec = json!({"filters": of("bad"), "deadLetters": letters, "orderingPolicy": skips});
    world.put(ordered("bad", &spec));
    for n in 0..5 {
        world.engine.accept(Token(900 + n), &Sender::default(), vec![Ok(made("bad", &format!("b{n}")))]);
        rounds(&mut world, |_| error(400));
    }
    assert_eq!((world.engine.dead_letters(), unread(&world, "bad")), (2, 3));
    let text = view(&world, "bad").status.messages.join("\n");
    assert!(text.contains("the limit of dead letters is reached"), "{text}");
    let id = world.id("bad");
    let letters = world.engine.select_dead_letters(id, &Selector::default(), Position(0), 9).expect("read");
    for letter in letters {
        world.engine.delete_dead_letter(&letter.id("bad")).expect("deleted");
    }
    assert_eq!(ids(&rounds(&mut world, |_| ok())), ["b2", "b3", "b4"]);
    world.engine.act_on_lane("bad", "k", LaneAction::Pause).expect("paused");
    world.must_be_sound();
}
