//! Applies log records to state. The same code runs for new records and for records replayed after a restart.

mod change;
mod disorder;
mod step;

pub(crate) use disorder::range;

use crate::engine::{Engine, Failure};
use crate::rows;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::lane::{Entry, Flag, Input, Turn};
use klambda_core::outcome::Reason;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::marks::{Identity, Mark, State as MarkState};
use klambda_store::record::{EventHead, Gone, LaneRef, Record, ReplayChange, Route, To};

impl Engine {
    pub(crate) fn apply_record(
        &mut self,
        at: LogAddress,
        record: &Record<'_>,
        position: Position,
    ) -> Result<(), Failure> {
        match record {
            Record::Event { namespace, time, routes, event, emitted } => {
                let head = EventHead { namespace: *namespace, time: *time, routes, emitted: *emitted };
                self.apply_event(at, position, head, event)
            }
            Record::Routed { time, position, at: event_at, accepted, bytes, route } => {
                self.maintenance.takes_up(*event_at);
                let entry = entry(*position, *event_at, *accepted, *bytes as usize);
                self.apply_routed(at, *time, entry, route)
            }
            Record::Step { time, subscription, lane, running, step, .. } => {
                if !self.subscriptions.contains(*subscription) {
                    return Ok(());
                }
                match lane {
                    LaneRef::Key(key) => {
                        self.restore_running(*subscription, key, *running)?;
                        self.apply_step(at, *time, *subscription, key, step)
                    }
                    LaneRef::Alone(position) => self.apply_single(at, *time, *subscription, *position, step),
                    LaneRef::Unordered => self.apply_unordered(at, *time, *subscription, step),
                }
            }
            Record::Subscription { time, subscription, change } => {
                self.apply_change(at, *time, *subscription, change, position)
            }
            Record::DeadLetterGone { time, subscription, position, why } => {
                self.apply_gone(at, *time, *subscription, *position, *why)
            }
            Record::Replay { id, change, .. } => {
                let (ReplayChange::Created { job }
                | ReplayChange::Planned { job }
                | ReplayChange::Ended { job }) = change;
                self.replays.put(*id, job);
                self.store.rows.put(&rows::replay(*id), job.as_bytes());
                Ok(())
            }
            Record::Kept { from, .. } => {
                self.store.rows.put(&rows::kept(*from), &at.0.to_be_bytes());
                Ok(())
            }
            Record::Documents { changes, .. } => self.apply_documents(at, changes),
            Record::Moved { time, from, position, at: event_at, accepted, bytes, route, job } => {
                let entry = entry(*position, *event_at, *accepted, *bytes as usize);
                self.apply_moved(at, *time, *from, entry, route, *job)
            }
            Record::Edited { .. } => self.apply_edited(at, record),
        }
    }

    /// During recovery: restores the event that was in flight when the step was logged.
    fn restore_running(
        &mut self,
        id: SubscriptionId,
        key: &str,
        running: Option<Turn>,
    ) -> Result<(), Failure> {
        if self.condition.live {
            return Ok(());
        }
        let slot = self.resident(id, key)?;
        if let Some(resident) = self.lanes.get_mut(slot) {
            resident.lane.set_running(running);
        }
        Ok(())
    }

    fn apply_event(
        &mut self,
        at: LogAddress,
        position: Position,
        head: EventHead<'_>,
        event: &[u8],
    ) -> Result<(), Failure> {
        let EventHead { namespace, time, routes, emitted } = head;
        let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
        let identity = self.identity(namespace, view.source(), view.id());
        if emitted {
            self.mark_emitted(identity, at, time);
        }
        self.place_event(at, position, time, routes, identity, event.len())
    }

