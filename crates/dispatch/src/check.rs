//! Checks a data folder: all checksums, per-key order, no lost events and no duplicate acknowledgements.
//!
//! Two independent readers share no code. The `ledger` reads the log record by record and knows nothing of lanes. It
//! tracks which events were routed and acknowledged, and which recorded decisions allow an exception. The engine
//! opens the same folder as a server would, through its tables and its lane logic. Both must agree on every pending
//! event.
//!
//! The check writes nothing: the engine works on an `Overlay` that keeps its changes in memory. The check needs
//! memory for pending events (16 bytes each, twice that during the comparison), 16 bytes for each lane with a
//! producer's sequence, and the events dropped by records that do not name them.

mod account;
mod compare;
mod ledger;
mod line;
mod overlay;
mod report;

pub use overlay::Overlay;
pub use report::{Cut, Problem, ProblemKind, Problems, Report};

use crate::engine::{Config, Engine, Failure};
use klambda_core::event_codec::EventView;
use klambda_core::ids::Position;
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::disk::Disk;
use klambda_store::inspect;
use klambda_store::log::{self, Options};
use klambda_store::manifest::{self, Manifest};
use klambda_store::record::Record;
use klambda_store::recovery::{self, Checkpoint};
use klambda_store::segment::Segment;
use klambda_store::table::{self, Table};
use ledger::Ledger;
use report::Findings;
use std::io;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the folder does not contain knative-lambda data")]
    Empty,
    #[error(transparent)]
    Format(manifest::Error),
    #[error(transparent)]
    Log(#[from] log::Error),
    #[error("data folder: {0}")]
    Io(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Tables,
    Log,
    State,
}

/// Progress in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub stage: Stage,
    pub done: u64,
    pub total: u64,
}

/// Checks the folder of a stopped server, or a copy of it.
pub fn check(disk: Arc<dyn Disk>, on_progress: &mut dyn FnMut(Progress)) -> Result<Report, Error> {
    let mut findings = Findings::default();
    let mut report = Report::default();
    let manifest = load_manifest(&*disk, &mut findings)?;
    if let Some(manifest) = &manifest {
        verify_tables(&*disk, manifest, &mut report, &mut findings, on_progress)?;
    }
    let checkpoint = match &manifest {
        Some(manifest) => manifest.checkpoint(),
        None => Checkpoint { address: oldest_base(&*disk)?, next_position: Position(1) },
    };
    let ledger = read_log(&*disk, checkpoint, &mut report, &mut findings, on_progress)?;
    ledger.add_counts(&mut report);
    on_progress(Progress { stage: Stage::State, done: 0, total: 0 });
    // With a damaged log there is nothing to compare: missing events may be in the damaged part.
    if findings.is_undamaged() {
        compare_state(disk, ledger, &mut report, &mut findings);
    }
    report.duplicate_acknowledgements = findings.count(ProblemKind::DuplicateAcknowledgement);
    report.order_violations = findings.count(ProblemKind::OrderViolation);
    report.lost = findings.count(ProblemKind::Lost);
    report.problems = findings.into_problems();
    Ok(report)
}

fn load_manifest(disk: &dyn Disk, findings: &mut Findings) -> Result<Option<Manifest>, Error> {
    match Manifest::load(disk) {
        Ok(Some(manifest)) => Ok(Some(manifest)),
        Ok(None) => Err(Error::Empty),
        Err(manifest::Error::Io(error)) => Err(Error::Io(error)),
        Err(error @ manifest::Error::Format { .. }) => Err(Error::Format(error)),
        Err(error @ (manifest::Error::Damaged(_) | manifest::Error::Missing)) => {
            findings.add(ProblemKind::Damage, None, error.to_string());
            Ok(None)
        }
    }
}

