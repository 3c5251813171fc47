//! Maintenance: ids of pending events stay known, deleted data leaves nothing behind, and each call does a bounded
//! amount of work.

mod world;

use klambda_core::event::{Attribute, Event, Value};
use klambda_core::ids::SubscriptionId;
use klambda_dispatch::operate::Leftover;
use klambda_dispatch::{Completion, Config, Rejection, Sender, Status, Token};
use klambda_store::chore::{Work, belongs_to};
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::Op;
use klambda_store::manifest::Manifest;
use klambda_store::tables::TableSet;
use serde_json::json;
use world::{Rng, World, ordered};

const DAY_MS: u64 = 24 * 3_600_000;

fn accepted(world: &World) -> usize {
    world.accepted.values().map(Vec::len).sum()
}

/// Rounds in which all events succeed except those of sick keys.
fn rounds(world: &mut World, rng: &mut Rng, n: u32) {
    for _ in 0..n {
        world.step(rng, |_, key| if key.starts_with("sick") { world::error(422) } else { world::ok() });
    }
}

/// Sends accepted ids again; none of them may count as new.
fn must_be_known(world: &mut World, ids: &[(String, String)], what: &str) {
    let before = accepted(world);
    ids.iter().for_each(|(key, id)| world.send_as(key, None, id));
    world.settle();
    assert_eq!(accepted(world) - before, 0, "{what}");
}

fn accepted_ids(world: &World) -> Vec<(String, String)> {
    let of_key = |(key, ids): (&String, &Vec<String>)| {
        ids.iter().map(|id| (key.clone(), id.clone())).collect::<Vec<(String, String)>>()
    };
    world.accepted.iter().flat_map(of_key).collect()
}

#[test]
fn pending_events_and_the_newest_ids_stay_known() {
    let unordered = json!({"attempts": "unlimited", "backoff": "1h", "maxBackoff": "1h"});
    for (seed, spec) in [
        json!({}),
        json!({"orderingPolicy": {"onFailure": "skip"}}),
        json!({"ordering": "unordered"}),
        json!({"ordering": "unordered", "retry": unordered}),
    ]
    .into_iter()
    .enumerate()
    {
        let mut rng = Rng(seed as u64);
        let mut world = World::with(seed as u64, Config { marks_max: 1000, ..world::config() });
        world.put(ordered("all", &spec.clone()));
        (0..100).for_each(|n| world.send(&format!("sick-{}", n % 7), None));
        rounds(&mut world, &mut rng, 30);
        let waiting = accepted_ids(&world);
        let mut expired = 0;
        for round in 0..40 {
            (0..100)
                .for_each(|n| world.send_as(&format!("well-{n}"), None, &format!("o{}", round * 100 + n)));
            rounds(&mut world, &mut rng, 20);
            if round % 10 == 9 {
                expired += world.engine.metrics().marks_expired_early;
                must_be_known(&mut world, &waiting, &format!("{spec}, round {round}"));
                world.crash(&mut rng);
                must_be_known(&mut world, &waiting, &format!("{spec}, after a crash"));
            }
        }
        assert!(expired > 1000, "{spec}: the limit was reached");
        let newest: Vec<(String, String)> =
            (3600..4000).map(|n| (format!("well-{}", n % 100), format!("o{n}"))).collect();
        must_be_known(&mut world, &newest, &format!("{spec}, the newest"));
    }
}

#[test]
fn unread_events_stay_known_whatever_follows() {
    let mut rng = Rng(1);
    let mut world = World::with(1, Config { marks_max: 1000, ..world::config() });
    world.put(ordered("all", &json!({})));
    (0..10).for_each(|_| world.send("sick", None));
    world.settle();
    // New rules wait for the pending events, and all new events wait for the rules.
    world.put(ordered("all", &json!({"orderingPolicy": {"key": {"attribute": "partitionkey"}}})));
    world.engine.pause_subscription("all", true).expect("pauses");
    world.put(ordered("others", &json!({"filters": [{"prefix": {"partitionkey": "well"}}]})));
    (0..200).for_each(|_| world.send("later", None));
    rounds(&mut world, &mut rng, 50);
    let waiting = accepted_ids(&world);
    for _ in 0..60 {
        (0..50).for_each(|n| world.send(&format!("well-{n}"), None));
        rounds(&mut world, &mut rng, 40);
        world.now = world.now + DAY_MS / 20;
    }
    assert!(world.engine.is_catching_up());
    must_be_known(&mut world, &waiting, "it was taken in");
    world.crash(&mut rng);
    must_be_known(&mut world, &waiting, "after a crash");
}

