//! Accepts events: finds the subscriptions that match, detects duplicates, and checks limits.

use crate::engine::{Completion, Engine, Failure, NewEvent, Token};
use crate::known_ids::life_ms;
use crate::namespaces::Sender;
use crate::overflow::DROP_BYTES_MAX;
use crate::subscription::Subscription;
use crate::trace_ids::LogIds;
use klambda_core::binding::{Cause, Rejected};
use klambda_core::event::Event;
use klambda_core::fault::Fault;
use klambda_core::filter;
use klambda_core::ids::{NamespaceId, Position, Sequence, SubscriptionId};
use klambda_core::key::{self, Key};
use klambda_core::planted::{self, Bug};
use klambda_core::subscription::{Ordering, Spec};
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::marks::{Identity, Mark, State as MarkState};
use klambda_store::record::{Route, To};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The result for one event of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct EventResult {
    pub id: Option<String>,
    pub source: Option<String>,
    pub status: Status,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    Accepted {
        position: Position,
    },
    /// Every matching subscription already knows the event.
    Skipped {
        reason: &'static str,
    },
    Rejected(Rejection),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Rejection {
    Invalid {
        faults: Vec<Fault>,
        cause: Cause,
    },
    /// The backlog of a subscription is at a limit.
    Backlog {
        subscription: String,
        limit: &'static str,
        deepest: Option<(String, u64)>,
    },
    DeadLetters {
        subscription: String,
    },
    NoNamespace {
        namespace: String,
    },
    /// The namespace as a whole is at a limit.
    NamespaceFull {
        namespace: String,
        limit: &'static str,
    },
    TooLarge {
        limit: usize,
    },
    DiskFull,
    /// The store has failed.
    Unavailable {
        why: String,
    },
}

/// A new event and its identity for duplicate detection.
#[derive(Clone, Copy)]
struct Incoming<'a> {
    namespace: NamespaceId,
    event: &'a Event,
    identity: Identity,
}

/// Approximate size of an acknowledgement in the log if no other record shares its frame.
pub(crate) const ACKNOWLEDGEMENT_BYTES: usize = 96;

/// Maximum size of a route: a key of 1,024 bytes and a few numbers.
pub(crate) const ROUTE_BYTES_MAX: usize = 1100;

