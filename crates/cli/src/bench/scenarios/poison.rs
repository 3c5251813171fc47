//! The cost of one key that always fails, for the other keys.
//!
//! One server, one subscription, one load that never stops. Its rate is measured in turns with and without the poison: for
//! a turn with it ten events of the key are sent, which the target refuses and the server tries again without end; after
//! the turn the key's lane is purged. Turns go with, without, without, with, so that drift cancels out.

use std::time::Duration;

use serde_json::json;

use super::throughput;
use crate::bench::klambda::Klambda;
use crate::bench::report::{Bound, Goal, Report, Table, figure};
use crate::bench::rig::{Rig, Sink, faults};
use crate::bench::round::{Plan, seconds};
use crate::bench::stats::{interval, median};
use crate::bench::{Args, interrupt};

const KEYS: u32 = 10_000;
const SETTLE: Duration = Duration::from_millis(200);

struct Pair {
    with: f64,
    without: f64,
}

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let plan = Plan { keys: KEYS, ..throughput::plan(args) };
    let mut sink = rig.sink(&plan.sink())?;
    let (server, klambda) = rig.klambda()?;
    klambda.subscribe(sink.address, plan.concurrency)?;
    let mut load = rig.load(&plan.load(&server))?;
    load.go()?;
    interrupt::sleep(plan.warm_up)?;
    let mut pairs = Vec::new();
    for number in 0..args.pairs {
        rig.note(format!("poison: pair {} of {}", number + 1, args.pairs));
        pairs.push(measure_pair(&klambda, &mut sink, number, args.turn())?);
    }
    let accepted = load.stop()?.accepted;
    let totals = sink.drain(accepted)?;
    server.clear()?;

    let losses: Vec<f64> = pairs.iter().map(|pair| (1.0 - pair.with / pair.without) * 100.0).collect();
    let loss = interval(&losses);
    let mut table = Table::new(&["medians", "events/s", "refused deliveries"]);
    table.row([
        "with".into(),
        figure(median(pairs.iter().map(|pair| pair.with))),
        figure(totals.refused as f64),
    ]);
    table.row(["without".into(), figure(median(pairs.iter().map(|pair| pair.without))), "0".into()]);
    let detail = format!("95% interval {} to {}", figure(loss.low), figure(loss.high));
    Ok(Report {
        scenario: "poison",
        about: format!("one key that always fails among {KEYS}, {} pairs of turns on one server", args.pairs),
        table,
        goals: vec![Goal::new("loss of the others, median %", loss.median, Bound::AtMost(1.0), detail)],
        faults: faults(accepted, &totals),
        rounds: pairs.iter().map(|pair| json!({"with": pair.with, "without": pair.without})).collect(),
    })
}

fn measure_pair(klambda: &Klambda, sink: &mut Sink, number: u32, turn: Duration) -> anyhow::Result<Pair> {
    if number.is_multiple_of(2) {
        let with = measure_poisoned(klambda, sink, number, turn)?;
        Ok(Pair { with, without: measure(sink, turn)? })
    } else {
        let without = measure(sink, turn)?;
        Ok(Pair { without, with: measure_poisoned(klambda, sink, number, turn)? })
    }
}

fn measure_poisoned(klambda: &Klambda, sink: &mut Sink, number: u32, turn: Duration) -> anyhow::Result<f64> {
    (0..10).try_for_each(|event| klambda.send_poison(&format!("poison-{number}-{event}")))?;
    let rate = measure(sink, turn)?;
    klambda.purge_poison()?;
    Ok(rate)
}

fn measure(sink: &mut Sink, turn: Duration) -> anyhow::Result<f64> {
    interrupt::sleep(SETTLE)?;
    let before = sink.mark()?;
    interrupt::sleep(turn)?;
    let after = sink.mark()?;
    Ok((after.totals.delivered - before.totals.delivered) as f64 / seconds(before.at_ns, after.at_ns))
}
