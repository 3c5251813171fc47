//! Reply events of functions. They are accepted in the same step as the acknowledgement of their cause, so a crash
//! keeps both or neither. A reply without an id gets one from its cause and its place in the response, so repeating a
//! response adds nothing.

use crate::delivery::STEP_BYTES_MAX;
use crate::engine::{Engine, Failure, InFlight, Ticket, Who};
use crate::group::{NoRoom, Origin, OutboxEntry};
use crate::lanes::Resident;
use crate::subscription::{Subscription, Suspension};
use crate::subscriptions::Work;
use klambda_core::event::{Attribute, Event, Value};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::outcome::CallOutcome;
use klambda_core::planted::{self, Bug};
use klambda_core::subscription::{Document, MANAGED_PREFIX};
use klambda_core::time::Millis;
use klambda_store::address::Kept;
use klambda_store::log;
use klambda_store::segment::RECORD_HEADER;

/// The number of function replies between an event and the original event.
pub const HOPS: &str = "lambdahops";

/// Responses that find no room are kept up to this size. Beyond it, the function is called again later.
const PUT_OFF_BYTES_MAX: usize = 16 << 20;
/// How often kept responses look for room again, and how long the others wait.
const LOOK_MS: u64 = 50;
const RETRY_MS: u64 = 1000;

/// Responses whose reply events find no room yet. Their causes are not acknowledged and stay in flight.
#[derive(Default)]
pub(crate) struct DelayedReplies {
    answers: Vec<Waiting>,
    bytes: usize,
    due: Option<Millis>,
}

struct Waiting {
    ticket: Ticket,
    status: u16,
    replies: Vec<Event>,
    why: String,
}