#[test]
fn ids_of_a_deep_backlog_outlive_their_window_some_at_a_time() {
    let mut rng = Rng(2);
    let mut world = World::new(2);
    world.put(ordered("orders", &json!({"backlog": {"maxEvents": 100_000}})));
    world.engine.pause_subscription("orders", true).expect("pauses");
    for _ in 0..40 {
        (0..100).for_each(|n| world.send(&format!("k{n}"), None));
        rounds(&mut world, &mut rng, 3);
    }
    world.engine.request_checkpoint();
    rounds(&mut world, &mut rng, 40);
    let waiting = accepted_ids(&world);
    for window in 0..2 {
        world.now = world.now + DAY_MS + DAY_MS / 10 + 1000;
        world.engine.tick(world.now);
        assert!(!world.engine.is_checkpointing(), "4,000 events are not looked up in one call");
        // The scan is interrupted several times and starts again.
        for _ in 0..4 {
            (0..3).for_each(|_| world.pass(1));
            world.crash(&mut rng);
        }
        let checkpoints = world.engine.metrics().checkpoints;
        (0..100).for_each(|_| world.pass(400));
        assert!(world.engine.metrics().checkpoints > checkpoints, "the scan completes at the end");
        must_be_known(&mut world, &waiting, &format!("after {window} more windows"));
    }
    world.engine.pause_subscription("orders", false).expect("resumes");
    world.drain();
    world.now = world.now + 3 * DAY_MS;
    (0..100).for_each(|_| world.pass(400));
    let before = accepted(&world);
    waiting.iter().for_each(|(key, id)| world.send_as(key, None, id));
    world.settle();
    assert_eq!(accepted(&world) - before, waiting.len(), "after its window an id is new again");
}

#[test]
fn finding_one_of_many_dead_letters_takes_few_reads() {
    let mut rng = Rng(3);
    let mut world = World::new(3);
    let keyless = json!({"key": {"attribute": "nokey"}});
    world.put(ordered("all", &json!({"orderingPolicy": keyless, "idempotency": {"ttl": "1s"}})));
    for _ in 0..50 {
        (0..100).for_each(|_| world.send("k", None));
        rounds(&mut world, &mut rng, 3);
    }
    assert_eq!(world.engine.dead_letters(), 5000);
    world.engine.request_checkpoint();
    rounds(&mut world, &mut rng, 60);
    world.pass(2000);
    for (key, id) in accepted_ids(&world).into_iter().step_by(500) {
        world.disk.fail_nth(Op::Read, 100);
        must_be_known(&mut world, &[(key, id)], "a dead letter");
        world.disk.repair();
    }
}

#[test]
fn an_event_that_cannot_be_read_back_and_comes_again_past_its_window_is_no_failure() {
    for ordering in ["ordered", "unordered"] {
        let mut rng = Rng(4);
        let mut world = World::new(4);
        world.put(ordered("all", &json!({"ordering": ordering, "idempotency": {"ttl": "1s"}})));
        world.send("sick-1", None);
        rounds(&mut world, &mut rng, 20);
        world.engine.pause_subscription("all", true).expect("pauses");
        world.send("k", None);
        world.settle();
        (0..600).for_each(|n| world.send(&format!("k{n}"), None));
        world.settle();
        let segments = world.disk.list().expect("lists").into_iter();
        let first = segments.filter(|name| name.starts_with("log-")).min().expect("a segment");
        let bytes = {
            let file = world.disk.open(&first).expect("opens");
            let mut bytes = vec![0; 4096];
            let n = file.read_at(&mut bytes, 0).expect("reads");
            bytes.truncate(n);
            bytes
        };
        // Both events are at the start of the log.
        let damaged: Vec<usize> = ["e1", "e2"]
            .iter()
            .map(|id| bytes.windows(2).position(|at| at == id.as_bytes()).expect("the event"))
            .collect();
        damaged.iter().for_each(|at| world.disk.flip_bit(&first, 8 * *at as u64));
        world.pass(2000);
        let before = accepted(&world);
        world.send_as("sick-1", None, "e1");
        world.send_as("k", None, "e2");
        world.settle();
        assert_eq!(world.engine.failure(), None, "{ordering}");
        let is_new = u64::from(ordering == "ordered") as usize;
        assert_eq!(accepted(&world) - before, is_new, "{ordering}: a dead letter is still known");
        // It is not a failure either when the table of its id is deleted.
        world.engine.request_checkpoint();
        (0..20).for_each(|_| world.pass(10));
        world.now = world.now + DAY_MS;
        (0..40).for_each(|_| world.pass(500));
        assert_eq!(world.engine.failure(), None, "{ordering}");
    }
}

