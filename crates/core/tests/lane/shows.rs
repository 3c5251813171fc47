//! Tests of the read access to a lane.

use crate::harness::{START, World, entry, policy};
use klambda_core::ids::{Position, Sequence};
use klambda_core::lane::{CHUNK, Entry, FRONT_MAX, Input, Lane, Policy, State};
use klambda_core::subscription::OnFailure;
use klambda_core::time::Millis;

fn position(entry: Option<&Entry>) -> Option<u64> {
    entry.map(|entry| entry.position.0)
}

/// Two deliverable events and one early event.
fn three() -> World {
    let mut world = World::new(policy());
    for sequence in [1, 2, 4] {
        world.send((sequence, 0), 1);
    }
    world
}

#[test]
fn names_are_those_of_the_api() {
    let names = State::ALL.map(State::name);
    assert_eq!(names, ["open", "running", "retrying", "gap", "parked", "paused"]);
}

#[test]
fn what_waits_is_found_wherever_it_stands() {
    let mut world = three();
    let lane = &world.machine.lane;
    assert_eq!((lane.resident(), lane.depth(), lane.buffered()), (3, 3, 1));
    assert_eq!((position(lane.queue().first()), position(lane.first_waiting())), (Some(1), Some(1)));
    assert_eq!(position(lane.first_droppable()), Some(1));
    let early: Vec<(Sequence, u64)> = lane.early().map(|(n, entry)| (n, entry.position.0)).collect();
    assert_eq!(early, [(Sequence(4), 3)]);

    world.start().expect("the lane is ready");
    assert_eq!(
        position(world.machine.lane.first_droppable()),
        Some(2),
        "the event in flight is not droppable"
    );
    world.fail(true);
    let lane = &world.machine.lane;
    assert_eq!(
        position(lane.first_droppable()),
        Some(2),
        "the dead letter that parks the lane is not droppable"
    );
    assert_eq!((lane.state(), position(lane.queue().first())), (State::Parked, Some(1)));
    world.must(Input::Skip);
    world.deliver_all();
    let lane = &world.machine.lane;
    assert_eq!(position(lane.queue().first()), None);
    assert_eq!((position(lane.first_waiting()), position(lane.first_droppable())), (Some(3), Some(3)));
}

#[test]
fn what_comes_back_from_outside_counts_too() {
    let mut world = World::new(policy());
    world.send((1, 0), 1);
    world.send((2, 0), 1);
    world.start().expect("the lane is ready");
    world.fail(true);
    world.must(Input::Skip);
    world.requeue(0);
    let lane = &world.machine.lane;
    assert_eq!((lane.resident(), lane.depth()), (2, 2));
    assert_eq!((position(lane.first_waiting()), position(lane.queue().first())), (Some(1), Some(2)));
    assert_eq!(position(lane.first_droppable()), Some(1));
}

#[test]
fn the_middle_of_a_long_queue_goes_out_by_whole_chunks() {
    let policy = Policy { sequenced: false, ..policy() };
    let mut lane = Lane::new(START);
    let mut actions = Vec::new();
    let count = FRONT_MAX + CHUNK - 1;
    for n in 1..=count as u64 {
        let input = Input::Arrived { entry: entry(n, 1, START), sequence: None, taken: false };
        lane.apply(input, &policy, START, &mut actions).expect("the lane accepts the event");
    }
    assert_eq!(
        (lane.resident(), lane.queue_mut().take_chunk()),
        (count, None),
        "the chunk is one event short"
    );
    assert_eq!(position(lane.first_waiting()), Some(1));
    let last = Input::Arrived { entry: entry(count as u64 + 1, 1, START), sequence: None, taken: false };
    lane.apply(last, &policy, START, &mut actions).expect("the lane accepts the event");
    let (number, chunk) = lane.queue_mut().take_chunk().expect("a full chunk");
    assert_eq!((number, chunk.len(), chunk[0].position), (0, CHUNK, Position(FRONT_MAX as u64 + 1)));
    assert_eq!((lane.resident(), lane.depth()), (FRONT_MAX, (FRONT_MAX + CHUNK) as u64));
    let spilled = lane.queue().spilled();
    assert_eq!((spilled.first_chunk, spilled.next_chunk, spilled.entries), (0, 1, CHUNK as u64));

    // Pops the events directly, and loads the chunk when the queue wants it.
    let mut taken = Vec::new();
    while let Some(entry) = lane.queue_mut().pop() {
        taken.push(entry.position.0);
        if let Some(0) = lane.queue().wanted_chunk() {
            lane.queue_mut().load_chunk(chunk.iter().copied());
        }
    }
    assert_eq!(taken, (1..=count as u64 + 1).collect::<Vec<_>>());
    assert!(lane.is_idle());
}

