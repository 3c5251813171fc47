//! The producer's sequence: what is expected, what came early and waits for it, what came late.

use super::{Action, Count, Entry, Flag, Lane, Policy, Why};
use crate::ids::Sequence;
use crate::planted::{self, Bug};
use crate::subscription::Start;
use crate::time::Millis;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpilledEarly {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// The highest sequence among them.
    pub(crate) highest: Sequence,
}

/// `expected` at two moments, at least an id window apart. Each knows its time: a window that is made shorter or longer
/// makes nothing older than it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    pub(crate) older: Passed,
    pub(crate) newer: Passed,
}

/// All sequences below this one were passed at this time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) at: Millis,
    pub(crate) below: Sequence,
}

impl Lane {
    pub(super) fn arrived(
        &mut self,
        entry: Entry,
        sequence: Sequence,
        taken: bool,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        self.forget_if_idle(policy, now);
        self.open_if_first(sequence, policy);
        let Some(expected) = self.expected else {
            return self.buffer(entry, sequence, taken, policy, now, actions);
        };
        if sequence == expected
            || (planted::is_on(Bug::GapIgnored) && sequence.0 == expected.0 + 1 && self.early.is_empty())
        {
            self.take(entry, sequence);
            self.limit_gap(policy, now, actions);
        } else if sequence > expected {
            self.buffer(entry, sequence, taken, policy, now, actions);
        } else {
            // Whatever was passed long ago is turned away before it is accepted (`knows`): what is here is not lost.
            self.gaps.fill(sequence);
            self.late(entry, sequence, policy, actions);
        }
    }

    fn forget_if_idle(&mut self, policy: &Policy, now: Millis) {
        let ttl = policy.sequence_ttl_ms;
        if ttl > 0 && self.is_idle() && now.since(self.active_at) >= ttl {
            self.forget_sequence();
        }
    }

    /// An event of this lane is gone before it had a place: the next one to take one is flagged.
    pub fn missed(&mut self) {
        self.flag_next = true;
    }

    /// An event of this lane left without success, and may be sent again. Which sequence it had is not kept, so nothing
    /// that was passed until now is taken for a duplicate by its sequence alone. Answers whether that is news.
    pub fn released(&mut self) -> bool {
        let before = self.gaps.unknown_below();
        self.gaps.forget_below(self.expected.unwrap_or_default());
        self.gaps.unknown_below() != before
    }

    /// What its producer will send next is not known any more, nor what it has sent. For a lane in which nothing waits.
    pub fn forget_sequence(&mut self) {
        self.expected = None;
        self.opening = false;
        self.gaps.clear();
        self.watermark.restart();
    }

    fn open_if_first(&mut self, sequence: Sequence, policy: &Policy) {
        if self.expected.is_some() {
            return;
        }
        let first = match policy.start {
            Start::At(first) => Some(Sequence(first)),
            Start::First => Some(sequence),
            Start::Auto => (sequence.0 <= 1).then_some(sequence),
        };
        match first {
            Some(first) => self.open_at(first),
            None => self.opening = true,
        }
    }

    pub(super) fn open_at(&mut self, first: Sequence) {
        self.opening = false;
        self.gap_until = None;
        self.expected = Some(first);
    }

    fn take(&mut self, entry: Entry, sequence: Sequence) {
        self.place(entry);
        self.expected = Some(Sequence(sequence.0.saturating_add(1)));
        self.gap_closed();
        self.moved_on();
    }

    pub(super) fn drain_early(&mut self) {
        while let Some(expected) = self.expected
            && let Some(entry) = self.early.remove(&expected)
        {
            self.early_bytes -= u64::from(entry.bytes);
            self.place(entry);
            self.expected = Some(Sequence(expected.0.saturating_add(1)));
        }
    }

    fn buffer(
        &mut self,
        entry: Entry,
        sequence: Sequence,
        taken: bool,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        if taken || self.early.contains_key(&sequence) {
            return self.late(entry, sequence, policy, actions);
        }
        if planted::is_on(Bug::BufferDrops) && self.buffered() + 1 >= policy.buffer_events_max {
            return;
        }
        if self.expected.is_some() {
            let (what, at, expected) = (Count::Early, entry.at, self.expected);
            actions.push(Action::Count { what, at, sequence, expected });
        }
        if self.beyond_early(sequence) {
            self.spill_one(sequence, entry, actions);
        } else {
            self.early_bytes += u64::from(entry.bytes);
            self.early.insert(sequence, entry);
        }
        self.reopened = true;
        self.limit_gap(policy, now, actions);
        if self.gap_parked {
            self.spill_early(policy, actions);
        }
    }

