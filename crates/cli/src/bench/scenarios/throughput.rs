//! The rate of the server compared with the highest rate of the machine.

use super::alternating::{Rounds, range};
use crate::bench::Args;
use crate::bench::report::{Bound, Goal, Report};
use crate::bench::rig::{Rig, Subject};
use crate::bench::round::Plan;

pub fn plan(args: &Args) -> Plan {
    Plan {
        connections: args.connections,
        keys: args.keys,
        concurrency: args.concurrency,
        rate: None,
        hot_keys: 0,
        delay_us: 0,
        warm_up: args.warm_up(),
        window: args.window(),
    }
}

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let rounds = Rounds::run(rig, args, "throughput", &plan(args))?;
    Ok(Report {
        scenario: "throughput",
        about: format!(
            "{} keys, an instant target, {} producers, 1 KiB events, {} rounds of {} s each",
            args.keys,
            args.connections,
            args.rounds(),
            args.seconds
        ),
        table: rounds.table(args),
        goals: goals(&rounds),
        faults: rounds.faults(),
        rounds: serde_json::to_value(&rounds)?,
    })
}

fn goals(rounds: &Rounds) -> Vec<Goal> {
    let mut goals = Vec::new();
    if let Some(rate) = rounds.ratio(|round| round.delivered_per_s) {
        goals.push(Goal::new("events/s ÷ ceiling", rate.median, Bound::AtLeast(0.75), range(&rate)));
    }
    if let Some(cpu) = rounds.ratio(|round| round.cpu_us_per_event) {
        goals.push(Goal::new("CPU per event ÷ ceiling", cpu.median, Bound::AtMost(1.7), range(&cpu)));
    }
    let memory = rounds.of(Subject::Klambda).map(|round| round.rss_max_kib).max();
    if let Some(kib) = memory {
        goals.push(Goal::new("RSS max, MiB", kib as f64 / 1024.0, Bound::AtMost(80.0), String::new()));
    }
    goals
}
