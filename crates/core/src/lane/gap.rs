//! Gaps in the producer's sequence: their timer, and what is decided about them.

use super::{Action, Count, Lane, Policy};
use crate::ids::Sequence;
use crate::subscription::GapAction;
use crate::time::Millis;

/// Recorded gaps kept per lane; the oldest go first.
const GAPS_MAX: usize = 64;

impl Lane {
    /// Starts the gap timer the moment nothing deliverable is left before the gap, once per gap.
    pub(super) fn watch_gap(&mut self, policy: &Policy, now: Millis) {
        if self.buffered() == 0 {
            self.gap_closed();
        } else if self.wants_early() {
            // Whether there is a gap shows when they are here.
        } else if self.gap_until.is_none()
            && self.queue.is_empty()
            && self.spilled.entries == 0
            && self.aside.is_empty()
        {
            self.gap_until = Some(now + policy.gap_timeout_ms);
        }
    }

    pub(super) fn gap_expired(&mut self, policy: &Policy, actions: &mut Vec<Action>) {
        let Some(lowest) = self.early.keys().next().copied() else {
            self.gap_until = None;
            return;
        };
        if self.opening {
            self.open_at(lowest);
            return self.drain_early();
        }
        match policy.gap_action {
            GapAction::Park if self.gap_parked => {}
            GapAction::Park => {
                self.gap_parked = true;
                actions.push(Action::Count(Count::Gap));
            }
            GapAction::Skip => {
                actions.push(Action::Count(Count::Gap));
                self.skip_gap(actions);
            }
        }
    }

    pub(super) fn skip_gap(&mut self, actions: &mut Vec<Action>) {
        let Some((from, to)) = self.missing() else { return };
        self.record_gap(from, to, actions);
        self.expected = Some(Sequence(to.0 + 1));
        self.gap_closed();
        self.flag_next = true;
        self.drain_early();
    }

    pub(super) fn record_gap(&mut self, from: Sequence, to: Sequence, actions: &mut Vec<Action>) {
        if self.gaps.len() == GAPS_MAX {
            self.gaps.remove(0);
        }
        self.gaps.push((from, to));
        actions.push(Action::GapRecorded { from, to });
    }

    pub(super) fn in_recorded_gap(&self, sequence: Sequence) -> bool {
        self.gaps.iter().any(|(from, to)| (*from..=*to).contains(&sequence))
    }

    pub(super) fn gap_closed(&mut self) {
        self.gap_until = None;
        self.gap_parked = false;
    }
}
