//! The turn: one event at a time is delivered, tried again, or given up.

use super::{Action, Entry, Lane, Policy, Why};
use crate::planted::{self, Bug};
use crate::subscription::OnFailure;
use crate::time::Millis;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Aside,
    Queue,
}

impl Lane {
    /// Marks that the head's request is open. Not in the log: a crash closes it.
    pub fn started(&mut self, now: Millis) {
        assert!(!self.in_flight, "two requests open in one lane");
        self.turn = self.turn.or_else(|| self.next_turn());
        self.in_flight = true;
        self.since = now;
    }

    /// Gives the turn back without an outcome (shutdown, or a step that could not be made).
    pub fn abandoned(&mut self, now: Millis) {
        self.in_flight = false;
        self.turn = self.persistent_turn();
        self.since = now;
    }

    /// Before a step is made again from its record: what was in flight when it was made first.
    pub fn set_running(&mut self, running: Option<Turn>) {
        self.in_flight = running.is_some();
        self.turn = running.or_else(|| self.persistent_turn());
    }

    /// After a clock that moved or a restart: no timer may be further away than it was when it was set.
    pub fn clamp_timers(&mut self, policy: &Policy, backoff_ms_max: u64, now: Millis) {
        if let Some(until) = &mut self.gap_until {
            *until = (*until).min(now + policy.gap_timeout_ms);
        }
        if let Some(at) = &mut self.retry_at {
            *at = (*at).min(now + backoff_ms_max);
        }
    }

    pub(super) fn delivered(&mut self, actions: &mut Vec<Action>) {
        if let Some(entry) = self.pop_turn() {
            actions.push(Action::Delivered(entry));
        }
    }

    fn pop_turn(&mut self) -> Option<Entry> {
        let turn = self.turn.or_else(|| self.next_turn())?;
        self.in_flight = false;
        self.end_turn(turn);
        let entry = match turn {
            Turn::Aside => self.aside.pop_front(),
            Turn::Queue => self.queue.pop_front(),
        };
        self.refill_from_back();
        entry
    }

    /// The first in this place leaves it; a turn that the other place has is not touched.
    pub(super) fn end_turn(&mut self, turn: Turn) {
        *self.total_of(turn) = 0;
        if self.turn.is_none_or(|current| current == turn) {
            self.turn = None;
            self.retry_at = None;
            self.attempts = 0;
        }
    }

    fn total_of(&mut self, turn: Turn) -> &mut u32 {
        match turn {
            Turn::Aside => &mut self.aside_attempts_total,
            Turn::Queue => &mut self.attempts_total,
        }
    }

    pub(super) fn failed(
        &mut self,
        fatal: bool,
        retry_at: Millis,
        policy: &Policy,
        actions: &mut Vec<Action>,
    ) {
        let Some(turn) = self.turn.or_else(|| self.next_turn()) else { return };
        self.in_flight = false;
        self.turn = Some(turn);
        self.attempts += 1;
        *self.total_of(turn) += 1;
        if !fatal && policy.attempts_max.is_none_or(|max| self.attempts < max) {
            self.retry_at = Some(retry_at);
            return;
        }
        self.retry_at = None;
        match (turn, policy.on_failure) {
            (Turn::Queue, OnFailure::Park) => {
                // A dead letter that is replayed beside it has its own attempts.
                self.turn = None;
                self.attempts = 0;
                self.held = true;
                actions.extend(self.queue.front().map(|entry| Action::Hold(*entry)));
            }
            (Turn::Queue, OnFailure::Skip) => self.give_up_head(actions),
            (Turn::Aside, _) => self.give_up_aside(actions),
        }
    }

    /// A replay that failed again is the dead letter it was, outside the lane.
    pub(super) fn give_up_aside(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.pop_turn().map(|entry| Action::DeadLetter { entry, why: Why::Failed }));
    }

    /// The queue's head becomes a dead letter outside the lane and the break is flagged on what follows.
    pub(super) fn give_up_head(&mut self, actions: &mut Vec<Action>) {
        self.turn = Some(Turn::Queue);
        if let Some(entry) = self.pop_turn() {
            actions.push(Action::DeadLetter { entry, why: Why::Failed });
            if planted::is_on(Bug::NumberReused) && self.next_number.0 == entry.number.0 + 1 {
                self.next_number = entry.number;
            }
            self.flag_break(0);
        }
    }
}
