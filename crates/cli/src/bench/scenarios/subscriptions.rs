//! The cost of idle subscriptions for a busy one.
//!
//! Two servers: one with the subscription alone, one with thousands more that want other events. The same load goes to
//! each in turn, while the other rests.

use anyhow::Context;
use serde_json::json;

use super::throughput;
use super::turns::Turns;
use crate::bench::klambda::Klambda;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, mebibytes};
use crate::bench::rig::Rig;
use crate::bench::round::Plan;
use crate::bench::{Args, interrupt, usage};

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let plan = throughput::plan(args);
    rig.note("subscriptions: one");
    let mut alone = Turns::start(rig, "klambda-alone")?;
    rig.note(format!("subscriptions: {}", figure(f64::from(args.subscriptions))));
    let mut crowded = Turns::start(rig, "klambda-crowded")?;
    subscribe_others(&crowded.klambda, args.subscriptions.saturating_sub(1))
        .context("creating the other subscriptions")?;
    compare(rig, "subscriptions", args.rounds(), &plan, [&mut alone, &mut crowded])?;
    let ratio = crowded.rate_share(&alone);
    let mut table = Table::new(&["subscriptions", "events/s", "RSS max"]);
    let mut total = Faults::default();
    for (count, subject) in [(1, &alone), (args.subscriptions, &crowded)] {
        let rss_max_kib = usage::rss_max_kib(subject.server.child.pid())?;
        table.row([figure(f64::from(count)), figure(subject.rate()), mebibytes(rss_max_kib)]);
        total.add(subject.faults);
    }
    let rounds = json!({"alone": alone.rates, "crowded": crowded.rates});
    alone.server.clear()?;
    crowded.server.clear()?;
    let detail = format!("95% interval {} to {}", figure(ratio.low), figure(ratio.high));
    Ok(Report {
        scenario: "subscriptions",
        about: format!(
            "one subscription that wants the events among {}",
            figure(f64::from(args.subscriptions))
        ),
        table,
        goals: vec![Goal::new("rate ÷ that of one alone", ratio.median, Bound::AtLeast(0.9), detail)],
        faults: total,
        rounds,
    })
}

/// Turns of two servers with one busy subscription each. Neither always comes first.
pub fn compare(
    rig: &Rig,
    name: &str,
    rounds: u32,
    plan: &Plan,
    mut both: [&mut Turns; 2],
) -> anyhow::Result<()> {
    for number in 1..=rounds {
        rig.note(format!("{name}: round {number} of {rounds}"));
        for turns in &mut both {
            turns.turn(rig, plan, |klambda, sink| klambda.subscribe(sink.address, plan.concurrency))?;
        }
        both.reverse();
    }
    Ok(())
}

/// Each wants another type of event, so that none of them wants those of the bench.
fn subscribe_others(klambda: &Klambda, others: u32) -> anyhow::Result<()> {
    (0..others).try_for_each(|n| {
        interrupt::check()?;
        klambda.put_subscription(&json!({
            "apiVersion": "lambda.knative.io/v1alpha1",
            "kind": "Subscription",
            "metadata": {"name": format!("other-{n}")},
            "spec": {
                "target": {"url": format!("http://127.0.0.1:9/{n}")},
                "filters": [{"exact": {"type": format!("other.{n}")}}],
            },
        }))
    })
}
