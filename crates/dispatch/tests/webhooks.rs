//! Webhook endpoints: the feed, health, the retry schedule, acknowledgements.

mod world;

use klambda_core::event_codec::EventView;
use klambda_core::lane::Flag;
use klambda_core::outcome::CallOutcome;
use klambda_core::webhook::{Document, EventId};
use klambda_dispatch::deliveries::{DeliveryFilter, From};
use klambda_dispatch::feed::{FeedItem, FeedPage, Since, Unavailable};
use klambda_dispatch::operate::LaneAction;
use klambda_dispatch::{Delivery, Token};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use world::{Rng, World, error, ok};

const NAME: &str = "webhook.partner";

fn endpoint(spec: Value) -> Value {
    let mut document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "WebhookEndpoint", "metadata": {"name": "partner"},
        "spec": {"url": "http://127.0.0.1:9000/", "retry": {"schedule": ["0s", "1s"]}},
    });
    for (member, value) in spec.as_object().expect("an object") {
        document["spec"][member] = value.clone();
    }
    Document::parse(&document).expect("a valid endpoint").subscription().to_stored_json()
}

fn page(world: &World, since: Since, workflow: Option<&str>, limit: usize) -> FeedPage {
    let page = world.engine.read_feed(NAME, since, workflow, limit).expect("an endpoint");
    page.unwrap_or_else(|why| panic!("{why:?}"))
}

/// The whole feed, read in pages.
fn feed(world: &World) -> Vec<FeedItem> {
    let (mut since, mut items) = (Since::Beginning, Vec::new());
    loop {
        let page = page(world, since, None, 3);
        since = Since::Entry(page.up_to);
        items.extend(page.items);
        if !page.more {
            return items;
        }
    }
}

/// The numbers of all attempts, newest first, read in pages.
fn attempts(world: &World, filter: DeliveryFilter) -> Vec<u64> {
    let (mut from, mut numbers) = (From::Newest, Vec::new());
    loop {
        let page = world.engine.read_deliveries(NAME, from, &filter, 7).expect("an endpoint");
        from = From::Before(page.up_to);
        numbers.extend(page.items.iter().map(|item| item.number));
        if !page.more {
            return numbers;
        }
    }
}

fn event_id(id: &str) -> EventId {
    EventId::new("default", "/test", id)
}

/// The receiver's own view of a workflow: numbers without holes, each naming the one before.
fn check_chains(items: &[FeedItem]) {
    let mut last: BTreeMap<&str, (u64, EventId)> = BTreeMap::new();
    for FeedItem { entry, .. } in items {
        let before = last.insert(&entry.workflow, (entry.number.0, entry.id));
        match before {
            Some((number, id)) => {
                assert_eq!((entry.number.0, entry.previous), (number + 1, Some(id)), "{entry:?}");
            }
            None => assert_eq!((entry.number.0, entry.previous), (1, None), "{entry:?}"),
        }
    }
}

#[test]
fn the_feed_lists_events_in_the_order_of_their_places() {
    let mut world = World::new(1);
    world.put(endpoint(json!({
        "orderingPolicy": {"sequence": {"attribute": "sequence", "start": 1}, "gap": {"timeout": "1m"}},
    })));
    for (key, sequence, id) in
        [("a", 1, "a1"), ("b", 2, "b2"), ("a", 2, "a2"), ("b", 1, "b1"), ("a", 3, "a3")]
    {
        world.send_as(key, Some(sequence), id);
        world.settle();
    }
    let items = feed(&world);
    let ids: Vec<EventId> = items.iter().map(|item| item.entry.id).collect();
    // The early event takes its place when the gap before it is filled.
    assert_eq!(ids, ["a1", "a2", "b1", "b2", "a3"].map(event_id));
    check_chains(&items);
    let of_b = page(&world, Since::Beginning, Some("b"), 10);
    assert_eq!(of_b.items.iter().map(|item| item.entry.number.0).collect::<Vec<_>>(), [1, 2]);
    let rest = page(&world, Since::Event(event_id("b1")), None, 10);
    assert_eq!(rest.items.iter().map(|item| item.entry.id).collect::<Vec<_>>(), ["b2", "a3"].map(event_id));
    assert!(world.engine.read_feed(NAME, Since::Event(event_id("x")), None, 1).expect("known").is_err());
}

