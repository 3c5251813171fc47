//! Jobs that others run for the engine, and their results: syncs, segments, chores.

use super::{Engine, Failure};
use crate::accept::ACKNOWLEDGEMENT_BYTES;
use crate::maintenance::{STEPS_BYTES, SpareFor};
use klambda_store::address::LogAddress;
use klambda_store::chore::{Chore, Done};
use klambda_store::log::{PrepareJob, SyncJob};
use klambda_store::table;
use std::io;
use std::sync::Arc;

/// The share of memory that a checkpoint may write. A full disk must keep room for one; otherwise no segment could
/// ever be deleted.
const CHECKPOINT_SHARE: u64 = 4;
/// Time between two attempts to prepare a segment on a full disk.
const RETRY_MS: u64 = 1000;

impl Engine {
    /// A sync to run, if something waits for one or records have waited long enough.
    pub fn sync_job(&mut self) -> Option<SyncJob> {
        let wanted = self.commits.has_unsynced()
            || self.wakeups.has_unsynced()
            || self.maintenance.wants_sync()
            || self.commits.sync_due().is_some_and(|due| due <= self.now);
        if !wanted || self.condition.failed.is_some() {
            return None;
        }
        let job = self.store.log.sync_job()?;
        let events = self.commits.sync_begins(self.store.log.next_position());
        if events > 0 {
            self.metrics.commit_events.add(events);
        }
        Some(job)
    }

    pub fn sync_done(&mut self, up_to: LogAddress, result: io::Result<()>) {
        let done = self.store.log.sync_done(up_to, result);
        self.note(done.map_err(Failure::from));
        if !self.store.log.needs_sync() {
            self.commits.all_synced();
        }
        if self.condition.failed.is_none() {
            self.release_synced();
        }
    }

    pub(super) fn release_synced(&mut self) {
        let synced = self.store.log.synced();
        self.commits.synced(synced);
        self.wakeups.synced_queues(synced);
        while let Some((id, position)) = self.wakeups.synced_single(synced) {
            self.ready_single(id, position);
        }
        while let Some(slot) = self.wakeups.synced_lane(synced) {
            if let Some(resident) = self.lanes.get_mut(slot) {
                resident.listed.ready = false;
                self.touch(slot);
            }
        }
    }

    pub fn prepare_job(&mut self) -> Option<PrepareJob> {
        if self.condition.failed.is_some() || self.maintenance.prepare_after > self.now {
            return None;
        }
        self.find_space_again();
        let spare_for = match self.condition.disk_full && !self.store.log.has_room_for_steps(STEPS_BYTES) {
            true => SpareFor::Acknowledgements,
            false => SpareFor::Events,
        };
        let job = self.store.log.prepare_job(self.keep_free(spare_for))?;
        self.maintenance.spare_for = spare_for;
        Some(job.after_uncaching(self.spent_segments()))
    }

    /// How much disk space a new segment must leave free. A segment of events leaves the space for all
    /// acknowledgements, including those of the events that it will contain. An unread event needs it twice, because
    /// reading it is logged too.
    fn keep_free(&self, spare_for: SpareFor) -> u64 {
        let checkpoint = self.config.memory_bytes as u64 / CHECKPOINT_SHARE;
        let segment = self.config.log.segment_bytes;
        match spare_for {
            SpareFor::Acknowledgements => checkpoint,
            SpareFor::Events => {
                let records = self.waiting() + 2 * self.unread();
                let owed = records * ACKNOWLEDGEMENT_BYTES as u64;
                checkpoint + (owed.div_ceil(segment) + 1) * segment
            }
        }
    }

    /// A segment of acknowledgements may be prepared and unused when the disk has space again.
    fn find_space_again(&mut self) {
        if !self.condition.disk_full || !self.store.log.has_spare() {
            return;
        }
        self.maintenance.prepare_after = self.now + RETRY_MS;
        let has_space = |free| free >= self.keep_free(SpareFor::Events);
        self.condition.disk_full = !self.store.disk.free_bytes().is_none_or(has_space);
    }

    pub fn prepare_done(&mut self, result: io::Result<Arc<dyn klambda_store::disk::File>>) {
        let spare_for = self.maintenance.spare_for;
        match self.store.log.prepare_done(result) {
            Err(stopped) => return self.note(Err(stopped.into())),
            Ok(Ok(())) => {
                self.condition.disk_full = spare_for == SpareFor::Acknowledgements;
                self.condition.disk_exhausted = false;
            }
            Ok(Err(error)) => {
                if !self.condition.disk_full {
                    tracing::error!(%error, "Disk full: no space for the next log segment; new events are rejected until there is space");
                    // If the log is full too, acknowledgements get a segment without waiting.
                    self.maintenance.prepare_after = self.now;
                } else {
                    self.maintenance.prepare_after = self.now + RETRY_MS;
                }
                self.condition.disk_full = true;
                self.condition.disk_exhausted = spare_for == SpareFor::Acknowledgements;
            }
        }
        self.calls.take_stalled().into_iter().for_each(|(ticket, outcome)| self.outcome(ticket, outcome));
    }

    pub fn chore(&mut self) -> Option<Chore> {
        if self.condition.failed.is_some() {
            return None;
        }
        self.next_chore()
    }

    pub fn chore_done(&mut self, result: Result<Done, table::Error>) {
        self.finish_chore(result);
    }

    // ---- without threads ----------------------------------------------------------------------------------

    /// Runs immediately the jobs that the runner gives to other threads.
    pub fn run_jobs(&mut self) {
        self.run_sync();
        self.run_prepare();
        self.run_chore();
    }

    pub fn run_sync(&mut self) {
        if let Some(job) = self.sync_job() {
            self.sync_done(job.up_to, job.run());
        }
    }

    pub fn run_prepare(&mut self) {
        if let Some(job) = self.prepare_job() {
            self.prepare_done(job.run());
        }
    }

    pub fn run_chore(&mut self) {
        if let Some(chore) = self.chore() {
            self.chore_done(chore.run());
        }
    }
}
