//! Decides which lane may call its target next, and handles the outcome of calls.
//!
//! Slots go round-robin over subscriptions, and within a subscription over its ready lanes. A subscription always
//! gets its share of the global limit. Beyond its share it may use slots that no other subscription can claim.

mod batch;
mod room;
mod slots;
mod starting;

use crate::engine::{Engine, Failure, InFlight, Ticket, Who};
use crate::lanes::Slot;
use crate::subscription::Subscription;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::outcome::{CallOutcome, Reason, Verdict};
use klambda_core::planted::{self, Bug};
use klambda_core::retry;
use klambda_core::subscription::Retry;
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::record::{Attempt, LaneRef, Record, Step};

/// Log space that must be free for the acknowledgement before a call is made.
pub(crate) const STEP_BYTES_MAX: usize = 4096;
const ERROR_BYTES_MAX: usize = 512;

impl Engine {
    /// Updates a lane after a change: counts it, and queues it or sets its timer.
    pub(crate) fn touch(&mut self, slot: Slot) {
        let Some(resident) = self.lanes.recount(slot) else { return };
        let Some(subscription) = self.subscriptions.get_mut(resident.subscription) else { return };
        let kind = resident.count_kind();
        if kind != resident.listed.counted {
            subscription.tally.recount(resident.listed.counted, kind);
            resident.listed.counted = kind;
        }
        if !self.condition.live {
            return;
        }
        subscription.list_by_age(slot, resident, self.now);
        if resident.lane.is_ready(self.now) {
            if !resident.listed.ready {
                resident.listed.ready = true;
                let needs = resident.needs_synced();
                if needs > self.store.log.synced() {
                    self.wakeups.lane_until_synced(needs, slot);
                } else {
                    subscription.flow.ready.push_back(slot);
                }
            }
        } else if let Some(at) = resident.lane.wake_at() {
            if planted::is_on(Bug::RetryNeverWoken) && resident.lane.attempts() == 2 {
                return;
            }
            self.set_timer(slot, at);
        } else if resident.lane.is_idle() {
            self.lanes.list_idle(slot);
        }
    }

    /// Keeps one timer per lane, because any number of arrivals may touch a waiting lane.
    fn set_timer(&mut self, slot: Slot, at: Millis) {
        let Some(resident) = self.lanes.get_mut(slot) else { return };
        if resident.listed.timer_at.is_none_or(|set| at < set) {
            resident.listed.timer_at = Some(at);
            self.wakeups.lane_until(at, slot);
        }
    }