/// What the endpoint was sent: workflow and number, with the id and the previous id.
type Sent = BTreeMap<(String, u64), (EventId, Option<String>)>;

fn note(sent: &mut Sent, delivery: &Delivery) {
    let view = EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event");
    let place = delivery.place.as_ref().expect("ordered");
    let workflow = place.workflow.as_deref().expect("a workflow").to_owned();
    let known = (EventId::new("default", view.source(), view.id()), place.previous_id.clone());
    if place.flag == Flag::None {
        let before = sent.insert((workflow, place.number.0), known.clone());
        assert!(before.is_none_or(|before| before == known), "{known:?}");
    }
}

#[test]
fn the_feed_is_what_was_sent_after_any_crash() {
    for seed in 0..12 {
        let (mut world, mut rng, mut sent) = (World::new(seed), Rng(seed), Sent::new());
        world.put(endpoint(json!({})));
        for _ in 0..300 {
            for _ in 0..rng.below(6) {
                world.send(&format!("k{}", rng.below(5)), None);
            }
            world.step_with(&mut rng, |rng, delivery| {
                note(&mut sent, delivery);
                if rng.below(4) == 0 { error(503) } else { ok() }
            });
            if rng.below(40) == 0 {
                world.crash(&mut rng);
            }
        }
        for _ in 0..50 {
            world.pass(2000);
            for delivery in world.take_open() {
                note(&mut sent, &delivery);
                world.engine.outcome(delivery.ticket, ok());
            }
        }
        let items = feed(&world);
        check_chains(&items);
        assert!(items.len() > 100, "seed {seed}: {} events", items.len());
        let of: BTreeMap<(String, u64), (EventId, Option<String>)> = items
            .iter()
            .map(|FeedItem { entry, .. }| {
                let previous = entry.previous.map(|id| id.to_string());
                ((entry.workflow.to_string(), entry.number.0), (entry.id, previous))
            })
            .collect();
        assert_eq!(of.len(), items.len(), "seed {seed}: no entry twice");
        for (place, known) in &sent {
            assert_eq!(of.get(place), Some(known), "seed {seed}: {place:?}");
        }
        // The log has exactly one successful attempt of every delivered event, and the index has all attempts of the log.
        let numbers = attempts(&world, DeliveryFilter::default());
        assert!(numbers.iter().rev().copied().eq(1..=numbers.len() as u64), "seed {seed}: {numbers:?}");
        let succeeded = DeliveryFilter { succeeded: Some(true), ..DeliveryFilter::default() };
        let delivered = world.engine.view_endpoint(NAME).expect("an endpoint").status.delivered;
        assert_eq!(attempts(&world, succeeded).len() as u64, delivered, "seed {seed}");
        assert!(numbers.len() as u64 > delivered && delivered > 50, "seed {seed}: some failed");
        world.must_be_sound();
    }
}

#[test]
fn purged_events_leave_the_feed() {
    let mut world = World::new(1);
    world.put(endpoint(json!({})));
    for id in ["a1", "a2", "a3"] {
        world.send_as("a", None, id);
    }
    world.settle();
    let open = world.take_open();
    world.engine.act_on_lane(NAME, "a", LaneAction::Purge).expect("purged");
    world.settle();
    world.engine.outcome(open[0].ticket, ok());
    world.settle();
    world.send_as("a", None, "a4");
    world.settle();
    let ids: Vec<EventId> = feed(&world).iter().map(|item| item.entry.id).collect();
    assert_eq!(ids, ["a1", "a4"].map(event_id));
}

fn answer_all(world: &mut World, outcome: impl Fn() -> CallOutcome) -> usize {
    let open = world.take_open();
    let calls = open.len();
    open.iter().for_each(|delivery| world.engine.outcome(delivery.ticket, outcome()));
    world.settle();
    calls
}

