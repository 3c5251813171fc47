//! Runs the machine and the model with the same random inputs and all policies, including crashes and round trips
//! through the row encoding.

use crate::harness::{Fate, World, policy};
use klambda_core::ids::Sequence;
use klambda_core::lane::{CHUNK, FRONT_MAX, Hold, Input, Policy};
use klambda_core::subscription::{GapAction, OnFailure, Start};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// Sends the nth event of a sequence, given by its distance from the expected one.
    Send {
        offset: i8,
        nth: u8,
        bytes: u32,
    },
    /// Sends events in order, enough to move the middle of the queue to disk.
    Burst {
        events: u16,
    },
    /// Like `Send`, with a sequence far below the expected one.
    SendLate {
        offset: i16,
        nth: u8,
    },
    Start,
    Deliver,
    DeliverMany {
        events: u16,
    },
    /// Creates this number of gaps and gives up each one immediately.
    Gaps {
        gaps: u16,
    },
    Fail {
        fatal: bool,
    },
    Abandon,
    Wait {
        ms: u64,
    },
    GapTimer,
    WaitForGap,
    Resume,
    Skip,
    Discard,
    Acknowledge,
    Purge,
    Pause,
    Reset {
        expected: u8,
    },
    Replay,
    Requeue {
        nth: usize,
    },
    DropOldest,
    Crash,
    Checkpoint,
    Row,
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let start = prop_oneof![Just(Start::Auto), Just(Start::First), (0..4u64).prop_map(Start::At)];
    let limits = (prop_oneof![1..5u64, Just(1000)], prop_oneof![5..60u64, Just(1 << 20)]);
    let times = (prop_oneof![Just(60u64), Just(400), Just(100_000)], prop_oneof![Just(0u64), Just(300)]);
    let attempts = prop_oneof![Just(None), (1..4u32).prop_map(Some)];
    (any::<[bool; 3]>(), prop::bool::weighted(0.85), start, limits, times, attempts).prop_map(
        |([strict, skip_gap, park], sequenced, start, limits, times, attempts_max)| Policy {
            sequenced,
            start,
            strict,
            gap_action: if skip_gap { GapAction::Skip } else { GapAction::Park },
            buffer_events_max: limits.0,
            buffer_bytes_max: limits.1,
            on_failure: if park { OnFailure::Park } else { OnFailure::Skip },
            attempts_max,
            window_ms: times.0,
            sequence_ttl_ms: times.1,
            ..policy()
        },
    )
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (-3..6i8, 0..2u8, 1..20u32).prop_map(|(offset, nth, bytes)| Op::Send { offset, nth, bytes }),
        16 => (0..1i8, 0..1u8, 1..20u32).prop_map(|(offset, nth, bytes)| Op::Send { offset, nth, bytes }),
        16 => Just(Op::Start),
        9 => Just(Op::Deliver),
        7 => prop::bool::weighted(0.3).prop_map(|fatal| Op::Fail { fatal }),
        1 => Just(Op::Abandon),
        8 => (0..200u64).prop_map(|ms| Op::Wait { ms }),
        2 => (200..1000u64).prop_map(|ms| Op::Wait { ms }),
        4 => Just(Op::GapTimer),
        4 => Just(Op::WaitForGap),
        3 => Just(Op::Resume),
        3 => Just(Op::Skip),
        1 => Just(Op::Discard),
        1 => Just(Op::Acknowledge),
        1 => Just(Op::Purge),
        1 => Just(Op::Pause),
        1 => (0..12u8).prop_map(|expected| Op::Reset { expected }),
        2 => Just(Op::Replay),
        6 => (0..3usize).prop_map(|nth| Op::Requeue { nth }),
        2 => Just(Op::DropOldest),
        2 => Just(Op::Crash),
        1 => Just(Op::Checkpoint),
        2 => Just(Op::Row),
    ]
}

/// Like `any_op`, with queues that exceed their memory limit.
fn any_long_op() -> impl Strategy<Value = Op> {
    let chunks = (FRONT_MAX + 3 * CHUNK) as u16;
    prop_oneof![
        6 => any_op(),
        2 => (1..chunks).prop_map(|events| Op::Burst { events }),
        2 => (1..chunks).prop_map(|events| Op::DeliverMany { events }),
        1 => (1000..1100u16).prop_map(|gaps| Op::Gaps { gaps }),
        3 => (-2400..0i16, 3..9u8).prop_map(|(offset, nth)| Op::SendLate { offset, nth }),
    ]
}

