//! Edited dead letters: the next delivery sends the edit, in the same place, and only to its subscription.

mod world;

use klambda_core::event::{self, Attribute, Data, Event, Form};
use klambda_core::event_codec::EventView;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::{LaneAction, Refused};
use klambda_dispatch::replay::Request;
use klambda_dispatch::{Config, Token};
use klambda_store::disk::Disk;
use klambda_store::log::Options;
use serde_json::{Value, json};
use world::{World, ordered};

const DAY_MS: u64 = 24 * 3_600_000;

/// The event `id` of this key with data, as an operator would write it.
fn edited(id: &str, key: &str, data: &str) -> Event {
    let value = event::Value::String(key.into());
    Event {
        id: id.into(),
        source: "/test".into(),
        kind: "order.fixed".into(),
        attributes: vec![Attribute { name: "partitionkey".into(), value }],
        data: Some(Data { bytes: data.to_owned().into(), form: Form::Text }),
    }
}

/// Answers every call until nothing is called. Returns subscription, event id and data of each, in order.
fn answer_all(world: &mut World, code: impl Fn(&str, &str) -> u16) -> Vec<(String, String, String)> {
    let mut called = Vec::new();
    for _ in 0..6 {
        world.pass(20);
        for delivery in world.take_open() {
            let view = EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event");
            let data = view.to_event().data.map(|data| String::from_utf8(data.bytes.to_vec()).expect("text"));
            let (name, id) = (delivery.document.name.clone(), view.id().to_owned());
            world.engine.outcome(delivery.ticket, world::error(code(&name, &id)));
            called.push((name, id, data.unwrap_or_default()));
        }
    }
    called
}

fn call(name: &str, id: &str, data: &str) -> (String, String, String) {
    (name.into(), id.into(), data.into())
}

/// Ordered subscriptions `orders` and `others`. Event `first` parked the lane `k` of both; `second` is behind it.
fn parked(config: Config, spec: &Value) -> World {
    let mut world = World::with(1, config);
    ["orders", "others"].into_iter().for_each(|name| world.put(ordered(name, spec)));
    world.send_as("k", None, "first");
    world.send_as("k", None, "second");
    answer_all(&mut world, |_, id| if id == "first" { 422 } else { 200 });
    world
}

fn edit(world: &mut World, id: &str, event: &Event) -> Result<(), Refused> {
    let done = world.engine.edit_dead_letter(id, event, "ann", None);
    world.engine.when_durable(Token(0));
    world.settle();
    done
}

fn replay_all(world: &mut World) {
    let selector = Selector { all: true, ..Selector::default() };
    let request = Request { selector, rate_per_second: 1000, parallelism: 4 };
    world.engine.create_replay(request).expect("created");
}

fn shown(world: &World, id: &str) -> Value {
    let (holder, position) = world.engine.dead_letter_id(id).expect("an id");
    let letter = world.engine.view_dead_letter(holder, position).expect("read").expect("a dead letter");
    serde_json::to_value(letter).expect("JSON")
}

#[test]
fn a_resumed_lane_sends_the_edit_first_and_only_to_its_subscription() {
    for crash in [false, true] {
        let mut world = parked(world::config(), &json!({}));
        edit(&mut world, "orders.1", &edited("first", "k", "one")).expect("edited");
        edit(&mut world, "orders.1", &edited("first", "k", "two")).expect("edited again");
        if crash {
            world.restart(&mut |_| 0);
        }
        let letter = shown(&world, "orders.1");
        assert_eq!((&letter["edits"], &letter["editedBy"]), (&json!(2), &json!("ann")), "{letter}");
        assert_eq!(letter["editedAt"], json!(world.now.rfc3339()));
        assert_eq!((&letter["type"], &letter["event"]["data"]), (&json!("order.fixed"), &json!("two")));
        assert_eq!(letter["original"]["type"], "order.placed");
        assert_eq!(shown(&world, "others.1").get("original"), None);
        world.must_be_sound();
        world.engine.act_on_lane("orders", "k", LaneAction::Resume).expect("resumed");
        world.engine.act_on_lane("others", "k", LaneAction::Resume).expect("resumed");
        let mut called = answer_all(&mut world, |_, _| 200);
        called.sort_by(|one, other| one.0.cmp(&other.0));
        let calls = [
            call("orders", "first", "two"),
            call("orders", "second", ""),
            call("others", "first", ""),
            call("others", "second", ""),
        ];
        assert_eq!(called, calls);
        world.must_be_sound();
    }
}

