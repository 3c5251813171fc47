//! What a caller asks of a lane: its state, its head, when to look again. Nothing here changes it.

use super::{Entry, Gaps, Lane, Passed, Policy, Spilled, Turn};
use crate::ids::{LaneNumber, Sequence};
use crate::planted::{self, Bug};
use crate::time::Millis;

/// The state a person sees; exactly one at a time.
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
    /// The head failed its last attempt and stays as a dead letter in its place.
    Failed,
    /// A missing sequence, and the policy asks a person.
    Gap,
}

impl Lane {
    pub fn state(&self) -> State {
        if self.in_flight {
            State::Running
        } else if self.paused {
            State::Paused
        } else if self.retry_at.is_some() {
            State::Retrying
        } else if self.hold().is_some() {
            State::Parked
        } else if self.gap_until.is_some() && self.head().is_none() {
            State::Gap
        } else {
            State::Open
        }
    }

    /// The event whose turn it is, if one can be delivered apart from pause and backoff.
    pub fn head(&self) -> Option<(Turn, &Entry)> {
        let turn = self.turn.or_else(|| self.next_turn())?;
        let entry = match turn {
            Turn::Aside => self.aside.front(),
            Turn::Queue => self.queue.front(),
        };
        entry.map(|entry| (turn, entry))
    }

    pub(super) fn next_turn(&self) -> Option<Turn> {
        if !self.aside.is_empty() {
            return Some(Turn::Aside);
        }
        (!self.held && !self.queue.is_empty()).then_some(Turn::Queue)
    }

    /// A delivery may start now.
    pub fn is_ready(&self, now: Millis) -> bool {
        !self.in_flight && !self.paused && self.retry_at.is_none_or(|at| at <= now) && self.head().is_some()
    }

