//! Accepting 100 events per request against one: into a paused subscription, so that only accepting is measured.

use serde::Serialize;

use super::alternating::range;
use super::backlogged::{BATCH, BATCH_CONNECTIONS};
use super::throughput;
use crate::bench::histogram::Summary;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, latency};
use crate::bench::rig::Rig;
use crate::bench::round::seconds;
use crate::bench::stats::{median, spread};
use crate::bench::{Args, interrupt, load, usage};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Turn {
    batch: u32,
    accepted_per_s: f64,
    cpu_us_per_event: f64,
    accept: Summary,
    /// Requests that the server was too busy to take.
    busy: u64,
}

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let mut turns = Vec::new();
    for number in 1..=args.rounds() {
        for (batch, connections) in [(1, args.connections), (BATCH, BATCH_CONNECTIONS)] {
            rig.note(format!("batch: round {number} of {}, {batch} per request", args.rounds()));
            turns.push(measure(rig, args, batch, connections)?);
        }
    }
    let ratio = spread(turns.chunks(2).map(|pair| pair[1].accepted_per_s / pair[0].accepted_per_s));
    let mut table = Table::new(&["medians", "accepted/s", "CPU µs/event", "request p50", "p99"]);
    for batch in [1, BATCH] {
        let of = |value: fn(&Turn) -> f64| median(turns.iter().filter(|turn| turn.batch == batch).map(value));
        table.row([
            format!("{batch} per request"),
            figure(of(|turn| turn.accepted_per_s)),
            figure(of(|turn| turn.cpu_us_per_event)),
            latency(of(|turn| turn.accept.p50_us)),
            latency(of(|turn| turn.accept.p99_us)),
        ]);
    }
    Ok(Report {
        scenario: "batch",
        about: format!(
            "accept only: one per request on {} connections, {BATCH} on {BATCH_CONNECTIONS}, {} rounds",
            args.connections,
            args.rounds()
        ),
        table,
        goals: vec![Goal::new("batched ÷ single", ratio.median, Bound::AtLeast(3.0), range(&ratio))],
        faults: Faults::default(),
        rounds: serde_json::to_value(&turns)?,
    })
}

fn measure(rig: &Rig, args: &Args, batch: u32, connections: u32) -> anyhow::Result<Turn> {
    let plan = throughput::plan(args);
    let sink = rig.sink(&plan.sink())?;
    let (server, klambda) = rig.klambda()?;
    klambda.subscribe(sink.address, plan.concurrency)?;
    klambda.pause()?;
    let mut load = rig.load(&load::Spec { batch, connections, ..plan.load(&server) })?;
    load.go()?;
    interrupt::sleep(plan.warm_up)?;
    let (before, cpu_before) = (load.mark()?, usage::cpu_us(server.child.pid())?);
    interrupt::sleep(plan.window)?;
    let (after, cpu_after) = (load.mark()?, usage::cpu_us(server.child.pid())?);
    drop(load);
    server.clear()?;
    let events = (after.accepted - before.accepted) as f64;
    Ok(Turn {
        batch,
        accepted_per_s: events / seconds(before.at_ns, after.at_ns),
        cpu_us_per_event: (cpu_after - cpu_before) as f64 / events.max(1.0),
        accept: after.accept,
        busy: after.busy,
    })
}
