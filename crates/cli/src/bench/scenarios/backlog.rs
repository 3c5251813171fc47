//! Millions of events accepted while the subscription is paused, then drained: memory, and whether it drains at full speed.

use std::time::Instant;

use serde_json::json;

use super::backlogged::{Backlogged, Wanted};
use super::throughput;
use crate::bench::report::{Bound, Goal, Report, Table, figure, mebibytes};
use crate::bench::rig::{Rig, Subject, faults};
use crate::bench::{Args, round, usage};

/// The server's default `memory`, and the memory of the process besides index and buffers.
const MEMORY_MIB: f64 = 128.0 + 64.0;

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    rig.note("backlog: the rate without one");
    let plain = round::run(rig, Subject::Klambda, &throughput::plan(args))?;
    rig.note(format!("backlog: filling {}", figure(args.events as f64)));
    let per_key = u32::try_from(args.events / u64::from(args.keys))?.max(1);
    let wanted = Wanted { keys: args.keys, per_key, delay_us: 0, concurrency: args.concurrency };
    let mut full = Backlogged::fill(rig, &wanted)?;
    let filled_kib = usage::rss_max_kib(full.server.child.pid())?;
    let cpu_before = usage::cpu_us(full.server.child.pid())?;

    rig.note(format!("backlog: draining {}", figure(full.accepted as f64)));
    let started = Instant::now();
    full.klambda.resume()?;
    let totals = full.sink.drain(full.accepted)?;
    let drain_per_s = totals.delivered as f64 / started.elapsed().as_secs_f64();
    let drain_cpu_us = (usage::cpu_us(full.server.child.pid())? - cpu_before) as f64 / full.accepted as f64;
    let drained_kib = usage::rss_max_kib(full.server.child.pid())?;
    full.server.clear()?;

    let mut table = Table::new(&["phase", "events/s", "CPU µs/event", "RSS max"]);
    table.row([
        "no backlog".into(),
        figure(plain.delivered_per_s),
        figure(plain.cpu_us_per_event),
        mebibytes(plain.rss_max_kib),
    ]);
    table.row(["filling".into(), figure(full.accepted_per_s), "-".into(), mebibytes(filled_kib)]);
    table.row(["draining".into(), figure(drain_per_s), figure(drain_cpu_us), mebibytes(drained_kib)]);
    Ok(Report {
        scenario: "backlog",
        about: format!("{} events of {} keys wait, then drain", figure(full.accepted as f64), args.keys),
        table,
        goals: vec![
            Goal::new(
                "RSS max, MiB",
                drained_kib as f64 / 1024.0,
                Bound::AtMost(MEMORY_MIB),
                "memory: 128Mi".into(),
            ),
            Goal::new(
                "drain rate ÷ rate without backlog",
                drain_per_s / plain.delivered_per_s,
                Bound::AtLeast(1.0),
                String::new(),
            ),
        ],
        faults: faults(full.accepted, &totals),
        rounds: json!({"plain": plain, "fillPerS": full.accepted_per_s, "drainPerS": drain_per_s, "drainCpuUs": drain_cpu_us, "rssMaxKib": drained_kib}),
    })
}
