//! Sends one event of a webhook endpoint again, beside its lane.

use super::FeedEntry;
use crate::dead_letters::Selector;
use crate::engine::{Engine, Failure};
use crate::operate::Refused;
use crate::replay::Request;
use bytes::Bytes;
use klambda_core::ids::SubscriptionId;
use klambda_core::subscription::Document;
use klambda_core::webhook::EventId;
use klambda_store::address::LogAddress;
use klambda_store::record::{Attempt, LaneRef, Record, Step};
use std::sync::Arc;

/// How an event is sent again.
pub enum Resend {
    /// A call beside the lane.
    Call(Box<ResendCall>),
    /// It is a dead letter, so this replay returns it to its place.
    Replay(u64),
}

pub struct ResendCall {
    subscription: SubscriptionId,
    pub document: Arc<Document>,
    pub entry: FeedEntry,
    /// The record of the event.
    pub record: Bytes,
}

/// The outcome of such a call.
#[derive(Debug)]
pub struct Resent {
    pub status: Option<u16>,
    pub duration_ms: u64,
    /// The beginning of the answer.
    pub answer: String,
    /// Why there was no answer.
    pub error: Option<String>,
}

impl Resent {
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }
}

impl Engine {
    /// Decides how an event can be sent again. A dead letter is replayed at once.
    pub fn begin_resend(&mut self, name: &str, event: EventId) -> Result<Resend, Refused> {
        let id = self.subscription_id(name)?;
        let entry = self.feed_entry(id, event)?.filter(|entry| !entry.is_gone);
        let Some(entry) = entry else {
            return Err(Refused::NotFound(format!("the feed of this endpoint has no event {event}")));
        };
        if self.subscriptions.get(id).is_some_and(|s| s.life.health.disabled.is_some()) {
            return Err(Refused::Conflict("the endpoint is disabled; enable it first".to_owned()));
        }
        if let Some(letter) = self.find_dead_letter(id, entry.position)? {
            let selector = Selector {
                namespace: Some(klambda_core::namespace::split(name).0.to_owned()),
                subscription: Some(name.to_owned()),
                ids: Some(vec![letter.id(name)]),
                ..Selector::default()
            };
            let request = Request { selector, rate_per_second: 1, parallelism: 1 };
            return Ok(Resend::Replay(self.create_replay(request)?));
        }
        let Some(located) = self.locate(entry.at)? else {
            return Err(Refused::NotFound(format!("retention has removed event {event}")));
        };
        if self.is_pending(id, &entry)? {
            return Err(Refused::Conflict(format!(
                "event {event} is still waiting and will be sent in its turn"
            )));
        }
        let record = self.store.log.read(located).map_err(Failure::from)?;
        let document = self.subscriptions.get(id).map(|subscription| subscription.document.clone());
        let document = document.ok_or_else(|| Refused::NotFound(name.to_owned()))?;
        // The process may end during the call.
        self.must_write()?;
        self.audit_now()?;
        Ok(Resend::Call(Box::new(ResendCall { subscription: id, document, entry, record })))
    }

    fn is_pending(&mut self, id: SubscriptionId, entry: &FeedEntry) -> Result<bool, Failure> {
        let fate = self.fate_at(id, entry.at, entry.position)?;
        Ok(matches!(fate, Some("waiting" | "retrying" | "inFlight" | "buffered")))
    }

    /// Notes a call that was made beside the lane. It changes nothing else. An endpoint that was deleted during the call
    /// keeps no note, also if there is a new one of its name.
    pub fn note_resend(&mut self, call: &ResendCall, resent: &Resent) -> Result<(), Refused> {
        let (id, entry) = (call.subscription, &call.entry);
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let is_ordered = subscription.is_ordered();
        self.must_write()?;
        let step = Step::Resent {
            position: entry.position,
            event: entry.at,
            number: entry.number,
            attempt: Attempt {
                number: 0,
                duration_ms: resent.duration_ms,
                status: resent.status.unwrap_or_default(),
                answer: &resent.answer,
            },
            error: resent.error.as_deref().unwrap_or_default(),
        };
        if is_ordered && entry.number.0 > 0 {
            self.step_lane(id, &entry.workflow, step)?;
            return Ok(());
        }
        let lane = LaneRef::Alone(entry.position);
        let previous = LogAddress(0);
        let record = Record::Step { time: self.now, subscription: id, lane, previous, running: None, step };
        self.commit(&record)?;
        Ok(())
    }
}
