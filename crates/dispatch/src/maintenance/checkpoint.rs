//! Checkpoints and merges: which chores run next, and what happens with their results.

use crate::engine::{Engine, Failure};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::chore::{Chore, Done, Work};
use klambda_store::marks::Recent;
use klambda_store::rows::Changed;
use klambda_store::table;
use std::sync::Arc;

/// The maximum length of the log after the checkpoint, which is what a restart reads.
const REPLAY_BYTES_MAX: u64 = 256 << 20;
/// The memory of a new mark, and the share of memory for new marks. With the default memory that is 57,065 marks,
/// slightly fewer than the number at which their table doubles.
const MARK_BYTES: usize = 56;
const MARKS_SHARE: usize = 42;
/// The share of memory for everything that no checkpoint has written yet.
const UNWRITTEN_SHARE: usize = 2;

/// Chores that write and merge tables, one at a time.
#[derive(Default)]
pub(super) struct Chores {
    pub checkpoint: Option<Frozen>,
    pub running: Option<ChoreKind>,
    pub retry_at: Millis,
    pub wants_checkpoint: bool,
    pub remove: Vec<String>,
    /// Given to a chore; tried again if the chore fails.
    pub removing: Vec<String>,
    /// Removed subscriptions whose rows are no longer only in memory …
    pub removed_stored: Vec<SubscriptionId>,
    /// … and those of them whose rows the running merge leaves out.
    pub removed_merging: Vec<SubscriptionId>,
}

pub(super) struct Frozen {
    changed: Arc<Changed>,
    recent: Arc<Recent>,
    /// Subscriptions removed before the checkpoint. Once it is written, all of their rows are in tables.
    removed: Vec<SubscriptionId>,
    address: LogAddress,
    next_position: Position,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChoreKind {
    Checkpoint,
    Rows,
    Marks,
    Remove,
}

impl Chores {
    /// A checkpoint is written when the log is durable up to it.
    pub fn wants_sync(&self) -> bool {
        self.checkpoint.is_some() && self.running.is_none()
    }
}

impl Engine {
    pub(super) fn is_checkpoint_due(&self) -> bool {
        let memory = self.config.memory_bytes;
        self.maintenance.chores.checkpoint.is_none()
            && self.maintenance.chores.retry_at <= self.now
            && (self.maintenance.chores.wants_checkpoint
                || self.store.rows.changed_bytes() > memory / 10
                || self.has_many_new_marks()
                || self.store.log.written().0 - self.store.manifest.checkpoint.0 > REPLAY_BYTES_MAX)
    }

    /// True if the new marks have reached the number at which a checkpoint writes them.
    pub(super) fn has_many_new_marks(&self) -> bool {
        self.store.marks.recent_len() * MARK_BYTES > self.config.memory_bytes / MARKS_SHARE
    }

    /// Converts the state to rows at one instant. A chore writes them while the engine continues.
    pub(crate) fn begin_checkpoint(&mut self) -> Result<(), Failure> {
        self.maintenance.chores.wants_checkpoint = false;
        self.store.log.flush()?;
        self.trim_feeds()?;
        self.store_all()?;
        // This is the right moment, because lanes no longer need events that have left them: they have stored the
        // ids.
        self.sweep_copies()?;
        self.maintenance.chores.checkpoint = Some(Frozen {
            changed: self.store.rows.freeze(),
            recent: self.store.marks.freeze(),
            removed: self.subscriptions.removed().to_vec(),
            address: self.store.log.written(),
            next_position: self.store.log.next_position(),
        });
        Ok(())
    }

    /// True if a checkpoint is running and the changes made meanwhile have reached their memory limit. Nothing is
    /// accepted until the checkpoint is written.
    pub(crate) fn awaits_checkpoint(&self) -> bool {
        self.maintenance.chores.checkpoint.is_some() && self.is_much_unwritten()
    }

    /// True if the last checkpoint failed and nothing can be accepted before one succeeds.
    pub(crate) fn lacks_checkpoint(&self) -> bool {
        self.maintenance.chores.retry_at > self.now && self.is_much_unwritten()
    }

    fn is_much_unwritten(&self) -> bool {
        let unwritten = self.store.rows.memory_bytes() + self.store.marks.memory_bytes();
        unwritten > self.config.memory_bytes / UNWRITTEN_SHARE
    }

