//! How fast a receiver that was away reads what it missed, from a server that was just started.

use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;

use super::super::throughput;
use super::endpoint;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, mebibytes};
use crate::bench::rig::Rig;
use crate::bench::stats::interval;
use crate::bench::{Args, load, usage};

const EVENTS_PER_KEY: u32 = 200;
const FILL_WITHIN: Duration = Duration::from_secs(900);
/// How every event of a page begins.
const EVENT: &[u8] = b"{\"eventId\":";

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let plan = throughput::plan(args);
    let (server, klambda) = rig.klambda()?;
    klambda.put_endpoint(&endpoint("bench", "http://127.0.0.1:9/", plan.concurrency, &json!([])))?;
    klambda.act_on_endpoint("bench", "disable")?;
    rig.note("webhooks-feed: filling");
    let mut load = rig.load(&load::Spec { per_key: Some(EVENTS_PER_KEY), ..plan.load(&server) })?;
    load.go()?;
    let accepted = load.finish(FILL_WITHIN)?.accepted;
    let (server, klambda) = rig.klambda_in(server.crash())?;
    let rounds = args.webhook_rounds();
    let (mut rates, mut cpu_us, mut missing) = (Vec::new(), Vec::new(), 0);
    let mut page = Vec::new();
    for number in 1..=rounds {
        rig.note(format!("webhooks-feed: round {number} of {rounds}"));
        let (started, cpu_before) = (Instant::now(), usage::cpu_us(server.child.pid())?);
        let events = read_all(&klambda, &mut page)?;
        rates.push(events as f64 / started.elapsed().as_secs_f64());
        let cpu = usage::cpu_us(server.child.pid())? - cpu_before;
        cpu_us.push(cpu as f64 / events.max(1) as f64);
        missing = missing.max(accepted.saturating_sub(events));
    }
    let rss_max_kib = usage::rss_max_kib(server.child.pid())?;
    server.clear()?;
    let (rate, cpu) = (interval(&rates), interval(&cpu_us));
    let mut table = Table::new(&["events", "events/s", "CPU µs/event", "RSS max"]);
    table.row([figure(accepted as f64), figure(rate.median), figure(cpu.median), mebibytes(rss_max_kib)]);
    let detail = format!("95% interval {} to {}", figure(rate.low), figure(rate.high));
    Ok(Report {
        scenario: "webhooks-feed",
        about: format!("one reader of the feed, pages of 1,000 events of 1 KiB, {rounds} rounds"),
        table,
        goals: vec![Goal::new("events/s read", rate.median, Bound::AtLeast(50_000.0), detail)],
        faults: Faults { missing, ..Faults::default() },
        rounds: json!({"eventsPerS": rates, "cpuUs": cpu_us, "rssMaxKib": rss_max_kib}),
    })
}

/// Reads the feed from its beginning to its end. Returns the number of events.
fn read_all(klambda: &crate::bench::klambda::Klambda, page: &mut Vec<u8>) -> anyhow::Result<u64> {
    let (mut events, mut since) = (0, String::new());
    loop {
        klambda.feed_page("bench", &since, page)?;
        let found = count(page, EVENT);
        if found == 0 {
            return Ok(events);
        }
        events += found;
        since = next(page).context("a page of the feed has no `next`")?;
    }
}

fn count(page: &[u8], pattern: &[u8]) -> u64 {
    let starts = page.iter().enumerate().filter(|(_, byte)| **byte == b'{');
    starts.filter(|(at, _)| page[*at..].starts_with(pattern)).count() as u64
}

/// The cursor at the end of a page. Parsing all of it would measure the parser.
fn next(page: &[u8]) -> Option<String> {
    let tail = &page[page.len().saturating_sub(300)..];
    let text = String::from_utf8_lossy(tail);
    let (_, after) = text.rsplit_once("\"next\":\"")?;
    Some(after.split_once('"')?.0.to_owned())
}
