//! Calls of webhook endpoints that carry several events of a lane.
//!
//! The first event has the turn of the lane: it decides when the call starts, and a failed call is an attempt of this
//! event only. A success acknowledges the first event and then those that follow it, one step each, in one group. So the
//! lane knows nothing of batches, and a crash repeats the whole call or nothing of it.

use super::STEP_BYTES_MAX;
use crate::apply::event_of;
use crate::calls::{Batch, Batched};
use crate::engine::{Delivery, Engine, Failure, Following, InFlight, Ticket, Who};
use crate::lanes::Slot;
use crate::subscription::Subscription;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::{Entry, Turn};
use klambda_core::outcome::CallOutcome;
use klambda_core::planted::{self, Bug};
use klambda_store::address::Kept;
use klambda_store::record::{Attempt, Step};
use klambda_store::segment::RECORD_HEADER;

/// Maximum size of the acknowledgements of one call in the log.
const STEPS_BYTES_MAX: usize = 256 << 10;
/// Maximum size of the record of an acknowledgement without its key.
const STEP_BYTES: usize = RECORD_HEADER + 192;

impl Engine {
    /// The events that the call of a lane's first event carries too. Adds their size to `bytes`.
    pub(super) fn choose_following(&self, slot: Slot, bytes: &mut u32) -> Result<Vec<Entry>, Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(Vec::new()) };
        let id = resident.subscription;
        let limits = self.subscriptions.get(id).and_then(Subscription::batch);
        // A replayed event is not part of the queue, so it is sent alone.
        let (Some(limits), Some((Turn::Queue, first))) = (limits, resident.lane.head()) else {
            return Ok(Vec::new());
        };
        let steps =
            self.store.log.record_bytes_max().min(STEPS_BYTES_MAX) / (STEP_BYTES + resident.key.len());
        let events_max = (limits.events_max as usize).min(steps.max(1));
        let bytes_max = limits.bytes_max.min(self.room_bytes(id) as u64);
        let read = |chunk| self.chunk(id, &resident.key, chunk);
        let mut entries = resident.lane.queue().behind_first(events_max - 1, read)?;
        let (mut number, mut count, synced) = (first.number.0, 0, self.store.log.synced());
        for entry in &entries {
            let total = bytes.saturating_add(self.bytes_to_send(id, entry));
            // After a dropped event, the next one must name it as its previous event.
            let is_next = entry.number.0 == number + 1;
            if !is_next || entry.address().after() > synced || u64::from(total) > bytes_max {
                break;
            }
            (*bytes, number, count) = (total, entry.number.0, count + 1);
        }
        entries.truncate(count);
        Ok(entries)
    }

    /// Adds events to a call, up to one that cannot be read. That event fails when it has its turn.
    pub(super) fn add_following(&mut self, slot: Slot, delivery: &mut Delivery, entries: &[Entry]) {
        let Some(resident) = self.lanes.get(slot) else { return };
        let (id, step_bytes) = (resident.subscription, STEP_BYTES + resident.key.len());
        let mut batch = Batch { events: Vec::with_capacity(entries.len()), step_bytes };
        for entry in entries {
            let Some(following) = self.read_following(id, entry) else { break };
            let event = &following.record[following.event.clone()];
            let Ok((_, kind)) = EventView::id_and_kind(event) else { break };
            batch.events.push(Batched { position: entry.position, kind: self.metrics.type_id(kind) });
            delivery.following.push(following);
        }
        self.calls.add_batch(delivery.ticket, batch);
    }

    fn read_following(&self, id: SubscriptionId, entry: &Entry) -> Option<Following> {
        let subscription = self.subscriptions.get(id)?;
        let record = self.read_to_send(subscription, entry.position, entry.address()).ok()?;
        let (start, _) = event_of(&record).ok()?;
        let event = start..record.len();
        Some(Following { record, event, number: entry.number, flag: entry.flag, accepted: entry.accepted })
    }

    /// On a full disk, the part of a batch that fits is acknowledged.
    pub(super) fn has_room_for_outcome(&self, ticket: Ticket) -> bool {
        let batch = self.calls.batch(ticket).filter(|_| !self.condition.disk_full);
        let bytes = batch.map_or(0, |batch| steps_bytes(batch, batch.events.len()));
        self.store.log.has_room_for_steps(bytes.max(STEP_BYTES_MAX))
    }

    /// A call with several events succeeded. Events that are not acknowledged are sent again; this is not a failure.
    pub(super) fn acknowledge_batch(
        &mut self,
        flight: &InFlight,
        first: Position,
        batch: &Batch,
        outcome: &CallOutcome,
        attempt: Attempt<'_>,
    ) -> Result<(), Failure> {
        let Who::Lane(slot) = flight.who else { return Ok(()) };
        let Some(key) = self.lanes.get(slot).map(|resident| resident.key.clone()) else { return Ok(()) };
        let acknowledged = match outcome {
            CallOutcome::Prefix { events, .. } if !planted::is_on(Bug::PrefixTakesAll) => {
                events.saturating_sub(1)
            }
            _ => batch.events.len(),
        };
        let mut count = acknowledged.min(batch.events.len());
        while count > 0 && !self.store.log.has_room_for_steps(steps_bytes(batch, count)) {
            count /= 2;
        }
        self.in_group(steps_bytes(batch, count), |engine| {
            let step = Step::Delivered { position: first, attempt };
            engine.step_lane(flight.subscription, &key, step)?;
            let mut rest = batch.events[..count].iter();
            rest.try_for_each(|event| {
                engine.acknowledge_following(flight.subscription, slot, *event, attempt)
            })
        })
    }

    fn acknowledge_following(
        &mut self,
        id: SubscriptionId,
        slot: Slot,
        event: Batched,
        attempt: Attempt<'_>,
    ) -> Result<(), Failure> {
        let Batched { position, kind } = event;
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let first = resident.lane.queue().first().filter(|first| first.position == position);
        // None if the event was purged or dropped during the call.
        let Some(accepted) = first.map(|first| first.accepted) else { return Ok(()) };
        let (key, number) = (resident.key.clone(), resident.tried_earlier(position) + 1);
        if let Some(subscription) = self.subscriptions.get(id) {
            let delivered_after_ms = Some(self.now.since(accepted));
            self.metrics.processed(subscription.name(), kind, delivered_after_ms, attempt.duration_ms);
        }
        let attempt = Attempt { number, ..attempt };
        self.step_lane(id, &key, Step::Delivered { position, attempt }).map(drop)
    }
}

/// Maximum size in the log of the acknowledgement of a call with this number of further events.
fn steps_bytes(batch: &Batch, following: usize) -> usize {
    (following + 1) * batch.step_bytes
}