#[test]
fn an_endpoint_that_is_gone_keeps_numbering_and_resumes_in_place() {
    let mut world = World::new(1);
    world.put(endpoint(json!({})));
    world.send_as("a", None, "a1");
    world.settle();
    assert_eq!(answer_all(&mut world, || error(410)), 1);
    let disabled = |world: &World| world.engine.view_subscription(NAME).expect("there").status.phase;
    assert_eq!(disabled(&world), "disabled");
    world.send_as("a", None, "a2");
    world.pass(10_000);
    assert_eq!(answer_all(&mut world, ok), 0, "nothing is called");
    world.restart(&mut |_| 0);
    world.settle();
    assert_eq!(feed(&world).iter().map(|item| item.entry.number.0).collect::<Vec<_>>(), [1, 2]);
    assert!(world.engine.set_endpoint_enabled(NAME, true).expect("enabled"));
    assert!(!world.engine.set_endpoint_enabled(NAME, true).expect("nothing to do"));
    let mut numbers = Vec::new();
    for _ in 0..4 {
        world.pass(2000);
        for delivery in world.take_open() {
            numbers.push(delivery.place.as_ref().expect("ordered").number.0);
            world.engine.outcome(delivery.ticket, ok());
        }
    }
    assert_eq!(numbers, [1, 2]);
}

#[test]
fn an_endpoint_without_a_success_is_disabled_after_its_time() {
    let mut world = World::new(1);
    world.put(endpoint(
        json!({"disableAfter": "1h", "retry": {"schedule": ["0s", "20m", "20m", "30m", "30m"]}}),
    ));
    world.send_as("a", None, "a1");
    world.settle();
    let mut calls = 0;
    for _ in 0..150 {
        calls += answer_all(&mut world, || error(400));
        world.pass(60_000);
    }
    assert_eq!(calls, 4, "at about 0, 20, 40 and 70 minutes, and then no more");
    assert_eq!(world.engine.view_subscription(NAME).expect("there").status.phase, "disabled");
}

#[test]
fn an_acknowledgement_covers_every_workflow_up_to_its_event() {
    let mut world = World::new(1);
    world.put(endpoint(json!({})));
    for (key, id) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("b", "b2"), ("a", "a3")] {
        world.send_as(key, None, id);
    }
    world.settle();
    // Workflow a is parked, b is open, c waits for its retry.
    let mut open_b = None;
    for _ in 0..6 {
        for delivery in world.take_open() {
            match delivery.place.as_ref().and_then(|place| place.workflow.as_deref()) {
                Some("b") => open_b = Some(delivery.ticket),
                _ => world.engine.outcome(delivery.ticket, error(500)),
            }
        }
        world.pass(500);
    }
    let through = event_id("b2");
    let part = world.engine.acknowledge_part(NAME, through, None, "").expect("acknowledged");
    assert_eq!((part.events, part.busy, part.next), (3, 1, None));
    world.engine.outcome(open_b.expect("open"), ok());
    world.settle();
    world.take_open().iter().for_each(|delivery| world.engine.outcome(delivery.ticket, error(500)));
    let again = world.engine.acknowledge_part(NAME, through, None, "").expect("acknowledged");
    assert_eq!((again.events, again.busy), (1, 0), "b2 follows when no call is open");
    world.engine.when_durable(Token(0));
    world.settle();
    world.restart(&mut |_| 0);
    world.pass(2000);
    let open: Vec<String> = world
        .take_open()
        .iter()
        .map(|delivery| {
            format!("{:?}", delivery.place.as_ref().map(|place| (place.workflow.clone(), place.number.0)))
        })
        .collect();
    assert_eq!(open, [r#"Some((Some("a"), 3))"#]);
    assert_eq!(world.engine.acknowledge_part(NAME, through, None, "").expect("again").events, 0);
    world.must_be_sound();
}

#[test]
fn an_acknowledgement_of_one_workflow_leaves_the_others() {
    let mut world = World::new(1);
    world.put(endpoint(json!({"paused": true})));
    for (key, id) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("a", "a3")] {
        world.send_as(key, None, id);
    }
    world.settle();
    let part = world.engine.acknowledge_part(NAME, event_id("a2"), Some("a"), "").expect("acknowledged");
    assert_eq!(part.events, 2);
    assert_eq!(world.engine.waiting(), 2);
    assert!(world.engine.acknowledge_part(NAME, event_id("nothing"), None, "").is_err());
}

