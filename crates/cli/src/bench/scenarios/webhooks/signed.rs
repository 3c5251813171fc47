//! What the payload and the signature of an endpoint cost, next to a subscription that delivers the same events.
//!
//! Two servers get the same load in turn, while the other rests.

use serde_json::json;

use super::super::throughput;
use super::super::turns::Turns;
use super::endpoint;
use crate::bench::Args;
use crate::bench::klambda::Klambda;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure};
use crate::bench::rig::{Rig, Sink};
use crate::bench::stats::Interval;

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let plan = throughput::plan(args);
    let mut plain = Turns::start(rig, "klambda-plain")?;
    let mut signed = Turns::start(rig, "klambda-signed")?;
    let subscribe = |klambda: &Klambda, sink: &Sink| klambda.subscribe(sink.address, plan.concurrency);
    let create = |klambda: &Klambda, sink: &Sink| {
        let url = format!("http://{}/", sink.address);
        klambda.put_endpoint(&endpoint("bench", &url, plan.concurrency, &json!([])))
    };
    for number in 1..=args.webhook_rounds() {
        rig.note(format!("webhooks-signed: round {number} of {}", args.webhook_rounds()));
        // Neither always comes first.
        if number.is_multiple_of(2) {
            plain.turn(rig, &plan, subscribe)?;
            signed.turn(rig, &plan, create)?;
        } else {
            signed.turn(rig, &plan, create)?;
            plain.turn(rig, &plan, subscribe)?;
        }
    }
    let report = report(args, &plain, &signed);
    plain.server.clear()?;
    signed.server.clear()?;
    Ok(report)
}

fn report(args: &Args, plain: &Turns, signed: &Turns) -> Report {
    let mut table = Table::new(&["medians", "events/s", "CPU µs/event"]);
    let mut total = Faults::default();
    for (name, turns) in [("plain", plain), ("signed", signed)] {
        table.row([name.to_owned(), figure(turns.rate()), figure(turns.cpu())]);
        total.add(turns.faults);
    }
    let goal = |what: &'static str, share: Interval| {
        let detail = format!("95% interval {} to {}", figure(share.low), figure(share.high));
        Goal::new(what, share.median, Bound::AtLeast(0.85), detail)
    };
    Report {
        scenario: "webhooks-signed",
        about: format!(
            "a signed endpoint next to a plain subscription, {} keys, {} producers, 1 KiB events, {} rounds of {} s",
            args.keys,
            args.connections,
            args.webhook_rounds(),
            args.seconds
        ),
        table,
        goals: vec![
            goal("events/s ÷ plain", signed.rate_share(plain)),
            goal("plain CPU per event ÷ signed", signed.cpu_share(plain)),
        ],
        faults: total,
        rounds: json!({
            "plain": plain.rates, "signed": signed.rates,
            "plainCpuUs": plain.cpu_us, "signedCpuUs": signed.cpu_us,
        }),
    }
}
