//! Reply events of functions: accepted together with the acknowledgement of their cause, or not at all.

mod world;

use klambda_core::event::{Attribute, Data, Event, Form, Value};
use klambda_core::event_codec::EventView;
use klambda_core::ids::Position;
use klambda_core::outcome::{CallOutcome, Reason};
use klambda_dispatch::{Delivery, Sender, Token};
use klambda_store::record::Record;
use serde_json::json;
use std::collections::BTreeMap;
use world::{Rng, World};

fn function(name: &str, kind: &str) -> serde_json::Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription",
        "metadata": {"name": format!("lambda.default.{name}")},
        "spec": {
            "target": {"function": {"namespace": "default", "name": name}},
            "filters": [{"exact": {"type": kind}}],
            "ordering": "ordered",
            "retry": {"attempts": 3, "backoff": "10ms"},
        },
    })
}

/// A reply without optional attributes.
fn reply(kind: &str) -> Event {
    let (id, source, kind) = (String::new(), String::new(), kind.into());
    Event { id, source, kind, attributes: Vec::new(), data: None }
}

fn replied(kinds: &[&str]) -> CallOutcome {
    CallOutcome::Replied { status: 200, replies: kinds.iter().map(|kind| reply(kind)).collect() }
}

fn view(delivery: &Delivery) -> Event {
    EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event").to_event()
}

fn durable(world: &mut World) {
    world.engine.when_durable(Token(0));
    world.settle();
}

/// Two functions. The first is called for `order.placed` and replies with `paid`.
fn chain(seed: u64) -> World {
    let mut world = World::new(seed);
    world.put(function("first", "order.placed"));
    world.put(function("second", "paid"));
    world
}

#[test]
fn replies_of_two_functions_to_the_same_event_are_distinct() {
    let mut world = World::new(1);
    ["one", "other"].iter().for_each(|name| world.put(function(name, "order.placed")));
    world.send_as("k", None, "e1");
    world.pass(10);
    let calls = world.take_open();
    assert_eq!(calls.len(), 2);
    for call in calls {
        let mut event = reply("paid");
        event.source = "/shop".into();
        world.engine.outcome(call.ticket, CallOutcome::Replied { status: 200, replies: vec![event] });
    }
    world.pass(100);
    let status = world.engine.view_status();
    assert_eq!(status.positions.last, Some(3), "the event and one reply of each function");
}

#[test]
fn replies_get_what_they_lack_from_their_cause() {
    let mut world = chain(1);
    world.send_as("k", None, "e1");
    world.pass(10);
    let cause = world.take_open().pop().expect("a call");
    world.engine.outcome(cause.ticket, replied(&["paid", "paid"]));
    let mut seen = Vec::new();
    for _ in 0..2 {
        world.pass(100);
        let delivery = world.take_open().pop().expect("a call");
        assert!(!klambda_store::record::is_emitted(&delivery.record));
        let event = view(&delivery);
        assert_eq!(event.source, "/lambda/default/first");
        assert_eq!(event.attribute("lambdahops").as_deref(), Some("1"));
        seen.push(event.id);
        world.engine.outcome(delivery.ticket, world::ok());
    }
    assert_eq!(seen, ["e1.1.1.0", "e1.1.1.1"]);
    world.pass(100);
    assert_eq!(world.engine.waiting(), 0);
    world.must_be_sound();
}

