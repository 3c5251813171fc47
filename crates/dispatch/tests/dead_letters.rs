//! Dead letters: their age limit, their count limit, and the report of a replay.

mod world;

use klambda_core::ids::Position;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::replay::{Request, State};
use serde_json::{Value, json};
use world::World;

fn document(spec: Value) -> Value {
    let mut document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "s"},
        "spec": {"target": {"url": "http://127.0.0.1:9000/"}, "retry": {"attempts": 1}},
    });
    for (key, value) in spec.as_object().expect("an object") {
        document["spec"][key] = value.clone();
    }
    document
}

fn replay(ids: &[&str]) -> Request {
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    let ids = (!ids.is_empty()).then_some(ids);
    let selector = Selector { subscription: Some("s".into()), ids, ..Selector::default() };
    Request { selector, rate_per_second: 0, parallelism: 1 }
}

fn positions(world: &World) -> Vec<u64> {
    let found =
        world.engine.select_dead_letters(world.id("s"), &Selector::default(), Position(0), usize::MAX);
    found.expect("read").iter().map(|letter| letter.entry.position.0).collect()
}

/// One round in which every call gets this status.
fn round(world: &mut World, ms: u64, status: u16) {
    world.pass(ms);
    for delivery in world.take_open() {
        world.engine.outcome(delivery.ticket, world::error(status));
    }
    world.settle();
}

#[test]
fn each_dead_letter_grows_old_by_its_own_failure() {
    for restarted in [false, true] {
        let mut world = World::new(1);
        world.put(document(json!({"deadLetters": {"ttl": "60s"}})));
        // More than are checked in one round.
        (0..700).for_each(|n| world.send(&format!("k{n}"), None));
        (0..100).for_each(|_| round(&mut world, 10, 422));
        assert_eq!(positions(&world).len(), 700);
        world.pass(30_000);
        world.engine.create_replay(replay(&["s.1", "s.300"])).expect("a job");
        (0..12).for_each(|_| round(&mut world, 10, 422));
        if restarted {
            world.restart(&mut |_| 0);
        }
        (0..10).for_each(|_| world.pass(1000));
        assert_eq!(positions(&world).len(), 700, "none has expired yet");
        (0..30).for_each(|_| world.pass(1000));
        assert_eq!(positions(&world), [1, 300], "events that failed again are younger than the rest");
        (0..30).for_each(|_| world.pass(1000));
        assert_eq!(positions(&world), [0_u64; 0]);
        world.send("k", None);
        (0..3).for_each(|_| round(&mut world, 10, 422));
        assert_eq!(positions(&world), [701]);
        (0..62).for_each(|_| world.pass(1000));
        assert_eq!(positions(&world), [0_u64; 0], "also after there were none for a while");
        world.must_be_sound();
    }
}

#[test]
fn thousands_of_dead_letters_go_soon_after_their_time() {
    let mut world = World::new(4);
    world.put(document(json!({"deadLetters": {"ttl": "60s"}, "concurrency": 1000})));
    (0..5000).for_each(|n| world.send(&format!("k{n}"), None));
    (0..6).for_each(|_| round(&mut world, 10, 422));
    assert_eq!(positions(&world).len(), 5000);
    world.pass(59_000);
    assert_eq!(positions(&world).len(), 5000, "none has expired yet");
    // The engine is called when it asks for it.
    let until = world.now + 4000;
    while world.now < until {
        let next = world.engine.wake_at().since(world.now).max(1);
        world.pass(next);
    }
    assert_eq!(positions(&world).len(), 0);
    world.must_be_sound();
}

#[test]
fn there_are_never_many_more_than_may_be() {
    let mut world = World::new(2);
    world.put(document(json!({"deadLetters": {"maxEvents": 10}, "concurrency": 1000})));
    for sent in 1..=20_u64 {
        (0..500).for_each(|n| world.send(&format!("k{n}"), None));
        (0..2).for_each(|_| round(&mut world, 10, 422));
        world.pass(1);
        let last: Vec<u64> = (sent * 500 - 9..=sent * 500).collect();
        assert_eq!(positions(&world), last, "the newest ones are kept");
        if sent % 7 == 0 {
            world.restart(&mut |_| 0);
        }
    }
    // A dead letter that was away while the front moved on comes back before it, and is the oldest.
    world.engine.create_replay(replay(&["s.9995"])).expect("a job");
    (0..2).for_each(|_| world.pass(10));
    let away = world.take_open();
    assert_eq!((away.len(), positions(&world).len()), (1, 9));
    (0..500).for_each(|n| world.send(&format!("k{n}"), None));
    (0..2).for_each(|_| round(&mut world, 10, 422));
    away.into_iter().for_each(|delivery| world.engine.outcome(delivery.ticket, world::error(422)));
    assert_eq!(positions(&world)[..2], [9995, 10_491]);
    world.pass(1);
    assert_eq!(positions(&world), (10_491..=10_500).collect::<Vec<u64>>());
    world.must_be_sound();
}

#[test]
fn a_replay_that_a_crash_interrupts_reports_all_that_it_selected() {
    for seed in 0..6_u64 {
        let mut world = World::new(seed);
        world.put(document(match seed % 2 {
            0 => json!({"ordering": "ordered", "orderingPolicy": {"onFailure": "skip"}}),
            _ => json!({"ordering": "unordered"}),
        }));
        (0..40).for_each(|n| world.send(&format!("k{}", n % 3), None));
        (0..60).for_each(|_| round(&mut world, 10, 422));
        assert_eq!(positions(&world).len(), 40);
        let request = Request { rate_per_second: 10, ..replay(&[]) };
        let job = world.engine.create_replay(request).expect("a job");
        (0..20).for_each(|_| round(&mut world, 100, 200));
        // Some dead letters that the job has not reached are deleted meanwhile.
        let gone = positions(&world).split_off(10);
        for position in gone.iter().take(3) {
            world.engine.delete_dead_letter(&format!("s.{position}")).expect("deleted");
        }
        if seed > 2 {
            world.engine.request_checkpoint();
        }
        round(&mut world, 100, 200);
        world.restart(&mut |_| 0);
        (0..60).for_each(|_| round(&mut world, 100, 200));
        let job = world.engine.replay(job).expect("a job");
        let counts =
            (job.state, job.counts.selected, job.counts.replayed, job.counts.failed, job.counts.skipped);
        assert_eq!(counts, (State::Succeeded, 40, 37, 0, 3), "seed {seed}: {job:?}");
        assert_eq!(job.skipped_reasons["gone"], 3, "seed {seed}: {job:?}");
        world.must_be_sound();
    }
}
