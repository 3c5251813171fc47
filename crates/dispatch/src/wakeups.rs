//! Lanes and unordered events that wait for a time or for a sync.

use crate::lanes::{Lanes, Slot};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How many timers the heap may hold besides one for each lane.
const TIMERS_MIN: usize = 1024;

#[derive(Default)]
pub(crate) struct Wakeups {
    lanes: BinaryHeap<Reverse<(Millis, Slot)>>,
    singles: BinaryHeap<Reverse<(Millis, SubscriptionId, Position)>>,
    /// Lanes whose head is not durable yet.
    unsynced: VecDeque<(LogAddress, Slot)>,
    /// Unordered events whose replay is not durable yet.
    unsynced_singles: VecDeque<(LogAddress, SubscriptionId, Position)>,
    /// How far the log must be durable before all queues of unordered events may continue.
    unsynced_queues: Option<LogAddress>,
}

impl Wakeups {
    pub fn lane_until(&mut self, at: Millis, slot: Slot) {
        self.lanes.push(Reverse((at, slot)));
    }

    pub fn single_until(&mut self, at: Millis, id: SubscriptionId, position: Position) {
        self.singles.push(Reverse((at, id, position)));
    }

    pub fn lane_until_synced(&mut self, at: LogAddress, slot: Slot) {
        self.unsynced.push_back((at, slot));
    }

    pub fn single_until_synced(&mut self, at: LogAddress, id: SubscriptionId, position: Position) {
        self.unsynced_singles.push_back((at, id, position));
    }

    pub fn queue_until_synced(&mut self, at: LogAddress) {
        self.unsynced_queues = self.unsynced_queues.max(Some(at));
    }

    /// The next lane whose timer is due.
    pub fn due_lane(&mut self, now: Millis) -> Option<(Millis, Slot)> {
        self.lanes.peek().filter(|next| next.0.0 <= now)?;
        self.lanes.pop().map(|next| next.0)
    }

    pub fn due_single(&mut self, now: Millis) -> Option<(SubscriptionId, Position)> {
        self.singles.peek().filter(|next| next.0.0 <= now)?;
        self.singles.pop().map(|Reverse((_, id, position))| (id, position))
    }

    pub fn synced_lane(&mut self, up_to: LogAddress) -> Option<Slot> {
        self.unsynced.pop_front_if(|waiting| waiting.0 <= up_to).map(|(_, slot)| slot)
    }

    /// The next unordered event that may be called again after a sync up to this address.
    pub fn synced_single(&mut self, up_to: LogAddress) -> Option<(SubscriptionId, Position)> {
        let next = self.unsynced_singles.pop_front_if(|waiting| waiting.0 <= up_to);
        next.map(|(_, id, position)| (id, position))
    }

    pub fn synced_queues(&mut self, up_to: LogAddress) {
        self.unsynced_queues.take_if(|waiting| *waiting <= up_to);
    }

    pub fn has_unsynced(&self) -> bool {
        !self.unsynced.is_empty() || !self.unsynced_singles.is_empty() || self.unsynced_queues.is_some()
    }

    /// When the next timer is due.
    pub fn next_due(&self) -> Option<Millis> {
        let lane = self.lanes.peek().map(|Reverse((at, _))| *at);
        let single = self.singles.peek().map(|Reverse((at, _, _))| *at);
        lane.into_iter().chain(single).min()
    }

    /// A lane that leaves memory leaves its timer behind. When there are too many such timers, they are removed.
    pub fn limit(&mut self, lanes: &Lanes) {
        if self.lanes.len() > 2 * lanes.len() + TIMERS_MIN {
            let is_set =
                |(at, slot): (Millis, Slot)| lanes.get(slot).is_some_and(|r| r.listed.timer_at == Some(at));
            self.lanes.retain(|timer| is_set(timer.0));
            self.lanes.shrink_to(2 * self.lanes.len());
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.lanes.capacity() * size_of::<(Millis, Slot)>()
            + self.singles.capacity() * size_of::<(Millis, SubscriptionId, Position)>()
            + self.unsynced.capacity() * size_of::<(LogAddress, Slot)>()
            + self.unsynced_singles.capacity() * size_of::<(LogAddress, SubscriptionId, Position)>()
    }
}