#[test]
fn a_power_cut_leaves_both_or_neither_and_a_repeat_adds_nothing() {
    let (mut both, mut neither) = (0, 0);
    for seed in 0..150 {
        let mut rng = Rng(seed);
        let mut world = chain(seed);
        world.disk.set_sector_bytes(16 + rng.below(200) as usize);
        world.send_as("k", None, "e1");
        durable(&mut world);
        world.pass(10);
        let cause = world.take_open().pop().expect("a call");
        world.engine.outcome(cause.ticket, replied(&["paid", "other"]));
        world.engine.when_durable(Token(0));
        world.engine.flush();
        if rng.below(4) == 0
            && let Some(job) = world.engine.sync_job()
        {
            let _ = job.run();
        }
        let all = rng.below(2) == 0;
        world.restart(&mut |n| if all { n.saturating_sub(1) } else { rng.below(n.max(1)) });
        let mut calls: BTreeMap<String, u32> = BTreeMap::new();
        loop {
            world.pass(100);
            let open = world.take_open();
            if open.is_empty() {
                break;
            }
            for delivery in open {
                let event = view(&delivery);
                *calls.entry(event.id.clone()).or_default() += 1;
                let outcome = if event.id == "e1" { replied(&["paid", "other"]) } else { world::ok() };
                world.engine.outcome(delivery.ticket, outcome);
            }
        }
        let again = calls.remove("e1").unwrap_or(0);
        assert_eq!(calls, BTreeMap::from([("e1.1.1.0".into(), 1)]), "seed {seed}");
        both += u32::from(again == 0);
        neither += u32::from(again == 1);
        assert_eq!(world.must_be_sound().events, 3, "seed {seed}: the cause and two replies");
    }
    assert!(both > 20 && neither > 20, "{both} and {neither}");
}

#[test]
fn the_same_reply_of_two_functions_is_one_event() {
    let mut world = chain(2);
    let mut lost = function("first", "order.placed");
    lost["metadata"]["name"] = "twin".into();
    world.put(lost);
    world.send_as("k", None, "e1");
    world.pass(100);
    // Both reply with the same event, so the second one is a duplicate.
    let mut own = reply("paid");
    (own.id, own.source) = ("fixed".into(), "/own".into());
    for delivery in world.take_open() {
        world
            .engine
            .outcome(delivery.ticket, CallOutcome::Replied { status: 200, replies: vec![own.clone()] });
    }
    world.pass(100);
    let calls: Vec<String> = world.take_open().iter().map(|delivery| view(delivery).id).collect();
    assert_eq!(calls, ["fixed"]);
    assert_eq!(world.engine.waiting(), 1);
}

#[test]
fn a_loop_is_stopped_and_named() {
    let mut world = World::new(3);
    world.put(function("echo", "ping"));
    let mut first = reply("ping");
    (first.id, first.source) = ("p".into(), "/test".into());
    first.attributes.push(Attribute { name: "partitionkey".into(), value: Value::String("k".into()) });
    world.engine.accept(Token(9), &Sender::default(), vec![Ok(first)]);
    let mut calls = 0;
    loop {
        world.pass(100);
        let open = world.take_open();
        if open.is_empty() {
            break;
        }
        for delivery in open {
            calls += 1;
            world.engine.outcome(delivery.ticket, replied(&["ping"]));
        }
    }
    assert_eq!(calls, 17);
    let id = world.id("lambda.default.echo");
    let letter = world.engine.find_dead_letter(id, Position(17)).expect("read").expect("a dead letter");
    assert_eq!((letter.reason, letter.attempts.total), (Reason::Validation, 1));
    assert!(letter.error.contains("loop guard") && letter.error.contains("lambdahops"), "{}", letter.error);
}

#[test]
fn replies_that_cannot_be_taken_are_a_failure_for_good() {
    let mut world = chain(4);
    for (n, outcome) in
        [CallOutcome::BadReplies { status: 200, why: "type: missing".into() }, replied(&["paid"; 101])]
            .into_iter()
            .enumerate()
    {
        let key = format!("k{n}");
        world.send_as(&key, None, &format!("e{}", n + 1));
        world.pass(100);
        let cause = world.take_open().pop().expect("a call");
        world.engine.outcome(cause.ticket, outcome);
        world.pass(100);
        let id = world.id("lambda.default.first");
        let letter =
            world.engine.find_dead_letter(id, Position(n as u64 + 1)).expect("read").expect("a dead letter");
        assert_eq!((letter.reason, letter.holds_lane), (Reason::Validation, true));
    }
    assert_eq!(world.engine.waiting(), 2);
    world.must_be_sound();
}