#[test]
fn events_of_a_disabled_endpoint_expire_and_the_next_is_flagged() {
    let config = klambda_dispatch::Config { retention_age_ms: 60_000, ..world::config() };
    let mut world = World::with(1, config);
    world.put(endpoint(json!({})));
    world.engine.set_endpoint_enabled(NAME, false).expect("disabled");
    for id in ["a1", "a2", "a3"] {
        world.send_as("a", None, id);
        world.pass(10);
    }
    for _ in 0..70 {
        world.pass(1000);
    }
    assert_eq!(world.engine.waiting(), 0);
    world.send_as("a", None, "a4");
    world.settle();
    world.engine.set_endpoint_enabled(NAME, true).expect("enabled");
    world.pass(1000);
    let open = world.take_open();
    let place = open[0].place.as_ref().expect("ordered");
    assert_eq!((place.number.0, place.flag), (4, Flag::Gap));
}

#[test]
fn an_endpoint_is_enabled_from_a_time_and_the_feed_stays_complete() {
    for ordering in ["ordered", "unordered"] {
        let mut world = World::new(1);
        world.put(endpoint(json!({"ordering": ordering})));
        let enabled = world.engine.skip_before(NAME, klambda_core::time::Millis::NEVER);
        assert_eq!(enabled.expect("an endpoint"), (0, false), "it is not disabled");
        world.engine.set_endpoint_enabled(NAME, false).expect("disabled");
        for id in ["a1", "a2", "a3"] {
            world.send_as("a", None, id);
            world.pass(10);
        }
        let from = world.engine.now();
        world.send_as("a", None, "a4");
        world.settle();
        assert_eq!(world.engine.skip_before(NAME, from).expect("skipped"), (3, false), "{ordering}");
        assert_eq!((world.engine.waiting(), feed(&world).len()), (1, 4), "{ordering}");
        world.engine.set_endpoint_enabled(NAME, true).expect("enabled");
        world.pass(1000);
        let open = world.take_open();
        assert_eq!(open.len(), 1, "{ordering}");
        if let Some(place) = &open[0].place {
            assert_eq!((place.number.0, place.flag), (4, Flag::Gap));
        }
        world.must_be_sound();
    }
}

#[test]
fn an_overloaded_endpoint_gets_fewer_calls() {
    let mut world = World::new(1);
    world.put(endpoint(json!({"retry": {"schedule": ["0s", "1s", "1s", "1s"]}})));
    for key in 0..16 {
        world.send(&format!("k{key}"), None);
    }
    world.settle();
    let open = world.take_open();
    assert_eq!(open.len(), 16);
    // Two lanes answer with 504, so the breaker stays closed.
    for (n, delivery) in open.iter().enumerate() {
        world.engine.outcome(delivery.ticket, if n < 2 { error(504) } else { ok() });
    }
    for key in 0..64 {
        world.send(&format!("n{key}"), None);
    }
    world.settle();
    let calls = world.take_open().len();
    assert!((4..=32).contains(&calls), "{calls} calls");
}

/// Sends events with the ids `e1`, `e2`, …, and delivers them.
fn send_many(world: &mut World, events: usize) {
    for n in 0..events {
        world.send(&format!("k{}", n % 7), None);
        if n % 50 == 0 {
            world.pass(10);
            answer_all(world, ok);
        }
    }
    while world.engine.waiting() > 0 {
        world.pass(10);
        answer_all(world, ok);
    }
}

