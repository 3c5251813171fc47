//! Gaps in the producer's sequence: the gap timer and the policy when it expires.

use super::{Action, Count, Gap, Lane, Policy};
use crate::ids::{Locator, Sequence};
use crate::planted::{self, Bug};
use crate::subscription::GapAction;
use crate::time::Millis;

/// How long the lane waits for the sequences missing before its first early event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GapWait {
    pub(crate) until: Option<Millis>,
    /// The gap waits for manual action.
    pub(crate) parked: bool,
    /// The lane reached a new gap whose buffer limits are not checked yet, because the early events are still on
    /// disk. Set only within a step.
    pub(crate) reopened: bool,
}

impl GapWait {
    pub(super) fn close(&mut self) {
        self.until = None;
        self.parked = false;
    }
}

impl Lane {
    /// Starts the gap timer once per gap, when no deliverable event is left before the gap.
    pub(super) fn watch_gap(&mut self, policy: &Policy, now: Millis) {
        if self.buffered() == 0 {
            self.gap.close();
        } else if self.wants_early() {
            // The early events are still on disk. They show whether there is a gap.
        } else if self.gap.until.is_none() && self.queue.is_empty() && self.aside.is_empty() {
            self.gap.until = Some(now + policy.gap_timeout_ms);
        }
    }

    pub(super) fn gap_expired(&mut self, policy: &Policy, now: Millis, actions: &mut Vec<Action>) {
        self.give_up_gap(policy, now, actions);
        self.limit_gap(policy, now, actions);
    }

    fn give_up_gap(&mut self, policy: &Policy, now: Millis, actions: &mut Vec<Action>) {
        let Some(lowest) = self.early.entries.keys().next().copied() else {
            self.gap.until = None;
            return;
        };
        if self.producer.opening {
            self.open_at(lowest);
            return self.moved_on();
        }
        match policy.gap_action {
            GapAction::Park if self.gap.parked => {}
            GapAction::Park => {
                self.count_gap(actions);
                self.gap.parked = true;
            }
            GapAction::Skip => {
                self.count_gap(actions);
                self.skip_gap(now, actions);
            }
        }
    }

    /// Counts each gap once. A parked gap was counted when it parked.
    pub(super) fn count_gap(&self, actions: &mut Vec<Action>) {
        if let Some((sequence, entry)) = self.early.entries.first_key_value().filter(|_| !self.gap.parked) {
            let (what, at, expected) = (Count::Gap, entry.at, self.producer.expected);
            actions.push(Action::Count { what, at, sequence: *sequence, expected });
        }
    }

    pub(super) fn skip_gap(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some((from, to)) = self.missing() else { return };
        let next = self.early.entries.values().next().map(|entry| entry.at);
        self.record_gap(Gap { from, to, at: now }, next, actions);
        self.producer.expected = Some(Sequence(to.0 + 1));
        self.gap.close();
        self.queue.flag_next = true;
        self.moved_on();
    }

    pub(super) fn record_gap(&mut self, gap: Gap, next: Option<Locator>, actions: &mut Vec<Action>) {
        self.producer.gaps.record(gap);
        actions.push(Action::GapRecorded { from: gap.from, to: gap.to, next });
    }

    /// Call this after `expected` changes: queues the early events that are now due. The next gap is a new one.
    pub(super) fn moved_on(&mut self) {
        self.drain_early();
        self.gap.reopened = self.buffered() > 0 && !planted::is_on(Bug::LimitWaits);
    }

    /// Gives up a gap immediately if the buffer is at its limit. A gap that a user resumed at the limit gets another
    /// timeout, so this checks only a gap that the lane has just reached, or (in `buffer`) a gap for which another
    /// early event arrived.
    pub(super) fn limit_gap(&mut self, policy: &Policy, now: Millis, actions: &mut Vec<Action>) {
        while self.gap.reopened && !self.early.entries.is_empty() {
            self.gap.reopened = false;
            if self.is_buffer_full(policy) && !self.gap.parked {
                self.give_up_gap(policy, now, actions);
            }
        }
    }
}