#[test]
fn a_full_backlog_holds_the_cause_back_without_an_attempt() {
    let mut world = World::new(5);
    world.put(function("first", "order.placed"));
    let mut second = function("second", "paid");
    second["spec"]["backlog"] = json!({"maxEvents": 1, "onFull": "reject"});
    second["spec"]["paused"] = true.into();
    world.put(second);
    for id in ["e1", "e2"] {
        world.send_as("k", None, id);
    }
    let mut calls = Vec::new();
    for _ in 0..30 {
        world.pass(500);
        for delivery in world.take_open() {
            let event = view(&delivery);
            calls.push((event.id, delivery.attempt));
            world.engine.outcome(delivery.ticket, replied(&["paid"]));
        }
    }
    assert_eq!(
        calls,
        [("e1".into(), 1), ("e2".into(), 1)],
        "each event is called once and its reply is kept"
    );
    let lane = world.engine.view_lane("lambda.default.first", "k").expect("read").expect("a lane");
    assert!(
        lane.waits_for.as_deref().is_some_and(|waits| waits.contains("lambda.default.second")),
        "{lane:?}"
    );
    let first = world.engine.view_subscription("lambda.default.first").expect("exists");
    let is_told = |message: &String| {
        message.starts_with("1 call has returned reply events that wait for room")
            && message.contains("lambda.default.second")
    };
    assert!(first.status.messages.iter().any(is_told), "{:?}", first.status.messages);
    world.engine.pause_subscription("lambda.default.second", false).expect("resumed");
    let mut paid = Vec::new();
    for _ in 0..10 {
        world.pass(500);
        for delivery in world.take_open() {
            paid.push(view(&delivery).id);
            world.engine.outcome(delivery.ticket, world::ok());
        }
    }
    assert_eq!(paid, ["e1.1.1.0", "e2.2.1.0"]);
    assert_eq!(world.engine.waiting(), 0);
    world.must_be_sound();
}

/// Each function has one slot, whose replies wait for room in the other function's backlog, or in its own.
#[test]
fn functions_whose_answers_fill_their_own_backlogs_do_not_wait_for_each_other() {
    for (first, second) in [("paid", "order.placed"), ("order.placed", "paid")] {
        let mut world = World::new(7);
        let put = |world: &mut World, name: &str, kind: &str, events_max: u32| {
            let mut document = function(name, kind);
            document["spec"]["concurrency"] = 1.into();
            document["spec"]["backlog"] = json!({"maxEvents": events_max, "onFull": "reject"});
            world.put(document);
        };
        put(&mut world, "first", "order.placed", 100);
        put(&mut world, "second", "paid", 100);
        (0..20).for_each(|n| world.send(&format!("k{n}"), None));
        world.settle();
        let (mut calls, mut rounds) = (0, 0);
        // At first some events of each are pending; then the limits are lowered below that.
        while world.engine.waiting() > 0 && rounds < 2000 {
            rounds += 1;
            if rounds == 30 {
                put(&mut world, "first", "order.placed", 2);
                put(&mut world, "second", "paid", 2);
            }
            world.pass(60);
            for delivery in world.take_open() {
                calls += 1;
                let event = view(&delivery);
                let kind = if event.kind == "order.placed" { first } else { second };
                let answer =
                    if event.attribute("lambdahops").is_some() && calls > 100 { &[][..] } else { &[kind] };
                world.engine.outcome(delivery.ticket, replied(answer));
            }
        }
        assert_eq!(world.engine.waiting(), 0, "{first} and {second}: after {calls} calls");
        world.must_be_sound();
    }
}

/// Both slots of the engine belong to calls whose replies wait for room in a third function's backlog. That function
/// can only make room if it gets a slot.
#[test]
fn answers_that_wait_for_room_hold_no_slot() {
    let mut world = World::with(9, klambda_dispatch::Config { concurrency: 2, ..world::config() });
    let mut last = function("last", "paid");
    last["spec"]["backlog"] = json!({"maxEvents": 1, "onFull": "reject"});
    last["spec"]["paused"] = true.into();
    world.put(last);
    ["first", "second"].iter().for_each(|name| world.put(function(name, "order.placed")));
    ["e1", "e2"].iter().for_each(|id| world.send_as("k", None, id));
    let mut paid = 0;
    for round in 0..40 {
        if round == 20 {
            assert_eq!(world.engine.open_requests(), 2, "both wait for room");
            world.engine.pause_subscription("lambda.default.last", false).expect("resumed");
        }
        world.pass(100);
        for delivery in world.take_open() {
            let is_paid = view(&delivery).kind == "paid";
            paid += usize::from(is_paid);
            world.engine.outcome(delivery.ticket, if is_paid { world::ok() } else { replied(&["paid"]) });
        }
    }
    assert_eq!((paid, world.engine.waiting()), (4, 0));
    world.must_be_sound();
}