/// Rows of a subscription in tables, without tombstones.
fn stored_rows(world: &World, id: SubscriptionId) -> usize {
    let manifest = Manifest::load(&world.disk).expect("reads").expect("a manifest");
    let tables = TableSet::open(&world.disk, &manifest.rows).expect("opens");
    let rows = tables.scan_live(b"").map(|row| row.expect("reads").0);
    rows.filter(|key| belongs_to(key, &[id])).count()
}

/// Makes a checkpoint. Other chores run first if they must, and none after it.
fn checkpoint(world: &mut World) {
    let checkpoints = world.engine.metrics().checkpoints;
    world.engine.request_checkpoint();
    while world.engine.metrics().checkpoints == checkpoints {
        world.engine.tick(world.now);
        world.engine.flush();
        world.engine.run_sync();
        let chore = world.engine.chore().expect("a chore");
        world.engine.chore_done(chore.run());
    }
}

#[test]
fn a_merge_leaves_out_no_row_of_a_subscription_whose_removal_a_power_cut_can_take_back() {
    let mut world = World::new(5);
    world.put(ordered("stays", &json!({"orderingPolicy": {"key": {"attribute": "nokey"}}})));
    let id = world.id("stays");
    for _ in 0..4 {
        (0..20).for_each(|_| world.send("k", None));
        checkpoint(&mut world);
    }
    let before = stored_rows(&world, id);
    world.engine.delete_subscription("stays", Leftover::Discard).expect("in memory");
    let merge = world.engine.chore().expect("a merge of four");
    assert!(matches!(merge.work, Work::MergeRows { .. }));
    world.engine.chore_done(merge.run());
    world.restart(&mut |_| 0);
    assert_eq!(world.id("stays"), id, "the removal was never reported");
    assert_eq!(stored_rows(&world, id), before);
}

#[test]
fn rows_of_a_removed_subscription_leave_the_disk_whenever_it_was_removed() {
    for removed_before_the_merge in [true, false] {
        let mut world = World::new(5);
        // Each event becomes a row at once.
        world.put(ordered("goes", &json!({"orderingPolicy": {"key": {"attribute": "nokey"}}})));
        let id = world.id("goes");
        for _ in 0..4 {
            (0..20).for_each(|_| world.send("k", None));
            checkpoint(&mut world);
        }
        (0..20).for_each(|_| world.send("k", None));
        let remove =
            |world: &mut World| world.engine.delete_subscription("goes", Leftover::Discard).expect("deleted");
        if removed_before_the_merge {
            remove(&mut world);
        }
        let merge = world.engine.chore().expect("a merge of four");
        assert!(matches!(merge.work, Work::MergeRows { .. }));
        if !removed_before_the_merge {
            remove(&mut world);
        }
        world.engine.chore_done(merge.run());
        for _ in 0..40 {
            world.put(ordered("other", &json!({})));
            checkpoint(&mut world);
        }
        assert_eq!(stored_rows(&world, id), 0, "removed before the merge: {removed_before_the_merge}");
    }
}

/// The number of recorded copies in tables.
fn stored_copies(world: &World) -> usize {
    let manifest = Manifest::load(&world.disk).expect("reads").expect("a manifest");
    let tables = TableSet::open(&world.disk, &manifest.rows).expect("opens");
    tables.scan_live(b"K").map(|row| row.expect("reads").0).take_while(|key| key.starts_with(b"K")).count()
}