#[test]
fn ids_that_retention_has_passed_are_known_for_as_long_again() {
    let age_ms = 600_000;
    let config = klambda_dispatch::Config { retention_age_ms: age_ms, ..world::config() };
    let mut world = World::with(1, config);
    world.put(endpoint(json!({})));
    send_many(&mut world, 3000);
    assert_eq!(world.engine.waiting(), 0);
    assert_eq!(feed(&world).len(), 3000);
    let first = Since::Event(event_id("e1"));
    world.pass(age_ms + 1000);
    for _ in 0..50 {
        world.pass(1000);
        send_many(&mut world, 1);
    }
    let left = feed(&world);
    assert!(left.len() < 2000, "{} entries are left", left.len());
    let look = |world: &World| world.engine.read_feed(NAME, first, None, 10).expect("an endpoint").map(drop);
    let oldest = left[0].entry.id;
    match look(&world) {
        Err(Unavailable::Passed { oldest: Some(told) }) => assert_eq!(told, oldest),
        other => panic!("{other:?}"),
    }
    world.restart(&mut |_| 0);
    // A power cut may undo the removal of files, so the feed may have more again, but never less.
    let again: Vec<EventId> = feed(&world).iter().map(|item| item.entry.id).collect();
    assert!(again.ends_with(&left.iter().map(|item| item.entry.id).collect::<Vec<_>>()));
    for _ in 0..60 {
        world.pass(age_ms / 40);
        send_many(&mut world, 100);
    }
    assert!(matches!(look(&world), Err(Unavailable::Unknown { oldest: Some(_) })), "{:?}", look(&world));
    world.must_be_sound();
}

#[test]
fn an_acknowledgement_covers_pending_events_that_left_the_feed() {
    let age_ms = 600_000;
    let config = klambda_dispatch::Config { retention_age_ms: age_ms, ..world::config() };
    let mut world = World::with(1, config);
    world.put(endpoint(json!({})));
    world.send_as("paused", None, "old");
    world.settle();
    world.engine.act_on_lane(NAME, "paused", LaneAction::Pause).expect("paused");
    answer_all(&mut world, || error(500));
    for _ in 0..80 {
        for key in 0..50 {
            world.send(&format!("k{key}"), None);
        }
        world.pass(age_ms / 20);
        answer_all(&mut world, ok);
    }
    let old = world.engine.read_feed(NAME, Since::Event(event_id("old")), None, 1).expect("an endpoint");
    assert!(matches!(old, Err(Unavailable::Unknown { .. })), "{old:?}");
    let last = feed(&world).pop().expect("an entry").entry.id;
    let part = world.engine.acknowledge_part(NAME, last, None, "").expect("acknowledged");
    assert_eq!((part.events, world.engine.waiting()), (1, 0));
    world.must_be_sound();
}

/// Twice this age is more than a number can hold.
#[test]
fn the_longest_retention_remembers_every_id() {
    let config =
        klambda_dispatch::Config { retention_age_ms: u64::MAX, retention_bytes: 64 << 10, ..world::config() };
    let mut world = World::with(1, config);
    world.put(endpoint(json!({})));
    send_many(&mut world, 3000);
    for _ in 0..50 {
        world.pass(1000);
        send_many(&mut world, 1);
    }
    assert!(feed(&world).len() < 3000, "the size limit removes the oldest events");
    let first = world.engine.read_feed(NAME, Since::Event(event_id("e1")), None, 10).expect("an endpoint");
    assert!(matches!(first, Err(Unavailable::Passed { .. })), "{first:?}");
}