/// More replies than a backlog can hold, with events of other types among them.
#[test]
fn an_answer_that_is_larger_than_a_backlog_is_taken_once_that_is_empty() {
    let mut world = World::new(8);
    world.put(function("first", "order.placed"));
    let mut second = function("second", "paid");
    second["spec"]["backlog"] = json!({"maxEvents": 2, "onFull": "reject"});
    world.put(second);
    for id in ["e1", "e2"] {
        world.send_as("k", None, id);
    }
    let mut paid = Vec::new();
    for _ in 0..60 {
        world.pass(100);
        for delivery in world.take_open() {
            let event = view(&delivery);
            let outcome = match event.kind.as_str() {
                "paid" => {
                    paid.push(event.id);
                    world::ok()
                }
                _ => replied(&["other", "other", "paid", "paid", "paid"]),
            };
            world.engine.outcome(delivery.ticket, outcome);
        }
    }
    assert_eq!(paid, ["e1.1.1.2", "e1.1.1.3", "e1.1.1.4", "e2.2.1.2", "e2.2.1.3", "e2.2.1.4"]);
    assert_eq!(world.engine.waiting(), 0);
}

#[test]
fn a_function_without_a_replica_spends_no_attempt() {
    let mut world = chain(6);
    for n in 0..4 {
        world.send_as(&format!("k{n}"), None, &format!("e{}", n + 1));
    }
    let mut calls = 0;
    for _ in 0..20 {
        world.pass(1000);
        for delivery in world.take_open() {
            assert_eq!(delivery.attempt, 1);
            calls += 1;
            let why = "function default/first: its build failed".into();
            world.engine.outcome(delivery.ticket, CallOutcome::NotReady { why, retry_after_ms: 5000 });
        }
    }
    assert!((1..=20).contains(&calls), "{calls} calls within 20 s");
    let status = world.engine.view_subscription("lambda.default.first").expect("exists").status;
    assert_eq!((status.waiting, status.dead_letters, status.breaker.state), (4, 0, "closed"));
    let lane = world.engine.view_lane("lambda.default.first", "k1").expect("read").expect("a lane");
    assert!(lane.waits_for.as_deref().is_some_and(|waits| waits.contains("default/first")), "{lane:?}");
    world.engine.function_ready("default", "first");
    world.pass(1);
    assert_eq!(world.take_open().len(), 4);
}

/// How many events the first function replies with for an event; always the same.
fn replies_to(id: &str) -> usize {
    id.bytes().map(usize::from).sum::<usize>() % 4
}

