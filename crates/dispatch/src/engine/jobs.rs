//! What others run for the engine, and what came of it: syncs, segments, chores.

use super::{Engine, Failure, SYNC_DELAY_MS};
use klambda_core::ids::Address;
use klambda_store::chore::{Chore, Done};
use klambda_store::log::{PrepareJob, SyncJob};
use klambda_store::table;
use std::io;
use std::sync::Arc;

impl Engine {
    /// A sync to run, if something waits for one or has waited long enough.
    pub fn sync_job(&mut self) -> Option<SyncJob> {
        let wanted = !self.unsynced_answers.is_empty()
            || !self.unsynced_lanes.is_empty()
            || self.keeping.wants_sync()
            || self.dirty_since.is_some_and(|since| self.now.since(since) >= SYNC_DELAY_MS);
        if !wanted || self.failed.is_some() {
            return None;
        }
        let job = self.log.sync_job()?;
        self.dirty_since = None;
        let next = self.log.next_position();
        let events = next.0 - self.committing.0;
        if events > 0 {
            self.metrics.commit_events.add(events);
            self.committing = next;
        }
        Some(job)
    }

    pub fn sync_done(&mut self, up_to: Address, result: io::Result<()>) {
        let done = self.log.sync_done(up_to, result);
        self.note(done.map_err(Failure::from));
        if !self.log.needs_sync() {
            self.dirty_since = None;
        }
        if self.failed.is_none() {
            self.release_synced();
        }
    }

    pub(super) fn release_synced(&mut self) {
        let synced = self.log.synced();
        while let Some((_, answer)) = self.unsynced_answers.pop_front_if(|waiting| waiting.0 <= synced) {
            self.answers.push(answer);
        }
        while let Some((_, slot)) = self.unsynced_lanes.pop_front_if(|waiting| waiting.0 <= synced) {
            if let Some(resident) = self.lanes.get_mut(slot) {
                resident.queued = false;
                self.touch(slot);
            }
        }
    }

    pub fn prepare_job(&mut self) -> Option<PrepareJob> {
        if self.failed.is_some() || self.keeping.prepare_after > self.now {
            return None;
        }
        let job = self.log.prepare_job()?;
        Some(job.after_uncaching(self.spent_segments()))
    }

    pub fn prepare_done(&mut self, result: io::Result<Arc<dyn klambda_store::disk::File>>) {
        self.disk_full = match self.log.prepare_done(result) {
            Err(stopped) => return self.note(Err(stopped.into())),
            Ok(Ok(())) => false,
            Ok(Err(error)) => {
                if !self.disk_full {
                    tracing::error!(%error, "No room for the next segment: new events are refused until there is.");
                }
                self.keeping.prepare_after = self.now + 1000;
                true
            }
        };
        let stalled = std::mem::take(&mut self.stalled);
        stalled.into_iter().for_each(|(ticket, outcome)| self.outcome(ticket, outcome));
    }

    pub fn chore(&mut self) -> Option<Chore> {
        if self.failed.is_some() {
            return None;
        }
        self.next_chore()
    }

    pub fn chore_done(&mut self, result: Result<Done, table::Error>) {
        self.finish_chore(result);
    }

    // ---- without threads ----------------------------------------------------------------------------------

    /// Runs here and now what the runner gives to other threads.
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
