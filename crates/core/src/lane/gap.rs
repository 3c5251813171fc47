//! Gaps in the producer's sequence: their timer, and what is decided about them.

use super::{Action, Count, Gap, Lane, Policy};
use crate::ids::{Address, Sequence};
use crate::planted::{self, Bug};
use crate::subscription::GapAction;
use crate::time::Millis;

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

    pub(super) fn gap_expired(&mut self, policy: &Policy, now: Millis, actions: &mut Vec<Action>) {
        self.give_up_gap(policy, now, actions);
        self.limit_gap(policy, now, actions);
    }

    fn give_up_gap(&mut self, policy: &Policy, now: Millis, actions: &mut Vec<Action>) {
        let Some(lowest) = self.early.keys().next().copied() else {
            self.gap_until = None;
            return;
        };
        if self.opening {
            self.open_at(lowest);
            return self.moved_on();
        }
        match policy.gap_action {
            GapAction::Park if self.gap_parked => {}
            GapAction::Park => {
                self.count_gap(actions);
                self.gap_parked = true;
            }
            GapAction::Skip => {
                self.count_gap(actions);
                self.skip_gap(now, actions);
            }
        }
    }

    /// A gap is counted once: one that is parked was counted then.
    pub(super) fn count_gap(&self, actions: &mut Vec<Action>) {
        if let Some((sequence, entry)) = self.early.first_key_value().filter(|_| !self.gap_parked) {
            let (what, at, expected) = (Count::Gap, entry.at, self.expected);
            actions.push(Action::Count { what, at, sequence: *sequence, expected });
        }
    }

    pub(super) fn skip_gap(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some((from, to)) = self.missing() else { return };
        let next = self.early.values().next().map(|entry| entry.at);
        self.record_gap(Gap { from, to, at: now }, next, actions);
        self.expected = Some(Sequence(to.0 + 1));
        self.gap_closed();
        self.flag_next = true;
        self.moved_on();
    }

    pub(super) fn record_gap(&mut self, gap: Gap, next: Option<Address>, actions: &mut Vec<Action>) {
        self.gaps.record(gap);
        actions.push(Action::GapRecorded { from: gap.from, to: gap.to, next });
    }

    /// The expected sequence moved: what it reaches takes its place, and the next gap is another one.
    pub(super) fn moved_on(&mut self) {
        self.drain_early();
        self.reopened = self.buffered() > 0 && !planted::is_on(Bug::LimitWaits);
    }

    /// A gap over the buffer's limits is not waited for. A gap that a person resumed at the limit waits once more: only
    /// one that the lane has just come to is looked at, or (`buffer`) one for which another event came early.
    pub(super) fn limit_gap(&mut self, policy: &Policy, now: Millis, actions: &mut Vec<Action>) {
        while self.reopened && !self.early.is_empty() {
            self.reopened = false;
            if self.is_buffer_full(policy) && !self.gap_parked {
                self.give_up_gap(policy, now, actions);
            }
        }
    }

    pub(super) fn gap_closed(&mut self) {
        self.gap_until = None;
        self.gap_parked = false;
    }
}
