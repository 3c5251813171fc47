//! Detection: damage is refused and named; in the last commit group it is cut and counted. A folder that is whole passes
//! `check`, whose ledger shares no code with the engine, and `check` counts what the engine has.
//!
//! Semantics: 18 and 20 by the ledger's own reading (order, double acknowledgements), 30 (damage).

use super::{Verdict, Violation};
use crate::rng::Rng;
use klambda_core::time::Millis;
use klambda_dispatch::check::{self, Report};
use klambda_dispatch::{Config, Engine};
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::MemoryDisk;
use std::sync::Arc;

const NAME: &str = "detection";

fn report(disk: &MemoryDisk) -> Result<Report, String> {
    check::check(Arc::new(disk.clone_image()), &mut |_| {}).map_err(|error| error.to_string())
}

/// The folder as it is passes the check.
pub fn folder_is_sound(disk: &MemoryDisk) -> Result<Report, Violation> {
    let report = report(disk).map_err(|error| Violation::new(NAME, format!("check: {error}")))?;
    if report.is_ok() {
        return Ok(report);
    }
    let first: Vec<String> =
        report.problems.listed.iter().take(3).map(|problem| problem.text.clone()).collect();
    Err(Violation::new(NAME, format!("check finds {} problems: {}", report.problems.count, first.join("; "))))
}

/// One bit is turned somewhere in a copy of the folder: refused and named, cut at the end, or without any effect.
pub fn damage_shows(
    disk: &MemoryDisk,
    whole: &Report,
    config: &Config,
    now: Millis,
    rng: &mut Rng,
) -> Verdict {
    let copy = disk.clone_image();
    let names = copy.list().map_err(|error| Violation::new(NAME, error.to_string()))?;
    let name = rng.pick(&names).clone();
    let length = copy.open(&name).and_then(|file| file.len()).unwrap_or(0);
    if length == 0 {
        return Ok(());
    }
    let byte = rng.below(length);
    copy.repair();
    copy.flip_bit(&name, byte * 8 + rng.below(8));
    let checked = report(&copy);
    let named = checked.as_ref().map_or(true, |report| !report.is_ok() || report.cut.is_some());
    let opened = Engine::open(Arc::new(copy.clone_image()), config.clone(), now, [0; 16]);
    let silent = match &opened {
        Err(_) => false,
        Ok((_, recovered)) => recovered.cut.is_none() && !named && !same(whole, checked.as_ref().ok()),
    };
    if silent || (opened.is_err() && !named) {
        let text = format!(
            "bit turned at byte {byte} of {name}: check says {checked:?}, open says {:?}",
            opened.err()
        );
        return Err(Violation::new(NAME, text));
    }
    Ok(())
}

fn same(whole: &Report, damaged: Option<&Report>) -> bool {
    damaged.is_some_and(|damaged| {
        let counts = |r: &Report| (r.events, r.delivered, r.waiting, r.dead_letters, r.records);
        counts(whole) == counts(damaged)
    })
}
