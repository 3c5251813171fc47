//! What people ask of a lane, and what is done to it from outside for want of room.

use super::early::SpilledEarly;
use super::queue::Spilled;
use super::{Action, Entry, Flag, Gap, Lane, Policy, Refused, Turn};
use crate::ids::{LaneNumber, Sequence};
use crate::planted::{self, Bug};
use crate::time::Millis;

impl Lane {
    pub(super) fn resume(&mut self, actions: &mut Vec<Action>) {
        if planted::is_on(Bug::TwoOpen) {
            self.in_flight = false;
        }
        if planted::is_on(Bug::ResumeSkipsHead) && self.paused && self.retry_at.is_some() {
            self.queue.pop_front();
        }
        self.paused = false;
        // The timer starts anew, once nothing deliverable is left before the gap.
        self.gap_closed();
        self.unhold(actions);
        self.turn = self.running();
        self.retry_at = None;
        self.attempts = 0;
    }

    fn unhold(&mut self, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.held) {
            actions.extend(self.queue.front().map(|entry| Action::Unhold(*entry)));
        }
    }

    pub(super) fn skip(
        &mut self,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        if self.in_flight {
            return Err(Refused::Running);
        }
        if self.turn == Some(Turn::Aside) {
            self.give_up_aside(actions);
        } else if self.held || self.retry_at.is_some() {
            self.unhold(actions);
            self.give_up_head(actions);
        } else if let Some(lowest) = self.waited_for_in_vain() {
            if self.opening {
                self.open_at(lowest);
                self.moved_on();
            } else {
                self.count_gap(actions);
                self.skip_gap(now, actions);
            }
            self.limit_gap(policy, now, actions);
        } else {
            return Err(Refused::NothingToSkip);
        }
        Ok(())
    }

    /// The first early event, when the gap before it is what the lane waits for.
    fn waited_for_in_vain(&self) -> Option<Sequence> {
        let lowest = *self.early.keys().next()?;
        (self.gap_until.is_some() || self.gap_parked).then_some(lowest)
    }

    pub(super) fn discard(&mut self, actions: &mut Vec<Action>) -> Result<(), Refused> {
        if !self.held {
            return Err(Refused::NotParked);
        }
        self.unhold(actions);
        self.end_turn(Turn::Queue);
        actions.extend(self.queue.pop_front().map(Action::Dropped));
        self.refill_from_back();
        self.flag_break(0);
        Ok(())
    }

    pub(super) fn purge(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.purgeable() == 0 && !planted::is_on(Bug::PurgeFlags) {
            return;
        }
        self.unhold(actions);
        let running = self.running();
        let kept_aside = usize::from(running == Some(Turn::Aside)).min(self.aside.len());
        let kept_queue = usize::from(running == Some(Turn::Queue)).min(self.queue.len());
        let gone = self.aside.drain(kept_aside..).chain(self.queue.drain(kept_queue..));
        actions.extend(gone.chain(self.back.drain(..)).map(Action::Dropped));
        actions.extend(self.early.values().map(|entry| Action::Dropped(*entry)));
        self.purge_early(now, actions);
        self.spilled = Spilled { first_chunk: self.spilled.next_chunk, entries: 0, ..self.spilled };
        [Turn::Aside, Turn::Queue]
            .into_iter()
            .filter(|turn| running != Some(*turn))
            .for_each(|turn| self.end_turn(turn));
        self.flag_next = true;
    }

    /// What was waited for in vain is a recorded gap, so that it is late and no new gap if it comes after all.
    fn purge_early(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let spilled = (self.early_spilled.entries > 0).then_some(self.early_spilled.highest);
        let highest = spilled.or_else(|| self.early.keys().next_back().copied());
        if let (Some(highest), Some(expected)) = (highest, self.expected) {
            self.record_gap(Gap { from: expected, to: highest, at: now }, None, actions);
            self.expected = Some(Sequence(highest.0.saturating_add(1)));
        }
        self.early.clear();
        self.early_bytes = 0;
        self.early_spilled = SpilledEarly::default();
        self.opening = false;
        self.gap_closed();
    }

    pub(super) fn reset(
        &mut self,
        expected: Sequence,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        if !policy.sequenced {
            return Err(Refused::NotSequenced);
        }
        self.opening = false;
        self.gap_closed();
        self.gaps.clear();
        self.expected = Some(expected);
        self.watermark.restart();
        let kept = self.early.split_off(&expected);
        let passed = std::mem::replace(&mut self.early, kept);
        for (sequence, entry) in passed {
            self.early_bytes -= u64::from(entry.bytes);
            self.late(entry, sequence, policy, actions);
        }
        self.moved_on();
        self.limit_gap(policy, now, actions);
        Ok(())
    }

    pub(super) fn replay(&mut self, actions: &mut Vec<Action>) -> Result<(), Refused> {
        if !self.held {
            return Err(Refused::NotParked);
        }
        self.unhold(actions);
        Ok(())
    }

    pub(super) fn requeue(&mut self, mut entry: Entry) {
        entry.flag = Flag::Late;
        if entry.number == LaneNumber(0) {
            self.place(entry);
        } else {
            if planted::is_on(Bug::ReplayOvertakes) {
                self.in_flight = false;
                self.turn = None;
            }
            // Among themselves in the lane's order; one that was tried stays first.
            let begun = self.turn == Some(Turn::Aside) || self.aside_attempts_total > 0;
            let lower = self.aside.iter().rposition(|other| other.number < entry.number);
            self.aside.insert(lower.map_or(usize::from(begun), |lower| lower + 1), entry);
        }
    }

    pub(super) fn drop_oldest(&mut self, actions: &mut Vec<Action>) {
        let (aside, queue) = self.kept_from_drop();
        if let Some(entry) = self.aside.remove(aside) {
            if aside == 0 {
                self.end_turn(Turn::Aside);
            }
            actions.push(Action::Dropped(entry));
        } else if let Some(entry) = self.queue.remove(queue) {
            if queue == 0 {
                self.end_turn(Turn::Queue);
            }
            actions.push(Action::Dropped(entry));
            self.refill_from_back();
            self.flag_break(queue);
        } else if let Some((_, entry)) = self.early.pop_first() {
            self.early_bytes -= u64::from(entry.bytes);
            actions.push(Action::Dropped(entry));
        }
    }
}
