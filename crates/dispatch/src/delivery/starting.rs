//! Selects the next deliveries: fair among subscriptions and within all limits.

use super::STEP_BYTES_MAX;
use super::slots::{Pass, Slots};
use crate::endpoint::EndpointId;
use crate::engine::{Delivery, Engine, Failure, InFlight, Place, Ticket, Who};
use crate::lanes::Slot;
use crate::metrics::TypeId;
use crate::subscription::Subscription;
use crate::subscriptions::Work;
use klambda_core::breaker::State;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_core::webhook::EventId;
use klambda_core::wire::Malformed;
use klambda_store::address::{Kept, LogAddress};

impl Engine {
    /// Starts deliveries: first up to each subscription's share, then beyond it.
    pub(crate) fn schedule(&mut self) -> Result<(), Failure> {
        if !self.can_start() {
            return Ok(());
        }
        for id in self.subscriptions.with(Work::Cold) {
            self.warm_up(id)?;
        }
        let mut ids = self.subscriptions.with(Work::Ready);
        ids.retain(|id| self.subscriptions.get(*id).is_some_and(|subscription| self.may_start(subscription)));
        let first = ids.partition_point(|id| *id <= self.calls.turn);
        ids.rotate_left(first);
        let ready = ids.iter().filter_map(|id| self.subscriptions.get(*id));
        let claims = ready.map(|subscription| (subscription.namespace, subscription.flow.in_flight));
        let mut slots = Slots::new(self.config.concurrency, claims);
        self.start_in_turn(ids.clone(), Pass::UpToShare, &mut slots)?;
        self.start_in_turn(ids, Pass::BeyondShare, &mut slots)
    }

    /// Starts one delivery per subscription in turn until nothing can start.
    fn start_in_turn(
        &mut self,
        mut order: Vec<SubscriptionId>,
        pass: Pass,
        slots: &mut Slots,
    ) -> Result<(), Failure> {
        while !order.is_empty() {
            let mut started = Vec::with_capacity(order.len());
            for id in order {
                if self.start_one(id, pass, slots)? {
                    self.calls.turn = id;
                    started.push(id);
                }
            }
            order = started;
        }
        Ok(())
    }

    /// False while the engine is stopping, or if the log has no room for an outcome.
    pub(crate) fn can_start(&self) -> bool {
        let is_stopping = self.condition.stopping && !planted::is_on(Bug::StopIgnored);
        !is_stopping && self.has_room_for_step()
    }

    pub(crate) fn has_room_for_step(&self) -> bool {
        self.store.log.has_room_for_steps(STEP_BYTES_MAX)
    }

