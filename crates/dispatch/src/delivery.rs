//! Who may call its target next, and what becomes of the answer.
//!
//! Slots go round over subscriptions, and within one over its ready lanes. A subscription always gets its share of the
//! global limit; what is above its share comes out of what nobody else could claim.

use crate::engine::{Delivery, Engine, Failure, InFlight, Place, Ticket, Who};
use crate::lanes::{Previous, Slot};
use crate::subscription::Subscription;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Address, Position, SubscriptionId};
use klambda_core::outcome::{Outcome, Reason, Verdict};
use klambda_core::planted::{self, Bug};
use klambda_core::retry;
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::log;
use klambda_store::record::{LaneRef, Record, Step};
use std::cmp::Reverse;

/// Room that must be left for the acknowledgement before a call is made.
pub(crate) const STEP_BYTES_MAX: usize = 4096;
const ERROR_BYTES_MAX: usize = 512;
/// Unordered events that wait to be called again; at this many no new ones are started.
const SINGLES_MAX: usize = 65_536;

impl Engine {
    /// Looks at a lane after something happened to it: counts it, and queues it or sets its timer.
    pub(crate) fn touch(&mut self, slot: Slot) {
        let Some(resident) = self.lanes.get_mut(slot) else { return };
        let Some(subscription) = self.subscriptions.get_mut(&resident.subscription) else { return };
        if resident.key.is_empty() {
            return;
        }
        let kind = resident.count_kind();
        if kind != resident.counted {
            subscription.tally.recount(resident.counted, kind);
            resident.counted = kind;
        }
        if !self.live {
            return;
        }
        if resident.lane.is_ready(self.now) {
            if !resident.queued {
                resident.queued = true;
                let needs = resident.needs_synced();
                if needs > self.log.synced() {
                    self.unsynced_lanes.push_back((needs, slot));
                } else {
                    subscription.ready.push_back(slot);
                }
            }
        } else if let Some(at) = resident.lane.wake_at() {
            if planted::is_on(Bug::RetryNeverWoken) && resident.lane.attempts() == 2 {
                return;
            }
            self.timers.push(Reverse((at, slot)));
        } else if resident.lane.is_idle() && !resident.listed_idle {
            resident.listed_idle = true;
            self.idle.push_back(slot);
        }
    }

    /// After a change of the subscription itself: its lanes may go on, or must look again.
    pub(crate) fn rouse(&mut self, id: SubscriptionId) {
        if let Some(subscription) = self.subscriptions.get_mut(&id) {
            subscription.cold_due = Millis::ZERO;
        }
    }

    pub(crate) fn fire_timers(&mut self) -> Result<(), Failure> {
        while let Some(Reverse((at, slot))) = self.timers.peek().copied()
            && at <= self.now
        {
            self.timers.pop();
            self.fire(slot)?;
        }
        while let Some(Reverse((at, id, position))) = self.single_timers.peek().copied()
            && at <= self.now
        {
            self.single_timers.pop();
            if let Some(subscription) = self.subscriptions.get_mut(&id)
                && let Some(single) = subscription.singles.get_mut(&position)
                && !single.in_flight
            {
                subscription.ready_singles.push_back(position);
            }
        }
        Ok(())
    }

