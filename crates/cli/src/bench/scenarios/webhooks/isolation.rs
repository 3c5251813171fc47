//! What a dead and a slow endpoint cost the others.
//!
//! One server with 100 endpoints that work, each with 1,000 workflows, and one load that never stops. Their rate is
//! measured in turns, with and without events for an endpoint that refuses connections and one that takes 5 seconds.
//! Between turns both are disabled, and open calls end.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::throughput;
use super::endpoint;
use crate::bench::klambda::Klambda;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure};
use crate::bench::rig::{Rig, Sink, faults};
use crate::bench::round::{Plan, seconds};
use crate::bench::stats::{interval, median};
use crate::bench::{Args, interrupt, sink};

const ENDPOINTS: u32 = 100;
const WORKFLOWS: u32 = 1_000;
/// Events that each bad endpoint gets before a turn, each of a workflow of its own.
const BAD_EVENTS: u32 = 500;
const SLOW: Duration = Duration::from_secs(5);
/// The bad endpoints. Each gets the events with its name as type.
const BAD: [&str; 2] = ["bad-dead", "bad-slow"];
/// No server listens on this port.
const DEAD_URL: &str = "http://127.0.0.1:9/";

struct Pair {
    with: f64,
    without: f64,
}

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let plan = Plan { keys: ENDPOINTS * WORKFLOWS, ..throughput::plan(args) };
    let mut good = rig.sink(&plan.sink())?;
    let slow = rig.sink(&sink::Spec { keys: BAD_EVENTS, delay_us: SLOW.as_micros() as u64, hot_keys: 0 })?;
    let (server, klambda) = rig.klambda()?;
    create(&klambda, &good, &slow, plan.concurrency)?;
    let mut load = rig.load(&plan.load(&server))?;
    load.go()?;
    interrupt::sleep(plan.warm_up)?;
    let mut pairs = Vec::new();
    for number in 0..args.pairs {
        rig.note(format!("webhooks-isolation: pair {} of {}", number + 1, args.pairs));
        pairs.push(measure_pair(&klambda, &mut good, number, args.turn())?);
    }
    let accepted = load.stop()?.accepted;
    let totals = good.drain(accepted)?;
    server.clear()?;
    Ok(report(&pairs, faults(accepted, &totals)))
}

fn report(pairs: &[Pair], faults: Faults) -> Report {
    let losses: Vec<f64> = pairs.iter().map(|pair| (1.0 - pair.with / pair.without) * 100.0).collect();
    let loss = interval(&losses);
    let mut table = Table::new(&["medians", "events/s"]);
    table.row(["with".into(), figure(median(pairs.iter().map(|pair| pair.with)))]);
    table.row(["without".into(), figure(median(pairs.iter().map(|pair| pair.without)))]);
    let detail =
        format!("median {}, 95% interval {} to {}", figure(loss.median), figure(loss.low), figure(loss.high));
    Report {
        scenario: "webhooks-isolation",
        about: format!(
            "{ENDPOINTS} endpoints of {WORKFLOWS} workflows, next to a dead one and one that takes 5 s, {} pairs of turns",
            pairs.len()
        ),
        table,
        goals: vec![Goal::new(
            "loss of the others, low end of the interval, %",
            loss.low,
            Bound::AtMost(0.0),
            detail,
        )],
        faults,
        rounds: pairs.iter().map(|pair| json!({"with": pair.with, "without": pair.without})).collect(),
    }
}

fn create(klambda: &Klambda, good: &Sink, slow: &Sink, concurrency: u32) -> anyhow::Result<()> {
    let url = format!("http://{}/", good.address);
    for number in 0..ENDPOINTS {
        interrupt::check()?;
        // The last two digits of a key name its endpoint.
        let filters = json!([{"exact": {"type": "bench.measured"}}, {"suffix": {"partitionkey": format!("{number:02}")}}]);
        klambda.put_endpoint(&endpoint(&format!("good-{number}"), &url, concurrency, &filters))?;
    }
    for (name, url) in BAD.into_iter().zip([DEAD_URL.to_owned(), format!("http://{}/", slow.address)]) {
        klambda.put_endpoint(&endpoint(name, &url, concurrency, &json!([{"exact": {"type": name}}])))?;
        klambda.act_on_endpoint(name, "disable")?;
    }
    Ok(())
}

fn measure_pair(klambda: &Klambda, good: &mut Sink, number: u32, turn: Duration) -> anyhow::Result<Pair> {
    if number.is_multiple_of(2) {
        let with = measure_beside_bad(klambda, good, number, turn)?;
        Ok(Pair { with, without: measure(good, turn)? })
    } else {
        let without = measure(good, turn)?;
        Ok(Pair { without, with: measure_beside_bad(klambda, good, number, turn)? })
    }
}

fn measure_beside_bad(
    klambda: &Klambda,
    good: &mut Sink,
    number: u32,
    turn: Duration,
) -> anyhow::Result<f64> {
    for name in BAD {
        klambda.send_batch(&bad_events(name, number))?;
        klambda.act_on_endpoint(name, "enable")?;
    }
    let rate = measure(good, turn);
    for name in BAD {
        klambda.act_on_endpoint(name, "disable")?;
    }
    interrupt::sleep(SLOW)?;
    rate
}

fn bad_events(name: &str, number: u32) -> Value {
    let event = |key: u32| {
        json!({"specversion": "1.0", "type": name, "source": "/bench", "id": format!("{name}-{key:08}-{number:010}"),
               "partitionkey": format!("{name}-{key}"), "sentns": "1", "data": {}})
    };
    (0..BAD_EVENTS).map(event).collect()
}

fn measure(sink: &mut Sink, turn: Duration) -> anyhow::Result<f64> {
    interrupt::sleep(Duration::from_millis(200))?;
    let before = sink.mark()?;
    interrupt::sleep(turn)?;
    let after = sink.mark()?;
    Ok((after.totals.delivered - before.totals.delivered) as f64 / seconds(before.at_ns, after.at_ns))
}
