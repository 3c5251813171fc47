//! Records that take effect together: after a crash all of them are there, or none.
//!
//! A group stands in one frame of the log, and recovery keeps a frame or cuts it as a whole. Everything that could
//! refuse one of its events is asked before the first record is appended.

use crate::accept::{Taken, Wanted};
use crate::audit::Next;
use crate::engine::{Engine, Failure, NewEvent};
use crate::overflow::{Crowded, DROP_BYTES_MAX, EVENTS_FULL, LETTERS_FULL};
use crate::subscription::Subscription;
use klambda_core::event::Event;
use klambda_core::ids::{Address, NamespaceId, Position, SubscriptionId};
use klambda_core::time::Millis;
use klambda_store::log;
use klambda_store::marks::{Identity, Mark, State as MarkState};
use klambda_store::segment::RECORD_HEADER;

/// Under this number stand the ids of events that this system emitted.
const OUTBOX: SubscriptionId = SubscriptionId(u32::MAX);

/// What this system tells of itself may exceed a backlog by so many events before the subscription misses some: its
/// work must not stop because one reader has.
const SURPLUS_MAX: u64 = 10_000;

const EMITTED_WINDOW_MS: u64 = 24 * 3_600_000;

/// Why events find no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error("the backlog of subscription {subscription} is full ({limit})")]
    Backlog { subscription: String, limit: &'static str },
    #[error("the disk is full")]
    Disk,
    #[error("together they are longer than the log can hold in one step ({0} bytes)")]
    TooLarge(usize),
}

/// An event that comes of a step of the engine itself: an answer of a function, or one that tells of a document. It is taken
/// in by the group of its cause, and its id follows from the cause, so that to take it in twice adds nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutboxEntry<'a> {
    pub namespace: NamespaceId,
    pub event: &'a Event,
}

/// Who an event of a group comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This system, about itself.
    System,
    /// A function, in answer to the event at the head of a lane of this subscription.
    Reply(SubscriptionId),
}

