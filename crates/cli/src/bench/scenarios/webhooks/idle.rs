//! What endpoints that have nothing to do cost: memory, and work for one subscription among them.

use serde_json::json;

use super::super::turns::Turns;
use super::super::{subscriptions, throughput};
use super::endpoint;
use crate::bench::klambda::Klambda;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, mebibytes};
use crate::bench::rig::Rig;
use crate::bench::{Args, interrupt, usage};

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    // One less than the limit: the busy subscription counts, too.
    let endpoints = args.subscriptions.saturating_sub(1);
    let mut alone = Turns::start(rig, "klambda-alone")?;
    let mut crowded = Turns::start(rig, "klambda-crowded")?;
    let before_kib = usage::rss_kib(crowded.server.child.pid())?;
    create(rig, &crowded.klambda, endpoints)?;
    let after_kib = usage::rss_kib(crowded.server.child.pid())?;
    subscriptions::compare(
        rig,
        "webhooks-idle",
        args.webhook_rounds(),
        &throughput::plan(args),
        [&mut alone, &mut crowded],
    )?;
    let each_kib = after_kib.saturating_sub(before_kib) as f64 / f64::from(endpoints);
    let report = report(endpoints, [before_kib, after_kib], each_kib, &alone, &crowded);
    alone.server.clear()?;
    crowded.server.clear()?;
    Ok(report)
}

/// Each wants another type of event, so that none of them wants those of the bench.
fn create(rig: &Rig, klambda: &Klambda, endpoints: u32) -> anyhow::Result<()> {
    for number in 0..endpoints {
        interrupt::check()?;
        if number.is_multiple_of(500) {
            rig.note(format!("webhooks-idle: {number} of {endpoints}"));
        }
        let filters = json!([{"exact": {"type": format!("idle.{number}")}}]);
        let url = format!("http://127.0.0.1:9/{number}");
        klambda.put_endpoint(&endpoint(&format!("idle-{number}"), &url, 256, &filters))?;
    }
    Ok(())
}

fn report(
    endpoints: u32,
    [before_kib, after_kib]: [u64; 2],
    each_kib: f64,
    alone: &Turns,
    crowded: &Turns,
) -> Report {
    let mut table = Table::new(&["idle endpoints", "RSS at rest", "events/s", "CPU µs/event"]);
    let mut total = Faults::default();
    for (count, kib, turns) in [(0, before_kib, alone), (endpoints, after_kib, crowded)] {
        let [count, rate, cpu] = [f64::from(count), turns.rate(), turns.cpu()].map(figure);
        table.row([count, mebibytes(kib), rate, cpu]);
        total.add(turns.faults);
    }
    let share = crowded.cpu_share(alone);
    let detail = format!("95% interval {} to {}", figure(share.low), figure(share.high));
    Report {
        scenario: "webhooks-idle",
        about: format!("one busy subscription next to {} idle endpoints", figure(f64::from(endpoints))),
        table,
        goals: vec![
            Goal::new("KiB per endpoint", each_kib, Bound::AtMost(10.0), String::new()),
            // No work per event: the interval includes 1.
            Goal::new("CPU per event alone ÷ next to them", share.high, Bound::AtLeast(1.0), detail),
        ],
        faults: total,
        rounds: json!({
            "beforeKib": before_kib, "afterKib": after_kib,
            "aloneCpuUs": alone.cpu_us, "crowdedCpuUs": crowded.cpu_us,
        }),
    }
}
