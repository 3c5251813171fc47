//! Measures the speed of the lane machine alone: `cargo bench -p klambda-core`. One core, 1,000 lanes; each event
//! arrives, starts and is acknowledged. A plain `main` prints one figure per case. It does not count allocations,
//! because a counting allocator needs `unsafe`, which the workspace forbids.

use klambda_core::ids::{LaneNumber, Locator, Position, Sequence};
use klambda_core::lane::{Action, Entry, Flag, Input, Lane, Policy};
use klambda_core::subscription::{GapAction, OnFailure, Start};
use klambda_core::time::Millis;
use std::hint::black_box;
use std::time::Instant;

const LANES: u64 = 1000;
const EVENTS: u64 = 10_000_000;
const EVENTS_PER_SECOND_MIN: f64 = 2e6;

fn main() {
    for (name, sequenced, depth) in [
        ("by arrival, one waiting", false, 1),
        ("by sequence, one waiting", true, 1),
        ("by sequence, a hundred waiting", true, 100),
    ] {
        let per_second = events_per_second(sequenced, depth);
        println!("{name}: {:.1} M events/s, {:.0} ns an event", per_second / 1e6, 1e9 / per_second);
        assert!(per_second >= EVENTS_PER_SECOND_MIN, "slower than the documented minimum");
    }
}

/// `depth`: number of events that arrive in a lane before any of them is delivered.
fn events_per_second(sequenced: bool, depth: u64) -> f64 {
    let policy = policy(sequenced);
    let mut lanes: Vec<Lane> = (0..LANES).map(|_| Lane::new(Millis(1))).collect();
    let mut actions = Vec::new();
    let mut delivered = 0;
    let rounds = EVENTS / LANES / depth;
    let began = Instant::now();
    for round in 0..rounds {
        for (lane, key) in lanes.iter_mut().zip(0..) {
            for nth in round * depth..(round + 1) * depth {
                let now = Millis(1 + nth);
                arrive(
                    lane,
                    nth * LANES + key,
                    sequenced.then_some(Sequence(nth)),
                    &policy,
                    now,
                    &mut actions,
                );
            }
            for _ in 0..depth {
                delivered += u64::from(deliver(lane, &policy, Millis(1 + round * depth), &mut actions));
            }
        }
    }
    let took = began.elapsed().as_secs_f64();
    assert_eq!(delivered, rounds * depth * LANES, "every event was delivered");
    assert!(lanes.iter().all(Lane::is_idle));
    delivered as f64 / took
}

fn arrive(
    lane: &mut Lane,
    position: u64,
    sequence: Option<Sequence>,
    policy: &Policy,
    now: Millis,
    actions: &mut Vec<Action>,
) {
    let (at, number) = (Locator::new(position * 500), LaneNumber(0));
    let entry =
        Entry { position: Position(position), at, number, accepted: now, bytes: 500, flag: Flag::None };
    actions.clear();
    let input = Input::Arrived { entry, sequence, taken: false };
    lane.apply(black_box(input), policy, now, actions).expect("a lane never rejects an arrival");
}

fn deliver(lane: &mut Lane, policy: &Policy, now: Millis, actions: &mut Vec<Action>) -> bool {
    assert!(lane.is_ready(now));
    lane.started(now);
    actions.clear();
    lane.apply(black_box(Input::Delivered), policy, now, actions).expect("a lane never rejects an outcome");
    matches!(black_box(&actions[..]), [Action::Delivered(_)])
}

fn policy(sequenced: bool) -> Policy {
    Policy {
        sequenced,
        start: Start::Auto,
        strict: true,
        gap_timeout_ms: 30_000,
        gap_action: GapAction::Skip,
        buffer_events_max: 1000,
        buffer_bytes_max: 10 << 20,
        on_failure: OnFailure::Park,
        attempts_max: Some(3),
        window_ms: 86_400_000,
        sequence_ttl_ms: 86_400_000,
    }
}
