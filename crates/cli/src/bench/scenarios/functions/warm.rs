//! Calls through the server to a function that runs, beside calls to a bare server, directly and through a bare relay,
//! with the same load.

use serde_json::json;

use super::{Bare, Language, check, document, invoke, languages, load, relay, request, wait_until_ready};
use crate::bench::Args;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure};
use crate::bench::rig::{Rig, Server};
use crate::bench::stats::spread;

/// One call at a time measures waiting, which every hop doubles, so the result is compared with the relay. Many calls
/// measure work, and are compared with the bare server.
const CONNECTIONS: [u32; 2] = [1, 16];

/// Calls per second of one round.
#[derive(serde::Serialize)]
struct Rates {
    invoke: f64,
    bare: f64,
    relay: f64,
}

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let (languages, left_out) = languages(rig)?;
    let (server, klambda) = rig.klambda()?;
    let mut table = Table::new(&[
        "language",
        "connections",
        "invoke",
        "bare",
        "relay",
        "invoke ÷ bare",
        "invoke ÷ relay",
    ]);
    let (mut goals, mut rounds) = (Vec::new(), Vec::new());
    for bare in &languages {
        let name = bare.language.name();
        klambda.create_function(&document(name, bare, "1h"))?;
        wait_until_ready(&klambda, name)?;
        for connections in CONNECTIONS {
            let rates = measure(rig, args, &server, bare, connections)?;
            let median = |rate: fn(&Rates) -> f64| spread(rates.iter().map(rate)).median;
            let to_bare = spread(rates.iter().map(|one| one.invoke / one.bare));
            let to_relay = spread(rates.iter().map(|one| one.invoke / one.relay));
            table.row([
                name.into(),
                connections.to_string(),
                format!("{}/s", figure(median(|one| one.invoke))),
                format!("{}/s", figure(median(|one| one.bare))),
                format!("{}/s", figure(median(|one| one.relay))),
                format!("{:.2}", to_bare.median),
                format!("{:.2}", to_relay.median),
            ]);
            let (ratio, other) = if connections == 1 { (&to_relay, "relay") } else { (&to_bare, "bare") };
            let what = format!("{name}, {connections} at once: invoke ÷ {other}");
            let detail = format!("({:.2} to {:.2})", ratio.min, ratio.max);
            goals.push(Goal::new(what, ratio.median, Bound::AtLeast(least(bare.language)), detail));
            rounds.push(json!({"language": name, "version": bare.version, "connections": connections, "rates": rates}));
        }
    }
    server.clear()?;
    Ok(Report {
        scenario: "functions-warm",
        about: format!("hello that runs, medians of {} rounds in turn{left_out}", args.rounds()),
        table,
        goals,
        faults: Faults::default(),
        rounds: json!(rounds),
    })
}

/// Next to an interpreter a second hop is little; a compiled server does nothing but what the hop does too.
fn least(language: Language) -> f64 {
    match language {
        Language::Nodejs | Language::Python => 0.7,
        Language::Go => 0.4,
    }
}

fn measure(
    rig: &Rig,
    args: &Args,
    server: &Server,
    bare: &Bare,
    connections: u32,
) -> anyhow::Result<Vec<Rates>> {
    let name = bare.language.name();
    let mut running = bare.start()?;
    let answer = running.connect()?.call(&request("/"))?;
    check(&answer.body, answer.status)?;
    let passed_on = relay::start(running.address)?;
    let (warm_up, window) = (args.turn() / 2, args.turn());
    let rate = |address, call: &[u8]| load::rate(address, call, connections, warm_up, window);
    let mut rates = Vec::new();
    for round in 0..args.rounds() {
        rig.note(format!(
            "functions: {name}, {connections} at once, round {} of {}",
            round + 1,
            args.rounds()
        ));
        rates.push(Rates {
            invoke: rate(server.address, &invoke(name))?,
            bare: rate(running.address, &request("/"))?,
            relay: rate(passed_on, &request("/"))?,
        });
    }
    Ok(rates)
}