#[test]
fn copies_that_nothing_needs_are_forgotten_behind_many_that_are_needed() {
    const NEEDED: usize = 10_500;
    let mut rng = Rng(6);
    let mut world = World::with(6, Config { retention_age_ms: DAY_MS, ..world::config() });
    for name in ["stays", "goes"] {
        let (policy, letters) = (json!({"key": {"attribute": "nokey"}}), json!({"ttl": "90d"}));
        let filters = json!([{"exact": {"partitionkey": name}}]);
        let spec = json!({"orderingPolicy": policy, "deadLetters": letters, "filters": filters});
        world.put(ordered(name, &spec));
    }
    let long = "x".repeat(4000);
    // The events in between take more than one MiB, the unit in which pinned events are counted.
    for (key, n) in [("stays", NEEDED), (&long, 600), ("goes", 100), (&long, 600)] {
        (0..n).for_each(|_| world.send(key, None));
        rounds(&mut world, &mut rng, 10);
    }
    world.now = world.now + 2 * DAY_MS;
    while world.engine.log_bytes() > 20 * (128 << 10) {
        world.pass(1000);
    }
    checkpoint(&mut world);
    assert_eq!(stored_copies(&world), NEEDED + 100);
    world.engine.delete_subscription("goes", Leftover::Discard).expect("deleted");
    // Each checkpoint checks some of the copies.
    (0..3).for_each(|_| checkpoint(&mut world));
    assert_eq!(stored_copies(&world), NEEDED);
}

#[test]
fn lanes_that_wait_for_a_slot_share_memory_whatever_the_number_of_subscriptions() {
    const SUBSCRIPTIONS: usize = 20;
    let mut world = World::new(5);
    for n in 0..SUBSCRIPTIONS {
        world.put(ordered(&format!("s{n}"), &json!({"concurrency": 2})));
    }
    (0..300).for_each(|n| world.send(&format!("k{n}"), None));
    for restarted in [false, true] {
        if restarted {
            world.restart(&mut |_| 0);
        }
        (0..10).for_each(|_| world.pass(10));
        // 1 MiB of memory has room for about 560 lanes, plus those in flight.
        let lanes = world.engine.lanes_in_memory();
        assert!(lanes <= 560 * 5 / 4 + 2 * SUBSCRIPTIONS, "{lanes} lanes, restarted: {restarted}");
    }
    world.drain();
    world.check_all_seen(5);
}

#[test]
fn lanes_with_long_queues_that_wait_for_a_slot_stay_within_memory() {
    const SUBSCRIPTIONS: usize = 16;
    let mut world = World::new(5);
    for n in 0..SUBSCRIPTIONS {
        world.put(ordered(&format!("s{n}"), &json!({"concurrency": 1})));
    }
    for _ in 0..350 {
        (0..12).for_each(|n| world.send(&format!("k{n}"), None));
        world.pass(1);
    }
    checkpoint(&mut world);
    world.pass(2000);
    let memory = world.engine.view_status().memory;
    assert!(memory.used_bytes <= memory.limit_bytes * 2, "{memory:?}");
}

/// Sends an event again. Returns true if it counts as new.
fn is_new(world: &mut World, key: &str, id: &str) -> bool {
    let before = accepted(world);
    world.send_as(key, None, id);
    world.settle();
    accepted(world) > before
}

#[test]
fn the_window_of_an_id_counts_from_its_delivery() {
    const HOUR_MS: u64 = 3_600_000;
    for (seed, ordering) in ["ordered", "unordered"].into_iter().enumerate() {
        let mut rng = Rng(seed as u64);
        let mut world = World::new(seed as u64);
        world.put(ordered("all", &json!({"ordering": ordering, "idempotency": {"ttl": "10h"}})));
        world.engine.pause_subscription("all", true).expect("pauses");
        world.send_as("k", None, "late");
        world.settle();
        world.now = world.now + 100 * HOUR_MS;
        world.send_as("k", None, "soon");
        world.settle();
        (0..40).for_each(|_| world.pass(HOUR_MS / 50));
        world.engine.pause_subscription("all", false).expect("resumes");
        world.drain();
        let delivered = world.now;
        for (hours, known) in [(5, true), (9, true), (12, false)] {
            world.now = delivered + hours * HOUR_MS;
            // The result does not depend on what is in memory.
            checkpoint(&mut world);
            (0..10).for_each(|_| world.pass(1000));
            world.crash(&mut rng);
            for id in ["late", "soon"] {
                assert_eq!(is_new(&mut world, "k", id), !known, "{ordering}, {id} after {hours} hours");
            }
        }
    }
}