    /// Makes lanes on disk be checked again after a change of the subscription.
    pub(crate) fn rouse(&mut self, id: SubscriptionId) {
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.on_disk.due = Millis::ZERO;
        }
    }

    pub(crate) fn fire_timers(&mut self) -> Result<(), Failure> {
        while let Some((at, slot)) = self.wakeups.due_lane(self.now) {
            if let Some(resident) = self.lanes.get_mut(slot) {
                resident.listed.timer_at.take_if(|set| *set <= at);
            }
            self.fire(slot)?;
        }
        while let Some((id, position)) = self.wakeups.due_single(self.now) {
            self.ready_single(id, position);
        }
        Ok(())
    }

    fn fire(&mut self, slot: Slot) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let gap_is_over =
            !resident.lane.in_flight() && resident.lane.gap_timer().is_some_and(|at| at <= self.now);
        if gap_is_over && resident.lane.head().is_none() {
            if let Some(until) = self.gap_is_held_until(resident) {
                self.set_timer(slot, until);
                return Ok(());
            }
            let (id, key) = (resident.subscription, resident.key.clone());
            if self.store.log.has_room_for_steps(STEP_BYTES_MAX) {
                return self.step_lane(id, &key, Step::GapExpired).map(|_| ());
            }
            self.set_timer(slot, self.now + 1000);
            return Ok(());
        }
        self.touch(slot);
        Ok(())
    }

    /// Logs and applies one step of a lane.
    pub(crate) fn step_lane(
        &mut self,
        id: SubscriptionId,
        key: &str,
        step: Step<'_>,
    ) -> Result<LogAddress, Failure> {
        let slot = self.resident(id, key)?;
        let Some(resident) = self.lanes.get(slot) else { return Ok(LogAddress(0)) };
        let (previous, running) = (resident.last_step, resident.lane.running());
        let record = Record::Step {
            time: self.now,
            subscription: id,
            lane: LaneRef::Key(key),
            previous,
            running,
            step,
        };
        self.commit(&record)
    }

    // ---- outcomes of calls --------------------------------------------------------------------------------

    /// A call ended. The acknowledgement is logged here and written by the next `flush`, before any later delivery.
    pub fn outcome(&mut self, ticket: Ticket, outcome: CallOutcome) {
        if self.condition.failed.is_some() {
            return;
        }
        if !self.has_room_for_outcome(ticket) {
            return self.calls.stall(ticket, outcome);
        }
        let done = match outcome {
            CallOutcome::Replied { status, replies } => self.finish_replied(ticket, status, replies),
            CallOutcome::NotReady { why, retry_after_ms } => {
                self.not_ready(ticket, why, retry_after_ms);
                Ok(())
            }
            outcome => self.finish(ticket, outcome),
        };
        self.note(done);
    }

    /// A call was abandoned without an outcome. It counts as not made.
    pub fn abandon(&mut self, ticket: Ticket) {
        let now = self.now;
        let Some(flight) = self.close(ticket) else { return };
        self.not_asked(&flight);
        // If the subscription is gone, so is the lane, and the slot may belong to another lane.
        let Some(subscription) = self.subscriptions.get_mut(flight.subscription) else { return };
        match flight.who {
            Who::Alone(position) => {
                if let Some(single) = subscription.unordered.under_way.get_mut(&position) {
                    single.in_flight = false;
                    self.wakeups.single_until(now, flight.subscription, position);
                }
            }
            Who::Lane(slot) => {
                if let Some(resident) = self.lanes.get_mut(slot) {
                    resident.lane.abandoned(now);
                    self.touch(slot);
                }
            }
        }
    }

    /// The endpoint gave no information. If the call was a probe of its breaker, the next call becomes the probe.
    pub(crate) fn not_asked(&mut self, flight: &InFlight) {
        self.calls.endpoints.tell(flight.endpoint, |breaker| breaker.abandoned(self.now));
    }

    fn close(&mut self, ticket: Ticket) -> Option<InFlight> {
        let flight = self.calls.close(ticket)?;
        if let Some(subscription) = self.subscriptions.get_mut(flight.subscription) {
            subscription.flow.in_flight -= 1;
            subscription.flow.unsent_bytes -= flight.unsent;
            subscription.flow.put_off -= u32::from(flight.put_off);
            // There may be room now for unread events.
            self.maintenance.reads_on |= subscription.is_reading();
        }
        Some(flight)
    }

    pub(crate) fn finish(&mut self, ticket: Ticket, outcome: CallOutcome) -> Result<(), Failure> {
        let batch = self.calls.take_batch(ticket);
        let Some(flight) = self.close(ticket) else { return Ok(()) };
        self.tell_breaker(&flight, &outcome);
        let Some(subscription) = self.subscriptions.get(flight.subscription) else { return Ok(()) };
        let took_ms = self.now.since(flight.started);
        let is_endpoint = subscription.document.spec.target.endpoint().is_some();
        let verdict = if is_endpoint { outcome.endpoint_verdict() } else { outcome.verdict() };
        let delivered_after_ms = (verdict == Verdict::Delivered).then(|| self.now.since(flight.accepted));
        self.metrics.processed(subscription.name(), flight.kind, delivered_after_ms, took_ms);
        if is_endpoint && let Some(subscription) = self.subscriptions.get_mut(flight.subscription) {
            subscription.flow.adapt(&outcome, subscription.document.spec.concurrency);
        }
        let (position, tried) = self.turn_of(&flight);
        let is_forgotten = planted::is_on(Bug::StatusForgotten) && tried > 0;
        let attempt = Attempt {
            number: tried + 1,
            duration_ms: took_ms,
            status: if is_forgotten { 0 } else { outcome.status() },
            answer: outcome.answer(),
        };
        if verdict == Verdict::Delivered {
            return match batch {
                Some(batch) => self.acknowledge_batch(&flight, position, &batch, &outcome, attempt),
                None => self.log_step(flight, Step::Delivered { position, attempt }),
            };
        }
        let retry_at = self.now + self.retry_delay_ms(&flight, &outcome);
        let mut error = outcome.describe();
        error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
        let (fatal, reason) = (verdict == Verdict::Fatal, outcome.reason());
        tracing::debug!(
            subscription = flight.subscription.0,
            position = position.0,
            error,
            "Delivery failed"
        );
        let id = flight.subscription;
        let step = Step::Failed { position, fatal, retry_at, reason, error: &error, attempt };
        self.log_step(flight, step)?;
        self.judge_health(id, &outcome)
    }

    fn retry_delay_ms(&mut self, flight: &InFlight, outcome: &CallOutcome) -> u64 {
        let (failures, random) = (self.attempts_of(flight) + 1, self.calls.next_random());
        let Some(subscription) = self.subscriptions.get(flight.subscription) else { return 0 };
        let after = outcome.retry_after_ms().filter(|_| !planted::is_on(Bug::RetryAfterIgnored));
        let spec = &subscription.document.spec;
        match spec.target.endpoint() {
            Some(endpoint) => endpoint.retry.delay_ms(failures, after, random),
            None => {
                let Retry { backoff_ms, max_backoff_ms, .. } = spec.retry;
                retry::delay_ms(failures, backoff_ms, max_backoff_ms, after, random)
            }
        }
    }

    fn attempts_of(&self, flight: &InFlight) -> u32 {
        match flight.who {
            Who::Lane(slot) => self.lanes.get(slot).map_or(0, |resident| resident.lane.attempts()),
            Who::Alone(position) => {
                let subscription = self.subscriptions.get(flight.subscription);
                subscription
                    .and_then(|s| s.unordered.under_way.get(&position))
                    .map_or(0, |single| single.attempts)
            }
        }
    }

    /// Updates the breaker of the called endpoint, even if the subscription is gone or has another target by now.
    fn tell_breaker(&mut self, flight: &InFlight, outcome: &CallOutcome) {
        let (lanes, now) = (&self.lanes, self.now);
        let opened = self.calls.endpoints.tell(flight.endpoint, |breaker| {
            if outcome.is_endpoint_failure() {
                return breaker.failed(flight.who.tag(lanes), outcome.is_refused(), now);
            }
            match outcome {
                // The endpoint was not called, or ended before it answered.
                CallOutcome::Unusable(_) | CallOutcome::Ended(_) => breaker.abandoned(now),
                _ => breaker.succeeded(now),
            }
            false
        });
        if opened == Some(true) {
            self.metrics.breaker_opened += 1;
            let name = self.subscriptions.get(flight.subscription).map(Subscription::name);
            tracing::warn!(subscription = name, error = %outcome.describe(), "Breaker opened");
        }
    }

    /// The position of the called event, and how often it was tried before.
    fn turn_of(&self, flight: &InFlight) -> (Position, u32) {
        match flight.who {
            Who::Alone(position) => {
                let subscription = self.subscriptions.get(flight.subscription);
                let single = subscription.and_then(|s| s.unordered.under_way.get(&position));
                (position, single.map_or(0, |single| single.attempts_total))
            }
            Who::Lane(slot) => {
                let Some(resident) = self.lanes.get(slot) else { return (Position(0), 0) };
                let Some((_, entry)) = resident.lane.head() else { return (Position(0), 0) };
                (entry.position, resident.lane.head_attempts_total() + resident.tried_earlier(entry.position))
            }
        }
    }

    /// The event cannot be read, so the target was not called.
    fn fail_unread(&mut self, flight: InFlight, error: &str) -> Result<(), Failure> {
        let (position, tried) = self.turn_of(&flight);
        let attempt = Attempt { number: tried + 1, ..Attempt::default() };
        let (retry_at, reason) = (Millis::ZERO, Reason::Poison);
        self.log_step(flight, Step::Failed { position, fatal: true, retry_at, reason, error, attempt })
    }

    fn log_step(&mut self, flight: InFlight, step: Step<'_>) -> Result<(), Failure> {
        let id = flight.subscription;
        match flight.who {
            Who::Lane(slot) => {
                let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
                let key = resident.key.clone();
                self.step_lane(id, &key, step).map(|_| ())
            }
            Who::Alone(position) => self.step_single(id, position, step).map(|_| ()),
        }
    }
}