    /// When this lane wants to be looked at again.
    pub fn wake_at(&self) -> Option<Millis> {
        if self.in_flight {
            return None;
        }
        // What can still be delivered comes before the gap: its timer is looked at when that is done.
        let gap_timer =
            self.gap_timer().filter(|_| self.head().is_none() && !planted::is_on(Bug::GapNeverWoken));
        match (self.retry_at.filter(|_| !self.paused), gap_timer) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The running gap timer; none while the gap is parked.
    pub fn gap_timer(&self) -> Option<Millis> {
        self.gap_until.filter(|_| !self.gap_parked)
    }

    /// Nothing waits: the lane can live on disk alone.
    pub fn is_idle(&self) -> bool {
        self.depth() == 0 && !self.in_flight
    }

    /// All that waits, in flight included.
    pub fn depth(&self) -> u64 {
        (self.queue.len() + self.back.len() + self.aside.len() + self.early.len()) as u64
            + self.spilled.entries
            + self.early_spilled.entries
    }

    pub fn hold(&self) -> Option<Hold> {
        match (self.held, self.gap_parked) {
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
        self.expected
    }

    /// The sequences that it gave up.
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    pub fn next_number(&self) -> LaneNumber {
        self.next_number
    }

    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// As `attempts`, all resumptions included; of a lane that is parked at a dead letter, the dead letter's.
    pub fn attempts_total(&self) -> u32 {
        match self.turn {
            Some(Turn::Aside) => self.aside_attempts_total,
            _ => self.attempts_total,
        }
    }

    /// As `attempts_total`, of the event that `head` answers; of one that came back, since it did.
    pub fn head_attempts_total(&self) -> u32 {
        match self.head() {
            Some((Turn::Aside, _)) => self.aside_attempts_total,
            _ => self.attempts_total,
        }
    }

    pub fn retry_at(&self) -> Option<Millis> {
        self.retry_at
    }

    pub fn buffered(&self) -> u64 {
        self.early.len() as u64 + self.early_spilled.entries
    }

    pub fn in_flight(&self) -> bool {
        self.in_flight
    }

    /// What the open request delivers. Belongs into the record of every step: what some steps do depends on it, and a
    /// crash forgets it.
    pub fn running(&self) -> Option<Turn> {
        self.turn.filter(|_| self.in_flight)
    }

    /// How many events `Purge` drops: all but what is in flight.
    pub fn purgeable(&self) -> u64 {
        self.depth().saturating_sub(u64::from(self.in_flight))
    }

    /// How many events `DropOldest` could drop: all but what is in flight and what holds the lane.
    pub fn droppable(&self) -> u64 {
        self.depth().saturating_sub(u64::from(self.in_flight)).saturating_sub(u64::from(self.held))
    }

    /// What `DropOldest` drops.
    pub fn first_droppable(&self) -> Option<&Entry> {
        let (aside, queue) = self.kept_from_drop();
        self.aside.get(aside).or_else(|| self.queue.get(queue)).or_else(|| self.early.values().next())
    }

    /// What it takes in memory beside itself.
    pub fn heap_bytes(&self) -> usize {
        let entries = self.queue.capacity() + self.back.capacity() + self.aside.capacity();
        // A tree consists of nodes that have room for eleven, and are half full at the least.
        const NODE_BYTES: usize = 11 * (size_of::<Sequence>() + size_of::<Entry>());
        let early = if self.early.is_empty() { 0 } else { self.early.len().div_ceil(6) * NODE_BYTES };
        entries * size_of::<Entry>() + early + self.gaps.heap_bytes()
    }

    /// As `first_droppable`, once no request is open.
    pub fn first_droppable_at_rest(&self) -> Option<&Entry> {
        let queue = usize::from(self.held);
        self.aside.front().or_else(|| self.queue.get(queue)).or_else(|| self.early.values().next())
    }

    /// What `DropOldest` drops one after the other, as far as that is in memory before what is on disk.
    pub fn droppable_front(&self) -> impl Iterator<Item = &Entry> {
        let (aside, queue) = self.kept_from_drop();
        self.aside.iter().skip(aside).chain(self.queue.iter().skip(queue))
    }

    /// How many at the front of each place are never dropped: what is in flight, and a dead letter that holds the lane.
    pub(super) fn kept_from_drop(&self) -> (usize, usize) {
        let running = self.running();
        let queue = self.held || running == Some(Turn::Queue);
        (usize::from(running == Some(Turn::Aside)), usize::from(queue))
    }

    pub fn spilled(&self) -> Spilled {
        self.spilled
    }

    /// The sequences that are missing before the first early event.
    pub fn missing(&self) -> Option<(Sequence, Sequence)> {
        let lowest = *self.early.keys().next()?;
        let from = self.expected?;
        Some((from, Sequence(lowest.0.saturating_sub(1))))
    }

    /// The oldest event of the lane that waits, whatever holds it: the head, or the first early one.
    pub fn first_waiting(&self) -> Option<&Entry> {
        self.aside
            .front()
            .or_else(|| self.queue.front())
            .or_else(|| self.back.first())
            .or_else(|| self.early.values().next())
    }

    /// The first of the queue, whatever holds it.
    pub fn front(&self) -> Option<&Entry> {
        self.queue.front()
    }

    /// Every entry that is in memory, in the order of its turn.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.aside.iter().chain(&self.queue).chain(&self.back).chain(self.early.values())
    }

    pub fn early(&self) -> impl Iterator<Item = (Sequence, &Entry)> {
        self.early.iter().map(|(sequence, entry)| (*sequence, entry))
    }

    /// The arrival would be skipped as a duplicate by the watermark.
    pub fn knows(&self, sequence: Sequence, policy: &Policy, now: Millis) -> bool {
        if self.expected.is_none_or(|expected| sequence >= expected) {
            return false;
        }
        let forgotten = policy.sequence_ttl_ms > 0
            && self.is_idle()
            && now.since(self.active_at) >= policy.sequence_ttl_ms;
        let mut watermark = self.watermark;
        watermark.rotate(self.passed(), policy.window_ms, now);
        !forgotten && !self.gaps.may_miss(sequence) && watermark.is_long_past(sequence, policy.window_ms, now)
    }

    /// What was passed, as of the last step.
    pub(super) fn passed(&self) -> Passed {
        Passed { at: self.active_at, below: self.expected.unwrap_or_default() }
    }

    /// Entries held in memory, for accounting. A remembered gap costs no more than an entry and counts as one.
    pub fn resident(&self) -> usize {
        let entries = self.queue.len() + self.back.len() + self.aside.len() + self.early.len();
        entries + self.gaps.ranges().len()
    }
}