    fn fire(&mut self, slot: Slot) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let gap_is_over =
            !resident.lane.in_flight() && resident.lane.gap_timer().is_some_and(|at| at <= self.now);
        if gap_is_over && resident.lane.head().is_none() {
            let (id, key) = (resident.subscription, resident.key.clone());
            if self.log.has_room_for_steps(STEP_BYTES_MAX) {
                return self.step_lane(id, &key, Step::GapExpired).map(|_| ());
            }
            self.timers.push(Reverse((self.now + 1000, slot)));
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
    ) -> Result<Address, Failure> {
        let slot = self.resident(id, key)?;
        let Some(resident) = self.lanes.get(slot) else { return Ok(Address(0)) };
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

    /// Logs and applies one step of an event of an unordered subscription.
    pub(crate) fn step_single(
        &mut self,
        id: SubscriptionId,
        position: Position,
        step: Step<'_>,
    ) -> Result<Address, Failure> {
        let (lane, previous) = (LaneRef::Alone(position), Address(0));
        self.commit(&Record::Step { time: self.now, subscription: id, lane, previous, running: None, step })
    }

    // ---- starting -----------------------------------------------------------------------------------------

    /// Starts whatever may start, one of each subscription in turn.
    pub(crate) fn schedule(&mut self) -> Result<(), Failure> {
        if self.stopping || !self.log.has_room_for_steps(STEP_BYTES_MAX) {
            return Ok(());
        }
        let ids: Vec<SubscriptionId> = self.subscriptions.keys().copied().collect();
        for id in &ids {
            self.warm_up(*id)?;
        }
        let first = ids.partition_point(|id| *id <= self.rotation);
        let mut order: Vec<SubscriptionId> = ids[first..].iter().chain(&ids[..first]).copied().collect();
        while !order.is_empty() {
            let mut started = Vec::with_capacity(order.len());
            for id in order {
                if self.start_one(id)? {
                    self.rotation = id;
                    started.push(id);
                }
            }
            order = started;
        }
        Ok(())
    }

    /// Starts one delivery of the subscription, if it has one and may.
    fn start_one(&mut self, id: SubscriptionId) -> Result<bool, Failure> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(false) };
        if !self.may_start(subscription) {
            return Ok(false);
        }
        if subscription.is_ordered() {
            while let Some(slot) = self.next_ready(id) {
                if self.start_lane(slot)? {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        self.start_single(id)
    }

    fn may_start(&self, subscription: &Subscription) -> bool {
        !subscription.is_paused()
            && subscription.held.is_none()
            && subscription.in_flight
                < subscription.document.spec.concurrency + u32::from(planted::is_on(Bug::OneTooMany))
            && self.has_global_slot(subscription)
            && self.endpoints.breaker(subscription.endpoint).allows(self.now)
    }

    fn has_global_slot(&self, subscription: &Subscription) -> bool {
        let used = self.in_flight.len() as u32;
        if used >= self.config.concurrency {
            return false;
        }
        let share = (self.config.concurrency / (self.names.len() as u32).max(1)).max(1);
        if subscription.in_flight < share {
            return true;
        }
        let is_other = |other: &&Subscription| other.id != subscription.id && !other.is_retired();
        let others = self.subscriptions.values().filter(is_other);
        let reserved: u32 = others.map(|other| share.saturating_sub(other.in_flight)).sum();
        used + reserved < self.config.concurrency
    }

    /// The lane whose turn it is. A probe of an open breaker is another lane's than the last one's.
    fn next_ready(&mut self, id: SubscriptionId) -> Option<Slot> {
        let subscription = self.subscriptions.get_mut(&id)?;
        let breaker = self.endpoints.breaker(subscription.endpoint);
        if !breaker.is_closed() && subscription.ready.len() > 1 {
            let front = subscription.ready.front().and_then(|slot| self.lanes.get(*slot));
            let tag = front.map(|resident| self.lanes.tag(id, &resident.key));
            if tag.is_some() && tag == breaker.last_probe() {
                subscription.ready.rotate_left(1);
            }
        }
        subscription.ready.pop_front()
    }

    fn start_lane(&mut self, slot: Slot) -> Result<bool, Failure> {
        let now = self.now;
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(false) };
        resident.queued = false;
        // Since it was queued its head may have become another, or a decision may have been made about it.
        if !resident.lane.is_ready(now) || resident.needs_synced() > self.log.synced() {
            self.touch(slot);
            return Ok(false);
        }
        self.resolve_previous(slot)?;
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(false) };
        let Some((_, entry)) = resident.lane.head() else { return Ok(false) };
        let entry = *entry;
        let attempt = resident.lane.attempts() + 1;
        let previous_id = match &resident.previous {
            Previous::Id(id) if entry.number > resident.previous_number => Some(id.clone()),
            _ => None,
        };
        let place = Place { number: entry.number, previous_id, flag: entry.flag };
        let at = match planted::is_on(Bug::WrongBytes) && attempt > 1 {
            true => resident.lane.entries().last().map_or(entry.at, |last| last.at),
            false => entry.at,
        };
        resident.lane.started(now);
        resident.current_at = entry.at;
        let (id, tag) = (resident.subscription, self.lanes.tag_of(slot));
        self.touch(slot);
        let ticket = self.open_call(id, Who::Lane(slot), tag);
        match self.delivery(ticket, id, at, Some(place), attempt) {
            Ok(delivery) => {
                self.remember_current(slot, &delivery);
                self.deliveries.push(delivery);
            }
            Err(failure) => self.unreadable(ticket, failure)?,
        }
        Ok(true)
    }