#[test]
fn no_more_ids_are_kept_than_the_limit_allows() {
    const LIMIT: u64 = 1000;
    let mut rng = Rng(7);
    let mut world = World::with(7, Config { marks_max: LIMIT, ..world::config() });
    world.put(ordered("all", &json!({})));
    (0..300).for_each(|n| world.send_as(&format!("sick-{n}"), None, &format!("s{n}")));
    let mut sent = 0;
    for _ in 0..100 {
        (0..100).for_each(|n| world.send_as(&format!("well-{n}"), None, &format!("w{}", sent + n)));
        sent += 100;
        rounds(&mut world, &mut rng, 8);
        let kept = world.engine.sample().marks;
        assert!(kept <= LIMIT + LIMIT / 10 + 300, "{kept} ids after {sent} events");
    }
    rounds(&mut world, &mut rng, 100);
    assert!(world.engine.metrics().marks_expired_early >= sent - LIMIT - LIMIT / 10);
    world.crash(&mut rng);
    // From newest to oldest: each id that is accepted again displaces an old one.
    let known = (0..sent).rev().take_while(|n| !is_new(&mut world, "k", &format!("w{n}"))).count() as u64;
    assert!((LIMIT..=LIMIT + LIMIT / 10).contains(&known), "{known} are known");
    assert!(!is_new(&mut world, "sick-1", "s1"), "a pending event is known regardless of the limit");
}

#[test]
fn a_duplicate_is_counted_for_every_subscription_that_knows_it() {
    let mut world = World::new(8);
    ["a", "b", "c"].iter().for_each(|name| world.put(ordered(name, &json!({}))));
    world.send_as("k", None, "twice");
    world.settle();
    assert!(!is_new(&mut world, "k", "twice"));
    for name in ["a", "b", "c"] {
        let counted = world.engine.metrics().duplicates.get(&(name.to_owned(), "duplicate")).copied();
        assert_eq!(counted, Some(1), "{name}");
    }
}

/// Lanes that wait on disk for their retries because others use the memory, and some that always fail.
fn retries_on_disk() -> World {
    let mut rng = Rng(9);
    let mut world = World::new(9);
    let only = |prefix: &str| json!([{"prefix": {"partitionkey": prefix}}]);
    let retry = |backoff: &str| json!({"attempts": "unlimited", "backoff": backoff, "maxBackoff": backoff});
    world.put(ordered("retries", &json!({"filters": only("a"), "retry": retry("5s")})));
    world.put(ordered("rests", &json!({"filters": only("b"), "paused": true})));
    world.put(ordered("fails", &json!({"filters": only("c"), "paused": true, "retry": retry("1ms")})));
    (0..100).for_each(|n| world.send(&format!("a{n}"), None));
    (0..50).for_each(|_| world.step(&mut rng, |_, _| world::error(500)));
    (0..50).for_each(|n| world.send(&format!("c{n}"), None));
    (0..3000).for_each(|n| world.send(&format!("b{n}"), None));
    (0..10).for_each(|_| world.pass(10));
    assert!(world.engine.wake_at() > world.now, "no retry is due");
    world
}

#[test]
fn an_engine_that_cannot_start_anything_sleeps() {
    let mut world = retries_on_disk();
    world.engine.stop();
    (0..20).for_each(|_| world.pass(10));
    world.pass(60_000);
    assert!(world.engine.wake_at() > world.now, "retries are due, and nothing can start");
}

#[test]
fn an_engine_without_room_in_its_log_sleeps() {
    let mut world = retries_on_disk();
    world.disk.set_capacity(Some(world.disk.used_bytes()));
    world.engine.pause_subscription("fails", false).expect("resumed");
    // Every failure is logged until there is no room for another.
    let mut calls = 1;
    while calls > 0 {
        world.pass(2);
        let open = world.take_open();
        calls = open.len();
        open.into_iter().for_each(|call| world.engine.outcome(call.ticket, world::error(500)));
    }
    world.pass(60_000);
    assert!(world.engine.take_deliveries().is_empty(), "nothing can start");
    assert!(world.engine.wake_at() > world.now, "retries are due, and nothing can start");
    // The engine continues by itself when there is room.
    world.disk.set_capacity(None);
    (0..20).for_each(|_| world.pass(1000));
    assert!(world.take_open().len() > 50);
}