fn verify_tables(
    disk: &dyn Disk,
    manifest: &Manifest,
    report: &mut Report,
    findings: &mut Findings,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<(), Error> {
    let names: Vec<&String> = manifest.rows.iter().chain(&manifest.marks).collect();
    let total = names.iter().filter_map(|name| disk.open(name).ok()?.len().ok()).sum();
    for name in names {
        report.tables += 1;
        match Table::open(disk, name).and_then(|table| table.verify().map(|()| table)) {
            Ok(table) => report.table_bytes += table.file().len()?,
            Err(table::Error::Io { file, source }) if source.kind() != io::ErrorKind::NotFound => {
                return Err(log::Error::Io { file, source }.into());
            }
            Err(error) => findings.add(ProblemKind::Damage, None, error.to_string()),
        }
        on_progress(Progress { stage: Stage::Tables, done: report.table_bytes, total });
    }
    Ok(())
}

fn oldest_base(disk: &dyn Disk) -> io::Result<LogAddress> {
    Ok(disk.list()?.iter().filter_map(|name| Segment::base_of(name)).min().unwrap_or_default())
}

/// Reads the whole log: verifies every checksum and enters every record into the ledger.
fn read_log(
    disk: &dyn Disk,
    checkpoint: Checkpoint,
    report: &mut Report,
    findings: &mut Findings,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Ledger, Error> {
    const STRIDE: u64 = 1 << 20;
    let total = log_bytes(disk)?;
    let mut ledger = Ledger::new(LogAddress(0), Position(1));
    let mut begun: Option<LogAddress> = None;
    let mut next_shown = 0;
    let census = inspect::inspect(disk, checkpoint, &mut |at, body, position| {
        let start = *begun.get_or_insert_with(|| {
            ledger = Ledger::new(at, position);
            at
        });
        match decode(&body) {
            Ok(Record::Documents { changes, .. }) => ledger.read_documents(at, &changes),
            Ok(record) => ledger.read(&record, position, findings),
            Err(what) => findings.add(
                ProblemKind::Damage,
                None,
                format!("the record at address {at} cannot be decoded: {what}"),
            ),
        }
        let done = at.0 - start.0;
        if done >= next_shown {
            next_shown = done + STRIDE;
            on_progress(Progress { stage: Stage::Log, done, total });
        }
        Ok(())
    })?;
    for damage in &census.damage {
        findings.add(ProblemKind::Damage, None, damage.to_string());
    }
    if ledger.has_suspects() {
        inspect::inspect(disk, checkpoint, &mut |_, body, position| {
            if let Ok(record) = decode(&body) {
                ledger.look_for_suspects(&record, position);
            }
            Ok(())
        })?;
        ledger.judge_suspects(findings);
    }
    report.add_census(&census);
    Ok(ledger)
}

fn log_bytes(disk: &dyn Disk) -> io::Result<u64> {
    let names = disk.list()?;
    let files = names.iter().filter(|name| Segment::base_of(name).is_some());
    files.map(|name| disk.open(name)?.len()).sum()
}

fn decode(body: &[u8]) -> Result<Record<'_>, String> {
    let record = Record::decode(body).map_err(|error| error.to_string())?;
    if let Record::Event { event, .. } | Record::Kept { event, .. } | Record::Edited { event, .. } = &record {
        EventView::decode(event).map_err(|_| "the event inside it cannot be decoded".to_owned())?;
    }
    Ok(record)
}

/// Opens the folder as a server would, but changes nothing: the engine's changes stay in memory.
pub fn open(disk: Arc<dyn Disk>) -> Result<(Engine, recovery::Report), Failure> {
    let config = Config {
        log: Options { segment_bytes: 1 << 20, reserve_bytes: 0, tail_bytes: 1 << 20 },
        ..Config::default()
    };
    // The clock is that of the last record, so no timer expires during the check.
    Engine::open(Arc::new(Overlay::new(disk)), config, Millis::ZERO, [0; 16])
}

/// Compares the state that a server would have with the ledger.
fn compare_state(disk: Arc<dyn Disk>, ledger: Ledger, report: &mut Report, findings: &mut Findings) {
    let compared: Result<(), Failure> = match open(disk) {
        Ok((engine, _)) => {
            findings.name_subscriptions(engine.subscriptions.values().map(|s| (s.id, s.name().to_owned())));
            find_namespaces(&engine, findings);
            compare::compare(&engine, ledger, report, findings)
        }
        Err(failure) => Err(failure),
    };
    if let Err(failure) = compared {
        findings.add(ProblemKind::State, None, format!("the server cannot open this folder: {failure}"));
    }
}

/// Lanes and events belong to subscriptions, so each subscription must belong to an existing namespace.
fn find_namespaces(engine: &Engine, findings: &mut Findings) {
    for subscription in engine.subscriptions.values() {
        if engine.namespace_name(subscription.namespace).is_none() {
            let text = "it belongs to a namespace that does not exist".to_owned();
            findings.add(ProblemKind::State, Some(subscription.id), text);
        }
    }
}