impl Engine {
    /// The most that the events take in the log together with `beside`, if there is room for all of them.
    pub(crate) fn room_for(
        &mut self,
        events: &[OutboxEntry<'_>],
        beside: usize,
        origin: Origin,
    ) -> Result<Result<usize, NoRoom>, Failure> {
        let mut length = beside;
        let mut crowded = Vec::new();
        for (n, entry) in events.iter().enumerate() {
            let routes = match origin {
                Origin::System => self.routes_of_system(*entry, &events[..n], &mut crowded)?,
                Origin::Reply(cause) => {
                    match self.routes_with_room(*entry, &events[..n], cause, &mut crowded)? {
                        Ok(routes) => routes,
                        Err(no_room) => return Ok(Err(no_room)),
                    }
                }
            };
            length += RECORD_HEADER + NewEvent::length_max(entry.event, routes);
        }
        if length > self.store.log.record_bytes_max() {
            return Ok(Err(NoRoom::TooLarge(self.store.log.record_bytes_max())));
        }
        let owed = match self.condition.disk_full {
            true => self.waiting() as usize * crate::accept::ACKNOWLEDGEMENT_BYTES,
            false => 0,
        };
        // While the next segment is on its way, what the system decides may use the reserve.
        let is_soon = origin == Origin::System
            && !self.condition.disk_full
            && self.store.log.has_room_for_steps(length);
        let drops = crowded.len() * DROP_BYTES_MAX;
        if !is_soon && !self.store.log.has_room_for_events(length + owed + drops) {
            return Ok(Err(NoRoom::Disk));
        }
        crowded.into_iter().try_for_each(|crowded| self.drop_for(crowded))?;
        Ok(Ok(length))
    }

    /// How many subscriptions want an event of the system. Nobody turns one away, but those that drop their oldest
    /// event at a limit drop one for it.
    fn routes_of_system(
        &mut self,
        entry: OutboxEntry<'_>,
        before: &[OutboxEntry<'_>],
        crowded: &mut Vec<Crowded>,
    ) -> Result<usize, Failure> {
        let identity = self.identity_of(entry);
        let ids = self.wanting_in_group(entry);
        if self.has_emitted(identity)? {
            return Ok(ids.len());
        }
        for id in &ids {
            let Some(subscription) = self.subscriptions.get(*id) else { continue };
            let drops = crowded.iter().filter(|crowded| crowded.subscription == *id).count() as u64;
            let more =
                before.iter().filter(|other| subscription.wants(other.namespace, other.event)).count() as u64;
            let limit = self.limit_reached(subscription, more.saturating_sub(drops));
            if let Some(limit) = limit.filter(|limit| subscription.drops_at(limit, drops + 1))
                && !self.is_known(subscription, identity)?
            {
                crowded.push(Crowded { subscription: *id, limit });
            }
        }
        Ok(ids.len())
    }

    /// How many subscriptions want the event, if each of them has room for it after those `before` it, or will have it
    /// when what is `crowded` has dropped its oldest.
    fn routes_with_room(
        &mut self,
        entry: OutboxEntry<'_>,
        before: &[OutboxEntry<'_>],
        cause: SubscriptionId,
        crowded: &mut Vec<Crowded>,
    ) -> Result<Result<usize, NoRoom>, Failure> {
        let OutboxEntry { namespace, event } = entry;
        let identity = self.identity_of(entry);
        let ids = self.wanting_in_group(entry);
        for id in &ids {
            let Some(subscription) = self.subscriptions.get(*id) else { continue };
            if subscription.lags() || self.is_known(subscription, identity)? {
                continue;
            }
            let drops = crowded.iter().filter(|crowded| crowded.subscription == *id).count() as u64;
            let Some(limit) = self.is_full_for(subscription, before, cause, drops) else { continue };
            let is_it = |other: &Event| other.id == event.id && other.source == event.source;
            if before.iter().any(|other| is_it(other.event) && subscription.wants(namespace, other.event)) {
                continue;
            }
            // All that it has under way waits for room itself: it would wait for itself, or in a ring, for ever.
            if subscription.flow.put_off > 0 && subscription.flow.put_off == subscription.flow.in_flight {
                continue;
            }
            if !subscription.drops_at(limit, drops + 1) {
                return Ok(Err(NoRoom::Backlog { subscription: subscription.name().to_owned(), limit }));
            }
            if matches!(self.takes_place(*id, event)?, Taken::Yes(_)) {
                crowded.push(Crowded { subscription: *id, limit });
            }
        }
        Ok(Ok(ids.len()))
    }

    /// Only who sends events from outside has a right to have them obeyed: neither who tells of a change, nor a function.
    fn wanting_in_group(&self, entry: OutboxEntry<'_>) -> Vec<SubscriptionId> {
        let mut wanting = Vec::new();
        self.subscriptions.wanting(entry.namespace, entry.event, &mut wanting);
        wanting.retain(|id| !self.is_controller(*id));
        wanting
    }

    fn identity_of(&self, entry: OutboxEntry<'_>) -> Identity {
        self.identity(entry.namespace, &entry.event.source, &entry.event.id)
    }

    /// The limit that keeps a reply out. One that finds nothing waiting is let in, however many come with it: what is more
    /// than a backlog ever holds would be waited with for ever.
    fn is_full_for(
        &self,
        subscription: &Subscription,
        before: &[OutboxEntry<'_>],
        cause: SubscriptionId,
        drops: u64,
    ) -> Option<&'static str> {
        let limit = self.limit_reached(subscription, before.len() as u64)?;
        // The cause itself leaves in the same step.
        let leaves = u64::from(subscription.id == cause) + drops;
        let waiting = subscription.tally.waiting.saturating_sub(leaves);
        if limit == LETTERS_FULL || waiting == 0 {
            return (limit == LETTERS_FULL).then_some(limit);
        }
        let more =
            before.iter().filter(|other| subscription.wants(other.namespace, other.event)).count() as u64;
        if waiting + more >= subscription.document.spec.backlog.events_max {
            return Some(EVENTS_FULL);
        }
        self.limit_reached(subscription, 0).filter(|limit| *limit != EVENTS_FULL)
    }

    /// Appends what `append` does as one group, with an entry of the audit log if one is noted. Nothing of it may fail
    /// for want of room.
    pub(crate) fn in_group<T>(
        &mut self,
        length_max: usize,
        append: impl FnOnce(&mut Engine) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let audit = self.next_audit()?;
        self.store.log.begin_group(length_max + audit.as_ref().map_or(0, Next::length_max))?;
        let audited = audit.map_or(Ok(()), |audit| self.write_audit(&audit));
        let done = audited.and_then(|()| append(self));
        self.store.log.end_group();
        done.map_err(|failure| match failure {
            // Half of a group must never be written: with this the store stops before the next write.
            Failure::Log(log::Error::Full) => Failure::State("a group of records did not fit".into()),
            other => other,
        })
    }

    /// Takes in one event of a group. Answers where, or nothing if everyone knows it.
    pub(crate) fn take_in_group(
        &mut self,
        entry: OutboxEntry<'_>,
        origin: Origin,
    ) -> Result<Option<Position>, Failure> {
        let OutboxEntry { namespace, event } = entry;
        let identity = self.identity_of(entry);
        if origin == Origin::System && self.has_emitted(identity)? {
            return Ok(None);
        }
        let mut wanted = Vec::new();
        let mut known = Vec::new();
        for id in self.wanting_in_group(entry) {
            let Some(subscription) = self.subscriptions.get(id) else { continue };
            if self.is_known(subscription, identity)? {
                known.push((id, "duplicate"));
                continue;
            }
            if subscription.lags() && self.limit_reached(subscription, 0).is_some() {
                wanted.push((id, Wanted::Later));
                continue;
            }
            if origin == Origin::System && self.misses(id) {
                continue;
            }
            match self.takes_place(id, event)? {
                Taken::Yes(place) => wanted.push((id, place)),
                Taken::Known(reason) => known.push((id, reason)),
                Taken::Full(_) | Taken::Crowded(_) => {}
            }
        }
        self.count_duplicates(&known, event);
        if wanted.is_empty() {
            if !known.is_empty() || self.log_knows(identity)? {
                self.metrics.received(&event.kind, "skipped");
                return Ok(None);
            }
            self.metrics.unmatched += 1;
        }
        let routes = &self.routes(&wanted);
        let is_emitted = origin == Origin::System;
        let position = self.commit_event(NewEvent { namespace, event, routes, identity, is_emitted })?;
        self.metrics.received(&event.kind, "accepted");
        Ok(Some(position))
    }

    /// A reader that is far behind goes without, and that is counted.
    fn misses(&mut self, id: SubscriptionId) -> bool {
        let Some(subscription) = self.subscriptions.get(id) else { return true };
        let limit = subscription.document.spec.backlog.events_max.saturating_add(SURPLUS_MAX);
        if subscription.tally.waiting < limit {
            return false;
        }
        let name = subscription.name().to_owned();
        self.metrics.dead_letter_dropped(&name, "overflow");
        tracing::warn!(subscription = %name, "Backlog full: an event of the platform itself is not taken.");
        true
    }

    // ---- what this system emitted itself ------------------------------------------------------------------

    pub(crate) fn mark_emitted(&mut self, identity: Identity, at: Address, time: Millis) {
        self.store.marks.put(identity, OUTBOX, Mark { at, time, state: MarkState::Taken(Position(0)) });
        self.count_mark(time, at);
    }

    fn has_emitted(&self, identity: Identity) -> Result<bool, Failure> {
        let mark = self.store.marks.get(identity, OUTBOX)?;
        Ok(mark.is_some_and(|mark| self.now.since(mark.time) < EMITTED_WINDOW_MS))
    }
}