#[test]
fn dead_letters_of_all_subscriptions_have_a_depth_and_an_age() {
    let mut rng = Rng(10);
    let mut world = World::new(10);
    world.put(ordered("held", &json!({})));
    world.put(ordered("beside", &json!({"orderingPolicy": {"onFailure": "skip"}})));
    world.send("sick", None);
    rounds(&mut world, &mut rng, 40);
    world.now = world.now + 60_000;
    world.engine.tick(world.now);
    let sample = world.engine.sample();
    let depths: Vec<(&str, u64)> =
        sample.dead_letters.iter().map(|of| (of.name.as_str(), of.depth)).collect();
    assert_eq!(depths, [("beside", 1), ("held", 1)]);
    assert!(sample.dead_letters.iter().all(|of| of.oldest_age_ms >= 60_000));
}

#[test]
fn lanes_with_long_keys_take_no_more_memory_than_lanes_with_short_ones() {
    let mut world = World::new(11);
    world.put(ordered("all", &json!({"concurrency": 2})));
    let long = "k".repeat(1000);
    (0..1000).for_each(|n| world.send(&format!("{n}{long}"), None));
    (0..10).for_each(|_| world.pass(10));
    // Four tenths of 1 MiB, and a quarter more before waiting lanes are evicted.
    let lanes = world.engine.lanes_in_memory();
    assert!(lanes * 1000 <= (1 << 20) * 4 / 10 * 5 / 4, "{lanes} lanes with keys of 1000 bytes");
    world.drain();
    world.check_all_seen(11);
}

/// Sends one event for a new lane, and runs all jobs except chores.
fn send_new(world: &mut World, n: u64) -> Status {
    let key = Attribute { name: "partitionkey".into(), value: Value::String(format!("lane-{n}")) };
    let (id, source, kind) = (n.to_string(), "/test".into(), "a".into());
    world.engine.accept(
        Token(n),
        &Sender::default(),
        vec![Ok(Event { id, source, kind, attributes: vec![key], data: None })],
    );
    world.engine.flush();
    world.engine.run_sync();
    world.engine.run_prepare();
    world.engine.tick(world.now);
    match world.engine.take_completions().pop() {
        Some(Completion::Events(_, mut judged)) => judged.remove(0).status,
        other => panic!("{other:?}"),
    }
}

/// Nothing else limits the changes in memory meanwhile.
#[test]
fn events_wait_for_a_checkpoint_that_takes_long_and_are_refused_while_it_fails() {
    let mut world = World::new(1);
    world.put(ordered("s", &json!({})));
    let mut n = 0;
    while world.engine.is_accepting() {
        n += 1;
        assert!(matches!(send_new(&mut world, n), Status::Accepted { .. }));
        let memory = world.engine.view_status().memory;
        assert!(memory.used_bytes < 2 * memory.limit_bytes, "{n} events: {memory:?}");
    }

    (1..=10).for_each(|n| world.disk.fail_nth(Op::Create, n));
    world.engine.run_chore();
    world.disk.repair();
    let refused = loop {
        assert!(world.engine.is_accepting(), "a request gets the answer that there is no room");
        n += 1;
        match send_new(&mut world, n) {
            Status::Accepted { .. } => assert!(n < 5000),
            other => break other,
        }
    };
    assert!(matches!(refused, Status::Rejected(Rejection::DiskFull)), "{refused:?}");

    world.pass(1500);
    assert!(matches!(send_new(&mut world, n), Status::Accepted { .. }));
    world.must_be_sound();
}

/// If most of a long queue is on disk, pending events are still distinguished from those that have left.
#[test]
fn an_id_is_forgotten_after_its_window_however_long_the_queue_is() {
    for ordering in ["ordered", "unordered"] {
        let mut world = World::new(1);
        let retry = json!({"attempts": "unlimited", "backoff": "1h", "maxBackoff": "1h"});
        world.put(ordered(
            "s",
            &json!({"ordering": ordering, "concurrency": 1, "idempotency": {"ttl": "1s"}, "retry": retry}),
        ));
        let sent: Vec<String> = (0..2000).map(|n| format!("id-{n}")).collect();
        sent.iter().for_each(|id| world.send_as("k", None, id));
        world.settle();
        let first = world.take_open().pop().expect("the first is called");
        world.engine.outcome(first.ticket, world::ok());
        world.settle();
        world.pass(60_000);
        let before = accepted(&world);
        sent.iter().step_by(97).for_each(|id| world.send_as("k", None, id));
        world.settle();
        assert_eq!(accepted(&world) - before, 1, "{ordering}: only the delivered event is new");
    }
}
