//! Checkpoints and merges: what chores are run, and what becomes of them.

use crate::engine::{Engine, Failure};
use klambda_core::ids::{Address, Position, SubscriptionId};
use klambda_core::time::Millis;
use klambda_store::chore::{Chore, Done, Work};
use klambda_store::marks::Recent;
use klambda_store::rows::Changed;
use klambda_store::table;
use std::sync::Arc;

/// The log is never longer than this beyond the checkpoint: what a restart reads.
const REPLAY_BYTES_MAX: u64 = 256 << 20;
/// What a new mark takes in memory, and the share of memory for new ones. With the default memory that is 57,065 of
/// them: a little fewer than make their table double.
const MARK_BYTES: usize = 56;
const MARKS_SHARE: usize = 42;
/// The share of memory for all that no checkpoint has written yet.
const UNWRITTEN_SHARE: usize = 2;

/// What others write and merge for the engine, one at a time.
#[derive(Default)]
pub(super) struct Chores {
    pub checkpoint: Option<Frozen>,
    pub running: Option<Kind>,
    pub retry_at: Millis,
    pub wants_checkpoint: bool,
    pub remove: Vec<String>,
    /// Given to a chore; given again if it fails.
    pub removing: Vec<String>,
    /// Removed subscriptions of which no row is in memory alone any more …
    pub removed_stored: Vec<SubscriptionId>,
    /// … and those of them whose rows the merge under way leaves out.
    pub removed_merging: Vec<SubscriptionId>,
}

pub(super) struct Frozen {
    changed: Arc<Changed>,
    recent: Arc<Recent>,
    /// Subscriptions that were removed before it: their rows are all in tables once it is written.
    removed: Vec<SubscriptionId>,
    address: Address,
    next_position: Position,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Checkpoint,
    Rows,
    Marks,
    Remove,
}

impl Chores {
    /// A checkpoint is written once the log is durable up to it.
    pub fn wants_sync(&self) -> bool {
        self.checkpoint.is_some() && self.running.is_none()
    }
}

impl Engine {
    pub(super) fn is_checkpoint_due(&self) -> bool {
        let memory = self.config.memory_bytes;
        self.keeping.chores.checkpoint.is_none()
            && self.keeping.chores.retry_at <= self.now
            && (self.keeping.chores.wants_checkpoint
                || self.store.rows.changed_bytes() > memory / 10
                || self.store.marks.recent_len() * MARK_BYTES > memory / MARKS_SHARE
                || self.store.log.written().0 - self.store.manifest.checkpoint.0 > REPLAY_BYTES_MAX)
    }

    /// State becomes rows at one instant; a chore writes them while everything goes on.
    pub(crate) fn begin_checkpoint(&mut self) -> Result<(), Failure> {
        self.keeping.chores.wants_checkpoint = false;
        self.store.log.flush()?;
        self.store_all()?;
        // Now, as no lane needs an event any more that has left it: it has the id.
        self.sweep_copies()?;
        self.keeping.chores.checkpoint = Some(Frozen {
            changed: self.store.rows.freeze(),
            recent: self.store.marks.freeze(),
            removed: self.subscriptions.removed().to_vec(),
            address: self.store.log.written(),
            next_position: self.store.log.next_position(),
        });
        Ok(())
    }

    /// A checkpoint takes long, and meanwhile as much has changed as memory allows: nothing is added until it is written.
    pub(crate) fn awaits_checkpoint(&self) -> bool {
        self.keeping.chores.checkpoint.is_some() && self.is_much_unwritten()
    }

    /// The last checkpoint failed, and nothing more can be taken in before one succeeds.
    pub(crate) fn lacks_checkpoint(&self) -> bool {
        self.keeping.chores.retry_at > self.now && self.is_much_unwritten()
    }

    fn is_much_unwritten(&self) -> bool {
        let unwritten = self.store.rows.memory_bytes() + self.store.marks.memory_bytes();
        unwritten > self.config.memory_bytes / UNWRITTEN_SHARE
    }

    /// Asks for a checkpoint at the next opportunity, as before a clean stop.
    pub fn request_checkpoint(&mut self) {
        self.keeping.chores.wants_checkpoint = true;
    }