    pub(super) fn is_buffer_full(&self, policy: &Policy) -> bool {
        self.buffered() >= policy.buffer_events_max
            || self.early_bytes + self.early_spilled.bytes >= policy.buffer_bytes_max
    }

    /// A parked gap goes on queueing: what is beyond the buffer's limit waits on disk, the highest first.
    fn spill_early(&mut self, policy: &Policy, actions: &mut Vec<Action>) {
        while self.early.len() as u64 > policy.buffer_events_max || self.early_bytes > policy.buffer_bytes_max
        {
            let Some((sequence, entry)) = self.early.pop_last() else { return };
            self.early_bytes -= u64::from(entry.bytes);
            self.spill_one(sequence, entry, actions);
        }
    }

    fn spill_one(&mut self, sequence: Sequence, entry: Entry, actions: &mut Vec<Action>) {
        let spilled = &mut self.early_spilled;
        spilled.highest = if spilled.entries == 0 { sequence } else { spilled.highest.max(sequence) };
        spilled.entries += 1;
        spilled.bytes += u64::from(entry.bytes);
        actions.push(Action::SpillEarly { sequence, entry });
    }

    fn beyond_early(&self, sequence: Sequence) -> bool {
        self.early_spilled.entries > 0
            && self.early.keys().next_back().is_some_and(|highest| sequence > *highest)
    }

    pub(super) fn late(
        &mut self,
        mut entry: Entry,
        sequence: Sequence,
        policy: &Policy,
        actions: &mut Vec<Action>,
    ) {
        let (what, at, expected) = (Count::Late, entry.at, self.expected);
        actions.push(Action::Count { what, at, sequence, expected });
        entry.flag = if planted::is_on(Bug::LateUnflagged) { Flag::None } else { Flag::Late };
        if policy.strict {
            actions.push(Action::DeadLetter { entry, why: Why::Late });
        } else {
            self.place(entry);
        }
    }

    pub fn has_spilled_early(&self) -> bool {
        self.early_spilled.entries > 0
    }

    /// Early events on disk.
    pub fn early_on_disk(&self) -> u64 {
        self.early_spilled.entries
    }

    /// One of the early events on disk is gone.
    pub fn drop_early_on_disk(&mut self, entry: &Entry) {
        self.early_spilled.entries = self.early_spilled.entries.saturating_sub(1);
        self.early_spilled.bytes = self.early_spilled.bytes.saturating_sub(u64::from(entry.bytes));
    }

    /// Early events on disk must come back before the next step: none is left in memory.
    pub fn wants_early(&self) -> bool {
        self.early_spilled.entries > 0 && self.early.is_empty()
    }

    /// The lowest early events from disk, in order. Those that a reset has passed meanwhile are late: what follows from
    /// that is to be done like the actions of a step.
    pub fn load_early(
        &mut self,
        entries: Vec<(Sequence, Entry)>,
        policy: &Policy,
        now: Millis,
    ) -> Vec<Action> {
        let state = self.state();
        let mut actions = Vec::new();
        for (sequence, entry) in entries {
            self.early_spilled.entries = self.early_spilled.entries.saturating_sub(1);
            self.early_spilled.bytes = self.early_spilled.bytes.saturating_sub(u64::from(entry.bytes));
            if self.expected.is_some_and(|expected| sequence < expected) {
                self.late(entry, sequence, policy, &mut actions);
            } else {
                self.early_bytes += u64::from(entry.bytes);
                self.early.insert(sequence, entry);
            }
        }
        if self.reopened {
            self.moved_on();
            self.limit_gap(policy, now, &mut actions);
        }
        self.drain_early();
        self.watch_gap(policy, now);
        if self.state() != state {
            self.since = now;
        }
        actions
    }
}

impl Watermark {
    /// `current` is what is expected, since the last step.
    pub(super) fn rotate(&mut self, current: Passed, window_ms: u64, now: Millis) {
        if now.since(self.newer.at) < window_ms {
            return;
        }
        self.older = if now.since(current.at) < window_ms { self.newer } else { current };
        self.newer = current;
    }

    /// Whether the sequence was passed longer ago than the window is long.
    pub(super) fn is_long_past(&self, sequence: Sequence, window_ms: u64, now: Millis) -> bool {
        sequence < self.older.below && now.since(self.older.at) >= window_ms
    }

    /// Nothing was passed long ago: whatever comes below the expected sequence is late, no duplicate.
    pub(super) fn restart(&mut self) {
        self.newer.below = Sequence(0);
        self.older.below = Sequence(0);
    }
}
