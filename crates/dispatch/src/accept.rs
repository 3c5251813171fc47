//! Taking events in: who wants each one, who knows it already, and whether there is room.

use crate::engine::{Answer, Engine, Failure, NewEvent, Token};
use crate::known::life_ms;
use crate::namespaces::Sender;
use crate::overflow::DROP_BYTES_MAX;
use crate::subscription::Subscription;
use crate::trail::{correlation_id, trace_id};
use klambda_core::binding::Rejected;
use klambda_core::event::Event;
use klambda_core::fault::Fault;
use klambda_core::filter;
use klambda_core::ids::{Address, NamespaceId, Position, Sequence, SubscriptionId};
use klambda_core::key::{self, Key};
use klambda_core::namespace;
use klambda_core::planted::{self, Bug};
use klambda_core::subscription::{Ordering, Spec};
use klambda_core::time::Millis;
use klambda_store::marks::{Identity, Mark, State as MarkState};
use klambda_store::record::{Route, To};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What became of one event of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    pub id: Option<String>,
    pub source: Option<String>,
    pub status: Status,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    Accepted {
        position: Position,
    },
    /// Every subscription that wants it knows it.
    Skipped {
        reason: &'static str,
    },
    Rejected(Rejection),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Rejection {
    Invalid {
        faults: Vec<Fault>,
        too_large: bool,
    },
    /// A subscription's backlog is at a limit.
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
    /// All of a namespace together is at a limit.
    NamespaceFull {
        namespace: String,
        limit: &'static str,
    },
    TooLarge {
        limit: usize,
    },
    DiskFull,
    /// The store stopped.
    Unavailable {
        why: String,
    },
}

/// An event that is judged, and what it is known by.
#[derive(Clone, Copy)]
struct Incoming<'a> {
    namespace: NamespaceId,
    event: &'a Event,
    identity: Identity,
}

/// About what an acknowledgement takes in the log.
pub(crate) const ACKNOWLEDGEMENT_BYTES: usize = 64;

/// The longest route: a key of 1024 bytes and a few numbers.
pub(crate) const ROUTE_BYTES_MAX: usize = 1100;

/// Where a subscription wants an event, before it is written down.
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
    /// Yes, in the place of its oldest event.
    Crowded(Wanted<'a>),
}

/// How long the log knows events that nobody wants.
const LOG_WINDOW_MS: u64 = 24 * 3_600_000;

/// Subscriptions that are gone, or want other events than they did, and since when. The log has what they took and
/// nobody wants now; what knows that is their marks alone, for a mark of the log's own would be one more per event.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Parted(Vec<(SubscriptionId, Millis)>);

impl Parted {
    /// Each is looked up for every event that nobody wants: the oldest are forgotten before that costs much.
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
    /// Judges a request's events in order and answers when all of it is durable.
    pub fn accept(&mut self, token: Token, sender: &Sender, events: Vec<Result<Event, Rejected>>) {
        let had_failed = self.condition.failed.is_some();
        let judged = events.into_iter().map(|event| self.judge(sender, event)).collect();
        // After a failure all of it is refused, and no sync will ever release the answer.
        match had_failed {
            true => self.commits.answer_now(Answer::Events(token, judged)),
            false => self.commits.answer(Answer::Events(token, judged)),
        }
    }

