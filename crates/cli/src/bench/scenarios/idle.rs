//! Memory of a server that does nothing: on a folder with one idle lane, and on one with ten million.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use klambda_core::subscription::Document;
use klambda_store::real_disk::RealDisk;
use serde_json::json;

use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, mebibytes};
use crate::bench::rig::Rig;
use crate::bench::{Args, interrupt, usage};

/// Differences up to this count as zero: noise of the allocator between two starts.
const NOTHING_MIB: f64 = 2.0;

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    rig.note("idle: one lane");
    let one_kib = resting_kib(rig, |folder| seed(folder, 1))?;
    rig.note(format!("idle: seeding {} lanes", figure(args.lanes as f64)));
    let seeded_kib = resting_kib(rig, |folder| seed(folder, args.lanes))?;

    let mut table = Table::new(&["folder", "RSS"]);
    table.row(["1 idle lane".into(), mebibytes(one_kib)]);
    table.row([format!("{} idle lanes", figure(args.lanes as f64)), mebibytes(seeded_kib)]);
    let added = (seeded_kib as f64 - one_kib as f64) / 1024.0;
    Ok(Report {
        scenario: "idle",
        about: format!("{} idle lanes in the folder", figure(args.lanes as f64)),
        table,
        goals: vec![Goal::new("added by idle lanes, MiB", added, Bound::AtMost(NOTHING_MIB), String::new())],
        faults: Faults::default(),
        rounds: json!({"oneLaneKib": one_kib, "seededKib": seeded_kib}),
    })
}

fn resting_kib(rig: &Rig, prepare: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<u64> {
    let folder = rig.fresh_folder("klambda")?;
    prepare(&folder)?;
    let (server, _klambda) = rig.klambda_in(folder)?;
    interrupt::sleep(Duration::from_secs(1))?;
    let kib = usage::rss_kib(server.child.pid())?;
    server.clear()?;
    Ok(kib)
}

/// Writes a data folder with one subscription and this many lanes that have delivered and are empty.
fn seed(folder: &Path, lanes: u64) -> anyhow::Result<()> {
    let document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "bench"},
        "spec": {"ordering": "ordered", "target": {"url": "http://127.0.0.1:9/"}},
    });
    let document = Document::parse(&document).map_err(|faults| anyhow!("{faults:?}"))?;
    let disk = Arc::new(RealDisk::open(folder)?);
    klambda_dispatch::benchmark_data::idle_lanes(disk, document, lanes)?;
    Ok(())
}