/// Where an event goes in a subscription, before the route is logged.
pub(crate) enum Wanted<'a> {
    Lane { key: Cow<'a, str>, sequence: Option<Sequence>, from_source: bool },
    Alone,
    Invalid(&'static str),
    Later,
}

pub(crate) enum Taken<'a> {
    Yes(Wanted<'a>),
    Known(&'static str),
    Full(&'static str),
    /// Accepted, but the subscription must drop its oldest event first.
    Crowded(Wanted<'a>),
}

/// How long the log remembers events that no subscription matches.
const LOG_WINDOW_MS: u64 = 24 * 3_600_000;

/// Subscriptions that were deleted or changed their filters, with the time of the change. The log may hold events
/// that they accepted and that no subscription matches any more. Only the marks of these subscriptions identify such
/// events as duplicates: the log writes a mark of its own only for events without a route.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct FormerSubscriptions(Vec<(SubscriptionId, Millis)>);

impl FormerSubscriptions {
    /// Every entry is looked up for each event that no subscription matches, so the list stays short: the oldest
    /// entry is dropped.
    const MAX: usize = 64;

    pub fn note(&mut self, id: SubscriptionId, time: Millis) {
        self.0.retain(|(other, since)| *other != id && time.since(*since) < LOG_WINDOW_MS);
        if self.0.len() == Self::MAX {
            self.0.remove(0);
        }
        self.0.push((id, time));
    }
}

impl Engine {
    /// Processes the events of a request in order. The answer is sent when all of them are durable.
    pub fn accept(&mut self, token: Token, sender: &Sender, events: Vec<Result<Event, Rejected>>) {
        let had_failed = self.condition.failed.is_some();
        let judged = events.into_iter().map(|event| self.judge(sender, event)).collect();
        // After a store failure every event is rejected, and no later sync would release the answer.
        match had_failed {
            true => self.commits.answer_now(Completion::Events(token, judged)),
            false => self.commits.answer(Completion::Events(token, judged)),
        }
    }

    fn judge(&mut self, sender: &Sender, event: Result<Event, Rejected>) -> EventResult {
        let event = match event {
            Ok(event) => event,
            Err(rejected) => {
                let Rejected { id, source, faults, cause } = rejected;
                let kind =
                    if let Cause::Schema(mismatch) = &cause { mismatch.event_type.as_str() } else { "" };
                self.metrics.received(kind, "rejected");
                return EventResult {
                    id,
                    source,
                    status: Status::Rejected(Rejection::Invalid { faults, cause }),
                };
            }
        };
        let status = match &self.condition.failed {
            Some(why) => Status::Rejected(Rejection::Unavailable { why: why.clone() }),
            None => self.take(sender, &event).unwrap_or_else(|failure| {
                let why = failure.to_string();
                self.note(Err(failure));
                Status::Rejected(Rejection::Unavailable { why })
            }),
        };
        self.metrics.received(&event.kind, status.name());
        self.metrics.unavailable += u64::from(status.is_unavailable());
        EventResult { id: Some(event.id), source: Some(event.source), status }
    }

    fn take(&mut self, sender: &Sender, event: &Event) -> Result<Status, Failure> {
        let namespace = match self.admit(sender) {
            Ok(namespace) => namespace,
            Err(rejection) => return Ok(Status::Rejected(rejection)),
        };
        let identity = self.identity(namespace, &event.source, &event.id);
        let mut wanted = Vec::new();
        let mut known = Vec::new();
        let mut full = None;
        let mut crowded = Vec::new();
        let mut takers = std::mem::take(&mut self.scratch.takers);
        self.subscriptions.wanting(namespace, event, &mut takers);
        if !sender.may_command {
            takers.retain(|id| !self.is_controller(*id));
        }
        for id in takers.drain(..) {
            match self.takes(id, event, identity)? {
                Taken::Yes(place) => wanted.push((id, place)),
                Taken::Known(reason) => known.push((id, reason)),
                Taken::Full(limit) => full = full.or(Some((id, limit))),
                Taken::Crowded(place) => {
                    wanted.push((id, place));
                    crowded.push(id);
                }
            }
        }
        self.scratch.takers = takers;
        self.count_duplicates(&known, event);
        if let Some((id, limit)) = full {
            return Ok(self.turn_away(id, limit));
        }
        let new = Incoming { namespace, event, identity };
        self.settle(new, &wanted, &crowded, known.last().map(|(_, reason)| *reason))
    }

    pub(crate) fn is_controller(&self, id: SubscriptionId) -> bool {
        self.subscriptions.get(id).is_some_and(|subscription| subscription.document.is_controller())
    }

    fn settle(
        &mut self,
        new: Incoming<'_>,
        wanted: &[(SubscriptionId, Wanted<'_>)],
        crowded: &[SubscriptionId],
        known: Option<&'static str>,
    ) -> Result<Status, Failure> {
        if wanted.is_empty() {
            if let Some(reason) = known {
                return Ok(Status::Skipped { reason });
            }
            if self.log_knows(new.identity)? {
                return Ok(Status::Skipped { reason: "duplicate" });
            }
            self.metrics.unmatched += 1;
        }
        self.append_event(new, wanted, crowded)
    }

    /// Builds the routes of an event that is about to be appended.
    pub(crate) fn routes<'a>(&mut self, wanted: &'a [(SubscriptionId, Wanted<'_>)]) -> Vec<Route<'a>> {
        for (id, place) in wanted {
            if let Wanted::Lane { from_source: true, .. } = place {
                self.count_without_key(*id);
            }
        }
        wanted.iter().map(|(id, place)| self.route(*id, place)).collect()
    }

    pub(crate) fn route<'a>(&self, subscription: SubscriptionId, wanted: &'a Wanted<'_>) -> Route<'a> {
        let previous = match wanted {
            Wanted::Lane { key, .. } => self.last_step(subscription, key),
            _ => LogAddress(0),
        };
        let to = match wanted {
            Wanted::Lane { key, sequence, .. } => To::Lane { key, sequence: *sequence },
            Wanted::Alone => To::Alone,
            Wanted::Invalid(what) => To::Invalid { what },
            Wanted::Later => To::Later,
        };
        Route { subscription, previous, to }
    }

    /// The newest step of a lane that is in memory. The chain of a lane on disk starts again at its row.
    pub(crate) fn last_step(&self, id: SubscriptionId, key: &str) -> LogAddress {
        let slot = self.lanes.find(id, key);
        slot.and_then(|slot| self.lanes.get(slot)).map_or(LogAddress(0), |resident| resident.last_step)
    }

    /// Drops old events only when the new event can no longer be rejected.
    fn append_event(
        &mut self,
        new: Incoming<'_>,
        wanted: &[(SubscriptionId, Wanted<'_>)],
        crowded: &[SubscriptionId],
    ) -> Result<Status, Failure> {
        let Incoming { namespace, event, identity } = new;
        let length_max = NewEvent::length_max(event, wanted.len());
        if length_max > self.store.log.record_bytes_max() {
            return Ok(Status::Rejected(Rejection::TooLarge { limit: self.store.log.record_bytes_max() }));
        }
        // On a full disk, the remaining space is reserved for the acknowledgements of pending events.
        let owed = if self.condition.disk_full { self.owed_bytes() } else { 0 };
        let room = length_max + owed + crowded.len() * DROP_BYTES_MAX;
        if !self.store.log.has_room_for_events(room) || self.lacks_checkpoint() {
            return Ok(Status::Rejected(Rejection::DiskFull));
        }
        crowded.iter().try_for_each(|id| self.make_room(*id, room))?;
        let routes = &self.routes(wanted);
        let position =
            self.commit_event(NewEvent { namespace, event, routes, identity, is_emitted: false })?;
        Ok(Status::Accepted { position })
    }

    /// Decides whether and where a subscription takes an event that passed its filters.
    fn takes<'a>(
        &mut self,
        id: SubscriptionId,
        event: &'a Event,
        identity: Identity,
    ) -> Result<Taken<'a>, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(Taken::Known("duplicate")) };
        if self.is_known(subscription, identity)? {
            return Ok(Taken::Known("duplicate"));
        }
        if planted::is_on(Bug::MarkBeforeWork) {
            let (at, position, time) = (self.store.log.written(), self.store.log.next_position(), self.now);
            let mark = Mark { at, time, state: MarkState::Taken(position) };
            self.store.marks.put(identity, id, mark);
        }
        match self.limit_reached(subscription, 0) {
            None => self.takes_place(id, event),
            Some(_) if subscription.lags() && !planted::is_on(Bug::LagRejects) => {
                Ok(Taken::Yes(Wanted::Later))
            }
            Some(limit) if !subscription.drops_at(limit, 1) => Ok(Taken::Full(limit)),
            Some(_) => Ok(match self.takes_place(id, event)? {
                Taken::Yes(place) => Taken::Crowded(place),
                other => other,
            }),
        }
    }

    /// Decides where a subscription places a new event, regardless of its limits.
    pub(crate) fn takes_place<'a>(
        &mut self,
        id: SubscriptionId,
        event: &'a Event,
    ) -> Result<Taken<'a>, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(Taken::Known("duplicate")) };
        if subscription.is_reading() && !planted::is_on(Bug::OvertakesUnread) {
            return Ok(Taken::Yes(Wanted::Later));
        }
        let wanted = place(subscription, event);
        if let Wanted::Lane { key, sequence, .. } = &wanted {
            let (policy, now) = (subscription.policy, self.now);
            // The lane is loaded now in any case, together with the chain of its steps.
            let slot = self.resident(id, key)?;
            let resident = self.lanes.get(slot);
            if let (Some(resident), Some(sequence)) = (resident, sequence)
                && resident.lane.knows(*sequence, &policy, now)
            {
                return Ok(Taken::Known("watermark"));
            }
        }
        Ok(Taken::Yes(wanted))
    }

    /// True if the subscription knows the event: the id is within the window, or the event is pending or a dead
    /// letter.
    pub(crate) fn is_known(&self, subscription: &Subscription, identity: Identity) -> Result<bool, Failure> {
        self.is_known_at(subscription, identity, self.now)
    }

    /// The same for an event accepted at the given time, even if the subscription reads it much later.
    pub(crate) fn is_known_at(
        &self,
        subscription: &Subscription,
        identity: Identity,
        accepted: Millis,
    ) -> Result<bool, Failure> {
        let Some(mark) = self.store.marks.get(identity, subscription.id)? else { return Ok(false) };
        if let MarkState::Released(_) = mark.state {
            return Ok(false);
        }
        let is_open =
            |at: LogAddress| self.lanes.iter().any(|(_, r)| r.lane.in_flight() && r.before.current_at == at);
        if planted::is_on(Bug::InFlightUnknown) && is_open(mark.at) {
            return Ok(false);
        }
        let life_ms = life_ms(subscription.document.spec.idempotency.ttl_ms);
        if accepted.since(mark.time) < life_ms && mark.age() >= self.known_ids.first() {
            return Ok(true);
        }
        match mark.state {
            // Accepted but not yet read from the log: the event is pending too.
            MarkState::Later(_) if subscription.is_reading() && !planted::is_on(Bug::UnreadForgotten) => {
                Ok(true)
            }
            MarkState::Taken(_) | MarkState::Later(_) => {
                Ok(subscription.tally.pins(mark.at) && self.is_waiting(subscription.id, &mark)?)
            }
            MarkState::Delivered(_) | MarkState::Released(_) => Ok(false),
        }
    }

    /// True if the log holds the event although no matching subscription knows it.
    pub(crate) fn log_knows(&self, identity: Identity) -> Result<bool, Failure> {
        let parted = self.subscriptions.parted.0.iter().map(|(id, _)| *id);
        for id in std::iter::once(SubscriptionId(0)).chain(parted) {
            let mark = self.store.marks.get(identity, id)?;
            let is_young = |mark: Mark| self.now.since(mark.time) < LOG_WINDOW_MS;
            if mark.is_some_and(|mark| is_young(mark) && mark.age() >= self.known_ids.first()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Counts the duplicate for every subscription that knows the event.
    pub(crate) fn count_duplicates(&mut self, known: &[(SubscriptionId, &'static str)], event: &Event) {
        for (id, reason) in known {
            let Some(subscription) = self.subscriptions.get(*id) else { continue };
            self.metrics.duplicate(subscription.name(), reason);
            let (key, sequence, expected_sequence) = self.sequence_of(subscription, event);
            let namespace = &subscription.document.namespace;
            let LogIds { trace_id, span_id, correlation_id } =
                LogIds::of(namespace, event, false, self.config.sampler.as_ref());
            tracing::info!(
                subscription = %subscription.name(), key, event_id = %event.id, event_type = %event.kind,
                source = %event.source, reason, event_sequence = sequence, expected_sequence, trace_id, span_id,
                correlation_id,
                "Duplicate event skipped"
            );
        }
    }

    /// Values for a log line: the event's key and sequence, and the sequence that its lane expects.
    fn sequence_of(
        &self,
        subscription: &Subscription,
        event: &Event,
    ) -> (Option<String>, Option<u64>, Option<u64>) {
        if !tracing::enabled!(tracing::Level::INFO) {
            return (None, None, None);
        }
        let Wanted::Lane { key, sequence, .. } = place(subscription, event) else {
            return (None, None, None);
        };
        let expected = sequence.and_then(|_| match self.lanes.find(subscription.id, &key) {
            Some(slot) => self.lanes.get(slot)?.lane.expected(),
            None => self.peek_lane(subscription.id, &key).ok()??.lane.expected(),
        });
        (Some(key.into_owned()), sequence.map(|n| n.0), expected.map(|n| n.0))
    }

    fn count_without_key(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        subscription.notes.events_without_key += 1;
        self.metrics.without_key(subscription.name());
    }

    fn turn_away(&mut self, id: SubscriptionId, limit: &'static str) -> Status {
        let name = self.subscriptions.get(id).map(|s| s.name().to_owned()).unwrap_or_default();
        self.metrics.backlog_rejected(&name);
        let deepest = self.deepest_lane(id);
        Status::Rejected(Rejection::Backlog { subscription: name, limit, deepest })
    }

    /// The deepest lane in memory, named in the rejection that the producer gets. Computed at most once per second.
    fn deepest_lane(&mut self, id: SubscriptionId) -> Option<(String, u64)> {
        let known = self.subscriptions.get(id)?.flow.deepest.as_ref();
        if let Some((_, key, depth)) = known.filter(|known| self.now.since(known.0) < 1000) {
            return Some((key.clone(), *depth));
        }
        let lanes = self.lanes.iter().filter(|(_, resident)| resident.subscription == id);
        let (_, deepest) = lanes.max_by_key(|(_, resident)| resident.lane.depth())?;
        let (key, depth) = (deepest.key.to_string(), deepest.lane.depth());
        self.subscriptions.get_mut(id)?.flow.deepest = Some((self.now, key.clone(), depth));
        Some((key, depth))
    }
}

impl Subscription {
    pub(crate) fn wants(&self, namespace: NamespaceId, event: &impl filter::Attributes) -> bool {
        self.namespace == namespace
            && !self.is_leaving()
            && filter::all_match(&self.document.spec.filters, event)
    }
}

impl Status {
    pub fn name(&self) -> &'static str {
        match self {
            Status::Accepted { .. } => "accepted",
            Status::Skipped { .. } => "skipped",
            Status::Rejected(_) => "rejected",
        }
    }

    /// Whether the store is the reason of the rejection.
    fn is_unavailable(&self) -> bool {
        matches!(self, Status::Rejected(Rejection::DiskFull | Rejection::Unavailable { .. }))
    }
}

/// Where an event goes under the subscription's rules.
pub(crate) fn place<'a>(subscription: &Subscription, event: &'a impl filter::Attributes) -> Wanted<'a> {
    place_under(&subscription.document.spec, event)
}

pub(crate) fn place_under<'a>(spec: &Spec, event: &'a impl filter::Attributes) -> Wanted<'a> {
    if spec.ordering != Ordering::Ordered {
        return Wanted::Alone;
    }
    let policy = &spec.policy;
    let (key, from_source) = match key::key(&policy.key, event) {
        Key::Found(key) => (key, false),
        Key::FromSource(key) => (key, true),
        Key::Missing => {
            return Wanted::Invalid("the event does not have the key that the subscription requires");
        }
        Key::TooLong => return Wanted::Invalid("the event's key is longer than 1024 bytes"),
    };
    let sequence = match &policy.sequence {
        None => None,
        Some(rule) => match key::sequence(&rule.source, event) {
            Some(sequence) => Some(Sequence(sequence)),
            None => {
                return Wanted::Invalid(
                    "the event does not have the sequence that the subscription requires, or the sequence is not a number",
                );
            }
        },
    };
    Wanted::Lane { key, sequence, from_source }
}
