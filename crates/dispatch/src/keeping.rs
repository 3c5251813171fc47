//! Keeping house: memory, checkpoints, merges, retention, expiry. Everything here is bounded work per call.

mod checkpoint;
mod marks;
mod retention;

use self::checkpoint::Chores;
use self::marks::OldMarks;
use self::retention::Retention;
use crate::audit::Numbers;
use crate::engine::{Engine, Failure, Ticket};
use crate::lanes::{LANE_BYTES, Slot};
use crate::subscription::Phase;
use crate::subscriptions::Work;
use klambda_core::ids::{Address, SubscriptionId};
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_store::record::{Change, Record};

#[derive(Default)]
pub struct Keeping {
    chores: Chores,
    marks: OldMarks,
    retention: Retention,
    /// No attempt to prepare a segment before this.
    pub prepare_after: Millis,
    next_round: Millis,
    /// Subscriptions for which something waits, as of the last look.
    pub busy: usize,
    /// What all but lanes takes in memory, as of the last look.
    others_bytes: usize,
    /// When dead letters are next looked through for those past their time.
    expire_letters_at: Millis,
    /// Some subscription can read more of the log at once.
    pub reads_on: bool,
    /// How many unread events of a subscription are listed in memory.
    pub listed_max: usize,
    /// Which entries the audit log has, once that was looked up.
    pub audit: Option<Numbers>,
    pub expire_audit_at: Millis,
}

const ROUND_MS: u64 = 1000;
/// Bounds of `ready_max`.
const READY_MIN: usize = 2;
const READY_MAX: usize = 256;
/// Between two portions of dead letters that are looked through: 50,000 of them take ten seconds.
const PORTION_MS: u64 = 50;

impl Keeping {
    /// An event from the past is wanted again: what was looked through before that did not know it.
    pub fn takes_up(&mut self, at: Address) {
        self.retention.takes_up(at);
    }

    pub fn wants_sync(&self) -> bool {
        self.chores.wants_sync()
    }

    /// Removed subscriptions of a checkpoint: no row of them is in memory alone.
    pub fn set_removed_stored(&mut self, removed: Vec<SubscriptionId>) {
        self.chores.removed_stored = removed;
    }

    pub fn letters_due(&self) -> Millis {
        self.expire_letters_at
    }
}

impl Engine {
    pub(crate) fn keep_house(&mut self) -> Result<(), Failure> {
        if self.condition.failed.is_some() {
            return Ok(());
        }
        self.shed_lanes()?;
        self.waits.limit(&self.lanes);
        self.catch_up_all()?;
        self.limit_overflowing()?;
        if self.is_checkpoint_due() {
            self.begin_checkpoint()?;
        }
        self.expire_marks()?;
        self.expire_all_letters()?;
        if self.keeping.next_round <= self.now {
            self.keeping.next_round = self.now + ROUND_MS;
            self.round()?;
            self.retire()?;
        } else if self.keeping.retention.is_under_way() {
            self.retire()?;
        }
        Ok(())
    }

    fn round(&mut self) -> Result<(), Failure> {
        self.count_busy();
        self.keeping.others_bytes = self.memory_bytes() - self.lanes.memory_bytes();
        let ids: Vec<SubscriptionId> = self.subscriptions.ids();
        for id in ids {
            self.finish_draining(id)?;
            self.finish_retiring(id)?;
        }
        self.limit_retired()?;
        self.expire_audit()?;
        self.expire_old_marks();
        Ok(())
    }

    /// Once a second, and portion after portion while there are more.
    fn expire_all_letters(&mut self) -> Result<(), Failure> {
        if self.keeping.expire_letters_at > self.now {
            return Ok(());
        }
        self.keeping.expire_letters_at = self.now + ROUND_MS;
        let ids: Vec<SubscriptionId> = self.subscriptions.ids();
        for id in ids {
            if self.expire_dead_letters(id)? {
                self.keeping.expire_letters_at = self.now + PORTION_MS;
            }
        }
        Ok(())
    }

    /// Too many dead letters are not waited with.
    fn limit_overflowing(&mut self) -> Result<(), Failure> {
        let over = self.subscriptions.with(Work::Overflowing);
        over.into_iter().try_for_each(|id| self.limit_dead_letters(id))
    }