impl DelayedReplies {
    pub fn due(&self) -> Option<Millis> {
        self.due
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The event that a response belongs to.
struct Cause {
    subscription: SubscriptionId,
    position: Position,
    id: String,
    source: String,
    hops: u32,
    traceparent: Option<String>,
}

impl Engine {
    /// A call succeeded and returned reply events.
    pub(crate) fn finish_replied(
        &mut self,
        ticket: Ticket,
        status: u16,
        replies: Vec<Event>,
    ) -> Result<(), Failure> {
        let acknowledged =
            || CallOutcome::Status { code: status, retry_after_ms: None, detail: String::new() };
        let Some(flight) = self.calls.get(ticket).copied() else { return Ok(()) };
        let Some(entry) = self.entry_of(&flight) else { return self.finish(ticket, acknowledged()) };
        let Some(cause) = self.cause_of(&flight, &entry)? else {
            let why = "the event that the function replied to cannot be read from the log".to_owned();
            return self.finish(ticket, CallOutcome::BadReplies { status, why });
        };
        let replies = match self.complete(&cause, replies) {
            Ok(replies) if replies.is_empty() => return self.finish(ticket, acknowledged()),
            Ok(replies) => replies,
            Err(why) => return self.finish(ticket, CallOutcome::BadReplies { status, why }),
        };
        let origin = Origin::Reply(cause.subscription);
        let namespace = self.subscriptions.get(cause.subscription).map(|s| s.namespace).unwrap_or_default();
        let entries: Vec<OutboxEntry<'_>> =
            replies.iter().map(|event| OutboxEntry { namespace, event }).collect();
        let length = match self.room_for(&entries, RECORD_HEADER + STEP_BYTES_MAX, origin)? {
            Ok(length) => length,
            Err(no_room @ NoRoom::TooLarge(_)) => {
                return self.finish(ticket, CallOutcome::BadReplies { status, why: no_room.to_string() });
            }
            Err(no_room) => {
                self.put_off(ticket, status, replies, no_room.to_string());
                return Ok(());
            }
        };
        let done = self.in_group(length, |engine| {
            engine.finish(ticket, acknowledged())?;
            let taken = replies.len() - usize::from(planted::is_on(Bug::ReplyDropped));
            entries.iter().take(taken).try_for_each(|reply| engine.take_in_group(*reply, origin).map(|_| ()))
        });
        if let Err(Failure::Log(log::Error::Full)) = done {
            self.put_off(ticket, status, replies, NoRoom::Disk.to_string());
            return Ok(());
        }
        done
    }

    pub(crate) fn entry_of(&self, flight: &InFlight) -> Option<Entry> {
        let subscription = self.subscriptions.get(flight.subscription)?;
        match flight.who {
            Who::Lane(slot) => self.lanes.get(slot)?.lane.head().map(|(_, entry)| *entry),
            Who::Alone(position) => {
                subscription.unordered.under_way.get(&position).map(|single| single.entry)
            }
        }
    }

    /// `None` if the event can no longer be read.
    fn cause_of(&mut self, flight: &InFlight, entry: &Entry) -> Result<Option<Cause>, Failure> {
        let Some(subscription) = self.subscriptions.get(flight.subscription) else { return Ok(None) };
        let (id, source) = (subscription.id, source_of(&subscription.document));
        self.read_back(entry.address(), |_, event| Cause {
            subscription: id,
            position: entry.position,
            id: event.id().to_owned(),
            source,
            hops: event.attribute(HOPS).and_then(|hops| hops.parse().ok()).unwrap_or(0),
            traceparent: event.attribute("traceparent").map(|trace| trace.into_owned()),
        })
    }

    /// Fills in attributes that a function may omit, or returns why the events are invalid.
    fn complete(&self, cause: &Cause, replies: Vec<Event>) -> Result<Vec<Event>, String> {
        if replies.len() > self.config.replies_max {
            return Err(format!(
                "{} events in one response; the limit is {}",
                replies.len(),
                self.config.replies_max
            ));
        }
        let hops = cause.hops.saturating_add(1);
        if hops > self.config.hops_max && !replies.is_empty() {
            return Err(format!(
                "the loop guard rejected the reply: {HOPS} would be {hops}, and the limit is {}; \
                 check that the filters do not match the function's own reply events",
                self.config.hops_max
            ));
        }
        let fill = |(n, reply)| cause.fill(n, reply, hops);
        Ok(replies.into_iter().enumerate().map(fill).collect())
    }

    // ---- waiting for room ---------------------------------------------------------------------------------

    fn put_off(&mut self, ticket: Ticket, status: u16, replies: Vec<Event>, why: String) {
        let bytes: usize = replies.iter().map(Event::encoded_len_max).sum();
        if self.calls.held_back.bytes + bytes > PUT_OFF_BYTES_MAX {
            return self.not_ready(ticket, format!("no room for the reply events: {why}"), RETRY_MS);
        }
        self.calls.held_back.bytes += bytes;
        self.mark_put_off(ticket);
        self.calls.held_back.answers.push(Waiting { ticket, status, replies, why });
        self.calls.held_back.due.get_or_insert(self.now + LOOK_MS);
    }

    fn mark_put_off(&mut self, ticket: Ticket) {
        let Some(id) = self.calls.put_off(ticket) else { return };
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.flow.put_off += 1;
        }
    }

    pub(crate) fn retry_put_off(&mut self) {
        if self.calls.held_back.due.is_none_or(|due| due > self.now) || self.condition.failed.is_some() {
            return;
        }
        for Waiting { ticket, status, replies, .. } in std::mem::take(&mut self.calls.held_back).answers {
            self.outcome(ticket, CallOutcome::Replied { status, replies });
        }
    }

    /// Status message with the number of calls whose reply events wait for room, and why the first one waits.
    pub(crate) fn put_off_message(&self, subscription: &Subscription) -> Option<String> {
        let is_its = |waiting: &&Waiting| {
            self.calls.get(waiting.ticket).is_some_and(|flight| flight.subscription == subscription.id)
        };
        let first = self.calls.held_back.answers.iter().find(is_its)?;
        let count = subscription.flow.put_off;
        let calls = if count == 1 { "1 call has".into() } else { format!("{count} calls have") };
        Some(format!("{calls} returned reply events that wait for room: {}", first.why))
    }

    /// Why the reply events for this lane's head wait.
    pub(crate) fn put_off_of(&self, resident: &Resident) -> Option<&str> {
        let is_its = |waiting: &&Waiting| {
            let who = self.calls.get(waiting.ticket).map(|flight| flight.who);
            matches!(who, Some(Who::Lane(slot)) if self.lanes.get(slot).is_some_and(|other| {
                other.subscription == resident.subscription && other.key == resident.key
            }))
        };
        self.calls.held_back.answers.iter().find(is_its).map(|waiting| waiting.why.as_str())
    }

    // ---- waiting for a replica ----------------------------------------------------------------------------

    /// No replica could be called. No attempt was made, and the subscription waits for a while.
    pub(crate) fn not_ready(&mut self, ticket: Ticket, why: String, retry_after_ms: u64) {
        if let Some(flight) = self.calls.get(ticket) {
            let id = flight.subscription;
            let until = self.now + retry_after_ms.clamp(1, klambda_core::retry::RETRY_AFTER_MS_MAX);
            self.suspend(id, Suspension { why, until });
        }
        if planted::is_on(Bug::NotReadyCounts) {
            let done = self.finish(ticket, CallOutcome::Timeout);
            return self.note(done);
        }
        self.abandon(ticket);
    }

    pub(crate) fn suspend(&mut self, id: SubscriptionId, suspension: Suspension) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        subscription.flow.suspension = Some(suspension);
    }

