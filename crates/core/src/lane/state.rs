//! Read access to a lane: its state, its head, its next wake-up time. Nothing here changes the lane.

use super::{Entry, Gaps, Lane, Passed, Policy, Queue, Turn};
use crate::ids::{LaneNumber, Sequence};
use crate::planted::{self, Bug};
use crate::time::Millis;

/// The state shown to users. A lane is in exactly one state at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    Open,
    Running,
    Retrying,
    Gap,
    Parked,
    Paused,
}

impl State {
    pub const ALL: [State; 6] =
        [State::Open, State::Running, State::Retrying, State::Gap, State::Parked, State::Paused];

    pub fn name(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Running => "running",
            State::Retrying => "retrying",
            State::Gap => "gap",
            State::Parked => "parked",
            State::Paused => "paused",
        }
    }
}

/// Why a lane is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The head failed its last attempt and stays at the head as a dead letter.
    Failed,
    /// A sequence is missing and the policy requires manual action.
    Gap,
}

impl Lane {
    pub fn state(&self) -> State {
        if self.delivery.in_flight {
            State::Running
        } else if self.paused {
            State::Paused
        } else if self.delivery.retry_at.is_some() {
            State::Retrying
        } else if self.hold().is_some() {
            State::Parked
        } else if self.gap.until.is_some() && self.head().is_none() {
            State::Gap
        } else {
            State::Open
        }
    }

    /// The event whose turn it is. Ignores pause and backoff.
    pub fn head(&self) -> Option<(Turn, &Entry)> {
        let turn = self.delivery.turn.or_else(|| self.next_turn())?;
        let entry = match turn {
            Turn::Aside => self.aside.front(),
            Turn::Queue => self.queue.first(),
        };
        entry.map(|entry| (turn, entry))
    }

    pub(super) fn next_turn(&self) -> Option<Turn> {
        if !self.aside.is_empty() {
            return Some(Turn::Aside);
        }
        (!self.held && !self.queue.front.is_empty()).then_some(Turn::Queue)
    }

    /// True if a delivery may start now.
    pub fn is_ready(&self, now: Millis) -> bool {
        !self.delivery.in_flight
            && !self.paused
            && self.delivery.retry_at.is_none_or(|at| at <= now)
            && self.head().is_some()
    }

