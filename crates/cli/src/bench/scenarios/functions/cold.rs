//! From zero replicas: from the call to the end of the answer, beside a bare server that is started and called once.

use std::time::Instant;

use serde_json::json;

use super::caller::Caller;
use super::{Bare, check, document, invoke, languages, request, wait_until_ready, wait_until_zero};
use crate::bench::klambda::Klambda;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure};
use crate::bench::rig::{Rig, Server};
use crate::bench::stats::{Spread, spread};
use crate::bench::{Args, interrupt};

const STARTS: usize = 11;
/// An absolute difference up to this counts as good, whatever the ratio is.
const MORE_MS: f64 = 20.0;
const RATIO_MAX: f64 = 1.5;

pub fn run(rig: &Rig, _args: &Args) -> anyhow::Result<Report> {
    let (languages, left_out) = languages(rig)?;
    let (server, klambda) = rig.klambda()?;
    let mut table = Table::new(&["language", "invoke", "bare", "more", "ratio"]);
    let (mut goals, mut rounds) = (Vec::new(), Vec::new());
    for bare in &languages {
        let name = bare.language.name();
        klambda.create_function(&document(name, bare, "50ms"))?;
        wait_until_ready(&klambda, name)?;
        let (ours, theirs) = measure(rig, &server, &klambda, bare)?;
        let (ours, theirs) = (spread(ours), spread(theirs));
        let (ratio, more) = (ours.median / theirs.median, ours.median - theirs.median);
        table.row([
            name.into(),
            milliseconds(ours),
            milliseconds(theirs),
            format!("{more:.1} ms"),
            format!("{ratio:.2}"),
        ]);
        let bound = (RATIO_MAX * theirs.median).max(theirs.median + MORE_MS);
        let what = format!("{name}: from zero, ms");
        goals.push(Goal::new(what, ours.median, Bound::AtMost(bound), format!("bare × {ratio:.2}")));
        rounds.push(json!({"language": name, "version": bare.version, "invokeMs": ours, "bareMs": theirs}));
    }
    server.clear()?;
    Ok(Report {
        scenario: "functions-cold",
        about: format!("hello from zero replicas, medians of {STARTS} starts in turn{left_out}"),
        table,
        goals,
        faults: Faults::default(),
        rounds: json!(rounds),
    })
}

fn measure(
    rig: &Rig,
    server: &Server,
    klambda: &Klambda,
    bare: &Bare,
) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let name = bare.language.name();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // The first call of each only loads the files from the disk into memory.
    for start in 0..=STARTS {
        interrupt::check()?;
        rig.note(format!("functions: {name} from zero, {start} of {STARTS}"));
        wait_until_zero(klambda, name)?;
        ours.push(invoke_once(server, name)?);
        wait_until_zero(klambda, name)?;
        theirs.push(start_and_call(bare)?);
    }
    Ok((ours.split_off(1), theirs.split_off(1)))
}

fn invoke_once(server: &Server, name: &str) -> anyhow::Result<f64> {
    let began = Instant::now();
    let answer = Caller::connect(server.address)?.call(&invoke(name))?;
    let took = began.elapsed();
    check(&answer.body, answer.status)?;
    Ok(took.as_secs_f64() * 1e3)
}

fn start_and_call(bare: &Bare) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut running = bare.start()?;
    let answer = running.connect()?.call(&request("/"))?;
    let took = began.elapsed();
    check(&answer.body, answer.status)?;
    Ok(took.as_secs_f64() * 1e3)
}

fn milliseconds(spread: Spread) -> String {
    format!("{} ms ({} to {})", figure(spread.median), figure(spread.min), figure(spread.max))
}
