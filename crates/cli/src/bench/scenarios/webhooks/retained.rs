//! Memory of a server whose feed has millions of delivered events: at rest, and after pages from all parts of the feed.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail};
use klambda_core::time::Millis;
use klambda_core::webhook::Document;
use klambda_dispatch::benchmark_data::retained_events;
use klambda_store::real_disk::RealDisk;
use serde_json::json;

use super::endpoint;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, mebibytes};
use crate::bench::rig::Rig;
use crate::bench::{Args, interrupt, usage};

/// What counts as nothing: noise of the allocator between two starts.
const NOTHING_MIB: f64 = 2.0;

/// A server that uses less CPU than this in a second is at rest.
const REST_US: u64 = 20_000;
const REST_WITHIN_S: u32 = 300;

/// The memory of a server.
struct Memory {
    rest_kib: u64,
    read_kib: u64,
}

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    // Enough for full pages, so that the buffers of an answer are in both figures.
    let few = 10_000.min(args.retained);
    rig.note("webhooks-retained: few events");
    let little = measure(rig, few)?;
    rig.note(format!("webhooks-retained: writing {} events", figure(args.retained as f64)));
    let much = measure(rig, args.retained)?;
    let mut table = Table::new(&["events", "RSS at rest", "RSS after pages"]);
    for (events, memory) in [(few, &little), (args.retained, &much)] {
        table.row([figure(events as f64), mebibytes(memory.rest_kib), mebibytes(memory.read_kib)]);
    }
    let added_mib = (much.rest_kib as f64 - little.rest_kib as f64) / 1024.0;
    let per_event = (much.rest_kib as f64 - little.rest_kib as f64) * 1024.0 / args.retained as f64;
    let detail = format!("{} bytes per event", figure(per_event));
    Ok(Report {
        scenario: "webhooks-retained",
        about: format!("{} delivered events in the feed of one endpoint", figure(args.retained as f64)),
        table,
        goals: vec![Goal::new("added by them, MiB", added_mib, Bound::AtMost(NOTHING_MIB), detail)],
        faults: Faults::default(),
        rounds: json!({
            "few": {"restKib": little.rest_kib, "readKib": little.read_kib},
            "retained": {"restKib": much.rest_kib, "readKib": much.read_kib},
        }),
    })
}

/// Waits until the server has merged its tables, which may take a while after the start.
fn rest(pid: u32) -> anyhow::Result<()> {
    for _ in 0..REST_WITHIN_S {
        let before_us = usage::cpu_us(pid)?;
        interrupt::sleep(Duration::from_secs(1))?;
        if usage::cpu_us(pid)? - before_us <= REST_US {
            return Ok(());
        }
    }
    bail!("the server is busy {REST_WITHIN_S} seconds after its start")
}

/// Starts a server on a folder with these events.
fn measure(rig: &Rig, events: u64) -> anyhow::Result<Memory> {
    let folder = rig.fresh_folder("klambda")?;
    let document = endpoint("bench", "http://127.0.0.1:9/", 256, &json!([]));
    let document = Document::parse(&document).map_err(|faults| anyhow!("{faults:?}"))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let now = Millis(u64::try_from(now.as_millis())?);
    let disk = Arc::new(RealDisk::open(&folder)?);
    let sought = retained_events(disk, document.subscription(), events, now)?;
    let (server, klambda) = rig.klambda_in(folder)?;
    rest(server.child.pid())?;
    let rest_kib = usage::rss_kib(server.child.pid())?;
    let mut page = Vec::new();
    for since in sought {
        klambda.feed_page("bench", &since, &mut page)?;
    }
    let read_kib = usage::rss_kib(server.child.pid())?;
    server.clear()?;
    Ok(Memory { rest_kib, read_kib })
}
