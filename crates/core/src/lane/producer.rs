//! What a lane knows about its producer: the expected sequence, the gaps it gave up, and the sequences passed long
//! ago.

use super::Gaps;
use crate::ids::Sequence;
use crate::time::Millis;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Producer {
    pub(crate) expected: Option<Sequence>,
    /// The lane waits for sequences lower than the first one seen.
    pub(crate) opening: bool,
    /// The ranges of sequences that were given up.
    pub(crate) gaps: Gaps,
    pub(crate) watermark: Watermark,
}

/// The value of `expected` at two times, at least one id window apart. Each value has its own time, so a change of
/// the window length does not change the age of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    pub(crate) older: Passed,
    pub(crate) newer: Passed,
}

/// At this time, all sequences below this one had been passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) at: Millis,
    pub(crate) below: Sequence,
}

impl Producer {
    pub(super) fn forget(&mut self) {
        self.expected = None;
        self.opening = false;
        self.gaps.clear();
        self.watermark.restart();
    }

    pub(super) fn expect_anew(&mut self, sequence: Sequence) {
        self.forget();
        self.expected = Some(sequence);
    }

    /// Marks all sequences passed so far as unknown: they may or may not have been delivered. Returns true if this
    /// changed anything.
    pub(super) fn forget_below_expected(&mut self) -> bool {
        let before = self.gaps.unknown_below();
        self.gaps.forget_below(self.expected.unwrap_or_default());
        self.gaps.unknown_below() != before
    }

    /// True if the sequence was passed longer ago than the id window and is not missing. `passed`: the state after
    /// the last step.
    pub(super) fn knows(&self, sequence: Sequence, passed: Passed, window_ms: u64, now: Millis) -> bool {
        let mut watermark = self.watermark;
        watermark.rotate(passed, window_ms, now);
        !self.gaps.may_miss(sequence) && watermark.is_long_past(sequence, window_ms, now)
    }
}

impl Watermark {
    /// `current`: the expected sequence, unchanged since the last step.
    pub(super) fn rotate(&mut self, current: Passed, window_ms: u64, now: Millis) {
        if now.since(self.newer.at) < window_ms {
            return;
        }
        self.older = if now.since(current.at) < window_ms { self.newer } else { current };
        self.newer = current;
    }

    /// True if the sequence was passed longer ago than the window.
    pub(super) fn is_long_past(&self, sequence: Sequence, window_ms: u64, now: Millis) -> bool {
        sequence < self.older.below && now.since(self.older.at) >= window_ms
    }

    /// Forgets what was passed: every sequence below the expected one is now late, not a duplicate.
    pub(super) fn restart(&mut self) {
        self.newer.below = Sequence(0);
        self.older.below = Sequence(0);
    }
}