    /// The time at which the lane needs attention again.
    pub fn wake_at(&self) -> Option<Millis> {
        if self.delivery.in_flight {
            return None;
        }
        // Deliverable events come before the gap. The timer matters only when none is left.
        let gap_timer =
            self.gap_timer().filter(|_| self.head().is_none() && !planted::is_on(Bug::GapNeverWoken));
        match (self.delivery.retry_at.filter(|_| !self.paused), gap_timer) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The running gap timer; `None` while the gap is parked.
    pub fn gap_timer(&self) -> Option<Millis> {
        self.gap.until.filter(|_| !self.gap.parked)
    }

    /// True if no event is pending. An idle lane can exist on disk alone.
    pub fn is_idle(&self) -> bool {
        self.depth() == 0 && !self.delivery.in_flight
    }

    /// The number of pending events, including the one in flight.
    pub fn depth(&self) -> u64 {
        self.queue.len() + self.aside.len() as u64 + self.early.len()
    }

    pub fn hold(&self) -> Option<Hold> {
        match (self.held, self.gap.parked) {
            (true, _) => Some(Hold::Failed),
            (false, true) => Some(Hold::Gap),
            (false, false) => None,
        }
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    pub fn since(&self) -> Millis {
        self.since
    }

    pub fn active_at(&self) -> Millis {
        self.active_at
    }

    pub fn expected(&self) -> Option<Sequence> {
        self.producer.expected
    }

    /// The sequences that the lane gave up.
    pub fn gaps(&self) -> &Gaps {
        &self.producer.gaps
    }

    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    pub fn queue_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    pub fn next_number(&self) -> LaneNumber {
        self.queue.next_number
    }

    pub fn attempts(&self) -> u32 {
        self.delivery.attempts
    }

    /// Like `attempts`, but including attempts before a resume. For a lane that is parked at a dead letter, the
    /// attempts of that dead letter.
    pub fn attempts_total(&self) -> u32 {
        match self.delivery.turn {
            Some(Turn::Aside) => self.delivery.aside_total,
            _ => self.delivery.queue_total,
        }
    }

    /// Like `attempts_total`, for the event that `head` returns. For a replayed event, the attempts since its replay.
    pub fn head_attempts_total(&self) -> u32 {
        match self.head() {
            Some((Turn::Aside, _)) => self.delivery.aside_total,
            _ => self.delivery.queue_total,
        }
    }

    pub fn retry_at(&self) -> Option<Millis> {
        self.delivery.retry_at
    }

    pub fn buffered(&self) -> u64 {
        self.early.len()
    }

    pub fn in_flight(&self) -> bool {
        self.delivery.in_flight
    }

    /// The turn of the open request. Every step's record includes it, because the effect of some steps depends on it
    /// and a crash loses it.
    pub fn running(&self) -> Option<Turn> {
        self.delivery.running()
    }

    /// The number of events that `Purge` drops: all except the one in flight.
    pub fn purgeable(&self) -> u64 {
        self.depth().saturating_sub(u64::from(self.delivery.in_flight))
    }

    /// The number of events that `DropOldest` can drop: all except the one in flight and a dead letter that parks the
    /// lane.
    pub fn droppable(&self) -> u64 {
        self.depth().saturating_sub(u64::from(self.delivery.in_flight)).saturating_sub(u64::from(self.held))
    }

    /// The event that `DropOldest` drops.
    pub fn first_droppable(&self) -> Option<&Entry> {
        let (aside, queue) = self.kept_from_drop();
        self.aside.get(aside).or_else(|| self.queue.front.get(queue)).or_else(|| self.early.first())
    }

    /// Heap memory used, without the struct itself.
    pub fn heap_bytes(&self) -> usize {
        let aside = self.aside.capacity() * size_of::<Entry>();
        self.queue.heap_bytes() + aside + self.early.heap_bytes() + self.producer.gaps.heap_bytes()
    }

    /// Like `first_droppable`, but as if no request were open.
    pub fn first_droppable_at_rest(&self) -> Option<&Entry> {
        let queue = usize::from(self.held);
        self.aside.front().or_else(|| self.queue.front.get(queue)).or_else(|| self.early.first())
    }

    /// The events that `DropOldest` drops, in order, as far as they are in memory before the part on disk.
    pub fn droppable_front(&self) -> impl Iterator<Item = &Entry> {
        let (aside, queue) = self.kept_from_drop();
        self.aside.iter().skip(aside).chain(self.queue.front.iter().skip(queue))
    }

    /// For `aside` and the queue: the number of events at the front that are never dropped. These are the event in
    /// flight and a dead letter that parks the lane.
    pub(super) fn kept_from_drop(&self) -> (usize, usize) {
        let running = self.running();
        let queue = self.held || running == Some(Turn::Queue);
        (usize::from(running == Some(Turn::Aside)), usize::from(queue))
    }

    /// The first and the last sequence missing before the first early event.
    pub fn missing(&self) -> Option<(Sequence, Sequence)> {
        let lowest = self.early.lowest()?;
        let from = self.producer.expected?;
        Some((from, Sequence(lowest.0.saturating_sub(1))))
    }

    /// The oldest pending event of the lane, in any state: the head, or the first early event.
    pub fn first_waiting(&self) -> Option<&Entry> {
        self.aside
            .front()
            .or_else(|| self.queue.first())
            .or_else(|| self.queue.back.first())
            .or_else(|| self.early.first())
    }

    /// All entries in memory, in delivery order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.aside.iter().chain(self.queue.entries()).chain(self.early.entries.values())
    }

    pub fn early(&self) -> impl Iterator<Item = (Sequence, &Entry)> {
        self.early.entries.iter().map(|(sequence, entry)| (*sequence, entry))
    }

    /// True if an event with this sequence is a duplicate by the watermark.
    pub fn knows(&self, sequence: Sequence, policy: &Policy, now: Millis) -> bool {
        if self.producer.expected.is_none_or(|expected| sequence >= expected) {
            return false;
        }
        let forgotten = policy.sequence_ttl_ms > 0
            && self.is_idle()
            && now.since(self.active_at) >= policy.sequence_ttl_ms;
        !forgotten && self.producer.knows(sequence, self.passed(), policy.window_ms, now)
    }

    /// The passed sequences after the last step.
    pub(super) fn passed(&self) -> Passed {
        Passed { at: self.active_at, below: self.producer.expected.unwrap_or_default() }
    }

    /// The number of entries in memory, for accounting. A remembered gap is not larger than an entry and counts as
    /// one.
    pub fn resident(&self) -> usize {
        let entries = self.queue.in_memory() + self.aside.len() + self.early.entries.len();
        entries + self.producer.gaps.ranges().len()
    }
}