#[test]
fn an_edit_that_fails_again_stays_and_one_that_leaves_goes() {
    let policy = json!({"orderingPolicy": {"onFailure": "skip"}});
    for crash in [false, true] {
        let mut world = parked(world::config(), &policy);
        edit(&mut world, "orders.1", &edited("first", "k", "fixed")).expect("edited");
        replay_all(&mut world);
        answer_all(&mut world, |_, _| 422);
        if crash {
            world.restart(&mut |_| 0);
        }
        assert_eq!(shown(&world, "orders.1")["event"]["data"], "fixed");
        assert_eq!(shown(&world, "orders.1")["attempts"], 2);
        replay_all(&mut world);
        let called = answer_all(&mut world, |_, _| 200);
        assert!(called.contains(&call("orders", "first", "fixed")), "{called:?}");
        assert!(called.contains(&call("others", "first", "")), "{called:?}");
        world.must_be_sound();
    }
    for leave in [
        |world: &mut World| world.engine.delete_dead_letter("orders.1").expect("deleted"),
        |world: &mut World| {
            world.engine.act_on_lane("orders", "k", LaneAction::Resume).expect("resumed");
            world.engine.act_on_lane("orders", "k", LaneAction::Purge).expect("purged");
        },
    ] {
        let mut world = parked(world::config(), &json!({}));
        edit(&mut world, "orders.1", &edited("first", "k", "fixed")).expect("edited");
        leave(&mut world);
        world.pass(20);
        world.must_be_sound();
    }
}

#[test]
fn an_unordered_dead_letter_sends_its_edit() {
    let mut world = parked(world::config(), &json!({"ordering": "unordered"}));
    edit(&mut world, "orders.1", &edited("first", "other", "fixed")).expect("its key has no meaning");
    world.restart(&mut |_| 0);
    replay_all(&mut world);
    let called = answer_all(&mut world, |_, _| 200);
    assert!(called.contains(&call("orders", "first", "fixed")), "{called:?}");
    assert!(called.contains(&call("others", "first", "")), "{called:?}");
    world.must_be_sound();
}

#[test]
fn an_edit_keeps_the_identity_and_the_place() {
    let policy = json!({"orderingPolicy": {"sequence": {"attribute": "sequence"}}});
    let mut world = World::new(1);
    world.put(ordered("orders", &policy));
    world.send_as("k", Some(1), "first");
    answer_all(&mut world, |_, _| 422);
    let sequenced = |key: &str, sequence: &str| {
        let mut event = edited("first", key, "fixed");
        event
            .attributes
            .push(Attribute { name: "sequence".into(), value: event::Value::String(sequence.into()) });
        event
    };
    let mut faults = |event: &Event| match edit(&mut world, "orders.1", event) {
        Err(Refused::Invalid(faults)) => {
            faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        }
        other => panic!("{other:?}"),
    };
    let said = faults(&Event { id: "x".into(), source: "/x".into(), ..sequenced("k", "1") });
    assert!(said.contains("\"first\"") && said.contains("\"/test\""), "{said}");
    let said = faults(&sequenced("l", "1"));
    assert!(said.contains("\"k\"") && said.contains("\"l\""), "names both: {said}");
    let said = faults(&sequenced("k", "7"));
    assert!(said.contains("must stay 1") && said.contains("has 7"), "names both: {said}");
    let said = faults(&edited("first", "k", "without a sequence"));
    assert!(said.contains("sequence"), "{said}");
    edit(&mut world, "orders.1", &sequenced("k", "1")).expect("the same place");
}

