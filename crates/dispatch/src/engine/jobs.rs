//! Jobs that others run for the engine, and their results: syncs, segments, chores.

use super::{Engine, Failure};
use klambda_store::address::LogAddress;
use klambda_store::chore::{Chore, Done};
use klambda_store::log::{PrepareJob, SyncJob};
use klambda_store::table;
use std::io;
use std::sync::Arc;

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
        let job = self.store.log.prepare_job()?;
        Some(job.after_uncaching(self.spent_segments()))
    }

    pub fn prepare_done(&mut self, result: io::Result<Arc<dyn klambda_store::disk::File>>) {
        self.condition.disk_full = match self.store.log.prepare_done(result) {
            Err(stopped) => return self.note(Err(stopped.into())),
            Ok(Ok(())) => false,
            Ok(Err(error)) => {
                if !self.condition.disk_full {
                    tracing::error!(%error, "Disk full: no space for the next log segment; new events are rejected until there is space");
                }
                self.maintenance.prepare_after = self.now + 1000;
                true
            }
        };
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
