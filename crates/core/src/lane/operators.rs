//! Actions of operators on a lane, and removal of events when a limit is reached.

use super::early::Early;
use super::{Action, Entry, Flag, Gap, Lane, Policy, Refused, Turn};
use crate::ids::{LaneNumber, Sequence};
use crate::planted::{self, Bug};
use crate::time::Millis;

impl Lane {
    pub(super) fn resume(&mut self, actions: &mut Vec<Action>) {
        if planted::is_on(Bug::TwoOpen) {
            self.delivery.in_flight = false;
        }
        if planted::is_on(Bug::ResumeSkipsHead) && self.paused && self.delivery.retry_at.is_some() {
            self.queue.front.pop_front();
        }
        self.paused = false;
        // The timer starts again when no deliverable event is left before the gap.
        self.gap.close();
        self.unhold(actions);
        self.delivery.turn = self.running();
        self.delivery.retry_at = None;
        self.delivery.attempts = 0;
    }

    fn unhold(&mut self, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.held) {
            actions.extend(self.queue.first().map(|entry| Action::Unhold(*entry)));
        }
    }

    pub(super) fn skip(
        &mut self,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        if self.delivery.in_flight {
            return Err(Refused::Running);
        }
        if self.delivery.turn == Some(Turn::Aside) {
            self.give_up_aside(actions);
        } else if self.held || self.delivery.retry_at.is_some() {
            self.unhold(actions);
            self.give_up_head(actions);
        } else if let Some(lowest) = self.first_after_gap() {
            if self.producer.opening {
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

    /// The first early event, if the lane waits for the gap before it.
    fn first_after_gap(&self) -> Option<Sequence> {
        let lowest = self.early.lowest()?;
        (self.gap.until.is_some() || self.gap.parked).then_some(lowest)
    }

    pub(super) fn discard(&mut self, actions: &mut Vec<Action>) -> Result<(), Refused> {
        if !self.held {
            return Err(Refused::NotParked);
        }
        self.unhold(actions);
        self.delivery.end_turn(Turn::Queue);
        actions.extend(self.queue.pop().map(Action::Dropped));
        self.queue.flag_break(0);
        Ok(())
    }

    /// Does not affect a replayed event that has its turn.
    pub(super) fn acknowledge(&mut self, actions: &mut Vec<Action>) -> Result<(), Refused> {
        if self.running() == Some(Turn::Queue) {
            return Err(Refused::Running);
        }
        if self.queue.is_empty() {
            return Err(Refused::NothingPending);
        }
        self.unhold(actions);
        self.delivery.end_turn(Turn::Queue);
        actions.extend(self.queue.pop().map(Action::Delivered));
        Ok(())
    }

    pub(super) fn purge(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.purgeable() == 0 && !planted::is_on(Bug::PurgeFlags) {
            return;
        }
        self.unhold(actions);
        let running = self.running();
        let kept_aside = usize::from(running == Some(Turn::Aside)).min(self.aside.len());
        let kept_queue = usize::from(running == Some(Turn::Queue));
        let gone = self.aside.drain(kept_aside..).chain(self.queue.clear_behind(kept_queue));
        actions.extend(gone.map(Action::Dropped));
        actions.extend(self.early.entries.values().map(|entry| Action::Dropped(*entry)));
        self.purge_early(now, actions);
        [Turn::Aside, Turn::Queue]
            .into_iter()
            .filter(|turn| running != Some(*turn))
            .for_each(|turn| self.delivery.end_turn(turn));
        self.queue.flag_next = true;
    }

    /// Records the missing sequences as a gap. If one of them arrives later, it is late and does not open a new gap.
    fn purge_early(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if let (Some(highest), Some(expected)) = (self.early.highest(), self.producer.expected) {
            self.record_gap(Gap { from: expected, to: highest, at: now }, None, actions);
            self.producer.expected = Some(Sequence(highest.0.saturating_add(1)));
        }
        self.early = Early::default();
        self.producer.opening = false;
        self.gap.close();
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
        self.gap.close();
        self.producer.expect_anew(expected);
        for (sequence, entry) in self.early.take_below(expected) {
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
            self.queue.place(entry);
        } else {
            if planted::is_on(Bug::ReplayOvertakes) {
                self.delivery.in_flight = false;
                self.delivery.turn = None;
            }
            // Replayed events keep the order of the lane. An event that was already attempted stays first.
            let begun = self.delivery.turn == Some(Turn::Aside) || self.delivery.aside_total > 0;
            let lower = self.aside.iter().rposition(|other| other.number < entry.number);
            self.aside.insert(lower.map_or(usize::from(begun), |lower| lower + 1), entry);
        }
    }

    pub(super) fn drop_oldest(&mut self, actions: &mut Vec<Action>) {
        let (aside, queue) = self.kept_from_drop();
        if let Some(entry) = self.aside.remove(aside) {
            if aside == 0 {
                self.delivery.end_turn(Turn::Aside);
            }
            actions.push(Action::Dropped(entry));
        } else if let Some(entry) = self.queue.remove(queue) {
            if queue == 0 {
                self.delivery.end_turn(Turn::Queue);
            }
            actions.push(Action::Dropped(entry));
            self.queue.flag_break(queue);
        } else if let Some(entry) = self.early.pop_first() {
            actions.push(Action::Dropped(entry));
        }
    }
}