#[test]
fn what_waits_behind_the_front_moves_up_when_the_front_runs_out() {
    let policy = Policy { sequenced: false, ..policy() };
    let mut lane = Lane::new(START);
    for n in 1..=FRONT_MAX as u64 + 3 {
        let input = Input::Arrived { entry: entry(n, 1, START), sequence: None, taken: false };
        lane.apply(input, &policy, START, &mut Vec::new()).expect("the lane accepts the event");
    }
    let taken: Vec<u64> =
        std::iter::from_fn(|| lane.queue_mut().pop()).map(|entry| entry.position.0).collect();
    assert_eq!(taken, (1..=FRONT_MAX as u64 + 3).collect::<Vec<_>>());
}

#[test]
fn a_lane_that_rests_longer_than_its_sequences_live_knows_nothing() {
    let mut world = World::new(Policy { sequence_ttl_ms: 50_000, ..policy() });
    for sequence in 1..=3 {
        world.send((sequence, 0), 1);
        world.deliver_all();
    }
    let (lane, policy) = (&world.machine.lane, &world.policy);
    assert_eq!(lane.active_at(), START);
    let knows =
        |sequence: u64, after_ms: u64| lane.knows(Sequence(sequence), policy, Millis(START.0 + after_ms));
    assert!(!knows(2, 0), "passed just now: late, not a duplicate");
    assert!(knows(2, 30_000) && !knows(4, 30_000), "passed long ago, and not yet passed");
    assert!(knows(2, 49_999) && !knows(2, 50_000), "forgotten after the TTL");
    let endless = Policy { sequence_ttl_ms: 0, ..*policy };
    assert!(lane.knows(Sequence(2), &endless, Millis(START.0 + 50_000)));
}

#[test]
fn what_came_back_and_was_tried_stays_before_what_comes_back_later() {
    let mut world = World::new(Policy { on_failure: OnFailure::Skip, ..policy() });
    for sequence in 1..=3 {
        world.send((sequence, 0), 1);
    }
    for _ in 0..2 {
        world.start().expect("the lane is ready");
        world.fail(true);
    }
    // The second event is requeued and attempted, then the first one is requeued.
    world.requeue(1);
    world.start().expect("the lane is ready");
    world.fail(false);
    world.requeue(0);
    world.now = world.machine.lane.retry_at().expect("the event will be retried");
    let out: Vec<u64> = world.deliver_all().iter().map(|entry| entry.position.0).collect();
    assert_eq!(out, [2, 1, 3]);

    // Events that were not attempted keep the order of the lane.
    let mut world = World::new(Policy { on_failure: OnFailure::Skip, ..policy() });
    for sequence in 1..=2 {
        world.send((sequence, 0), 1);
        world.start().expect("the lane is ready");
        world.fail(true);
    }
    world.requeue(1);
    world.requeue(0);
    let out: Vec<u64> = world.deliver_all().iter().map(|entry| entry.position.0).collect();
    assert_eq!(out, [1, 2]);
}

#[test]
fn a_retry_is_never_further_away_than_its_backoff() {
    let mut world = World::new(policy());
    world.send((1, 0), 1);
    world.start().expect("the lane is ready");
    world.fail(false);
    let lane = &mut world.machine.lane;
    let set = lane.retry_at().expect("the event will be retried");
    lane.clamp_timers(&world.policy, 1000, set);
    assert_eq!(lane.retry_at(), Some(set), "the timer is within the backoff");
    let back = Millis(set.0 - 500_000);
    lane.clamp_timers(&world.policy, 1000, back);
    assert_eq!(lane.retry_at(), Some(Millis(back.0 + 1000)), "the clock went backwards");
}
