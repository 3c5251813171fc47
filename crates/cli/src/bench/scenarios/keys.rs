//! A million keys, one event each: does the rate hold, and is there a stall?

use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::json;

use super::throughput;
use crate::bench::report::{Bound, Goal, Report, Table, figure, latency, mebibytes};
use crate::bench::rig::{Rig, faults};
use crate::bench::round::{Plan, seconds};
use crate::bench::{Args, interrupt, load, usage};

/// Longer than any sync, shorter than a stall that a user would notice.
const STALL_MS: f64 = 500.0;
const TIME_LIMIT: Duration = Duration::from_secs(900);

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let plan = Plan { keys: args.distinct_keys, ..throughput::plan(args) };
    let mut sink = rig.sink(&plan.sink())?;
    let (server, klambda) = rig.klambda()?;
    klambda.subscribe(sink.address, plan.concurrency)?;
    let mut load = rig.load(&load::Spec { per_key: Some(1), ..plan.load(&server) })?;
    load.go()?;

    let total = u64::from(plan.keys);
    let deadline = Instant::now() + TIME_LIMIT;
    let mut mark = sink.mark()?;
    let (mut rates, mut gap_max_us) = (Vec::new(), 0.0_f64);
    while mark.totals.delivered < total {
        rig.note(format!("keys: {} of {}", figure(mark.totals.delivered as f64), figure(total as f64)));
        interrupt::sleep(Duration::from_millis(500))?;
        let next = sink.mark()?;
        rates.push((next.totals.delivered - mark.totals.delivered) as f64 / seconds(mark.at_ns, next.at_ns));
        gap_max_us = gap_max_us.max(next.gap_max_us);
        mark = next;
        if load.child.has_ended()? || Instant::now() > deadline {
            bail!("only {} of {total} events were delivered", mark.totals.delivered);
        }
    }
    let accepted = load.finish(Duration::from_secs(60))?.accepted;
    let totals = sink.drain(accepted)?;
    let rss_max_kib = usage::rss_max_kib(server.child.pid())?;
    server.clear()?;
    Ok(Report {
        scenario: "keys",
        about: format!("{} keys, one event each, {} producers", figure(total as f64), args.connections),
        table: over_time(&rates, gap_max_us, rss_max_kib),
        goals: vec![Goal::new("longest stall, ms", gap_max_us / 1e3, Bound::AtMost(STALL_MS), String::new())],
        faults: faults(accepted, &totals),
        rounds: json!({"eventsPerS": rates, "gapMaxUs": gap_max_us, "rssMaxKib": rss_max_kib}),
    })
}

/// The rate in each quarter of the run.
fn over_time(rates: &[f64], gap_max_us: f64, rss_max_kib: u64) -> Table {
    let mut table = Table::new(&["events/s", "1st quarter", "2nd", "3rd", "4th", "longest stall", "RSS max"]);
    let quarter = rates.len().div_ceil(4).max(1);
    let means = rates.chunks(quarter).map(|part| figure(part.iter().sum::<f64>() / part.len() as f64));
    let mut row: Vec<String> = ["klambda".to_owned()].into_iter().chain(means).collect();
    row.resize(5, "-".to_owned());
    row.extend([latency(gap_max_us), mebibytes(rss_max_kib)]);
    table.row(row);
    table
}
