//! Maintenance: memory, checkpoints, merges, retention, expiry. Each call does a bounded amount of work.

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
use klambda_core::ids::SubscriptionId;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::record::{Change, Record};

#[derive(Default)]
pub struct Maintenance {
    chores: Chores,
    marks: OldMarks,
    retention: Retention,
    /// No segment is prepared before this time.
    pub prepare_after: Millis,
    /// What the segment that is being prepared may be used for.
    pub spare_for: SpareFor,
    next_round: Millis,
    /// The number of subscriptions with pending events, as of the last count.
    pub busy: usize,
    /// Memory used by everything except lanes, as of the last count.
    others_bytes: usize,
    /// When dead letters are next checked for expiry.
    expire_letters_at: Millis,
    /// Some subscription can read more of the log immediately.
    pub reads_on: bool,
    /// The subscription that reads first in the next round, or the next one after it.
    pub reads_next: SubscriptionId,
    /// How many unread events of a subscription are listed in memory.
    pub listed_max: usize,
    pub audit: Option<Numbers>,
    pub expire_audit_at: Millis,
}

/// What a segment may be prepared for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum SpareFor {
    #[default]
    Events,
    /// On a full disk: acknowledgements and other steps of events that were accepted before.
    Acknowledgements,
}

/// With less space in the log than this, nothing is delivered.
pub const STEPS_BYTES: usize = 16 << 10;
const ROUND_MS: u64 = 1000;
/// Bounds of `ready_max`.
const READY_MIN: usize = 2;
const READY_MAX: usize = 256;
/// Time between two portions of dead letters: checking 50,000 of them takes ten seconds.
const PORTION_MS: u64 = 50;

impl Maintenance {
    /// An event from the past is needed again, so earlier results of retention may be outdated.
    pub fn takes_up(&mut self, at: LogAddress) {
        self.retention.takes_up(at);
    }

    pub fn wants_sync(&self) -> bool {
        self.chores.wants_sync()
    }

    /// Removed subscriptions of a checkpoint, whose rows are no longer only in memory.
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
        self.wakeups.limit(&self.lanes);
        self.catch_up_all()?;
        self.limit_overflowing()?;
        if self.is_checkpoint_due() {
            self.begin_checkpoint()?;
        }
        self.expire_marks()?;
        self.expire_all_letters()?;
        self.expire_audit()?;
        if self.maintenance.next_round <= self.now {
            self.maintenance.next_round = self.now + ROUND_MS;
            self.round()?;
            self.retire()?;
        } else if self.maintenance.retention.is_under_way() {
            self.retire()?;
        }
        Ok(())
    }

    fn round(&mut self) -> Result<(), Failure> {
        self.count_busy();
        self.subscriptions.measure();
        self.maintenance.others_bytes = self.memory_bytes() - self.lanes.memory_bytes();
        for id in self.subscriptions.with(Work::Checked) {
            self.finish_draining(id)?;
            self.finish_retiring(id)?;
            self.expire_disabled(id)?;
        }
        self.limit_retired()?;
        self.expire_old_marks();
        Ok(())
    }

    /// Runs once per second, and more often while there are more portions.
    fn expire_all_letters(&mut self) -> Result<(), Failure> {
        if self.maintenance.expire_letters_at > self.now {
            return Ok(());
        }
        self.maintenance.expire_letters_at = self.now + ROUND_MS;
        for id in self.subscriptions.with(Work::Expiring) {
            if self.expire_dead_letters(id)? {
                self.maintenance.expire_letters_at = self.now + PORTION_MS;
            }
        }
        Ok(())
    }

    /// Dead letters above the limit are dropped immediately.
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

    /// Memory budget for lanes. Lanes can move to disk, so they yield to other parts that need more.
    fn lanes_budget(&self) -> usize {
        let memory = self.config.memory_bytes;
        let left = memory.saturating_sub(self.maintenance.others_bytes);
        // Eviction starts at a quarter above the budget.
        (memory * 4 / 10).min(left * 4 / 5).max(memory / 20)
    }

    /// How many lanes of each subscription may wait in memory for a slot. The number shrinks with more busy
    /// subscriptions and longer lane queues, so that all of them together stay within the budget.
    pub(crate) fn ready_max(&self) -> usize {
        let mean_bytes = self.lanes.memory_bytes() / self.lanes.len().max(1);
        let lanes = self.lanes_budget() / mean_bytes.max(LANE_BYTES);
        (lanes / self.maintenance.busy.max(1)).clamp(READY_MIN, READY_MAX)
    }

    fn count_busy(&mut self) {
        let keeping = self.subscriptions.each_with(Work::Keeping);
        self.maintenance.busy = keeping.filter(|s| s.tally.waiting > 0).count();
    }

    /// Bounds memory during recovery as well.
    pub(crate) fn keep_memory(&mut self) -> Result<(), Failure> {
        if self.lanes.memory_bytes() > self.lanes_budget() * 5 / 4 {
            self.shed_waiting(self.lanes_budget())?;
        }
        Ok(())
    }

    /// Evicts idle lanes when memory is short, then waiting lanes if that is not enough.
    fn shed_lanes(&mut self) -> Result<(), Failure> {
        let budget = if planted::is_on(Bug::MemoryUnbounded) { usize::MAX / 8 } else { self.lanes_budget() };
        while self.lanes.memory_bytes() > budget
            && let Some(slot) = self.lanes.next_idle()
        {
            let Some(resident) = self.lanes.get(slot) else { continue };
            if resident.lane.is_idle() && !resident.listed.ready {
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
                resident.listed.ready = false;
            }
        }
        // A decision that is not durable yet exists in memory only.
        let synced = self.store.log.synced();
        let candidates: Vec<Slot> = self
            .lanes
            .iter()
            .filter(|(_, resident)| {
                let is_settled = resident.barrier <= synced && !resident.lane.in_flight();
                !resident.listed.ready && is_settled
            })
            .map(|(slot, _)| slot)
            .collect();
        for slot in candidates {
            if self.lanes.memory_bytes() <= budget {
                break;
            }
            self.evict(slot)?;
        }
        // Ready lanes that stayed in memory are queued again.
        ready.into_iter().for_each(|slot| self.touch(slot));
        Ok(())
    }

    /// The number of open requests, for a stop that waits for them.
    pub fn open_requests(&self) -> usize {
        self.calls.len()
    }

    /// True if the outcome of the call is unknown or not yet logged.
    pub fn is_open(&self, ticket: Ticket) -> bool {
        self.calls.get(ticket).is_some()
    }
}
