//! Events with a producer sequence. An event with the expected sequence is queued, an early event waits in the
//! buffer, and a late event is flagged.

use super::{Action, Count, Entry, Flag, Lane, Policy, Why};
use crate::ids::Sequence;
use crate::planted::{self, Bug};
use crate::subscription::Start;
use crate::time::Millis;
use std::collections::BTreeMap;

/// Events whose sequence is above the expected one. The lowest are in memory, the others on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Early {
    pub(crate) entries: BTreeMap<Sequence, Entry>,
    /// Total size of the events in memory.
    pub(crate) bytes: u64,
    /// The early events on disk. Their sequences are higher than all sequences in `entries`.
    pub(crate) spilled: SpilledEarly,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpilledEarly {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// The highest sequence on disk.
    pub(crate) highest: Sequence,
}

impl Early {
    pub(super) fn len(&self) -> u64 {
        self.entries.len() as u64 + self.spilled.entries
    }

    pub(super) fn lowest(&self) -> Option<Sequence> {
        self.entries.keys().next().copied()
    }

    pub(super) fn highest(&self) -> Option<Sequence> {
        let spilled = (self.spilled.entries > 0).then_some(self.spilled.highest);
        spilled.or_else(|| self.entries.keys().next_back().copied())
    }

    pub(super) fn first(&self) -> Option<&Entry> {
        self.entries.values().next()
    }

    pub(crate) fn insert(&mut self, sequence: Sequence, entry: Entry) {
        self.bytes += u64::from(entry.bytes);
        self.entries.insert(sequence, entry);
    }

    fn remove(&mut self, sequence: Sequence) -> Option<Entry> {
        let entry = self.entries.remove(&sequence)?;
        self.bytes -= u64::from(entry.bytes);
        Some(entry)
    }

    pub(super) fn pop_first(&mut self) -> Option<Entry> {
        self.remove(self.lowest()?)
    }

    /// Removes and returns the highest event in memory if memory holds more than the buffer allows.
    fn pop_beyond(&mut self, policy: &Policy) -> Option<(Sequence, Entry)> {
        let is_full =
            self.entries.len() as u64 > policy.buffer_events_max || self.bytes > policy.buffer_bytes_max;
        let (sequence, entry) = is_full.then(|| self.entries.pop_last()).flatten()?;
        self.bytes -= u64::from(entry.bytes);
        Some((sequence, entry))
    }

    /// Removes and returns the events in memory below this sequence.
    pub(super) fn take_below(&mut self, sequence: Sequence) -> BTreeMap<Sequence, Entry> {
        let kept = self.entries.split_off(&sequence);
        let taken = std::mem::replace(&mut self.entries, kept);
        self.bytes -= taken.values().map(|entry| u64::from(entry.bytes)).sum::<u64>();
        taken
    }

    /// True if this sequence belongs on disk, because it is above all sequences in memory.
    fn is_beyond(&self, sequence: Sequence) -> bool {
        self.spilled.entries > 0 && self.entries.keys().next_back().is_some_and(|highest| sequence > *highest)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        // A B-tree node has room for eleven entries and is at least half full.
        const NODE_BYTES: usize = 11 * (size_of::<Sequence>() + size_of::<Entry>());
        if self.entries.is_empty() { 0 } else { self.entries.len().div_ceil(6) * NODE_BYTES }
    }
}

impl SpilledEarly {
    fn add(&mut self, sequence: Sequence, entry: &Entry) {
        self.highest = if self.entries == 0 { sequence } else { self.highest.max(sequence) };
        self.entries += 1;
        self.bytes += u64::from(entry.bytes);
    }