#[test]
fn an_edit_is_refused_if_another_came_first_or_the_letter_is_on_its_way() {
    let mut world = parked(world::config(), &json!({}));
    let event = edited("first", "k", "fixed");
    let mut edit = |seen| world.engine.edit_dead_letter("orders.1", &event, "ann", Some(seen));
    assert!(matches!(edit(1), Err(Refused::Outdated(_))), "not edited yet");
    edit(0).expect("edited");
    let Err(Refused::Outdated(why)) = edit(0) else {
        panic!("the second editor has not seen the first edit")
    };
    assert!(why.contains("edit 1"), "{why}");
    edit(1).expect("edited again");
    assert!(matches!(
        world.engine.edit_dead_letter("orders.9", &event, "ann", None),
        Err(Refused::NotFound(_))
    ));
    replay_all(&mut world);
    world.pass(20);
    let refused = world.engine.edit_dead_letter("orders.1", &event, "ann", None);
    assert!(
        matches!(&refused, Err(Refused::Conflict(why)) if why.contains("being delivered")),
        "{refused:?}"
    );
}

/// Works until the oldest segment of the log is deleted.
fn retire_segments(world: &mut World) {
    let logs =
        |world: &World| world.disk.list().expect("lists").into_iter().filter(|name| name.starts_with("log-"));
    let before = logs(world).min();
    for n in 0..20 {
        (0..60).for_each(|m| world.send(&format!("well{n}-{m}"), None));
        answer_all(world, |_, _| 200);
    }
    (0..60).for_each(|_| world.pass(DAY_MS / 4));
    assert!(logs(world).min() > before, "segments were deleted");
    world.must_be_sound();
}

fn small_segments() -> Config {
    let log = Options { segment_bytes: 64 << 10, reserve_bytes: 4 << 10, tail_bytes: 4 << 10 };
    Config { log, ..world::config() }
}

/// Retention deletes the segments of the event and of its edit, again and again.
#[test]
fn an_edit_outlives_its_segment_and_a_crash() {
    let mut world = parked(small_segments(), &json!({}));
    edit(&mut world, "orders.1", &edited("first", "k", &"x".repeat(5000))).expect("edited");
    for _ in 0..3 {
        retire_segments(&mut world);
        world.restart(&mut |_| 0);
    }
    let letter = shown(&world, "orders.1");
    assert_eq!((&letter["edits"], &letter["editedBy"]), (&json!(1), &json!("ann")));
    world.engine.act_on_lane("orders", "k", LaneAction::Resume).expect("resumed");
    let called = answer_all(&mut world, |_, _| 200);
    assert_eq!(called[0], call("orders", "first", &"x".repeat(5000)));
    world.must_be_sound();
}

#[test]
fn an_edit_moves_with_its_letter_to_the_successor_of_its_subscription() {
    let mut world = parked(
        small_segments(),
        &json!({"orderingPolicy": {"onFailure": "skip"}, "deadLetters": {"ttl": "365d"}}),
    );
    edit(&mut world, "orders.1", &edited("first", "k", "fixed")).expect("edited");
    world.engine.delete_subscription("orders", klambda_dispatch::operate::Leftover::Refuse).expect("deleted");
    world.put(ordered("orders", &json!({})));
    world.restart(&mut |_| 0);
    assert_eq!(shown(&world, "orders.1")["editedBy"], "ann");
    replay_all(&mut world);
    let called = answer_all(&mut world, |_, _| 422);
    assert!(called.contains(&call("orders", "first", "fixed")), "{called:?}");
    world.must_be_sound();
    world.restart(&mut |_| 0);
    let again = shown(&world, "orders.1");
    assert_eq!((&again["event"]["data"], &again["eventId"]), (&json!("fixed"), &json!("first")), "{again}");
    retire_segments(&mut world);
    world.restart(&mut |_| 0);
    assert_eq!(
        shown(&world, "orders.1")["event"]["data"],
        "fixed",
        "the edit was copied for its new subscription"
    );
}
