//! Calls with several events of a workflow: the body is an array, and the answer may acknowledge only its beginning.

use super::super::reply::Reply;
use crate::engine::Delivery;
use klambda_core::event_codec::EventView;
use klambda_core::outcome::CallOutcome;
use klambda_core::webhook::payload::{self, Place};
use klambda_core::webhook::{Batch, EventId, Spec, acknowledgement};
use std::borrow::Cow;
use std::ops::Range;

/// The events of a call.
pub struct SentBatch {
    /// In order. Not all events of the delivery, if the body became too long.
    events: Vec<EventId>,
    /// How many events the delivery has.
    expected: usize,
}

/// The body of a call, and its events. `None` if the first event cannot be decoded.
pub fn body(delivery: &Delivery, spec: &Spec, limits: Batch) -> Option<(Vec<u8>, SentBatch)> {
    let expected = 1 + delivery.following.len();
    let mut writer = Writer { delivery, spec, body: vec![b'['], events: Vec::with_capacity(expected) };
    writer.add(&delivery.record, &delivery.event, super::place(delivery).as_ref())?;
    let workflow = delivery.place.as_ref().and_then(|place| place.workflow.as_deref()).unwrap_or_default();
    for event in &delivery.following {
        let end = writer.body.len();
        let place = Place {
            workflow: Cow::Borrowed(workflow),
            number: event.number.0,
            previous: writer.events.last().map(|id| id.to_string().into()),
            flag: event.flag,
        };
        let is_added = writer.add(&event.record, &event.event, Some(&place)).is_some();
        if !is_added || writer.body.len() as u64 >= limits.bytes_max {
            writer.body.truncate(end);
            writer.events.truncate(writer.events.len() - usize::from(is_added));
            break;
        }
    }
    let Writer { mut body, events, .. } = writer;
    body.push(b']');
    Some((body, SentBatch { events, expected }))
}

struct Writer<'a> {
    delivery: &'a Delivery,
    spec: &'a Spec,
    body: Vec<u8>,
    events: Vec<EventId>,
}

impl Writer<'_> {
    fn add(&mut self, record: &[u8], event: &Range<usize>, place: Option<&Place<'_>>) -> Option<()> {
        let event = EventView::decode(record.get(event.clone())?).ok()?;
        let id = EventId::new(&self.delivery.document.namespace, event.source(), event.id());
        if !self.events.is_empty() {
            self.body.push(b',');
        }
        payload::write(&mut self.body, &self.spec.payload, id, &event, place);
        self.events.push(id);
        Some(())
    }
}

impl SentBatch {
    /// The `webhook-id` of the call.
    pub fn id(&self) -> EventId {
        EventId::of_call(&self.events)
    }

