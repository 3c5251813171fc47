//! The turn: the lane delivers, retries or gives up one event at a time.

use super::{Action, Entry, Lane, Policy, Why};
use crate::planted::{self, Bug};
use crate::subscription::OnFailure;
use crate::time::Millis;

/// The place whose first event has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Aside,
    Queue,
}

/// An event that began its turn keeps it until it is delivered or given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) turn: Option<Turn>,
    pub(crate) in_flight: bool,
    /// Attempts of the event that has its turn, since it last got fresh attempts.
    pub(crate) attempts: u32,
    /// All attempts of the head of the queue, including those before it parked or was resumed.
    pub(crate) queue_total: u32,
    /// All attempts of the first event in `aside`, since its replay. Counted separately, because it can be delivered
    /// while another dead letter parks the lane.
    pub(crate) aside_total: u32,
    pub(crate) retry_at: Option<Millis>,
}

impl Delivery {
    /// The turn of the open request.
    pub(super) fn running(&self) -> Option<Turn> {
        self.turn.filter(|_| self.in_flight)
    }

    /// A turn without a recorded attempt ends when the process ends.
    pub(crate) fn persistent_turn(&self) -> Option<Turn> {
        self.turn.filter(|_| self.attempts > 0)
    }

    /// The first event of this place leaves. Does not affect a turn of the other place.
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
            Turn::Aside => &mut self.aside_total,
            Turn::Queue => &mut self.queue_total,
        }
    }

    fn count_failure(&mut self, turn: Turn) {
        self.in_flight = false;
        self.turn = Some(turn);
        self.attempts += 1;
        *self.total_of(turn) += 1;
    }
}

impl Lane {
    /// Marks the request of the head as open. This is not in the log: a crash closes the request.
    pub fn started(&mut self, now: Millis) {
        assert!(!self.delivery.in_flight, "a lane has two open requests");
        self.delivery.turn = self.delivery.turn.or_else(|| self.next_turn());
        self.delivery.in_flight = true;
        self.since = now;
    }

    /// Ends the turn without an outcome, on shutdown or when a step could not be recorded.
    pub fn abandoned(&mut self, now: Millis) {
        self.delivery.in_flight = false;
        self.delivery.turn = self.delivery.persistent_turn();
        self.since = now;
    }

    /// Restores what was in flight when a step was first applied. Call this before applying the step again from its
    /// record.
    pub fn set_running(&mut self, running: Option<Turn>) {
        self.delivery.in_flight = running.is_some();
        self.delivery.turn = running.or_else(|| self.delivery.persistent_turn());
    }

    /// Limits the timers after a restart or a clock change: no timer may be further away than when it was set.
    pub fn clamp_timers(&mut self, policy: &Policy, backoff_ms_max: u64, now: Millis) {
        if let Some(until) = &mut self.gap.until {
            *until = (*until).min(now + policy.gap_timeout_ms);
        }
        if let Some(at) = &mut self.delivery.retry_at {
            *at = (*at).min(now + backoff_ms_max);
        }
    }

    pub(super) fn delivered(&mut self, actions: &mut Vec<Action>) {
        if let Some(entry) = self.pop_turn() {
            actions.push(Action::Delivered(entry));
        }
    }

    fn pop_turn(&mut self) -> Option<Entry> {
        let turn = self.delivery.turn.or_else(|| self.next_turn())?;
        self.delivery.in_flight = false;
        self.delivery.end_turn(turn);
        match turn {
            Turn::Aside => self.aside.pop_front(),
            Turn::Queue => self.queue.pop(),
        }
    }

    pub(super) fn failed(
        &mut self,
        fatal: bool,
        retry_at: Millis,
        policy: &Policy,
        actions: &mut Vec<Action>,
    ) {
        let Some(turn) = self.delivery.turn.or_else(|| self.next_turn()) else { return };
        self.delivery.count_failure(turn);
        if !fatal && policy.attempts_max.is_none_or(|max| self.delivery.attempts < max) {
            self.delivery.retry_at = Some(retry_at);
            return;
        }
        self.delivery.retry_at = None;
        match (turn, policy.on_failure) {
            (Turn::Queue, OnFailure::Park) => {
                // A dead letter that is replayed beside it has its own attempts.
                self.delivery.turn = None;
                self.delivery.attempts = 0;
                self.held = true;
                actions.extend(self.queue.first().map(|entry| Action::Hold(*entry)));
            }
            (Turn::Queue, OnFailure::Skip) => self.give_up_head(actions),
            (Turn::Aside, _) => self.give_up_aside(actions),
        }
    }

    /// A failed replay becomes a dead letter outside the lane again.
    pub(super) fn give_up_aside(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.pop_turn().map(|entry| Action::DeadLetter { entry, why: Why::Failed }));
    }

    /// The head of the queue becomes a dead letter outside the lane, and the next event is flagged.
    pub(super) fn give_up_head(&mut self, actions: &mut Vec<Action>) {
        self.delivery.turn = Some(Turn::Queue);
        if let Some(entry) = self.pop_turn() {
            actions.push(Action::DeadLetter { entry, why: Why::Failed });
            if planted::is_on(Bug::NumberReused) && self.queue.next_number.0 == entry.number.0 + 1 {
                self.queue.next_number = entry.number;
            }
            self.queue.flag_break(0);
        }
    }
}
