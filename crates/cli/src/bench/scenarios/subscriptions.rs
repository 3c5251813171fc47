//! What subscriptions that have nothing to do cost one that has.
//!
//! Two servers: one with the subscription alone, one with thousands more that want other events. The same load goes to
//! each in turn, while the other rests.

use anyhow::Context;
use serde_json::json;

use super::throughput;
use crate::bench::klambda::Klambda;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, mebibytes};
use crate::bench::rig::{Rig, Server, faults};
use crate::bench::round::{Plan, seconds};
use crate::bench::stats::{median, spread};
use crate::bench::{Args, interrupt, usage};

/// A server with one busy subscription, and what was measured of it.
struct Subject {
    server: Server,
    klambda: Klambda,
    rates: Vec<f64>,
    faults: Faults,
}

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let plan = throughput::plan(args);
    rig.note("subscriptions: one");
    let mut alone = Subject::start(rig, 0)?;
    rig.note(format!("subscriptions: {}", figure(f64::from(args.subscriptions))));
    let mut crowded = Subject::start(rig, args.subscriptions.saturating_sub(1))?;
    for number in 1..=args.rounds {
        rig.note(format!("subscriptions: round {number} of {}", args.rounds));
        alone.turn(rig, &plan)?;
        crowded.turn(rig, &plan)?;
    }
    let ratio = spread(crowded.rates.iter().zip(&alone.rates).map(|(crowded, alone)| crowded / alone));
    let mut table = Table::new(&["subscriptions", "events/s", "RSS max"]);
    let mut total = Faults::default();
    for (count, subject) in [(1, &alone), (args.subscriptions, &crowded)] {
        let rss_max_kib = usage::rss_max_kib(subject.server.child.pid())?;
        let rate = median(subject.rates.iter().copied());
        table.row([figure(f64::from(count)), figure(rate), mebibytes(rss_max_kib)]);
        total.add(subject.faults);
    }
    let rounds = json!({"alone": alone.rates, "crowded": crowded.rates});
    alone.server.clear()?;
    crowded.server.clear()?;
    let detail = format!("{} to {}", figure(ratio.min), figure(ratio.max));
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

impl Subject {
    fn start(rig: &Rig, others: u32) -> anyhow::Result<Subject> {
        let (server, klambda) = rig.klambda_in(rig.fresh_folder(&format!("klambda-{others}"))?)?;
        subscribe_others(&klambda, others).context("creating the other subscriptions")?;
        Ok(Subject { server, klambda, rates: Vec::new(), faults: Faults::default() })
    }

    /// With a target of its own: the numbers of each load begin anew.
    fn turn(&mut self, rig: &Rig, plan: &Plan) -> anyhow::Result<()> {
        let mut sink = rig.sink(&plan.sink())?;
        self.klambda.subscribe(sink.address, plan.concurrency)?;
        let mut load = rig.load(&plan.load(&self.server))?;
        load.go()?;
        interrupt::sleep(plan.warm_up)?;
        let before = sink.mark()?;
        interrupt::sleep(plan.window)?;
        let after = sink.mark()?;
        let delivered = after.totals.delivered - before.totals.delivered;
        self.rates.push(delivered as f64 / seconds(before.at_ns, after.at_ns));
        let accepted = load.stop()?.accepted;
        self.faults.add(faults(accepted, &sink.drain(accepted)?));
        Ok(())
    }
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