/// The expected sequence, or the first one of a lane that expects none. Without sequences, a unique number for each
/// event.
fn next(world: &World, first: u64) -> u64 {
    match world.machine.lane.expected() {
        Some(expected) => expected.0,
        None if world.policy.sequenced => first,
        None => world.fates.len() as u64 + first,
    }
}

fn run(world: &mut World, op: &Op) {
    match *op {
        Op::Send { offset, nth, bytes } => {
            world.send((next(world, 2).saturating_add_signed(i64::from(offset)), nth), bytes);
        }
        Op::Burst { events } => {
            world.hurry(|world| {
                for _ in 0..events {
                    world.send((next(world, 1), 2), 1);
                }
            });
        }
        Op::SendLate { offset, nth } => {
            world.send((next(world, 2).saturating_add_signed(i64::from(offset)), nth), 1);
        }
        Op::Gaps { gaps } => {
            world.hurry(|world| {
                for _ in 0..gaps {
                    world.send((next(world, 1) + 1, 2), 1);
                    drop(world.deliver_all());
                    world.wait_for_gap();
                    drop(world.deliver_all());
                }
            });
        }
        Op::Start => drop(world.start()),
        Op::Deliver => drop(world.deliver()),
        Op::DeliverMany { events } => {
            world.hurry(|world| {
                for _ in 0..events {
                    world.start();
                    world.deliver();
                }
            });
        }
        Op::Fail { fatal } => drop(world.fail(fatal)),
        Op::Abandon => world.abandon(),
        Op::Wait { ms } => world.now = world.now + ms,
        Op::GapTimer => drop(world.expire_gap()),
        Op::WaitForGap => drop(world.wait_for_gap()),
        Op::Resume => drop(world.apply(Input::Resume)),
        Op::Skip => drop(world.apply(Input::Skip)),
        Op::Discard => drop(world.apply(Input::Discard)),
        Op::Acknowledge => drop(world.apply(Input::Acknowledge)),
        Op::Purge => drop(world.apply(Input::Purge)),
        Op::Pause => drop(world.apply(Input::Pause)),
        Op::Reset { expected } => drop(world.apply(Input::Reset { expected: Sequence(expected.into()) })),
        Op::Replay => drop(world.apply(Input::Replay)),
        Op::Requeue { nth } => world.requeue(nth),
        Op::DropOldest => drop(world.apply(Input::DropOldest)),
        Op::Crash => world.crash(),
        Op::Checkpoint => world.checkpoint(),
        Op::Row => world.through_its_row(),
    }
}

/// Takes manual action wherever a lane needs it, until no event is pending.
fn finish(world: &mut World) {
    let mut rounds = 0;
    while world.machine.lane.depth() > 0 {
        world.now = world.now + 1000;
        world.must(Input::Resume);
        world.hurry(|world| drop(world.deliver_all()));
        world.wait_for_gap();
        if world.machine.lane.hold() == Some(Hold::Gap) {
            world.must(Input::Skip);
        }
        rounds += 1;
        assert!(rounds < 1000, "the lane never becomes idle: {:?}", world.machine.lane);
    }
    world.crash();
    assert!(world.fates.values().all(|fate| *fate != Fate::Waiting));
    assert!(
        world.machine.lane.is_idle() && world.machine.chunks.is_empty() && world.machine.early.is_empty()
    );
}

fn cases(wanted: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(wanted);
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn the_machine_is_the_model(policy in any_policy(), ops in vec(any_op(), 1..120)) {
        let mut world = World::new(policy);
        ops.iter().for_each(|op| run(&mut world, op));
        finish(&mut world);
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn so_it_is_when_the_queue_is_longer_than_memory(policy in any_policy(), ops in vec(any_long_op(), 1..40)) {
        let mut world = World::new(policy);
        ops.iter().for_each(|op| run(&mut world, op));
        finish(&mut world);
    }
}