    fn finish_draining(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        if subscription.phase == Phase::Draining
            && subscription.tally.waiting == 0
            && subscription.flow.in_flight == 0
        {
            let change = if subscription.tally.dead > 0 { Change::Retired } else { Change::Remove };
            self.commit(&Record::Subscription { time: self.now, subscription: id, change })?;
        }
        Ok(())
    }

    /// Bytes that lanes may take in memory. Lanes can move to disk, so they give way where other parts need more.
    fn lanes_budget(&self) -> usize {
        let memory = self.config.memory_bytes;
        let left = memory.saturating_sub(self.keeping.others_bytes);
        // Eviction begins a quarter above the budget.
        (memory * 4 / 10).min(left * 4 / 5).max(memory / 20)
    }

    /// How many lanes of each subscription may wait in memory for a slot. The more subscriptions have something to do,
    /// and the longer the queues of lanes are, the fewer of each: together they stay within what lanes may take.
    pub(crate) fn ready_max(&self) -> usize {
        let mean_bytes = self.lanes.memory_bytes() / self.lanes.len().max(1);
        let lanes = self.lanes_budget() / mean_bytes.max(LANE_BYTES);
        (lanes / self.keeping.busy.max(1)).clamp(READY_MIN, READY_MAX)
    }

    fn count_busy(&mut self) {
        self.keeping.busy = self.subscriptions.values().filter(|s| s.tally.waiting > 0).count();
    }

    /// During recovery, which is as bounded as everything else.
    pub(crate) fn keep_memory(&mut self) -> Result<(), Failure> {
        if self.lanes.memory_bytes() > self.lanes_budget() * 5 / 4 {
            self.shed_waiting(self.lanes_budget())?;
        }
        Ok(())
    }

    /// Lanes that have nothing to do leave memory once it is short; if that is not enough, those that wait do too.
    fn shed_lanes(&mut self) -> Result<(), Failure> {
        let budget = if planted::is_on(Bug::MemoryUnbounded) { usize::MAX / 8 } else { self.lanes_budget() };
        while self.lanes.memory_bytes() > budget
            && let Some(slot) = self.lanes.next_idle()
        {
            let Some(resident) = self.lanes.get(slot) else { continue };
            if resident.lane.is_idle() && !resident.queued {
                self.evict(slot)?;
            }
        }
        if self.lanes.memory_bytes() > budget * 5 / 4 {
            self.shed_waiting(budget)?;
        }
        Ok(())
    }

    fn shed_waiting(&mut self, budget: usize) -> Result<(), Failure> {
        self.count_busy();
        let ready_max = self.ready_max();
        let mut ready: Vec<Slot> = Vec::new();
        for id in self.subscriptions.with(Work::Ready) {
            let Some(subscription) = self.subscriptions.get_mut(id) else { continue };
            let keep = subscription.flow.ready.len().min(ready_max);
            ready.extend(subscription.flow.ready.drain(keep..));
        }
        for slot in &ready {
            if let Some(resident) = self.lanes.get_mut(*slot) {
                resident.queued = false;
            }
        }
        // A decision that is not durable yet is known in memory alone.
        let synced = self.store.log.synced();
        let candidates: Vec<Slot> = self
            .lanes
            .iter()
            .filter(|(_, resident)| {
                let is_settled = resident.barrier <= synced && !resident.lane.in_flight();
                !resident.queued && is_settled && !resident.key.is_empty()
            })
            .map(|(slot, _)| slot)
            .collect();
        for slot in candidates {
            if self.lanes.memory_bytes() <= budget {
                break;
            }
            self.evict(slot)?;
        }
        // Those that could stay queue up again.
        ready.into_iter().for_each(|slot| self.touch(slot));
        Ok(())
    }

    /// Requests that are open, for a stop that waits for them.
    pub fn open_requests(&self) -> usize {
        self.calls.len()
    }

    /// Its outcome is not known yet, or waits to be written.
    pub fn is_open(&self, ticket: Ticket) -> bool {
        self.calls.get(ticket).is_some()
    }
}