    /// The earliest time at which a suspended subscription continues.
    pub(crate) fn suspended_until(&self) -> Option<Millis> {
        self.subscriptions
            .each_with(Work::Suspended)
            .filter_map(|s| s.flow.suspension.as_ref())
            .map(|held| held.until)
            .min()
    }

    /// Releases suspended subscriptions whose time has come.
    pub(crate) fn release_suspended(&mut self) {
        let now = self.now;
        for id in self.subscriptions.with(Work::Suspended) {
            if let Some(subscription) = self.subscriptions.get_mut(id) {
                subscription.flow.suspension.take_if(|held| held.until <= now);
            }
        }
    }

    /// A function has a replica again, so its events need not wait any longer.
    pub fn function_ready(&mut self, namespace: &str, name: &str) {
        let is_it = |s: &&crate::subscription::Subscription| {
            let function = s.document.spec.target.function();
            function.is_some_and(|function| function.namespace == namespace && function.name == name)
        };
        let suspended = self.subscriptions.each_with(Work::Suspended);
        let its: Vec<SubscriptionId> = suspended.filter(is_it).map(|s| s.id).collect();
        for id in its {
            if let Some(subscription) = self.subscriptions.get_mut(id) {
                subscription.flow.suspension.take_if(|held| held.until < Millis::NEVER);
            }
        }
    }
}

impl Cause {
    fn fill(&self, n: usize, mut reply: Event, hops: u32) -> Event {
        if reply.id.is_empty() {
            // The position distinguishes causes with the same id, and the subscription distinguishes functions that
            // reply to the same cause. Both are the same for every repetition.
            reply.id = format!("{}.{}.{}.{n}", self.id, self.position, self.subscription.0);
        }
        if reply.source.is_empty() {
            reply.source.clone_from(&self.source);
        }
        reply.attributes.retain(|attribute| attribute.name != HOPS);
        reply.attributes.push(Attribute { name: HOPS.into(), value: Value::Integer(i64::from(hops)) });
        if let Some(trace) = &self.traceparent
            && reply.attribute("traceparent").is_none()
        {
            let value = Value::String(trace.clone());
            reply.attributes.push(Attribute { name: "traceparent".into(), value });
        }
        reply
    }
}

/// The source of replies without one: the function that they are from, wherever it runs.
fn source_of(document: &Document) -> String {
    let managed = document.name.strip_prefix(MANAGED_PREFIX).and_then(|name| name.split_once('.'));
    match (document.spec.target.function(), managed) {
        (Some(function), _) => format!("/lambda/{}/{}", function.namespace, function.name),
        (None, Some((namespace, name))) => format!("/lambda/{namespace}/{name}"),
        (None, None) => format!("/subscriptions/{}", document.full_name()),
    }
}