#[test]
fn an_acknowledgement_of_an_unordered_endpoint_covers_every_event_up_to_its_own() {
    let mut world = World::new(1);
    world.put(endpoint(json!({"ordering": "unordered", "concurrency": 3})));
    for id in ["u1", "u2", "u3", "u4", "u5", "u6"] {
        world.send_as("k", None, id);
    }
    world.settle();
    let first = world.take_open();
    assert_eq!(first.len(), 3);
    // Paused, so that u4, u5 and u6 stay in the queue.
    world.engine.pause_subscription(NAME, true).expect("paused");
    first[..2].iter().for_each(|delivery| world.engine.outcome(delivery.ticket, error(500)));
    world.settle();
    world.pass(1200);
    world.engine.pause_subscription(NAME, false).expect("resumed");
    world.settle();
    let second = world.take_open();
    assert_eq!(second.len(), 2, "the retries of u1 and u2");
    world.engine.pause_subscription(NAME, true).expect("paused");
    // u1 becomes a dead letter, u2 stays open, u3 waits for its retry.
    world.engine.outcome(second[0].ticket, error(500));
    world.engine.outcome(first[2].ticket, error(500));
    world.settle();
    assert_eq!((world.engine.waiting(), world.engine.dead_letters()), (5, 1));
    let acknowledge = |world: &mut World, id: &str| {
        let (mut events, mut busy, mut from) = (0, 0, String::new());
        loop {
            let part = world.engine.acknowledge_part(NAME, event_id(id), None, &from).expect("acknowledged");
            (events, busy) = (events + part.events, busy + part.busy);
            match part.next {
                Some(next) => from = next,
                None => return (events, busy),
            }
        }
    };
    assert_eq!(acknowledge(&mut world, "u5"), (4, 1), "u2 is open");
    world.engine.outcome(second[1].ticket, error(500));
    world.settle();
    assert_eq!(acknowledge(&mut world, "u5"), (1, 0), "it failed and is acknowledged all the same");
    assert_eq!((world.engine.waiting(), world.engine.dead_letters()), (1, 0));
    assert_eq!(acknowledge(&mut world, "u5"), (0, 0));
    let of_workflow = world.engine.acknowledge_part(NAME, event_id("u5"), Some("k"), "");
    assert!(of_workflow.is_err_and(|refused| format!("{refused:?}").contains("workflowId")));
    world.engine.when_durable(Token(0));
    world.settle();
    world.restart(&mut |_| 0);
    world.settle();
    assert_eq!((world.engine.waiting(), feed(&world).len()), (1, 6), "the feed stays complete");
    world.must_be_sound();
}

#[test]
fn unread_events_are_skipped_too_when_an_endpoint_is_enabled_from_a_time() {
    let mut world = World::new(1);
    let mut document = endpoint(json!({}));
    document["spec"]["backlog"]["maxEvents"] = json!(4);
    world.put(document);
    world.engine.set_endpoint_enabled(NAME, false).expect("disabled");
    for n in 1..=20 {
        world.send_as("a", None, &format!("a{n}"));
        world.pass(10);
    }
    assert!(world.engine.unread() > 5, "{} unread", world.engine.unread());
    let from = world.engine.now();
    world.send_as("a", None, "a21");
    world.settle();
    let mut skipped = 0;
    for _ in 0..100 {
        let (events, more) = world.engine.skip_before(NAME, from).expect("skipped");
        skipped += events;
        if !more {
            break;
        }
        world.pass(10);
    }
    assert_eq!((skipped, feed(&world).len()), (20, 21), "the feed is complete");
    check_chains(&feed(&world));
    world.engine.set_endpoint_enabled(NAME, true).expect("enabled");
    world.pass(1000);
    let open = world.take_open();
    let place = open[0].place.as_ref().expect("ordered");
    assert_eq!((open.len(), place.number.0, place.flag), (1, 21, Flag::Gap));
    world.must_be_sound();
}

/// The process may end during the call.
#[test]
fn a_resend_is_audited_before_its_call() {
    let mut world = World::new(1);
    world.put(endpoint(json!({})));
    send_many(&mut world, 1);
    let entry = klambda_dispatch::audit::Entry { verb: "resend".into(), ..Default::default() };
    let (begun, is_audited) =
        world.engine.audited(&entry, |engine| engine.begin_resend(NAME, event_id("e1")).is_ok());
    assert!(begun && is_audited);
    world.engine.when_durable(Token(0));
    world.settle();
    world.restart(&mut |_| 0);
    let (entries, _) = world.engine.audit_page(None, 10, |_| true).expect("entries");
    assert_eq!(entries.iter().map(|audited| &*audited.entry.verb).collect::<Vec<_>>(), ["resend"]);
    let (begun, is_audited) =
        world.engine.audited(&entry, |engine| engine.begin_resend(NAME, event_id("e9")).is_ok());
    assert!(!begun && !is_audited, "a refused request leaves no entry");
}