    /// The outcome of the call by its answer.
    pub fn outcome(&self, mut reply: Reply) -> CallOutcome {
        let Some(content) = reply.content.take() else { return reply.into_outcome() };
        let (code, detail) = (reply.code, reply.excerpt.line());
        // Half an answer may acknowledge less than it seems to.
        if let Some(bytes_max) = content.cut_at.filter(|_| detail.starts_with('{')) {
            let why = format!("the answer is longer than {bytes_max} bytes");
            return CallOutcome::BadAcknowledgement { code, why };
        }
        match acknowledgement::count(&content.body, &self.events) {
            Ok(events) if events == self.expected => reply.into_outcome(),
            Ok(events) => CallOutcome::Prefix { code, events, detail },
            Err(why) => CallOutcome::BadAcknowledgement { code, why },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{deliver, event};
    use super::*;
    use crate::engine::{Following, Place as Taken};
    use klambda_core::ids::LaneNumber;
    use klambda_core::lane::Flag;
    use klambda_core::webhook::Document;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn batch_of(events: u64, spec: Value) -> (Delivery, Spec) {
        let mut document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "WebhookEndpoint", "metadata": {"name": "partner"},
            "spec": {"url": "http://127.0.0.1:9000/", "batch": {"maxEvents": 1000}},
        });
        document["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let document = Document::parse(&document).expect("a valid endpoint");
        let place = |number| Taken {
            number: LaneNumber(number),
            previous_id: (number > 1).then(|| "before".to_owned()),
            flag: Flag::None,
            workflow: Some("order-42".into()),
        };
        let numbered = |number: u64| {
            let mut event = event(br#"{"n":1,"secret":2}"#);
            event.id = number.to_string();
            deliver(&Arc::new(document.subscription()), &event, Some(place(number)))
        };
        let mut delivery = numbered(7);
        for number in 8..7 + events {
            let Delivery { record, event, accepted, .. } = numbered(number);
            let flag = if number == 8 { Flag::Gap } else { Flag::None };
            delivery.following.push(Following { record, event, number: LaneNumber(number), flag, accepted });
        }
        (delivery, document.spec)
    }

    fn written(delivery: &Delivery, spec: &Spec) -> (Vec<Value>, SentBatch) {
        let (body, sent) = body(delivery, spec, spec.batch.unwrap()).expect("decodable");
        (serde_json::from_slice(&body).expect("an array"), sent)
    }

    #[test]
    fn each_event_names_the_one_before_it() {
        let (delivery, spec) = batch_of(3, json!({"payload": {"pick": {"n": "/n"}}}));
        let (items, sent) = written(&delivery, &spec);
        assert_eq!((items.len(), sent.events.len()), (3, 3));
        assert_eq!(
            (&items[0]["sequenceNumber"], &items[0]["previousEventId"]),
            (&json!(7), &json!("before"))
        );
        assert_eq!(items[1]["orderStatus"], "gap");
        for (n, pair) in items.windows(2).enumerate() {
            assert_eq!(pair[1]["previousEventId"], pair[0]["eventId"]);
            assert_eq!((&pair[1]["sequenceNumber"], &pair[1]["data"]), (&json!(8 + n), &json!({"n": 1})));
        }
        let (delivery, spec) = batch_of(2, json!({"payload": {"form": "cloudevents"}}));
        let (items, _) = written(&delivery, &spec);
        assert_eq!((&items[1]["sequencenumber"], &items[1]["specversion"]), (&json!("8"), &json!("1.0")));
        assert_eq!(items[1]["previouseventid"], items[0]["eventid"]);
    }

    #[test]
    fn the_body_stays_within_its_limit_and_one_event_always_goes() {
        let (delivery, spec) = batch_of(40, json!({"batch": {"maxEvents": 1000, "maxBytes": "2Ki"}}));
        let (body, sent) = body(&delivery, &spec, spec.batch.unwrap()).expect("decodable");
        assert!(body.len() <= 2048 && (2..40).contains(&sent.events.len()), "{} bytes", body.len());
        assert_eq!(serde_json::from_slice::<Vec<Value>>(&body).expect("an array").len(), sent.events.len());
        let limits = Batch { events_max: 1000, bytes_max: 1 };
        let (body, sent) = super::body(&delivery, &spec, limits).expect("decodable");
        assert_eq!(sent.id().to_string(), serde_json::from_slice::<Value>(&body).unwrap()[0]["eventId"]);
        // The others are sent next.
        let reply = Reply { code: 204, content: Some(Box::default()), ..Reply::default() };
        assert!(matches!(sent.outcome(reply), CallOutcome::Prefix { code: 204, events: 1, .. }));
    }

    #[test]
    fn half_an_answer_acknowledges_nothing() {
        let (delivery, spec) = batch_of(2, json!({}));
        let (_, sent) = written(&delivery, &spec);
        for (start, is_bad) in [(&b"{\"acknowledgedThrough\": "[..], true), (b"<html>", false)] {
            let mut reply = Reply { code: 200, content: Some(Box::default()), ..Reply::default() };
            reply.excerpt = super::super::super::reply::Excerpt::of(200);
            reply.excerpt.push(start);
            reply.content.as_mut().unwrap().cut(65_536);
            let outcome = sent.outcome(reply);
            assert_eq!(matches!(outcome, CallOutcome::BadAcknowledgement { .. }), is_bad, "{outcome:?}");
        }
    }
}
