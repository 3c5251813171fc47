//! Events that a function answers with: they are accepted in the same step as the acknowledgement of their cause, so
//! that after a crash there are both or neither. What has no id gets one from its cause and its place in the answer, so
//! that an answer given twice adds nothing.

use crate::delivery::STEP_BYTES_MAX;
use crate::engine::{Engine, Failure, InFlight, Ticket, Who};
use crate::group::{NoRoom, Origin, OutboxEntry};
use crate::lanes::Resident;
use crate::subscription::Held;
use crate::subscriptions::Work;
use klambda_core::event::{Attribute, Event, Value};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::outcome::Outcome;
use klambda_core::planted::{self, Bug};
use klambda_core::subscription::{Document, MANAGED_PREFIX};
use klambda_core::time::Millis;
use klambda_store::log;
use klambda_store::segment::RECORD_HEADER;

/// How many answers of functions lie between an event and the one that began it.
pub const HOPS: &str = "lambdahops";

/// Answers that find no room are kept up to here; beyond it their function is called again later.
const PUT_OFF_BYTES_MAX: usize = 16 << 20;
/// How often those that are kept look for room again, and how long the others wait.
const LOOK_MS: u64 = 50;
const RETRY_MS: u64 = 1000;

/// Answers whose events find no room yet. Their causes are not acknowledged and stay in flight.
#[derive(Default)]
pub(crate) struct PutOff {
    answers: Vec<Waiting>,
    bytes: usize,
    due: Option<Millis>,
}

struct Waiting {
    ticket: Ticket,
    replies: Vec<Event>,
    why: String,
}

