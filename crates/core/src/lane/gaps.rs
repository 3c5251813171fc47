//! The sequences that a lane gave up, remembered as ranges. If such a sequence arrives later, it is late and not a
//! duplicate.

use crate::ids::Sequence;
use crate::planted::{self, Bug};
use crate::time::Millis;

/// The maximum number of ranges per lane. At the limit, the lane forgets the lowest range.
const RANGES_MAX: usize = 1024;

/// A range of sequences that the lane no longer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub from: Sequence,
    pub to: Sequence,
    /// The time when the lane gave up. Merged ranges keep the latest time.
    pub at: Millis,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// In ascending order. Neighbouring ranges are merged.
    ranges: Vec<Gap>,
    /// One above the highest sequence that was forgotten, or that was passed when an event was released; zero if
    /// there is none. A sequence below it may never have been delivered, so it is never a duplicate by the watermark.
    unknown_below: Sequence,
}

impl Gaps {
    pub(crate) fn decoded(ranges: Vec<Gap>, unknown_below: Sequence) -> Gaps {
        Gaps { ranges, unknown_below }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<Gap>()
    }

    pub fn ranges(&self) -> &[Gap] {
        &self.ranges
    }

    /// The highest sequence that was given up and then forgotten.
    pub fn forgotten(&self) -> Option<Sequence> {
        self.unknown_below.0.checked_sub(1).map(Sequence)
    }

    pub(crate) fn unknown_below(&self) -> Sequence {
        self.unknown_below
    }

    /// True if the sequence may never have arrived: it is in a range, or the lane no longer knows.
    pub(super) fn may_miss(&self, sequence: Sequence) -> bool {
        let is_forgotten = sequence < self.unknown_below && !planted::is_on(Bug::GapsForgotten);
        is_forgotten || self.find(sequence).is_some()
    }

    fn find(&self, sequence: Sequence) -> Option<usize> {
        let n = self.ranges.partition_point(|gap| gap.to < sequence);
        self.ranges.get(n).is_some_and(|gap| gap.from <= sequence).then_some(n)
    }

    /// Adds a range and merges it with the ranges that it touches.
    pub(super) fn record(&mut self, gap: Gap) {
        let first = self.ranges.partition_point(|other| other.to.0.saturating_add(1) < gap.from.0);
        let end = self.ranges.partition_point(|other| other.from.0 <= gap.to.0.saturating_add(1));
        let merged = self.ranges[first..end].iter().fold(gap, |all, one| Gap {
            from: all.from.min(one.from),
            to: all.to.max(one.to),
            at: all.at.max(one.at),
        });
        self.ranges.splice(first..end, [merged]);
        self.limit();
    }

    /// Removes a sequence that arrived late from its range.
    pub(super) fn fill(&mut self, sequence: Sequence) {
        let Some(n) = self.find(sequence) else { return };
        let gap = self.ranges[n];
        let before = (gap.from < sequence).then(|| Gap { to: Sequence(sequence.0 - 1), ..gap });
        let after = (sequence < gap.to).then(|| Gap { from: Sequence(sequence.0 + 1), ..gap });
        self.ranges.splice(n..=n, before.into_iter().chain(after));
        self.limit();
    }

    fn limit(&mut self) {
        let over = self.ranges.len().saturating_sub(ranges_max());
        if let Some(highest) = self.ranges.drain(..over).next_back() {
            self.unknown_below = self.unknown_below.max(Sequence(highest.to.0.saturating_add(1)));
        }
    }

    /// Marks all sequences below this one as unknown: they may or may not have been delivered.
    pub(super) fn forget_below(&mut self, sequence: Sequence) {
        self.unknown_below = self.unknown_below.max(sequence);
    }

    pub(super) fn clear(&mut self) {
        *self = Gaps::default();
    }
}

fn ranges_max() -> usize {
    if planted::is_on(Bug::GapsForgotten) { 64 } else { RANGES_MAX }
}
