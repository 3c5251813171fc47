//! The lane machine alone, in this process: arrived, delivered, acknowledged, without disk or network.

use std::hint::black_box;
use std::time::Instant;

use klambda_core::ids::{LaneNumber, Locator, Position};
use klambda_core::lane::{Entry, Flag, Input, Lane, Policy};
use klambda_core::subscription::{GapAction, OnFailure, Start};
use klambda_core::time::Millis;

use serde_json::json;

use crate::bench::Args;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure};
use crate::bench::rig::Rig;

const LANES: usize = 1000;
const EVENTS: u64 = 20_000_000;
const GOAL_PER_SECOND: f64 = 2_000_000.0;

pub fn run(_rig: &Rig, _args: &Args) -> anyhow::Result<Report> {
    let start = Instant::now();
    let delivered = drive(EVENTS);
    let rate = delivered as f64 / start.elapsed().as_secs_f64();
    let mut table = Table::new(&["lanes", "events", "events/s"]);
    table.row([LANES.to_string(), figure(delivered as f64), figure(rate)]);
    Ok(Report {
        scenario: "machine",
        about: format!("{LANES} lanes on one core: arrived, started, acknowledged"),
        table,
        goals: vec![Goal::new("events/s", rate, Bound::AtLeast(GOAL_PER_SECOND), String::new())],
        faults: Faults { missing: EVENTS - delivered, ..Faults::default() },
        rounds: json!({"eventsPerSecond": rate}),
    })
}

fn drive(events: u64) -> u64 {
    let policy = policy();
    let mut lanes: Vec<Lane> = (0..LANES).map(|_| Lane::new(Millis(0))).collect();
    let mut actions = Vec::with_capacity(16);
    let mut delivered = 0;
    for n in 0..events {
        let now = Millis(n / 1000);
        let lane = &mut lanes[(n.wrapping_mul(2_654_435_761) % LANES as u64) as usize];
        let entry = Entry {
            position: Position(n),
            at: Locator::new(n * 1100),
            number: LaneNumber(0),
            accepted: now,
            bytes: 1100,
            flag: Flag::None,
        };
        actions.clear();
        let _ =
            lane.apply(Input::Arrived { entry, sequence: None, taken: false }, &policy, now, &mut actions);
        if lane.is_ready(now) {
            lane.started(now);
            actions.clear();
            let _ = lane.apply(Input::Delivered, &policy, now, &mut actions);
            delivered += actions.len() as u64;
        }
        black_box(&actions);
    }
    delivered
}

fn policy() -> Policy {
    Policy {
        sequenced: false,
        start: Start::Auto,
        strict: false,
        gap_timeout_ms: 30_000,
        gap_action: GapAction::Skip,
        buffer_events_max: 1000,
        buffer_bytes_max: 16 << 20,
        on_failure: OnFailure::Park,
        attempts_max: Some(5),
        window_ms: 24 * 3_600_000,
        sequence_ttl_ms: 24 * 3_600_000,
    }
}