    fn remember_current(&mut self, slot: Slot, delivery: &Delivery) {
        let event = &delivery.record[delivery.event.clone()];
        if let (Some(resident), Ok(view)) = (self.lanes.get_mut(slot), EventView::decode(event)) {
            resident.current_id.clear();
            resident.current_id.push_str(view.id());
        }
    }

    fn start_single(&mut self, id: SubscriptionId) -> Result<bool, Failure> {
        let Some(position) = self.next_single(id)? else { return Ok(false) };
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(false) };
        let Some(single) = subscription.singles.get_mut(&position) else { return Ok(true) };
        if single.in_flight {
            return Ok(true);
        }
        single.in_flight = true;
        single.retry_at = None;
        let (at, attempt) = (single.entry.at, single.attempts + 1);
        let ticket = self.open_call(id, Who::Alone(position), position.0);
        match self.delivery(ticket, id, at, None, attempt) {
            Ok(delivery) => self.deliveries.push(delivery),
            Err(failure) => self.unreadable(ticket, failure)?,
        }
        Ok(true)
    }

    /// First those that are due again, then the queue.
    fn next_single(&mut self, id: SubscriptionId) -> Result<Option<Position>, Failure> {
        let synced = self.log.synced();
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(None) };
        if let Some(position) = subscription.ready_singles.pop_front() {
            return Ok(Some(position));
        }
        if subscription.singles.len() >= SINGLES_MAX
            || subscription.tally.waiting <= subscription.singles.len() as u64
        {
            return Ok(None);
        }
        let slot = self.resident(id, "")?;
        let head = self.lanes.get(slot).and_then(|resident| resident.lane.head().map(|(_, entry)| *entry));
        match head {
            Some(entry) if entry.at < synced => {
                self.take_next_single(id, Some(entry.position))?;
                Ok(Some(entry.position))
            }
            _ => Ok(None),
        }
    }

    fn open_call(&mut self, id: SubscriptionId, who: Who, tag: u64) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.in_flight.insert(ticket, InFlight { subscription: id, who, started: self.now });
        if let Some(subscription) = self.subscriptions.get_mut(&id) {
            subscription.in_flight += 1;
            self.endpoints.breaker_mut(subscription.endpoint).started(tag, self.now);
        }
        ticket
    }

    fn delivery(
        &self,
        ticket: Ticket,
        id: SubscriptionId,
        at: Address,
        place: Option<Place>,
        attempt: u32,
    ) -> Result<Delivery, Failure> {
        let record = self.read_event(at)?;
        let (start, _) = crate::apply::event_of(&record)?;
        let subscription = self.subscriptions.get(&id).ok_or(Malformed("subscription"))?;
        let event = start..record.len();
        Ok(Delivery { ticket, document: subscription.document.clone(), record, event, place, attempt })
    }

    /// Damage found on the way out: the event is refused and named, never delivered wrong. The rest goes on.
    fn unreadable(&mut self, ticket: Ticket, failure: Failure) -> Result<(), Failure> {
        match failure {
            Failure::Log(log::Error::Damaged { .. } | log::Error::Gone(_)) | Failure::Malformed(_) => {
                tracing::error!(%failure, "An event cannot be read back.");
                self.metrics.damaged += 1;
                let flight = self.close(ticket);
                match flight {
                    Some(flight) => {
                        self.record_failure(flight, true, Reason::Poison, &failure.to_string(), Millis::ZERO)
                    }
                    None => Ok(()),
                }
            }
            other => Err(other),
        }
    }

    // ---- ending -------------------------------------------------------------------------------------------

    /// A call ended. The acknowledgement is logged here and written by the next `flush`, before any delivery after it.
    pub fn outcome(&mut self, ticket: Ticket, outcome: Outcome) {
        if self.failed.is_some() {
            return;
        }
        if !self.log.has_room_for_steps(STEP_BYTES_MAX) {
            return self.stalled.push((ticket, outcome));
        }
        let done = match outcome {
            Outcome::Replied { replies } => self.finish_replied(ticket, replies),
            Outcome::NotReady { why, retry_after_ms } => {
                self.not_ready(ticket, why, retry_after_ms);
                Ok(())
            }
            outcome => self.finish(ticket, outcome),
        };
        self.note(done);
    }

    /// A call was given up without an outcome: it counts as not made.
    pub fn abandon(&mut self, ticket: Ticket) {
        let now = self.now;
        let Some(flight) = self.close(ticket) else { return };
        if let Some(subscription) = self.subscriptions.get_mut(&flight.subscription) {
            self.endpoints.breaker_mut(subscription.endpoint).abandoned(now);
            if let Who::Alone(position) = flight.who
                && let Some(single) = subscription.singles.get_mut(&position)
            {
                single.in_flight = false;
                self.single_timers.push(Reverse((now, flight.subscription, position)));
            }
        }
        if let Who::Lane(slot) = flight.who
            && let Some(resident) = self.lanes.get_mut(slot)
        {
            resident.lane.abandoned(now);
            self.touch(slot);
        }
    }

    fn close(&mut self, ticket: Ticket) -> Option<InFlight> {
        let flight = self.in_flight.remove(&ticket)?;
        if let Some(subscription) = self.subscriptions.get_mut(&flight.subscription) {
            subscription.in_flight -= 1;
        }
        Some(flight)
    }

    pub(crate) fn finish(&mut self, ticket: Ticket, outcome: Outcome) -> Result<(), Failure> {
        let Some(flight) = self.close(ticket) else { return Ok(()) };
        let Some(subscription) = self.subscriptions.get(&flight.subscription) else { return Ok(()) };
        let took_ms = self.now.since(flight.started);
        let verdict = outcome.verdict();
        self.metrics.processed(subscription.name(), verdict == Verdict::Delivered, took_ms);
        self.tell_breaker(&flight, &outcome);
        if verdict == Verdict::Delivered {
            return self.record_delivery(flight);
        }
        let Some(subscription) = self.subscriptions.get(&flight.subscription) else { return Ok(()) };
        let retry = subscription.document.spec.retry.clone();
        let failures = self.attempts_of(&flight) + 1;
        let random = self.next_random();
        let delay = retry::delay_ms(
            failures,
            retry.backoff_ms,
            retry.max_backoff_ms,
            outcome.retry_after_ms().filter(|_| !planted::is_on(Bug::RetryAfterIgnored)),
            random,
        );
        let retry_at = self.now + delay;
        let mut error = outcome.describe();
        error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
        self.record_failure(flight, verdict == Verdict::Fatal, outcome.reason(), &error, retry_at)
    }

    fn attempts_of(&self, flight: &InFlight) -> u32 {
        match flight.who {
            Who::Lane(slot) => self.lanes.get(slot).map_or(0, |resident| resident.lane.attempts()),
            Who::Alone(position) => {
                let subscription = self.subscriptions.get(&flight.subscription);
                subscription.and_then(|s| s.singles.get(&position)).map_or(0, |single| single.attempts)
            }
        }
    }

    fn tell_breaker(&mut self, flight: &InFlight, outcome: &Outcome) {
        let Some(subscription) = self.subscriptions.get(&flight.subscription) else { return };
        let tag = match flight.who {
            Who::Lane(slot) => self.lanes.tag_of(slot),
            Who::Alone(position) => position.0,
        };
        let breaker = self.endpoints.breaker_mut(subscription.endpoint);
        if outcome.is_endpoint_failure() {
            if breaker.failed(tag, outcome.is_refused(), self.now) {
                self.metrics.breaker_opened += 1;
                tracing::warn!(subscription = %subscription.name(), error = %outcome.describe(), "Breaker opened.");
            }
        } else if matches!(outcome, Outcome::Unusable(_)) {
            // The endpoint was never asked.
            breaker.abandoned(self.now);
        } else {
            breaker.succeeded(self.now);
        }
    }

    fn record_delivery(&mut self, flight: InFlight) -> Result<(), Failure> {
        let position = self.position_of(&flight);
        self.log_step(flight, Step::Delivered { position })
    }

    fn position_of(&self, flight: &InFlight) -> Position {
        match flight.who {
            Who::Alone(position) => position,
            Who::Lane(slot) => {
                let head = self.lanes.get(slot).and_then(|resident| resident.lane.head());
                head.map_or(Position(0), |(_, entry)| entry.position)
            }
        }
    }

    fn record_failure(
        &mut self,
        flight: InFlight,
        fatal: bool,
        reason: Reason,
        error: &str,
        retry_at: Millis,
    ) -> Result<(), Failure> {
        let position = self.position_of(&flight);
        tracing::debug!(
            subscription = flight.subscription.0,
            position = position.0,
            error,
            "Delivery failed."
        );
        self.log_step(flight, Step::Failed { position, fatal, retry_at, reason, error })
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
