//! Slow work on tables, which runs on another thread: checkpoints, merges and removals. Only one chore runs at a
//! time, because each ends by replacing the manifest.

use crate::address::LogAddress;
use crate::disk::Disk;
use crate::manifest::Manifest;
use crate::marks::{Mark, Recent};
use crate::rows::Changed;
use crate::table::{Error, Options, Table, Times, Writer};
use crate::tables::{MergePlan, TableSet};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use std::io;
use std::sync::Arc;

pub struct Chore {
    pub disk: Arc<dyn Disk>,
    pub manifest: Manifest,
    pub rows: TableSet,
    pub marks: TableSet,
    pub work: Work,
}

pub enum Work {
    /// Writes the state as of `address` to new tables.
    Checkpoint { changed: Arc<Changed>, recent: Arc<Recent>, address: LogAddress, next_position: Position },
    /// Merges tables and omits the rows of removed subscriptions.
    MergeRows { plan: MergePlan, removed: Vec<SubscriptionId> },
    /// Merges tables and omits marks older than this.
    MergeMarks { plan: MergePlan, before: Millis },
    /// Removes the oldest tables of marks as a whole.
    DropMarks { names: Vec<String> },
    /// Removes log segments that retention released.
    RemoveFiles { names: Vec<String> },
}

/// The result of a finished chore. The manifest on disk already reflects it.
pub struct Done {
    pub manifest: Manifest,
    pub rows: TableSet,
    pub marks: TableSet,
}

impl Chore {
    /// On failure, the manifest on disk and everything it names are unchanged, unless file names were lost. In that
    /// case, only a restart shows the state of the disk.
    pub fn run(self) -> Result<Done, Error> {
        let Chore { disk, mut manifest, mut rows, mut marks, work } = self;
        let disk = &*disk;
        let mut obsolete = Vec::new();
        match work {
            Work::Checkpoint { changed, recent, address, next_position } => {
                if !changed.is_empty() {
                    let name = manifest.take_table_name("rows");
                    rows = rows.with_new(removing_failed(disk, &name, || write_rows(disk, &name, &changed))?);
                }
                if !recent.is_empty() {
                    let name = manifest.take_table_name("marks");
                    marks =
                        marks.with_new(removing_failed(disk, &name, || write_marks(disk, &name, &recent))?);
                }
                manifest.checkpoint = address;
                manifest.next_position = next_position;
            }
            Work::MergeRows { plan, removed } => {
                let name = manifest.take_table_name("rows");
                let lost = |key: &[u8]| planted::is_on(Bug::MergeLosesLetters) && key.starts_with(b"D");
                let keep = |key: &[u8], _: &[u8]| !belongs_to(key, &removed) && !lost(key);
                let merged = plan.run(disk, &name, &keep)?;
                obsolete = plan.names();
                obsolete.extend((merged.rows() == 0).then_some(name));
                rows = rows.with_merged(&plan, merged);
            }
            Work::MergeMarks { plan, before } => {
                let name = manifest.take_table_name("marks");
                let keep = |_: &[u8], value: &[u8]| Mark::decode(value).is_ok_and(|mark| mark.time >= before);
                let merged = plan.run(disk, &name, &keep)?;
                obsolete = plan.names();
                obsolete.extend((merged.rows() == 0).then_some(name));
                marks = marks.with_merged(&plan, merged);
            }
            Work::DropMarks { names } => {
                marks = marks.without(&names);
                obsolete = names;
            }
            Work::RemoveFiles { names } => {
                // No table changes: on a full disk, removal must not need space for a new manifest. Removes the
                // oldest first and stops at the first failure, so that the log never has a hole.
                for name in names {
                    remove_segment(disk, &name)?;
                }
                return Ok(Done { manifest, rows, marks });
            }
        }
        manifest.rows = rows.names();
        manifest.marks = marks.names();
        manifest.save(disk).map_err(|source| Error::Io { file: "manifest".into(), source })?;
        remove(disk, &obsolete);
        Ok(Done { manifest, rows, marks })
    }
}

fn remove_segment(disk: &dyn Disk, name: &str) -> Result<(), Error> {
    match disk.remove(name) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::Io { file: name.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn remove(disk: &dyn Disk, names: &[String]) {
    for name in names {
        // An unreferenced file does no harm: the next start removes it.
        let _ = disk.remove(name);
    }
}

fn removing_failed(
    disk: &dyn Disk,
    name: &str,
    write: impl FnOnce() -> Result<Table, Error>,
) -> Result<Table, Error> {
    write().inspect_err(|_| {
        let _ = disk.remove(name);
    })
}

fn write_rows(disk: &dyn Disk, name: &str, changed: &Changed) -> Result<Table, Error> {
    let mut writer = Writer::new(disk, name, Options { bloom: false })?;
    changed.for_each(|key, value| writer.add(key, value))?;
    writer.finish()
}

fn write_marks(disk: &dyn Disk, name: &str, recent: &Recent) -> Result<Table, Error> {
    let mut marks: Vec<(u128, Mark)> = recent.iter().map(|(hash, mark)| (*hash, *mark)).collect();
    marks.sort_unstable_by_key(|mark| mark.0);
    let mut writer = Writer::new(disk, name, Options { bloom: true })?;
    let mut row = Vec::new();
    let mut times: Option<Times> = None;
    for (hash, mark) in marks {
        row.clear();
        mark.encode(&mut row);
        writer.add(&hash.to_be_bytes(), Some(&row))?;
        let at = Times { min: mark.time, max: mark.time };
        times = Some(times.map_or(at, |times| times.union(at)));
    }
    writer.set_times(times);
    writer.finish()
}

/// The first bytes of rows whose key is a letter and the number of a subscription.
pub const SUBSCRIPTION_ROWS: &[u8] = b"SLWPBQEUCADHVFIT";

pub fn belongs_to(key: &[u8], removed: &[SubscriptionId]) -> bool {
    if !key.first().is_some_and(|letter| SUBSCRIPTION_ROWS.contains(letter)) {
        return false;
    }
    let number = key.get(1..5).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    number.is_some_and(|number| removed.contains(&SubscriptionId(number)))
}
