//! Calls through the server to a function that runs, beside calls to a bare server, with the same load.

use serde_json::json;

use super::{Bare, Language, check, document, invoke, languages, load, request, wait_until_ready};
use crate::bench::Args;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure};
use crate::bench::rig::{Rig, Server};
use crate::bench::stats::spread;

const CONNECTIONS: [u32; 2] = [1, 16];

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let (languages, left_out) = languages(rig)?;
    let (server, klambda) = rig.klambda()?;
    let mut table = Table::new(&["language", "connections", "invoke", "bare", "ratio", "lowest", "highest"]);
    let (mut goals, mut rounds) = (Vec::new(), Vec::new());
    for bare in &languages {
        let name = bare.language.name();
        klambda.create_function(&document(name, bare, "1h"))?;
        wait_until_ready(&klambda, name)?;
        for connections in CONNECTIONS {
            let pairs = measure(rig, args, &server, bare, connections)?;
            let ours = spread(pairs.iter().map(|pair| pair.0));
            let theirs = spread(pairs.iter().map(|pair| pair.1));
            let ratios = spread(pairs.iter().map(|pair| pair.0 / pair.1));
            table.row([
                name.into(),
                connections.to_string(),
                format!("{}/s", figure(ours.median)),
                format!("{}/s", figure(theirs.median)),
                format!("{:.2}", ratios.median),
                format!("{:.2}", ratios.min),
                format!("{:.2}", ratios.max),
            ]);
            let what = format!("{name}, {connections} at once: calls ÷ bare");
            let detail = format!("({:.2} to {:.2})", ratios.min, ratios.max);
            goals.push(Goal::new(what, ratios.median, Bound::AtLeast(least(bare.language)), detail));
            rounds.push(json!({"language": name, "version": bare.version, "connections": connections, "pairs": pairs}));
        }
    }
    server.clear()?;
    Ok(Report {
        scenario: "functions-warm",
        about: format!("hello that runs, medians of {} rounds in turn{left_out}", args.rounds),
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
) -> anyhow::Result<Vec<(f64, f64)>> {
    let name = bare.language.name();
    let mut running = bare.start()?;
    let answer = running.connect()?.call(&request("/"))?;
    check(&answer.body, answer.status)?;
    let (warm_up, window) = (args.turn() / 2, args.turn());
    let mut pairs = Vec::new();
    for round in 0..args.rounds {
        rig.note(format!("functions: {name}, {connections} at once, round {} of {}", round + 1, args.rounds));
        let ours = load::rate(server.address, &invoke(name), connections, warm_up, window)?;
        let theirs = load::rate(running.address, &request("/"), connections, warm_up, window)?;
        pairs.push((ours, theirs));
    }
    Ok(pairs)
}
