//! An idle subscription costs memory for itself, but no work per event or per round.

mod world;

use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::Leftover;
use klambda_dispatch::{Config, Delivery};
use klambda_store::disk::Disk;
use klambda_store::log::Options;
use serde_json::{Value, json};
use world::{World, error, ok, ordered};

const DAY_MS: u64 = 24 * 3_600_000;
const IDLE: usize = 300;

/// A busy subscription for keys that begin with `busy` or `sick`, and many idle ones.
fn world(config: Config, spec: &Value) -> World {
    let mut world = World::with(1, config);
    let filters =
        json!([{"any": [{"prefix": {"partitionkey": "busy"}}, {"prefix": {"partitionkey": "sick"}}]}]);
    let mut busy = ordered("busy", spec);
    busy["spec"]["filters"] = filters;
    world.put(busy);
    (0..IDLE).for_each(|n| world.put(idle(n)));
    // The first round measures and sorts all of them.
    world.pass(2000);
    world
}

fn idle(n: usize) -> Value {
    let filters = json!([{"exact": {"partitionkey": format!("idle{n}")}}]);
    let url = format!("http://127.0.0.1:{}/", 9001 + n);
    ordered(&format!("idle{n}"), &json!({"filters": filters, "target": {"url": url}}))
}

fn answer(world: &mut World) {
    for _ in 0..3 {
        world.pass(20);
        for Delivery { ticket, record, .. } in world.take_open() {
            let is_sick = record.windows(4).any(|part| part == b"sick");
            world.engine.outcome(ticket, if is_sick { error(422) } else { ok() });
        }
    }
}

/// No subscription is visited because it exists.
fn walks_through_none(world: &mut World, work: impl FnOnce(&mut World)) {
    let before = world.engine.subscriptions_walked();
    work(world);
    let walked = world.engine.subscriptions_walked() - before;
    assert_eq!(walked, 0, "visited {walked} subscriptions, of which {IDLE} are idle");
}

#[test]
fn ids_expire_without_a_look_at_idle_subscriptions() {
    let mut world = world(Config { marks_max: 200, ..world::config() }, &json!({}));
    world.send_as("sick", None, "sick");
    walks_through_none(&mut world, |world| {
        for round in 0..20 {
            (0..100).for_each(|n| world.send_as(&format!("busy{n}"), None, &format!("b{round}-{n}")));
            answer(world);
            world.engine.request_checkpoint();
            world.pass(DAY_MS / 10);
        }
        (0..50).for_each(|_| world.pass(1000));
    });
    assert!(world.engine.metrics().marks_expired_early > 1000);
    let accepted = world.accepted.values().map(Vec::len).sum::<usize>();
    world.send_as("busy0", None, "b0-0");
    world.send_as("sick", None, "sick");
    world.settle();
    let now = world.accepted.values().map(Vec::len).sum::<usize>();
    assert_eq!(now, accepted + 1, "the id of the dead letter is still known, the other one is forgotten");
}

#[test]
fn segments_are_deleted_and_copies_forgotten_without_a_look_at_idle_subscriptions() {
    let log = Options { segment_bytes: 32 << 10, reserve_bytes: 4 << 10, tail_bytes: 4 << 10 };
    let mut world = world(Config { log, ..world::config() }, &json!({}));
    let files = |world: &World| -> Vec<String> {
        let all = world.disk.list().expect("lists");
        all.into_iter().filter(|name| name.starts_with("log-")).collect()
    };
    let before = files(&world);
    walks_through_none(&mut world, |world| {
        for round in 0..12 {
            world.send(&format!("sick{round}"), None);
            (0..40).for_each(|n| world.send(&format!("busy{n}"), None));
            answer(world);
        }
        (0..40).for_each(|_| world.pass(DAY_MS / 4));
    });
    assert!(before.iter().all(|name| !files(&world).contains(name)), "the first segments are deleted");
    assert_eq!(world.engine.dead_letters(), 12);
    world.engine.purge_dead_letters(&Selector::default(), true).expect("purged");
    walks_through_none(&mut world, |world| {
        world.engine.request_checkpoint();
        (0..4).for_each(|_| world.pass(1000));
    });
    assert_eq!(world.engine.dead_letters(), 0);
    world.must_be_sound();
}

#[test]
fn rounds_changes_and_removals_do_not_look_at_idle_subscriptions() {
    let letters = json!({"ttl": "1h"});
    let spec = json!({"deadLetters": letters, "orderingPolicy": {"onFailure": "skip"}});
    let mut world = world(world::config(), &spec);
    (0..20).for_each(|n| world.send(&format!("sick{n}"), None));
    answer(&mut world);
    assert_eq!(world.engine.dead_letters(), 20);
    walks_through_none(&mut world, |world| (0..100).for_each(|_| world.pass(60_000)));
    assert_eq!(world.engine.dead_letters(), 0, "they expire");
    for n in 0..3 {
        let mut moved = idle(n);
        moved["spec"]["target"]["url"] = json!("http://127.0.0.1:8999/");
        world.put(moved);
    }
    // A restart and a list of all subscriptions may visit all. A change of one may not.
    let before = world.engine.subscriptions_walked();
    let mut moved = idle(4);
    moved["spec"]["target"]["url"] = json!("http://127.0.0.1:8998/");
    world.put(moved);
    world.engine.pause_subscription("idle5", true).expect("paused");
    world.engine.delete_subscription("idle6", Leftover::Drain).expect("deleted");
    (0..3).for_each(|_| world.pass(1000));
    assert_eq!(world.engine.subscriptions_walked() - before, 0);
    assert!(world.engine.view_subscription("idle6").is_none());
}

/// A draining subscription and a retired one are still removed in time.
#[test]
fn subscriptions_that_leave_are_still_checked() {
    let mut world = World::new(2);
    for name in ["drains", "retires"] {
        let mut document = ordered(name, &json!({"concurrency": 1}));
        document["spec"]["orderingPolicy"] = json!({"onFailure": "skip"});
        world.put(document);
    }
    (0..5).for_each(|n| world.send(&format!("k{n}"), None));
    world.settle();
    world.engine.delete_subscription("drains", Leftover::Drain).expect("draining");
    world.engine.retire_subscription("retires", 3000).expect("retiring");
    world.pass(10);
    for _ in 0..10 {
        let of_drains = |delivery: &Delivery| delivery.document.name == "drains";
        let (its, _) = world.take_open().into_iter().partition::<Vec<Delivery>, _>(of_drains);
        its.into_iter().for_each(|delivery| world.engine.outcome(delivery.ticket, ok()));
        world.pass(600);
    }
    assert!(world.engine.view_subscription("drains").is_none());
    assert_eq!(world.engine.dead_letters(), 5, "the pending events of the other one are dead letters");
    world.pass(8 * DAY_MS);
    (0..5).for_each(|_| world.pass(2000));
    assert_eq!(world.engine.dead_letters(), 0, "they expire");
    assert!(world.engine.knows_subscription("retires").is_err(), "nothing of it is left");
}