    /// Starts one delivery of the subscription, if possible.
    fn start_one(&mut self, id: SubscriptionId, pass: Pass, slots: &mut Slots) -> Result<bool, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(false) };
        let (namespace, open) = (subscription.namespace, self.calls.holding_slots());
        if !slots.has_one(pass, open, namespace, subscription.flow.in_flight) || !self.may_start(subscription)
        {
            return Ok(false);
        }
        let is_started = self.start_next(id)?;
        if is_started {
            slots.took_one(namespace);
        }
        Ok(is_started)
    }

    fn start_next(&mut self, id: SubscriptionId) -> Result<bool, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(false) };
        if subscription.is_ordered() {
            while let Some(slot) = self.next_ready(id) {
                if !self.has_room_for_lane(id, slot) {
                    // The lane stays at the front of the queue.
                    self.put_back(id, slot);
                    return Ok(false);
                }
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
            && subscription.flow.suspension.is_none()
            && subscription.flow.in_flight
                < subscription.document.spec.concurrency + u32::from(planted::is_on(Bug::OneTooMany))
            && subscription.flow.slowed_to.is_none_or(|calls| subscription.flow.in_flight < calls)
            && self
                .calls
                .endpoints
                .breaker(subscription.flow.endpoint)
                .is_none_or(|breaker| breaker.allows(self.now))
    }

    /// The next ready lane. Successive probes of an open breaker use different lanes.
    fn next_ready(&mut self, id: SubscriptionId) -> Option<Slot> {
        let subscription = self.subscriptions.get_mut(id)?;
        if let Some(breaker) = self.calls.endpoints.breaker(subscription.flow.endpoint)
            && !breaker.is_closed()
            && subscription.flow.ready.len() > 1
        {
            let front = subscription.flow.ready.front().and_then(|slot| self.lanes.get(*slot));
            let tag = front.map(|resident| self.lanes.tag(id, &resident.key));
            if tag.is_some() && tag == breaker.last_probe() {
                subscription.flow.ready.rotate_left(1);
            }
        }
        subscription.flow.ready.pop_front()
    }

    fn put_back(&mut self, id: SubscriptionId, slot: Slot) {
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.flow.ready.push_front(slot);
        }
    }

    fn start_lane(&mut self, slot: Slot) -> Result<bool, Failure> {
        let now = self.now;
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(false) };
        resident.listed.ready = false;
        // Since the lane was queued, its head may have changed or a decision may be unsynced.
        if !resident.lane.is_ready(now) || resident.needs_synced() > self.store.log.synced() {
            self.touch(slot);
            return Ok(false);
        }
        let id = resident.subscription;
        let is_endpoint = self.has_feed(id);
        self.resolve_previous(slot)?;
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(false) };
        let Some((_, entry)) = resident.lane.head() else { return Ok(false) };
        let entry = *entry;
        let attempt = resident.lane.attempts() + 1;
        let previous_id = resident.previous_id_of(&entry);
        let workflow = is_endpoint.then(|| resident.key.clone());
        let place = Place { number: entry.number, previous_id, flag: entry.flag, workflow };
        let at = match planted::is_on(Bug::WrongBytes) && attempt > 1 {
            true => resident.lane.entries().last().map_or(entry.address(), Kept::address),
            false => entry.address(),
        };
        resident.lane.started(now);
        resident.before.current_at = entry.address();
        self.touch(slot);
        let mut bytes = self.bytes_to_send(id, &entry);
        let following = if is_endpoint { self.choose_following(slot, &mut bytes)? } else { Vec::new() };
        let ticket = self.open_call(id, Who::Lane(slot), entry.accepted, bytes);
        match self.delivery(ticket, (&entry, at), Some(place), attempt) {
            Ok(mut delivery) => {
                if !following.is_empty() {
                    self.add_following(slot, &mut delivery, &following);
                }
                self.deliver(Some(slot), delivery);
            }
            Err(failure) => self.unreadable(ticket, failure)?,
        }
        Ok(true)
    }

    /// Hands out a delivery and keeps the parts of its event that are needed when the call ends.
    fn deliver(&mut self, slot: Option<Slot>, mut delivery: Delivery) {
        let mut counted_as = TypeId::default();
        let event = &delivery.record[delivery.event.clone()];
        if delivery.document.spec.target.endpoint().is_some() {
            delivery.event_id = receivers_id(&delivery.document.namespace, event);
        }
        if let Ok((event_id, kind)) = EventView::id_and_kind(event) {
            counted_as = self.metrics.type_id(kind);
            if let Some(resident) = slot.and_then(|slot| self.lanes.get_mut(slot)) {
                let current = &mut resident.before.current_id;
                current.clear();
                match delivery.event_id {
                    // Receivers of webhooks know another id.
                    Some(id) => id.with_text(|id| current.push_str(id)),
                    None => current.push_str(event_id),
                }
            }
        }
        self.calls.begin(delivery, counted_as);
    }

    fn start_single(&mut self, id: SubscriptionId) -> Result<bool, Failure> {
        let Some(position) = self.next_single(id)? else { return Ok(false) };
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(false) };
        let Some(single) = subscription.unordered.under_way.get_mut(&position) else { return Ok(true) };
        if single.in_flight {
            return Ok(true);
        }
        single.in_flight = true;
        single.retry_at = None;
        let (entry, attempt) = (single.entry, single.attempts + 1);
        let bytes = self.bytes_to_send(id, &entry);
        let ticket = self.open_call(id, Who::Alone(position), entry.accepted, bytes);
        match self.delivery(ticket, (&entry, entry.address()), None, attempt) {
            Ok(delivery) => self.deliver(None, delivery),
            Err(failure) => self.unreadable(ticket, failure)?,
        }
        Ok(true)
    }

    /// Retries that are due come first, then the queue.
    fn next_single(&mut self, id: SubscriptionId) -> Result<Option<Position>, Failure> {
        let (synced, singles_max) = (self.store.log.synced(), self.singles_max());
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(None) };
        let unordered = &subscription.unordered;
        if let Some(position) = unordered.ready.front() {
            let entry = unordered.under_way.get(position).map(|single| single.entry);
            let bytes = entry.map_or(0, |entry| self.bytes_to_send(id, &entry));
            if !self.has_room(id, bytes) {
                return Ok(None);
            }
            let subscription = self.subscriptions.get_mut(id);
            return Ok(subscription.and_then(|subscription| subscription.unordered.ready.pop_front()));
        }
        let between_attempts = unordered.under_way.len().saturating_sub(subscription.flow.in_flight as usize);
        if between_attempts >= singles_max || unordered.needs_synced().is_none_or(|needs| needs > synced) {
            return Ok(None);
        }
        let bytes = unordered.queue.first().map_or(0, |entry| entry.bytes);
        if self.has_room(id, bytes) { self.take_next_single(id) } else { Ok(None) }
    }

    fn open_call(&mut self, id: SubscriptionId, who: Who, accepted: Millis, bytes: u32) -> Ticket {
        let unsent = self.hold_unsent(id, bytes);
        let mut endpoint = EndpointId::default();
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.flow.in_flight += 1;
            endpoint = subscription.flow.endpoint;
        }
        if self.calls.endpoints.state(endpoint) != State::Closed {
            let (tag, now) = (who.tag(&self.lanes), self.now);
            self.calls.endpoints.tell(endpoint, |breaker| breaker.started(tag, now));
        }
        self.calls.open(InFlight {
            subscription: id,
            who,
            endpoint,
            started: self.now,
            accepted,
            put_off: false,
            kind: TypeId::default(),
            unsent,
        })
    }

    fn delivery(
        &self,
        ticket: Ticket,
        (entry, at): (&Entry, LogAddress),
        place: Option<Place>,
        attempt: u32,
    ) -> Result<Delivery, Failure> {
        let id = self.calls.get(ticket).map(|flight| flight.subscription);
        let subscription = id.and_then(|id| self.subscriptions.get(id)).ok_or(Malformed("subscription"))?;
        let record = self.read_to_send(subscription, entry.position, at)?;
        let (start, _) = crate::apply::event_of(&record)?;
        let event = start..record.len();
        let (document, time, accepted) = (subscription.document.clone(), self.now, entry.accepted);
        Ok(Delivery {
            ticket,
            document,
            record,
            event,
            event_id: None,
            following: Vec::new(),
            place,
            attempt,
            time,
            accepted,
        })
    }

    /// The event is damaged: it becomes a dead letter and is never delivered with wrong content. Other events
    /// continue.
    fn unreadable(&mut self, ticket: Ticket, failure: Failure) -> Result<(), Failure> {
        if !failure.is_damage() {
            return Err(failure);
        }
        tracing::error!(%failure, "Could not read an event from the log");
        self.metrics.damaged += 1;
        let Some(flight) = self.close(ticket) else { return Ok(()) };
        self.not_asked(&flight);
        self.fail_unread(flight, &failure.to_string())
    }
}

/// The id under which receivers of webhooks know an event. `None` if the event cannot be decoded.
fn receivers_id(namespace: &str, event: &[u8]) -> Option<EventId> {
    let (id, source) = EventView::id_and_source(event).ok()?;
    Some(EventId::new(namespace, source, id))
}