    /// Applies an accepted event that is in the log.
    pub(crate) fn place_event(
        &mut self,
        at: LogAddress,
        position: Position,
        time: Millis,
        routes: &[Route<'_>],
        identity: Identity,
        length: usize,
    ) -> Result<(), Failure> {
        if routes.is_empty() {
            let mark = Mark { at, time, state: MarkState::Taken(position) };
            self.store.marks.put(identity, SubscriptionId(0), mark);
            self.count_mark(time, at);
        }
        let entry = entry(position, at, time, length);
        for route in routes {
            let is_later = route.to == To::Later;
            let state = if is_later { MarkState::Later(position) } else { MarkState::Taken(position) };
            if self.condition.live || !planted::is_on(Bug::MarkNotRecovered) {
                self.store.marks.put(identity, route.subscription, Mark { at, time, state });
            }
            self.apply_route(at, time, entry, route)?;
        }
        Ok(())
    }

    fn apply_routed(
        &mut self,
        at: LogAddress,
        time: Millis,
        entry: Entry,
        route: &Route<'_>,
    ) -> Result<(), Failure> {
        if !matches!(route.to, To::Missed { .. }) {
            self.mark_taken(&entry, time, route.subscription)?;
        }
        if let Some(subscription) = self.subscriptions.get_mut(route.subscription) {
            subscription.routed(&entry);
        }
        self.apply_route(at, time, entry, route)
    }

    pub(crate) fn apply_route(
        &mut self,
        at: LogAddress,
        time: Millis,
        entry: Entry,
        route: &Route<'_>,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get_mut(route.subscription) else { return Ok(()) };
        let id = route.subscription;
        match &route.to {
            To::Lane { key, sequence } => {
                subscription.tally.arrived(&entry);
                let slot = self.resident(id, key)?;
                let taken = self.is_sequence_spilled(slot, *sequence)?;
                self.step(slot, Input::Arrived { entry, sequence: *sequence, taken }, time, at)?;
                if self.condition.live
                    && let Some(resident) = self.lanes.get_mut(slot)
                {
                    resident.rate.count(time);
                }
                Ok(())
            }
            To::Alone => {
                subscription.tally.arrived(&entry);
                self.feed_single(id, &entry)?;
                self.queue_up(id, entry, at)
            }
            To::Invalid { what } => {
                subscription.tally.pin(entry.address());
                let key = self.key_of(id, entry.address());
                self.add_dead_letter(id, key.as_deref(), entry, Reason::Validation, what, 0, time, at, None)
            }
            To::Later => {
                self.comes_later(id, entry);
                Ok(())
            }
            To::Missed { key, why } => self.apply_missed(at, time, id, entry, key, *why),
        }
    }

    /// The key of an event that has no place in its lane, if it has a key.
    fn key_of(&self, id: SubscriptionId, at: LogAddress) -> Option<String> {
        let record = self.read_event(at).ok()?;
        self.key_by_rules(id, &record).ok()?
    }

    fn apply_gone(
        &mut self,
        at: LogAddress,
        time: Millis,
        id: SubscriptionId,
        position: Position,
        why: Gone,
    ) -> Result<(), Failure> {
        let Some(letter) = self.dead_letter(rows::DEAD, id, position)? else { return Ok(()) };
        self.store.rows.delete(&rows::at_position(rows::DEAD, id, position));
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        subscription.tally.dead -= 1;
        subscription.tally.unpin(letter.entry.address());
        subscription.on_disk.edits.forget(id, position, &mut self.store.rows);
        if self.condition.live && why != Gone::Deleted {
            let name = subscription.name();
            tracing::warn!(subscription = %name, position = position.0, why = ?why, "Dead letter dropped");
            self.metrics.dead_letter_dropped(name, if why == Gone::Expired { "expired" } else { "overflow" });
        }
        if let Some(key) = letter.key.as_deref().filter(|_| subscription.policy.sequenced) {
            let slot = self.resident(id, key)?;
            if let Some(resident) = self.lanes.get_mut(slot) {
                resident.row.dirty |= resident.lane.released();
            }
        }
        self.release(id, &letter.entry, time, at)
    }
}

fn entry(position: Position, at: LogAddress, accepted: Millis, bytes: usize) -> Entry {
    Entry { position, at: at.into(), number: LaneNumber(0), accepted, bytes: bytes as u32, flag: Flag::None }
}

/// The event inside an event record, and its offset.
pub(crate) fn event_of(record: &[u8]) -> Result<(usize, &[u8]), Malformed> {
    let event = klambda_store::record::event_of(record)?;
    Ok((record.len() - event.len(), event))
}