/// A chain of functions with failures, crashes and full backlogs: every reply of every event is in the log exactly
/// once, and arrives.
#[test]
fn every_reply_is_accepted_exactly_once() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        let mut first = function("first", "order.placed");
        first["spec"]["retry"] = json!({"attempts": "unlimited", "backoff": "10ms", "maxBackoff": "50ms"});
        if seed % 3 == 0 {
            first["spec"]["ordering"] = "unordered".into();
        }
        let mut second = first.clone();
        second["metadata"]["name"] = "lambda.default.second".into();
        second["spec"]["target"]["function"]["name"] = "second".into();
        second["spec"]["filters"] = json!([{"exact": {"type": "paid"}}]);
        if seed % 4 == 1 {
            second["spec"]["backlog"] = json!({"maxEvents": 4});
        }
        world.put(first);
        world.put(second);
        let mut arrived: BTreeMap<String, u32> = BTreeMap::new();
        for round in 0..600 {
            let is_calm = round >= 300;
            if !is_calm && rng.below(2) == 0 {
                world.send(&format!("k{}", rng.below(4)), None);
            }
            world.step_with(&mut rng, |rng, delivery| {
                let event = view(delivery);
                let chance = if is_calm { 9 } else { rng.below(10) };
                match (chance, event.kind.as_str()) {
                    (0, _) => world::error(500),
                    (1, _) => CallOutcome::Timeout,
                    (2, _) => CallOutcome::NotReady { why: "starting".into(), retry_after_ms: 40 },
                    (_, "paid") => {
                        *arrived.entry(event.id).or_default() += 1;
                        world::ok()
                    }
                    _ => replied(&vec!["paid"; replies_to(&event.id)]),
                }
            });
            if !is_calm && rng.below(25) == 0 {
                world.crash(&mut rng);
            }
            if round % 90 == 89 {
                world.engine.request_checkpoint();
            }
        }
        for _ in 0..2000 {
            if world.engine.waiting() == 0 && world.engine.is_idle() {
                break;
            }
            world.step_with(&mut rng, |_, delivery| {
                let event = view(delivery);
                if event.kind == "paid" {
                    *arrived.entry(event.id).or_default() += 1;
                    return world::ok();
                }
                replied(&vec!["paid"; replies_to(&event.id)])
            });
        }
        assert_eq!(world.engine.waiting(), 0, "seed {seed}");
        let (expected, found) = replies_in_log(&world);
        assert_eq!(found, expected, "seed {seed}");
        assert!(expected.len() > 50, "seed {seed}");
        let arrived: Vec<&String> = arrived.keys().collect();
        let mut all: Vec<&String> = expected.iter().collect();
        all.sort();
        assert_eq!(arrived, all, "seed {seed}");
        world.must_be_sound();
    }
}

/// The ids of replies that should be in the log, and those that are; sorted.
fn replies_in_log(world: &World) -> (Vec<String>, Vec<String>) {
    let reader = world.engine.reader();
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    let mut at = reader.oldest().expect("a segment").start();
    while let Some(frame) = reader.frame(at).expect("read") {
        let mut position = frame.first_position;
        for (_, range) in &frame.records {
            let Record::Event { event, .. } = Record::decode(&frame.bytes[range.clone()]).expect("a record")
            else {
                continue;
            };
            let event = EventView::decode(event).expect("an event");
            match event.kind() {
                "paid" => found.push(event.id().to_owned()),
                _ => {
                    let id = event.id();
                    expected.extend((0..replies_to(id)).map(|n| format!("{id}.{position}.1.{n}")));
                }
            }
            position.0 += 1;
        }
        at = frame.next;
    }
    expected.sort();
    found.sort();
    (expected, found)
}

/// Room for acknowledgements only: replies wait, and nothing is lost or called again.
#[test]
fn a_full_disk_holds_the_cause_back_until_there_is_room() {
    let mut world = chain(9);
    world.disk.set_capacity(Some(world.disk.used_bytes() + (64 << 10)));
    let fill = |n: u32| {
        let mut event = reply("fill");
        (event.id, event.source) = (format!("f{n}"), "/fill".into());
        event.data = Some(Data { bytes: "x".repeat(4000).into(), form: Form::Text });
        event
    };
    world.send_as("k", None, "e1");
    world.send_as("k", None, "e2");
    world.pass(100);
    for n in 0..200 {
        world.engine.accept(Token(5000 + u64::from(n)), &Sender::default(), vec![Ok(fill(n))]);
        world.pass(100);
    }
    let mut calls = Vec::new();
    let mut answer = |world: &mut World, rounds: u32| {
        for _ in 0..rounds {
            world.pass(200);
            for delivery in world.take_open() {
                let event = view(&delivery);
                let is_paid = event.kind == "paid";
                calls.push(event.id);
                let outcome = if is_paid { world::ok() } else { replied(&["paid"]) };
                world.engine.outcome(delivery.ticket, outcome);
            }
        }
        calls.clone()
    };
    assert_eq!(answer(&mut world, 20), ["e1"], "the reply finds no room");
    let lane = world.engine.view_lane("lambda.default.first", "k").expect("read").expect("a lane");
    assert!(lane.waits_for.as_deref().is_some_and(|waits| waits.contains("disk is full")), "{lane:?}");
    world.disk.set_capacity(None);
    assert_eq!(answer(&mut world, 40), ["e1", "e2", "e1.1.1.0", "e2.2.1.0"]);
    assert_eq!(world.engine.waiting(), 0);
    world.must_be_sound();
}