impl PutOff {
    pub fn due(&self) -> Option<Millis> {
        self.due
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What an answer is about.
struct Cause {
    subscription: SubscriptionId,
    position: Position,
    id: String,
    source: String,
    hops: u32,
    traceparent: Option<String>,
}

impl Engine {
    /// A call ended well, with events of its own.
    pub(crate) fn finish_replied(&mut self, ticket: Ticket, replies: Vec<Event>) -> Result<(), Failure> {
        let Some(flight) = self.calls.get(ticket).copied() else { return Ok(()) };
        let Some(entry) = self.entry_of(&flight) else { return self.finish(ticket, acknowledged()) };
        let Some(cause) = self.cause_of(&flight, &entry)? else {
            let why = "the event that they answer cannot be read back".to_owned();
            return self.finish(ticket, Outcome::BadReplies(why));
        };
        let replies = match self.complete(&cause, replies) {
            Ok(replies) if replies.is_empty() => return self.finish(ticket, acknowledged()),
            Ok(replies) => replies,
            Err(why) => return self.finish(ticket, Outcome::BadReplies(why)),
        };
        let origin = Origin::Reply(cause.subscription);
        let namespace = self.subscriptions.get(cause.subscription).map(|s| s.namespace).unwrap_or_default();
        let entries: Vec<OutboxEntry<'_>> =
            replies.iter().map(|event| OutboxEntry { namespace, event }).collect();
        let length = match self.room_for(&entries, RECORD_HEADER + STEP_BYTES_MAX, origin)? {
            Ok(length) => length,
            Err(no_room @ NoRoom::TooLarge(_)) => {
                return self.finish(ticket, Outcome::BadReplies(no_room.to_string()));
            }
            Err(no_room) => {
                self.put_off(ticket, replies, no_room.to_string());
                return Ok(());
            }
        };
        let done = self.in_group(length, |engine| {
            engine.finish(ticket, acknowledged())?;
            let taken = replies.len() - usize::from(planted::is_on(Bug::ReplyDropped));
            entries.iter().take(taken).try_for_each(|reply| engine.take_in_group(*reply, origin).map(|_| ()))
        });
        if let Err(Failure::Log(log::Error::Full)) = done {
            self.put_off(ticket, replies, NoRoom::Disk.to_string());
            return Ok(());
        }
        done
    }

    pub(crate) fn entry_of(&self, flight: &InFlight) -> Option<Entry> {
        let subscription = self.subscriptions.get(flight.subscription)?;
        match flight.who {
            Who::Lane(slot) => self.lanes.get(slot)?.lane.head().map(|(_, entry)| *entry),
            Who::Alone(position) => subscription.flow.singles.get(&position).map(|single| single.entry),
        }
    }

    /// None of one that cannot be read back.
    fn cause_of(&mut self, flight: &InFlight, entry: &Entry) -> Result<Option<Cause>, Failure> {
        let Some(subscription) = self.subscriptions.get(flight.subscription) else { return Ok(None) };
        let (id, source) = (subscription.id, source_of(&subscription.document));
        self.read_back(entry.at, |_, event| Cause {
            subscription: id,
            position: entry.position,
            id: event.id().to_owned(),
            source,
            hops: event.attribute(HOPS).and_then(|hops| hops.parse().ok()).unwrap_or(0),
            traceparent: event.attribute("traceparent").map(|trace| trace.into_owned()),
        })
    }

    /// Fills in what a function may leave out, or says why its events cannot be taken.
    fn complete(&self, cause: &Cause, replies: Vec<Event>) -> Result<Vec<Event>, String> {
        if replies.len() > self.config.replies_max {
            return Err(format!(
                "{} events; an answer has at most {}",
                replies.len(),
                self.config.replies_max
            ));
        }
        let hops = cause.hops.saturating_add(1);
        if hops > self.config.hops_max && !replies.is_empty() {
            return Err(format!(
                "the loop guard stopped it: {HOPS} would be {hops}, and at most {} answers may follow one another; \
                 filters that let a function see its own events make such a loop",
                self.config.hops_max
            ));
        }
        let fill = |(n, reply)| cause.fill(n, reply, hops);
        Ok(replies.into_iter().enumerate().map(fill).collect())
    }

    // ---- no room yet --------------------------------------------------------------------------------------

    fn put_off(&mut self, ticket: Ticket, replies: Vec<Event>, why: String) {
        let bytes: usize = replies.iter().map(Event::encoded_len_max).sum();
        if self.calls.held_back.bytes + bytes > PUT_OFF_BYTES_MAX {
            return self.not_ready(ticket, format!("no room for its events: {why}"), RETRY_MS);
        }
        self.calls.held_back.bytes += bytes;
        self.mark_put_off(ticket);
        self.calls.held_back.answers.push(Waiting { ticket, replies, why });
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
        for Waiting { ticket, replies, .. } in std::mem::take(&mut self.calls.held_back).answers {
            self.outcome(ticket, Outcome::Replied { replies });
        }
    }

    /// What the answer to this lane's head waits for.
    pub(crate) fn put_off_of(&self, resident: &Resident) -> Option<&str> {
        let is_its = |waiting: &&Waiting| {
            let who = self.calls.get(waiting.ticket).map(|flight| flight.who);
            matches!(who, Some(Who::Lane(slot)) if self.lanes.get(slot).is_some_and(|other| {
                other.subscription == resident.subscription && other.key == resident.key
            }))
        };
        self.calls.held_back.answers.iter().find(is_its).map(|waiting| waiting.why.as_str())
    }

    // ---- no replica ---------------------------------------------------------------------------------------

    /// There was nobody to call: no attempt was made, and the subscription rests for a while.
    pub(crate) fn not_ready(&mut self, ticket: Ticket, why: String, retry_after_ms: u64) {
        if let Some(flight) = self.calls.get(ticket) {
            let id = flight.subscription;
            let until = self.now + retry_after_ms.clamp(1, klambda_core::retry::RETRY_AFTER_MS_MAX);
            self.hold(id, Held { why, until });
        }
        if planted::is_on(Bug::NotReadyCounts) {
            let done = self.finish(ticket, Outcome::Timeout);
            return self.note(done);
        }
        self.abandon(ticket);
    }

    pub(crate) fn hold(&mut self, id: SubscriptionId, held: Held) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        subscription.flow.held = Some(held);
    }

    /// The earliest time at which a subscription that is held goes on.
    pub(crate) fn held_until(&self) -> Option<Millis> {
        self.subscriptions
            .each_with(Work::Held)
            .filter_map(|s| s.flow.held.as_ref())
            .map(|held| held.until)
            .min()
    }

    /// Those whose time has come go on.
    pub(crate) fn release_held(&mut self) {
        let now = self.now;
        for id in self.subscriptions.with(Work::Held) {
            if let Some(subscription) = self.subscriptions.get_mut(id) {
                subscription.flow.held.take_if(|held| held.until <= now);
            }
        }
    }

    /// A function has a replica again: its events need not wait any longer.
    pub fn function_ready(&mut self, namespace: &str, name: &str) {
        let is_it = |s: &&crate::subscription::Subscription| {
            let function = s.document.spec.target.function();
            function.is_some_and(|function| function.namespace == namespace && function.name == name)
        };
        let its: Vec<SubscriptionId> = self.subscriptions.values().filter(is_it).map(|s| s.id).collect();
        for id in its {
            if let Some(subscription) = self.subscriptions.get_mut(id) {
                subscription.flow.held.take_if(|held| held.until < Millis::NEVER);
            }
        }
    }
}

impl Cause {
    fn fill(&self, n: usize, mut reply: Event, hops: u32) -> Event {
        if reply.id.is_empty() {
            // The position tells causes apart that have an id in common, the subscription functions that answer the same
            // cause; both are the same however often it is answered.
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

fn acknowledged() -> Outcome {
    Outcome::Status { code: 200, retry_after_ms: None, detail: String::new() }
}

/// Of events that say none: the function they are from, wherever it runs.
fn source_of(document: &Document) -> String {
    let managed = document.name.strip_prefix(MANAGED_PREFIX).and_then(|name| name.split_once('.'));
    match (document.spec.target.function(), managed) {
        (Some(function), _) => format!("/lambda/{}/{}", function.namespace, function.name),
        (None, Some((namespace, name))) => format!("/lambda/{namespace}/{name}"),
        (None, None) => format!("/subscriptions/{}", document.full_name()),
    }
}