    pub fn is_checkpointing(&self) -> bool {
        self.keeping.chores.wants_checkpoint || self.keeping.chores.checkpoint.is_some()
    }

    pub(crate) fn next_chore(&mut self) -> Option<Chore> {
        if self.keeping.chores.running.is_some() || self.keeping.chores.retry_at > self.now {
            return None;
        }
        let (kind, work) = self.next_work()?;
        self.keeping.chores.running = Some(kind);
        Some(Chore {
            disk: self.store.disk.clone(),
            manifest: self.store.manifest.clone(),
            rows: self.store.rows.tables().clone(),
            marks: self.store.marks.tables().clone(),
            work,
        })
    }

    pub(super) fn next_work(&mut self) -> Option<(Kind, Work)> {
        // First: it needs no room, and may make what a checkpoint needs.
        if !self.keeping.chores.remove.is_empty() {
            let names = std::mem::take(&mut self.keeping.chores.remove);
            self.keeping.chores.removing = names.clone();
            return Some((Kind::Remove, Work::RemoveFiles { names }));
        }
        if let Some(frozen) = &self.keeping.chores.checkpoint {
            if self.store.log.synced() < frozen.address {
                return None;
            }
            let (changed, recent) = (frozen.changed.clone(), frozen.recent.clone());
            let (address, next_position) = (frozen.address, frozen.next_position);
            return Some((Kind::Checkpoint, Work::Checkpoint { changed, recent, address, next_position }));
        }
        if let Some(name) = self.marks_to_drop() {
            return Some((Kind::Marks, Work::DropMarks { names: vec![name] }));
        }
        if let Some(plan) = self.store.rows.tables().plan_merge() {
            // A removal that is in the log alone may be lost with it; and a restart does the steps before it again.
            let removed = self.keeping.chores.removed_stored.clone();
            self.keeping.chores.removed_merging = removed.clone();
            return Some((Kind::Rows, Work::MergeRows { plan, removed }));
        }
        let plan = self.mergeable_marks()?;
        Some((Kind::Marks, Work::MergeMarks { plan, before: Millis::ZERO }))
    }

    pub(crate) fn finish_chore(&mut self, result: Result<Done, table::Error>) {
        let kind = self.keeping.chores.running.take();
        let done = match result {
            Ok(done) => done,
            Err(error) if error.are_names_lost() => return self.note(Err(error.into())),
            Err(error) => {
                tracing::warn!(%error, "A chore on the tables failed and will be tried again.");
                self.metrics.checkpoint_failures += 1;
                self.keeping.chores.retry_at = self.now + 1000;
                if kind == Some(Kind::Remove) {
                    let later = std::mem::take(&mut self.keeping.chores.remove);
                    self.keeping.chores.remove = std::mem::take(&mut self.keeping.chores.removing);
                    self.keeping.chores.remove.extend(later);
                }
                if kind == Some(Kind::Checkpoint) {
                    self.keeping.chores.checkpoint = None;
                    self.keeping.chores.wants_checkpoint = true;
                    self.store.rows.thaw();
                    self.store.marks.thaw();
                }
                return;
            }
        };
        self.store.manifest = done.manifest;
        match kind {
            Some(Kind::Checkpoint) => {
                self.keeping.chores.removed_stored =
                    self.keeping.chores.checkpoint.take().map(|frozen| frozen.removed).unwrap_or_default();
                self.metrics.checkpoints += 1;
                self.store.rows.settle(done.rows);
                self.store.marks.settle(done.marks);
            }
            _ => {
                if kind == Some(Kind::Rows) && done.rows.tables().len() <= 1 {
                    self.forget_removed();
                }
                self.store.rows.replace_tables(done.rows);
                self.store.marks.replace_tables(done.marks);
            }
        }
    }

    /// All rows went through one merge: what it left out and nothing wrote since is nowhere any more.
    fn forget_removed(&mut self) {
        let gone = std::mem::take(&mut self.keeping.chores.removed_merging);
        self.subscriptions.forget_removed(&gone);
    }
}