    fn judge(&mut self, sender: &Sender, event: Result<Event, Rejected>) -> Judged {
        let event = match event {
            Ok(event) => event,
            Err(rejected) => {
                self.metrics.received("", "rejected");
                let Rejected { id, source, faults, too_large } = rejected;
                return Judged {
                    id,
                    source,
                    status: Status::Rejected(Rejection::Invalid { faults, too_large }),
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
        Judged { id: Some(event.id), source: Some(event.source), status }
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

    /// The namespace that the sender names, if it takes one more event.
    fn admit(&mut self, sender: &Sender) -> Result<NamespaceId, Rejection> {
        let name = sender.namespace.as_deref().unwrap_or(namespace::DEFAULT);
        let Some(id) = self.namespaces.named(name) else {
            return Err(Rejection::NoNamespace { namespace: name.to_owned() });
        };
        let now = self.now;
        let Some(known) = self.namespaces.get_mut(id) else { return Ok(id) };
        let limits = known.limits;
        if !known.admits(now) {
            return Err(self.over_limit(id, "eventsPerSecond"));
        }
        match limits.backlog {
            Some(max) if self.subscriptions.owed_in(id) >= max => Err(self.over_limit(id, "backlog")),
            _ => Ok(id),
        }
    }

    fn over_limit(&mut self, id: NamespaceId, limit: &'static str) -> Rejection {
        let namespace = self.namespace_name(id).unwrap_or_default().to_owned();
        self.metrics.namespace_rejected(&namespace, limit);
        Rejection::NamespaceFull { namespace, limit }
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

    /// Where an event goes that is about to be appended.
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
            _ => Address(0),
        };
        let to = match wanted {
            Wanted::Lane { key, sequence, .. } => To::Lane { key, sequence: *sequence },
            Wanted::Alone => To::Alone,
            Wanted::Invalid(what) => To::Invalid { what },
            Wanted::Later => To::Later,
        };
        Route { subscription, previous, to }
    }

    /// The newest step of a lane that is in memory; the chain of one that is not begins anew at its row.
    pub(crate) fn last_step(&self, id: SubscriptionId, key: &str) -> Address {
        let slot = self.lanes.find(id, key);
        slot.and_then(|slot| self.lanes.get(slot)).map_or(Address(0), |resident| resident.last_step)
    }

    /// What makes room for it goes only once nothing can refuse it any more.
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
        // Once the disk is full, the room that is left belongs to the acknowledgements of what waits.
        let owed = if self.condition.disk_full { self.waiting() as usize * ACKNOWLEDGEMENT_BYTES } else { 0 };
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

    /// Whether and how a subscription takes an event that its filters let through.
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

    /// How a subscription takes an event that is new to it, whether or not it has room.
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
            // It comes into memory now in any case, and the chain of its steps with it.
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

    /// Whether the subscription knows the event: within its window, or because it still waits or is a dead letter.
    pub(crate) fn is_known(&self, subscription: &Subscription, identity: Identity) -> Result<bool, Failure> {
        self.is_known_at(subscription, identity, self.now)
    }

    /// The same for an event that was accepted at this time, however much later it is read.
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
        let is_open = |at: Address| self.lanes.iter().any(|(_, r)| r.lane.in_flight() && r.current_at == at);
        if planted::is_on(Bug::InFlightUnknown) && is_open(mark.at) {
            return Ok(false);
        }
        let life_ms = life_ms(subscription.document.spec.idempotency_ttl_ms);
        if accepted.since(mark.time) < life_ms && mark.age() >= self.known.first() {
            return Ok(true);
        }
        match mark.state {
            // Accepted, and not read from the log yet: it waits as well.
            MarkState::Later(_) if subscription.is_reading() && !planted::is_on(Bug::UnreadForgotten) => {
                Ok(true)
            }
            MarkState::Taken(_) | MarkState::Later(_) => {
                Ok(subscription.tally.pins(mark.at) && self.is_waiting(subscription.id, &mark)?)
            }
            MarkState::Delivered(_) | MarkState::Released(_) => Ok(false),
        }
    }

    /// Whether the log has the event, of which no subscription says that it knows it.
    pub(crate) fn log_knows(&self, identity: Identity) -> Result<bool, Failure> {
        let parted = self.subscriptions.parted.0.iter().map(|(id, _)| *id);
        for id in std::iter::once(SubscriptionId(0)).chain(parted) {
            let mark = self.store.marks.get(identity, id)?;
            let is_young = |mark: Mark| self.now.since(mark.time) < LOG_WINDOW_MS;
            if mark.is_some_and(|mark| is_young(mark) && mark.age() >= self.known.first()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// For every subscription that knows the event.
    pub(crate) fn count_duplicates(&mut self, known: &[(SubscriptionId, &'static str)], event: &Event) {
        for (id, reason) in known {
            let Some(subscription) = self.subscriptions.get(*id) else { continue };
            self.metrics.duplicate(subscription.name(), reason);
            let (key, sequence, expected_sequence) = self.sequence_of(subscription, event);
            tracing::info!(
                subscription = %subscription.name(), key, id = %event.id, source = %event.source, reason,
                sequence, expected_sequence, trace_id = trace_id(event), correlation_id = correlation_id(event).as_deref(),
                "Duplicate skipped."
            );
        }
    }

    /// For a log line: the event's key and sequence, and the sequence that its lane expects.
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

    /// The deepest lane in memory: the one to name to a producer that is turned away. Looked for once a second.
    fn deepest_lane(&mut self, id: SubscriptionId) -> Option<(String, u64)> {
        let known = self.subscriptions.get(id)?.flow.deepest.as_ref();
        if let Some((_, key, depth)) = known.filter(|known| self.now.since(known.0) < 1000) {
            return Some((key.clone(), *depth));
        }
        let lanes =
            self.lanes.iter().filter(|(_, resident)| resident.subscription == id && !resident.key.is_empty());
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
}

/// The place an event takes by the subscription's rules.
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
        Key::Missing => return Wanted::Invalid("the event has no key where the subscription names one"),
        Key::TooLong => return Wanted::Invalid("the event's key is longer than 1024 bytes"),
    };
    let sequence = match &policy.sequence {
        None => None,
        Some(source) => match key::sequence(source, event) {
            Some(sequence) => Some(Sequence(sequence)),
            None => {
                return Wanted::Invalid(
                    "the event has no readable sequence where the subscription names one",
                );
            }
        },
    };
    Wanted::Lane { key, sequence, from_source }
}