    fn remove(&mut self, entry: &Entry) {
        self.entries = self.entries.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(u64::from(entry.bytes));
    }
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
        let Some(expected) = self.producer.expected else {
            return self.buffer(entry, sequence, taken, policy, now, actions);
        };
        if sequence == expected
            || (planted::is_on(Bug::GapIgnored)
                && sequence.0 == expected.0 + 1
                && self.early.entries.is_empty())
        {
            self.take(entry, sequence);
            self.limit_gap(policy, now, actions);
        } else if sequence > expected {
            self.buffer(entry, sequence, taken, policy, now, actions);
        } else {
            // Duplicates by the watermark are skipped before acceptance (`knows`), so an event that gets here may not
            // have been delivered yet.
            self.producer.gaps.fill(sequence);
            self.late(entry, sequence, policy, actions);
        }
    }

    fn forget_if_idle(&mut self, policy: &Policy, now: Millis) {
        let ttl = policy.sequence_ttl_ms;
        if ttl > 0 && self.is_idle() && now.since(self.active_at) >= ttl {
            self.forget_sequence();
        }
    }

    /// An event of this lane was lost before it got a place in the queue. Flags the next queued event.
    pub fn missed(&mut self) {
        self.queue.flag_next = true;
    }

    /// An event of this lane left without success and may be sent again. The lane does not record its sequence, so
    /// from now on no sequence below the expected one counts as a duplicate by the watermark alone. Returns true if
    /// this changed the lane.
    pub fn released(&mut self) -> bool {
        self.producer.forget_below_expected()
    }

    /// Forgets the producer's expected and passed sequences. Only for a lane without pending events.
    pub fn forget_sequence(&mut self) {
        self.producer.forget();
    }

    fn open_if_first(&mut self, sequence: Sequence, policy: &Policy) {
        if self.producer.expected.is_some() {
            return;
        }
        let first = match policy.start {
            Start::At(first) => Some(Sequence(first)),
            Start::First => Some(sequence),
            Start::Auto => (sequence.0 <= 1).then_some(sequence),
        };
        match first {
            Some(first) => self.open_at(first),
            None => self.producer.opening = true,
        }
    }

    pub(super) fn open_at(&mut self, first: Sequence) {
        self.producer.opening = false;
        self.gap.until = None;
        self.producer.expected = Some(first);
    }

    fn take(&mut self, entry: Entry, sequence: Sequence) {
        self.queue.place(entry);
        self.producer.expected = Some(Sequence(sequence.0.saturating_add(1)));
        self.gap.close();
        self.moved_on();
    }

    pub(super) fn drain_early(&mut self) {
        while let Some(expected) = self.producer.expected
            && let Some(entry) = self.early.remove(expected)
        {
            self.queue.place(entry);
            self.producer.expected = Some(Sequence(expected.0.saturating_add(1)));
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
        if taken || self.early.entries.contains_key(&sequence) {
            return self.late(entry, sequence, policy, actions);
        }
        if planted::is_on(Bug::BufferDrops) && self.buffered() + 1 >= policy.buffer_events_max {
            return;
        }
        if self.producer.expected.is_some() {
            let (what, at, expected) = (Count::Early, entry.at, self.producer.expected);
            actions.push(Action::Count { what, at, sequence, expected });
        }
        if self.early.is_beyond(sequence) {
            self.spill_one(sequence, entry, actions);
        } else {
            self.early.insert(sequence, entry);
        }
        self.gap.reopened = true;
        self.limit_gap(policy, now, actions);
        if self.gap.parked {
            self.spill_early(policy, actions);
        }
    }

    pub(super) fn is_buffer_full(&self, policy: &Policy) -> bool {
        self.early.len() >= policy.buffer_events_max
            || self.early.bytes + self.early.spilled.bytes >= policy.buffer_bytes_max
    }

    /// A parked gap continues to accept events. Beyond the buffer limit, the highest sequences go to disk.
    fn spill_early(&mut self, policy: &Policy, actions: &mut Vec<Action>) {
        while let Some((sequence, entry)) = self.early.pop_beyond(policy) {
            self.spill_one(sequence, entry, actions);
        }
    }

    fn spill_one(&mut self, sequence: Sequence, entry: Entry, actions: &mut Vec<Action>) {
        self.early.spilled.add(sequence, &entry);
        actions.push(Action::SpillEarly { sequence, entry });
    }

    pub(super) fn late(
        &mut self,
        mut entry: Entry,
        sequence: Sequence,
        policy: &Policy,
        actions: &mut Vec<Action>,
    ) {
        let (what, at, expected) = (Count::Late, entry.at, self.producer.expected);
        actions.push(Action::Count { what, at, sequence, expected });
        entry.flag = if planted::is_on(Bug::LateUnflagged) { Flag::None } else { Flag::Late };
        if policy.strict {
            actions.push(Action::DeadLetter { entry, why: Why::Late });
        } else {
            self.queue.place(entry);
        }
    }

    pub fn has_spilled_early(&self) -> bool {
        self.early.spilled.entries > 0
    }

    /// The number of early events on disk.
    pub fn early_on_disk(&self) -> u64 {
        self.early.spilled.entries
    }

    /// Accounts for the removal of one early event from disk.
    pub fn drop_early_on_disk(&mut self, entry: &Entry) {
        self.early.spilled.remove(entry);
    }

    /// True if early events must be loaded from disk before the next step, because none is left in memory.
    pub fn wants_early(&self) -> bool {
        self.early.spilled.entries > 0 && self.early.entries.is_empty()
    }

    /// Adds the lowest early events from disk, in order. Events that a reset passed in the meantime are late. The
    /// caller performs the returned actions like those of a step.
    pub fn load_early(
        &mut self,
        entries: Vec<(Sequence, Entry)>,
        policy: &Policy,
        now: Millis,
    ) -> Vec<Action> {
        let state = self.state();
        let mut actions = Vec::new();
        for (sequence, entry) in entries {
            self.early.spilled.remove(&entry);
            if self.producer.expected.is_some_and(|expected| sequence < expected) {
                self.late(entry, sequence, policy, &mut actions);
            } else {
                self.early.insert(sequence, entry);
            }
        }
        if self.gap.reopened {
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
