//! A steady 1,000 events per second: how long one takes from its producer to the target, and how soon a lane continues.
//!
//! Half of the events go to ten hot keys whose target takes 25 ms, a little more than the time between two of them: their
//! lanes always have a successor waiting, which shows the time from an acknowledgement to the next delivery. The other half
//! go to keys with an instant target and show the time end to end.

use super::alternating::{Rounds, range};
use super::throughput;
use crate::bench::Args;
use crate::bench::report::{Bound, Goal, Report, figure, latency};
use crate::bench::rig::{Rig, Subject};
use crate::bench::round::Plan;

const RATE: f64 = 1_000.0;
const HOT_KEYS: u32 = 10;
const HOT_WORK_US: u64 = 25_000;

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let plan = Plan { rate: Some(RATE), hot_keys: HOT_KEYS, delay_us: HOT_WORK_US, ..throughput::plan(args) };
    let rounds = Rounds::run(rig, args, "latency", &plan)?;
    let mut table = rounds.table(args);
    table.columns.extend(["ack to next p50", "p99", "max"]);
    for (row, subject) in table.rows.iter_mut().zip(&args.subjects) {
        row.push(latency(rounds.median(*subject, |round| round.ack_to_next.p50_us)));
        row.push(latency(rounds.median(*subject, |round| round.ack_to_next.p99_us)));
        row.push(latency(rounds.of(*subject).map(|round| round.ack_to_next.max_us).fold(0.0, f64::max)));
    }
    Ok(Report {
        scenario: "latency",
        about: format!(
            "{RATE} events/s in an open loop, {} keys, {HOT_KEYS} of them with events queued, {} rounds",
            args.keys,
            args.rounds()
        ),
        table,
        goals: goals(&rounds),
        faults: rounds.faults(),
        rounds: serde_json::to_value(&rounds)?,
    })
}

fn goals(rounds: &Rounds) -> Vec<Goal> {
    let mut goals = Vec::new();
    if rounds.of(Subject::Klambda).next().is_some() {
        let next_ms = rounds.median(Subject::Klambda, |round| round.ack_to_next.p99_us) / 1e3;
        let samples: u64 = rounds.of(Subject::Klambda).map(|round| round.ack_to_next.count).sum();
        let detail = format!("{} samples", figure(samples as f64));
        goals.push(Goal::new(
            "acknowledgement to next delivery p99, ms",
            next_ms,
            Bound::AtMost(1.0),
            detail,
        ));
    }
    if let Some(ratio) = rounds.ratio(|round| round.end_to_end.p99_us) {
        goals.push(Goal::new("end to end p99 ÷ ceiling", ratio.median, Bound::AtMost(1.5), range(&ratio)));
    }
    goals
}
