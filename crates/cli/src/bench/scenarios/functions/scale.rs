//! A thousand functions applied at once: how fast they are ready, what one that is at rest costs, and how long others
//! wait for the API meanwhile.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;

use super::caller::Caller;
use super::{Bare, document, languages, number};
use crate::bench::klambda::Klambda;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, latency, mebibytes};
use crate::bench::rig::{Rig, Server};
use crate::bench::{Args, interrupt, usage};

const AT_ONCE: usize = 1_000;
/// The first thousand includes one-time costs: threads, tables, the allocator's own memory.
const WAVES: usize = 4;
const CLIENTS: usize = 8;
const WITHIN: Duration = Duration::from_secs(120);
/// Time between two requests to the API.
const QUESTION_EVERY: Duration = Duration::from_millis(2);

struct Wave {
    seconds: f64,
    reconciles: f64,
    /// Latencies of API requests during the run, sorted.
    micros: Vec<f64>,
    kib: u64,
}

pub fn run(rig: &Rig, _args: &Args) -> anyhow::Result<Report> {
    let (languages, _) = languages(rig)?;
    let bare = languages.first().context("there is a language")?;
    let (server, klambda) = rig.klambda()?;
    let mut table =
        Table::new(&["functions", "ready after", "reconciles/s", "GET p50", "GET p95", "GET max", "RSS"]);
    let mut waves = Vec::new();
    for wave in 0..WAVES {
        rig.note(format!("functions: {} at once", figure(AT_ONCE as f64)));
        let found = wave_of(&server, &klambda, bare, wave)?;
        table.row([
            figure(((wave + 1) * AT_ONCE) as f64),
            format!("{:.2} s", found.seconds),
            figure(found.reconciles / found.seconds),
            latency(quantile(&found.micros, 0.5)),
            latency(quantile(&found.micros, 0.95)),
            latency(quantile(&found.micros, 1.0)),
            mebibytes(found.kib),
        ]);
        waves.push(found);
    }
    server.clear()?;
    let (first, second, last) = (&waves[0], &waves[1], &waves[WAVES - 1]);
    let each = (last.kib as f64 - second.kib as f64) / ((WAVES - 2) * AT_ONCE) as f64;
    let p95 = quantile(&first.micros, 0.95) / 1e3;
    let rate = first.reconciles / first.seconds;
    let goals = vec![
        Goal::new("reconciles/s, first thousand", rate, Bound::AtLeast(300.0), String::new()),
        Goal::new("memory of one at rest, KiB", each, Bound::AtMost(20.0), "by the slope of RSS".into()),
        Goal::new("GET p95 meanwhile, ms", p95, Bound::AtMost(20.0), format!("{} asked", first.micros.len())),
    ];
    Ok(Report {
        scenario: "functions-scale",
        about: format!("{AT_ONCE} functions applied at once over {CLIENTS} connections, {WAVES} times"),
        table,
        goals,
        faults: Faults::default(),
        rounds: json!(
            waves
                .iter()
                .map(
                    |wave| json!({"seconds": wave.seconds, "reconciles": wave.reconciles, "rssKib": wave.kib})
                )
                .collect::<Vec<_>>()
        ),
    })
}

fn wave_of(server: &Server, klambda: &Klambda, bare: &Bare, wave: usize) -> anyhow::Result<Wave> {
    let before = reconciles(klambda)?;
    let goal = (wave + 1) * AT_ONCE;
    let (next, done) = (AtomicUsize::new(wave * AT_ONCE), AtomicBool::new(false));
    let (address, began) = (server.address, Instant::now());
    let (seconds, micros) = thread::scope(|scope| {
        let appliers: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(|| apply(address, bare, &next, goal))).collect();
        let asking = scope.spawn(|| ask(address, &done));
        let waited = appliers
            .into_iter()
            .try_for_each(|applier| applier.join().unwrap_or_else(|_| bail!("an applier panicked")))
            .and_then(|()| wait_until_serving(klambda, goal));
        let seconds = began.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        let micros = asking.join().unwrap_or_else(|_| bail!("the asker panicked"));
        waited.and(micros).map(|micros| (seconds, micros))
    })?;
    let reconciles = reconciles(klambda)? - before;
    interrupt::sleep(Duration::from_secs(3))?;
    Ok(Wave { seconds, reconciles, micros, kib: usage::rss_kib(server.child.pid())? })
}

fn apply(address: SocketAddr, bare: &Bare, next: &AtomicUsize, goal: usize) -> anyhow::Result<()> {
    let mut caller = Caller::connect(address)?;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= goal {
            return Ok(());
        }
        interrupt::check()?;
        let body = document(&format!("hello-{number}"), bare, "30s").to_string();
        let head = "host: localhost\r\ncontent-type: application/json\r\n";
        let length = body.len();
        let request =
            format!("POST /api/v1/lambda/functions HTTP/1.1\r\n{head}content-length: {length}\r\n\r\n{body}");
        let answer = caller.call(request.as_bytes())?;
        if answer.status != 202 {
            bail!("applying answered {} {}", answer.status, String::from_utf8_lossy(&answer.body));
        }
    }
}

/// Reads a function again and again, until it is done.
fn ask(address: SocketAddr, done: &AtomicBool) -> anyhow::Result<Vec<f64>> {
    let mut caller = Caller::connect(address)?;
    let request = b"GET /api/v1/lambda/functions/hello-0 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut micros = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let began = Instant::now();
        let answer = caller.call(request)?;
        micros.push(began.elapsed().as_secs_f64() * 1e6);
        if !matches!(answer.status, 200 | 404) {
            bail!("reading a function answered {}", answer.status);
        }
        thread::sleep(QUESTION_EVERY);
    }
    micros.sort_by(f64::total_cmp);
    Ok(micros)
}

fn wait_until_serving(klambda: &Klambda, count: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + WITHIN;
    while ready(&klambda.metrics()?)? < count as f64 {
        if Instant::now() > deadline {
            bail!("not all functions were ready within {WITHIN:?}");
        }
        interrupt::sleep(Duration::from_millis(20))?;
    }
    Ok(())
}

fn ready(metrics: &str) -> anyhow::Result<f64> {
    let ready: Vec<&str> = metrics.lines().filter(|line| line.contains("status=\"ready\"")).collect();
    sum(&ready.join("\n"), "operator_knative_services_managed")
}

fn reconciles(klambda: &Klambda) -> anyhow::Result<f64> {
    sum(&klambda.metrics()?, "operator_reconcile_total")
}

/// Of all the lines of one metric.
fn sum(metrics: &str, name: &str) -> anyhow::Result<f64> {
    let values =
        metrics.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit_once(' '));
    values.map(|(_, value)| number(value)).sum()
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
