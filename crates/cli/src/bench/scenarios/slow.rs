//! A slow target: every lane always has one event in flight, so the rate is at best keys ÷ processing time.

use std::time::Duration;

use serde_json::json;

use super::alternating::range;
use super::backlogged::{Backlogged, Wanted};
use crate::bench::histogram::Summary;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, latency};
use crate::bench::rig::{Rig, faults};
use crate::bench::round::seconds;
use crate::bench::stats::{median, spread};
use crate::bench::{Args, cores, interrupt};

struct Case {
    name: &'static str,
    keys: u32,
    work: Duration,
}

pub fn run_10ms(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    run(rig, args, &Case { name: "slow-10ms", keys: 100, work: Duration::from_millis(10) })
}

pub fn run_100ms(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    run(rig, args, &Case { name: "slow-100ms", keys: 1_000, work: Duration::from_millis(100) })
}

struct Found {
    rate: f64,
    work_us: f64,
    turn: Summary,
    faults: Faults,
}

fn run(rig: &Rig, args: &Args, case: &Case) -> anyhow::Result<Report> {
    let mut found = Vec::new();
    for number in 1..=args.rounds() {
        rig.note(format!("{}: round {number} of {}", case.name, args.rounds()));
        found.push(measure(rig, args, case)?);
    }
    let share = |one: &Found| one.rate / (f64::from(case.keys) / (one.work_us / 1e6));
    let shares = spread(found.iter().map(share));
    let mut table = Table::new(&[
        "medians",
        "events/s",
        "work time",
        "ack to next p50",
        "p99",
        "share of keys ÷ work time",
    ]);
    table.row([
        "klambda".to_owned(),
        figure(median(found.iter().map(|one| one.rate))),
        latency(median(found.iter().map(|one| one.work_us))),
        latency(median(found.iter().map(|one| one.turn.p50_us))),
        latency(median(found.iter().map(|one| one.turn.p99_us))),
        figure(shares.median),
    ]);
    let mut faults = Faults::default();
    found.iter().for_each(|one| faults.add(one.faults));
    Ok(Report {
        scenario: case.name,
        about: format!("{} keys, a target that takes {:?}, concurrency {}", case.keys, case.work, case.keys),
        table,
        goals: vec![Goal::new(
            "share of keys ÷ work time",
            shares.median,
            Bound::AtLeast(0.95),
            range(&shares),
        )],
        faults,
        rounds: found
            .iter()
            .map(|one| json!({"eventsPerS": one.rate, "workUs": one.work_us, "share": share(one)}))
            .collect(),
    })
}

/// Lets a backlog drain that lasts longer than warm-up and window, so that no lane runs dry.
fn measure(rig: &Rig, args: &Args, case: &Case) -> anyhow::Result<Found> {
    let lasts = args.warm_up() + args.window() + Duration::from_secs(1);
    let per_key = lasts.as_secs_f64() / case.work.as_secs_f64();
    let delay_us = case.work.as_micros() as u64;
    let wanted = Wanted { keys: case.keys, per_key: per_key.ceil() as u32, delay_us, concurrency: case.keys };
    let mut backlogged = Backlogged::fill(rig, &wanted)?;
    cores::keep_apart(backlogged.server.child.pid(), backlogged.sink.child.pid())?;
    backlogged.klambda.resume()?;
    interrupt::sleep(args.warm_up())?;
    let before = backlogged.sink.mark()?;
    interrupt::sleep(args.window())?;
    let after = backlogged.sink.mark()?;
    let delivered = after.totals.delivered - before.totals.delivered;
    let totals = backlogged.sink.drain(backlogged.accepted)?;
    backlogged.server.clear()?;
    Ok(Found {
        rate: delivered as f64 / seconds(before.at_ns, after.at_ns),
        work_us: after.work.mean_us,
        turn: after.ack_to_next,
        faults: faults(backlogged.accepted, &totals),
    })
}
