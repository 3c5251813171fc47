//! Replay jobs run on without unrelated inputs.

mod world;

use klambda_core::kinds::Strategy;
use klambda_dispatch::Config;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::replay::{PART, Request, State};
use serde_json::json;
use world::{World, error, ordered};

#[test]
fn a_replay_that_discards_many_dead_letters_needs_no_wakeup() {
    let strategies = [("order.placed".to_owned(), Strategy::Discard)].into_iter().collect();
    let mut world = World::with(1, Config { strategies, ..world::config() });
    world.put(ordered("s", &json!({"orderingPolicy": {"onFailure": "skip"}})));
    let letters = 3 * PART as u64 + 10;
    (0..letters).for_each(|n| world.send(&format!("k{n}"), None));
    while world.engine.waiting() > 0 {
        world.pass(10);
        for delivery in world.take_open() {
            world.engine.outcome(delivery.ticket, error(422));
        }
    }
    assert_eq!(world.engine.dead_letters(), letters);
    let request = Request { selector: Selector::default(), rate_per_second: 0, parallelism: 1 };
    let job = world.engine.create_replay(request).expect("created");
    world.pass(1);
    let mut rounds = 0;
    while world.engine.replay(job).expect("a job").state == State::Running {
        assert!(world.engine.wake_at() <= world.engine.now(), "round {rounds}: it continues immediately");
        world.pass(0);
        rounds += 1;
    }
    assert!(rounds > 2, "in portions");
    assert_eq!(world.engine.dead_letters(), 0);
    let job = world.engine.replay(job).expect("a job");
    assert_eq!((job.state, job.skipped_reasons["discarded"]), (State::Succeeded, letters));
}
