//! Groups of records that take effect together: a crash keeps all of them or none.
//!
//! A group is one frame of the log, and recovery keeps or cuts a frame as a whole. Every condition that could reject
//! one of the events is checked before the first record is appended.

use crate::accept::{Taken, Wanted};
use crate::audit::NextEntry;
use crate::engine::{Engine, Failure, NewEvent};
use crate::overflow::{Crowded, DROP_BYTES_MAX, EVENTS_FULL, LETTERS_FULL};
use crate::subscription::Subscription;
use klambda_core::event::Event;
use klambda_core::ids::{NamespaceId, Position, SubscriptionId};
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::log;
use klambda_store::marks::{Identity, Mark, State as MarkState};
use klambda_store::segment::RECORD_HEADER;

/// Marks of events that this system emitted are stored under this subscription number.
const OUTBOX: SubscriptionId = SubscriptionId(u32::MAX);

/// Events that this system emits may exceed a backlog limit by this many before the subscription misses some. The
/// system must not stop because one reader has stopped.
const SURPLUS_MAX: u64 = 10_000;

const EMITTED_WINDOW_MS: u64 = 24 * 3_600_000;

/// Why there is no room for events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error("the backlog of subscription {subscription} is full ({limit})")]
    Backlog { subscription: String, limit: &'static str },
    #[error("the disk is full")]
    Disk,
    #[error("the events do not fit into one step of the log ({0} bytes)")]
    TooLarge(usize),
}

/// An event that the engine itself creates: a reply of a function, or an event about a document. It is appended in
/// the group of its cause. Its id is derived from the cause, so appending it twice has no effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutboxEntry<'a> {
    pub namespace: NamespaceId,
    pub event: &'a Event,
}

/// The origin of an event in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This system.
    System,
    /// A function, in reply to the event at the head of a lane of this subscription.
    Reply(SubscriptionId),
}

impl Engine {
    /// The maximum size in the log of the events together with `beside`, if there is room for all of them.
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
            true => self.owed_bytes(),
            false => 0,
        };
        // While the next segment is being prepared, events of the system may use the reserve.
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

    /// The number of subscriptions that match an event of the system. None of them rejects the event, but
    /// subscriptions that drop their oldest event at a limit drop one.
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

    /// The number of subscriptions that match the event, if each of them has room for it after the events `before`
    /// it, or will have room when the subscriptions in `crowded` have dropped their oldest events.
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
            // All calls of the subscription wait for room themselves. Waiting here would be a deadlock.
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

    /// Replies and events of the system are never commands: only an external sender may have the right to command.
    fn wanting_in_group(&self, entry: OutboxEntry<'_>) -> Vec<SubscriptionId> {
        let mut wanting = Vec::new();
        self.subscriptions.wanting(entry.namespace, entry.event, &mut wanting);
        wanting.retain(|id| !self.is_controller(*id));
        wanting
    }

    fn identity_of(&self, entry: OutboxEntry<'_>) -> Identity {
        self.identity(entry.namespace, &entry.event.source, &entry.event.id)
    }

    /// The limit that excludes a reply. If nothing is pending, replies are accepted regardless of their number;
    /// otherwise a reply larger than the backlog limit would wait forever.
    fn is_full_for(
        &self,
        subscription: &Subscription,
        before: &[OutboxEntry<'_>],
        cause: SubscriptionId,
        drops: u64,
    ) -> Option<&'static str> {
        let limit = self.limit_reached(subscription, before.len() as u64)?;
        // The cause leaves in the same step.
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

    /// Appends the records of `append` as one group, with the pending audit entry if there is one. None of the
    /// records may fail for lack of room.
    pub(crate) fn in_group<T>(
        &mut self,
        length_max: usize,
        append: impl FnOnce(&mut Engine) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let audit = self.next_audit()?;
        self.store.log.begin_group(length_max + audit.as_ref().map_or(0, NextEntry::length_max))?;
        let audited = audit.map_or(Ok(()), |audit| self.write_audit(&audit));
        let done = audited.and_then(|()| append(self));
        self.store.log.end_group();
        done.map_err(|failure| match failure {
            // Half a group must never be written, so this stops the store before the next write.
            Failure::Log(log::Error::Full) => {
                Failure::State("a group of records did not fit into the log".into())
            }
            other => other,
        })
    }

    /// Accepts one event of a group. Returns its position, or `None` if every subscription knows it.
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

    /// A reader that is far behind misses the event, which is counted.
    fn misses(&mut self, id: SubscriptionId) -> bool {
        let Some(subscription) = self.subscriptions.get(id) else { return true };
        let limit = subscription.document.spec.backlog.events_max.saturating_add(SURPLUS_MAX);
        if subscription.tally.waiting < limit {
            return false;
        }
        let name = subscription.name().to_owned();
        self.metrics.dead_letter_dropped(&name, "overflow");
        tracing::warn!(subscription = %name, "Backlog full; platform event dropped");
        true
    }

    // ---- events emitted by this system --------------------------------------------------------------------

    pub(crate) fn mark_emitted(&mut self, identity: Identity, at: LogAddress, time: Millis) {
        self.store.marks.put(identity, OUTBOX, Mark { at, time, state: MarkState::Taken(Position(0)) });
        self.count_mark(time, at);
    }

    fn has_emitted(&self, identity: Identity) -> Result<bool, Failure> {
        let mark = self.store.marks.get(identity, OUTBOX)?;
        Ok(mark.is_some_and(|mark| self.now.since(mark.time) < EMITTED_WINDOW_MS))
    }
}