    /// Requests a checkpoint at the next opportunity, for example before a clean stop.
    pub fn request_checkpoint(&mut self) {
        self.maintenance.chores.wants_checkpoint = true;
    }

    pub fn is_checkpointing(&self) -> bool {
        self.maintenance.chores.wants_checkpoint || self.maintenance.chores.checkpoint.is_some()
    }

    pub(crate) fn next_chore(&mut self) -> Option<Chore> {
        if self.maintenance.chores.running.is_some() || self.maintenance.chores.retry_at > self.now {
            return None;
        }
        let (kind, work) = self.next_work()?;
        self.maintenance.chores.running = Some(kind);
        Some(Chore {
            disk: self.store.disk.clone(),
            manifest: self.store.manifest.clone(),
            rows: self.store.rows.tables().clone(),
            marks: self.store.marks.tables().clone(),
            work,
        })
    }

    pub(super) fn next_work(&mut self) -> Option<(ChoreKind, Work)> {
        // Deleting files comes first: it needs no space, and may free the space that a checkpoint needs.
        if !self.maintenance.chores.remove.is_empty() {
            let names = std::mem::take(&mut self.maintenance.chores.remove);
            self.maintenance.chores.removing = names.clone();
            return Some((ChoreKind::Remove, Work::RemoveFiles { names }));
        }
        if let Some(frozen) = &self.maintenance.chores.checkpoint {
            if self.store.log.synced() < frozen.address {
                return None;
            }
            let (changed, recent) = (frozen.changed.clone(), frozen.recent.clone());
            let (address, next_position) = (frozen.address, frozen.next_position);
            return Some((
                ChoreKind::Checkpoint,
                Work::Checkpoint { changed, recent, address, next_position },
            ));
        }
        if let Some(name) = self.marks_to_drop() {
            return Some((ChoreKind::Marks, Work::DropMarks { names: vec![name] }));
        }
        if let Some(plan) = self.store.rows.tables().plan_merge() {
            // A removal that is only in the log may be lost with it, and a restart repeats the steps before it.
            let removed = self.maintenance.chores.removed_stored.clone();
            self.maintenance.chores.removed_merging = removed.clone();
            return Some((ChoreKind::Rows, Work::MergeRows { plan, removed }));
        }
        let plan = self.mergeable_marks()?;
        Some((ChoreKind::Marks, Work::MergeMarks { plan, before: Millis::ZERO }))
    }

    pub(crate) fn finish_chore(&mut self, result: Result<Done, table::Error>) {
        let kind = self.maintenance.chores.running.take();
        let done = match result {
            Ok(done) => done,
            Err(error) if error.are_names_lost() => return self.note(Err(error.into())),
            Err(error) => {
                tracing::warn!(%error, "Could not write or merge tables; retrying");
                self.metrics.checkpoint_failures += 1;
                self.maintenance.chores.retry_at = self.now + 1000;
                if kind == Some(ChoreKind::Remove) {
                    let later = std::mem::take(&mut self.maintenance.chores.remove);
                    self.maintenance.chores.remove = std::mem::take(&mut self.maintenance.chores.removing);
                    self.maintenance.chores.remove.extend(later);
                }
                if kind == Some(ChoreKind::Checkpoint) {
                    self.maintenance.chores.checkpoint = None;
                    self.maintenance.chores.wants_checkpoint = true;
                    self.store.rows.thaw();
                    self.store.marks.thaw();
                }
                return;
            }
        };
        self.store.manifest = done.manifest;
        match kind {
            Some(ChoreKind::Checkpoint) => {
                self.maintenance.chores.removed_stored = self
                    .maintenance
                    .chores
                    .checkpoint
                    .take()
                    .map(|frozen| frozen.removed)
                    .unwrap_or_default();
                self.metrics.checkpoints += 1;
                self.store.rows.settle(done.rows);
                self.store.marks.settle(done.marks);
            }
            _ => {
                if kind == Some(ChoreKind::Rows) && done.rows.tables().len() <= 1 {
                    self.forget_removed();
                }
                self.store.rows.replace_tables(done.rows);
                self.store.marks.replace_tables(done.marks);
            }
        }
    }

    /// All rows went through one merge, so rows that it left out and that were not rewritten no longer exist.
    fn forget_removed(&mut self) {
        let gone = std::mem::take(&mut self.maintenance.chores.removed_merging);
        self.subscriptions.forget_removed(&gone);
    }
}
