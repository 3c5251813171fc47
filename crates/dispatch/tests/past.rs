//! Subscriptions that begin in the past: `from: earliest`.

mod world;

use klambda_core::event_codec::EventView;
use klambda_core::lane::Flag;
use klambda_dispatch::views::Subscription;
use klambda_dispatch::{Config, Delivery};
use klambda_store::log::Options;
use serde_json::{Value, json};
use world::{World, ok, ordered};

/// So many events of its past are in the lanes of a subscription at a time.
const WAITING_MAX: u64 = 10_000;

fn world() -> World {
    let log = Options { segment_bytes: 8 << 20, reserve_bytes: 64 << 10, tail_bytes: 1 << 20 };
    World::with(1, Config { memory_bytes: 64 << 20, log, ..world::config() })
}

fn sequenced(concurrency: u32) -> Value {
    let sequence = json!({"attribute": "sequence", "start": 1});
    let policy = json!({"sequence": sequence, "gap": {"timeout": "2s", "action": "skip"}});
    ordered("s", &json!({"from": "earliest", "concurrency": concurrency, "orderingPolicy": policy}))
}

fn view(world: &World, name: &str) -> Subscription {
    world.engine.view_subscription(name).expect("a subscription")
}

/// Sends one event of each of many keys, in frames of 100.
fn send_others(world: &mut World, count: u64, sequence: u64) {
    for n in 0..count {
        world.send(&format!("k{n}"), Some(sequence));
        if n % 100 == 99 {
            world.engine.flush();
        }
    }
    world.settle();
}

fn id(delivery: &Delivery) -> String {
    EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event").id().to_owned()
}

/// Answers all calls until none is open for a while. Returns the events whose ids begin with `a`, with their flags.
fn answer_all(world: &mut World) -> Vec<(String, Flag)> {
    let (mut seen, mut still) = (Vec::new(), 0);
    while still < 20 {
        world.pass(20);
        let open = world.take_open();
        still = if open.is_empty() { still + 1 } else { 0 };
        for delivery in open {
            let flag = delivery.place.as_ref().map_or(Flag::None, |place| place.flag);
            seen.push((id(&delivery), flag));
            world.engine.outcome(delivery.ticket, ok());
        }
    }
    seen.into_iter().filter(|(id, _)| id.starts_with('a')).collect()
}

#[test]
fn a_gap_waits_for_events_of_the_past_that_are_unread() {
    let mut world = world();
    world.send_as("a", Some(1), "a1");
    world.send_as("a", Some(3), "a3");
    send_others(&mut world, WAITING_MAX + 200, 1);
    world.send_as("a", Some(2), "a2");
    world.settle();
    world.put(sequenced(4));
    // Only the first event succeeds. The other calls hang, so the subscription does not reach the missing event.
    let mut hang = Vec::new();
    for _ in 0..20 {
        world.pass(1000);
        for delivery in world.take_open() {
            assert_ne!(id(&delivery), "a3", "flagged {:?}", delivery.place.map(|place| place.flag));
            match id(&delivery) == "a1" {
                true => world.engine.outcome(delivery.ticket, ok()),
                false => hang.push(delivery),
            }
        }
    }
    assert_eq!((hang.len(), view(&world, "s").status.phase), (4, "catchingUp"));
    world.restart(&mut |_| 0);
    let seen = answer_all(&mut world);
    assert_eq!(seen, [("a2".into(), Flag::None), ("a3".into(), Flag::None)]);
    assert_eq!(view(&world, "s").status.phase, "active");
    // It has caught up, so a gap times out.
    world.send_as("a", Some(5), "a5");
    assert_eq!(answer_all(&mut world), []);
    world.pass(2000);
    assert_eq!(answer_all(&mut world), [("a5".into(), Flag::Gap)]);
    world.must_be_sound();
}

#[test]
fn a_gap_at_the_end_of_the_past_times_out_after_everything_is_read() {
    let mut world = world();
    world.send_as("a", Some(1), "a1");
    world.send_as("a", Some(3), "a3");
    world.settle();
    world.put(sequenced(4));
    assert_eq!(answer_all(&mut world), [("a1".into(), Flag::None)]);
    world.pass(2000);
    assert_eq!(answer_all(&mut world), [("a3".into(), Flag::Gap)]);
}

#[test]
fn where_nothing_of_the_past_can_be_delivered_gaps_time_out() {
    let mut world = world();
    send_others(&mut world, 2 * WAITING_MAX + 200, 7);
    world.put(sequenced(64));
    (0..10).for_each(|_| world.pass(10));
    assert_eq!(world.engine.waiting(), 2 * WAITING_MAX, "it reads to twice its limit");
    assert_eq!(world.take_open().len(), 0);
    let text = view(&world, "s").status.messages.join("\n");
    assert!(text.contains("no pending event can be delivered"), "{text}");
    let mut seen = 0;
    for _ in 0..2000 {
        world.pass(100);
        for delivery in world.take_open() {
            assert_eq!(delivery.place.as_ref().map(|place| place.flag), Some(Flag::Gap));
            world.engine.outcome(delivery.ticket, ok());
            seen += 1;
        }
        if world.engine.waiting() == 0 && !world.engine.is_catching_up() {
            break;
        }
    }
    assert_eq!(seen, 2 * WAITING_MAX + 200);
}

#[test]
fn all_readers_share_one_budget_per_round() {
    const READERS: usize = 40;
    const EVENTS: u64 = 600;
    let mut world = world();
    send_others(&mut world, EVENTS, 1);
    let names: Vec<String> = (0..READERS).map(|n| format!("s{n}")).collect();
    for name in &names {
        let document = ordered(name, &json!({"from": "earliest", "paused": true}));
        let document = klambda_core::subscription::Document::parse(&document).expect("a valid document");
        world.engine.put_subscription(document, false).expect("put");
    }
    world.settle();
    let mut rounds = 0;
    let (mut most, mut read) = (0, 0);
    while world.engine.is_catching_up() {
        assert!(rounds == 0 || world.engine.wake_at() <= world.engine.now(), "it reads on immediately");
        world.engine.tick(world.now);
        let now = world.engine.waiting();
        most = most.max(now - read);
        read = now;
        world.settle();
        rounds += 1;
        assert!(rounds < 100, "{read} events read");
        let waiting = names.iter().map(|name| view(&world, name).status.waiting);
        let (least, most) = (waiting.clone().min().unwrap_or(0), waiting.max().unwrap_or(0));
        assert!(most - least <= 300, "round {rounds}: {least} to {most}");
    }
    assert_eq!(read, READERS as u64 * EVENTS);
    assert!(most <= 8192 + 100, "{most} events in one round");
}
