//! What the payload and the signature of an endpoint cost, next to a subscription that delivers the same events.
//!
//! Two servers get the same load in turn, while the other rests.

use serde_json::json;

use super::super::throughput;
use super::endpoint;
use crate::bench::klambda::Klambda;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure};
use crate::bench::rig::{Rig, Server, Sink, faults};
use crate::bench::round::{Plan, seconds};
use crate::bench::stats::{interval, median};
use crate::bench::{Args, interrupt, usage};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Signed,
}

struct Subject {
    kind: Kind,
    server: Server,
    klambda: Klambda,
    rates: Vec<f64>,
    cpu_us: Vec<f64>,
    faults: Faults,
}

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let plan = throughput::plan(args);
    let mut plain = Subject::start(rig, Kind::Plain)?;
    let mut signed = Subject::start(rig, Kind::Signed)?;
    for number in 1..=args.rounds {
        rig.note(format!("webhooks-signed: round {number} of {}", args.rounds));
        // Neither always comes first.
        let [first, second] = match number.is_multiple_of(2) {
            true => [&mut plain, &mut signed],
            false => [&mut signed, &mut plain],
        };
        first.turn(rig, &plan)?;
        second.turn(rig, &plan)?;
    }
    let report = report(args, &plain, &signed);
    plain.server.clear()?;
    signed.server.clear()?;
    Ok(report)
}

fn report(args: &Args, plain: &Subject, signed: &Subject) -> Report {
    let ratios = |of: fn(&Subject) -> &[f64]| -> Vec<f64> {
        of(signed).iter().zip(of(plain)).map(|(signed, plain)| signed / plain).collect()
    };
    let (rate, cpu) = (interval(&ratios(|s| &s.rates)), interval(&ratios(|s| &s.cpu_us)));
    let mut table = Table::new(&["medians", "events/s", "CPU µs/event"]);
    let mut total = Faults::default();
    for (name, subject) in [("plain", plain), ("signed", signed)] {
        let medians = [&subject.rates, &subject.cpu_us].map(|values| figure(median(values.iter().copied())));
        table.row([name.to_owned()].into_iter().chain(medians));
        total.add(subject.faults);
    }
    let detail = format!(
        "95% interval {} to {}; CPU per event {} times ({} to {})",
        figure(rate.low),
        figure(rate.high),
        figure(cpu.median),
        figure(cpu.low),
        figure(cpu.high)
    );
    Report {
        scenario: "webhooks-signed",
        about: format!(
            "a signed endpoint next to a plain subscription, {} keys, {} producers, 1 KiB events, {} rounds of {} s",
            args.keys, args.connections, args.rounds, args.seconds
        ),
        table,
        goals: vec![Goal::new("events/s ÷ plain", rate.median, Bound::AtLeast(0.85), detail)],
        faults: total,
        rounds: json!({"plain": plain.rates, "signed": signed.rates}),
    }
}

impl Subject {
    fn start(rig: &Rig, kind: Kind) -> anyhow::Result<Subject> {
        let name = if kind == Kind::Plain { "klambda-plain" } else { "klambda-signed" };
        let (server, klambda) = rig.klambda_in(rig.fresh_folder(name)?)?;
        Ok(Subject {
            kind,
            server,
            klambda,
            rates: Vec::new(),
            cpu_us: Vec::new(),
            faults: Faults::default(),
        })
    }

    /// Points the subscription or the endpoint at this sink.
    fn aim(&self, sink: &Sink, concurrency: u32) -> anyhow::Result<()> {
        match self.kind {
            Kind::Plain => self.klambda.subscribe(sink.address, concurrency),
            Kind::Signed => {
                let url = format!("http://{}/", sink.address);
                self.klambda.put_endpoint(&endpoint("bench", &url, concurrency, &json!([])))
            }
        }
    }

    /// With a target of its own: the numbers of each load begin anew.
    fn turn(&mut self, rig: &Rig, plan: &Plan) -> anyhow::Result<()> {
        let mut sink = rig.sink(&plan.sink())?;
        self.aim(&sink, plan.concurrency)?;
        let mut load = rig.load(&plan.load(&self.server))?;
        load.go()?;
        interrupt::sleep(plan.warm_up)?;
        let pid = self.server.child.pid();
        let (before, cpu_before) = (sink.mark()?, usage::cpu_us(pid)?);
        interrupt::sleep(plan.window)?;
        let (after, cpu_after) = (sink.mark()?, usage::cpu_us(pid)?);
        let delivered = (after.totals.delivered - before.totals.delivered) as f64;
        self.rates.push(delivered / seconds(before.at_ns, after.at_ns));
        self.cpu_us.push((cpu_after - cpu_before) as f64 / delivered.max(1.0));
        let accepted = load.stop()?.accepted;
        self.faults.add(faults(accepted, &sink.drain(accepted)?));
        Ok(())
    }
}
