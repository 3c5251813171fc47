//! The trace of one call: the context that it carries, and its span.
//!
//! A call with several events has a span in the trace of each event that is recorded. One of them is the context of the
//! call, and the spans are linked with it.

use crate::engine::Delivery;
use crate::trace_ids::{correlation_id, event_trace};
use crate::traces::Tracer;
use klambda_core::event_codec::EventView;
use klambda_core::outcome::{CallOutcome, Verdict};
use klambda_core::subscription::Document;
use klambda_core::trace::{Attempt, Context, Kind, Span, Subject, Value};
use klambda_store::record::is_emitted;
use std::time::{Instant, SystemTime};

/// Maximum number of links of one span, as in the SDKs of OpenTelemetry.
const LINKS_MAX: usize = 128;

pub struct CallTrace {
    /// What the target gets as `traceparent`.
    pub context: Context,
    /// The target gets the `tracestate` of the producer too, because the call is in the producer's trace.
    pub keeps_state: bool,
    open: Option<Box<Open>>,
}

/// The spans of a call that is recorded.
struct Open {
    start: SystemTime,
    began: Instant,
    /// Never empty. The first is the context of the call.
    events: Vec<Recorded>,
    attempt: u32,
    /// Of the call, recorded or not.
    events_count: usize,
}

/// An event of the call whose trace is recorded.
struct Recorded {
    attempt: Attempt,
    /// The span that accepted the event.
    origin: Context,
    wait_ms: u64,
    lane_sequence: Option<u64>,
    event_type: String,
    attributes: Vec<(&'static str, Value)>,
}

impl CallTrace {
    /// `None` if the event cannot be read. Then it is not sent either.
    pub fn begin(tracer: &Tracer, delivery: &Delivery) -> Option<CallTrace> {
        let event = delivery.record.get(delivery.event.clone()).unwrap_or_default();
        let event = EventView::decode(event).ok()?;
        let namespace = &*delivery.document.namespace;
        let trace = event_trace(namespace, &event, is_emitted(&delivery.record), tracer.sampler());
        let attempt = trace.attempt(delivery.ticket.0, delivery.time, delivery.accepted);
        let keeps_state = trace.parent.is_some() && attempt.context.trace == trace.accept.trace;
        let number = delivery.place.as_ref().map(|place| place.number.0);
        let wait_ms = delivery.time.since(delivery.accepted);
        let first = trace.is_sampled().then(|| Recorded::new(&event, attempt, trace.accept, wait_ms, number));
        let mut events: Vec<Recorded> = first.into_iter().collect();
        if !delivery.following.is_empty() {
            events.extend(following(tracer, delivery));
        }
        let Some(lead) = events.first() else {
            return Some(CallTrace { context: attempt.context, keeps_state, open: None });
        };
        let context = lead.attempt.context;
        let open = Open {
            start: SystemTime::now(),
            began: Instant::now(),
            events,
            attempt: delivery.attempt,
            events_count: 1 + delivery.following.len(),
        };
        Some(CallTrace {
            context,
            keeps_state: keeps_state && trace.is_sampled(),
            open: Some(Box::new(open)),
        })
    }

    /// Records the spans. A call that was not made has none.
    pub fn end(self, tracer: &Tracer, document: &Document, outcome: &CallOutcome) {
        if let Some(open) = self.open
            && !matches!(outcome, CallOutcome::NotReady { .. })
        {
            open.end(tracer, document, outcome);
        }
    }
}

/// The events after the first one.
fn following(tracer: &Tracer, delivery: &Delivery) -> Vec<Recorded> {
    let namespace = &*delivery.document.namespace;
    let recorded = delivery.following.iter().filter_map(|following| {
        let event = EventView::decode(following.record.get(following.event.clone())?).ok()?;
        let trace = event_trace(namespace, &event, is_emitted(&following.record), tracer.sampler());
        let mut attempt = trace.attempt(delivery.ticket.0, delivery.time, following.accepted);
        // Events of the same trace have spans of their own.
        attempt.context.span = tracer.span_id();
        let (wait_ms, number) = (delivery.time.since(following.accepted), Some(following.number.0));
        trace.is_sampled().then(|| Recorded::new(&event, attempt, trace.accept, wait_ms, number))
    });
    recorded.collect()
}

impl Recorded {
    fn new(
        event: &EventView<'_>,
        attempt: Attempt,
        origin: Context,
        wait_ms: u64,
        lane_sequence: Option<u64>,
    ) -> Recorded {
        let mut attributes = Vec::with_capacity(12);
        attributes.push(("event.type", event.kind().into()));
        attributes.push(("cloudevents.event_id", event.id().into()));
        attributes.push(("cloudevents.event_source", event.source().into()));
        attributes.extend(correlation_id(event).map(|id| ("correlation.id", Value::from(&*id))));
        let event_type = event.kind().to_owned();
        Recorded { attempt, origin, wait_ms, lane_sequence, event_type, attributes }
    }
}

impl Open {
    fn end(self, tracer: &Tracer, document: &Document, outcome: &CallOutcome) {
        let took = self.began.elapsed();
        let is_endpoint = document.spec.target.endpoint().is_some();
        let verdict = if is_endpoint { outcome.endpoint_verdict() } else { outcome.verdict() };
        let is_delivered = verdict == Verdict::Delivered;
        let lead = self.events[0].attempt.context;
        let others: Vec<Context> =
            self.events.iter().skip(1).map(|event| event.origin).take(LINKS_MAX - 1).collect();
        let subscription = document.full_name();
        for (n, mut event) in self.events.into_iter().enumerate() {
            let mut links: Vec<Context> = event.attempt.link.into_iter().collect();
            match n {
                0 => links.extend(&others),
                _ => links.push(lead),
            }
            let about = &mut event.attributes;
            name_target(about, document);
            about.push(("klambda.attempt", u64::from(self.attempt).into()));
            about.push(("klambda.wait_ms", event.wait_ms.into()));
            about.extend(event.lane_sequence.map(|number| ("klambda.lane_sequence", number.into())));
            if self.events_count > 1 {
                about.push(("klambda.batch_events", (self.events_count as u64).into()));
            }
            if outcome.status() != 0 {
                about.push(("http.response.status_code", u64::from(outcome.status()).into()));
            }
            let delivered_after_ms = is_delivered.then_some(event.wait_ms + took.as_millis() as u64);
            tracer.record(Span {
                name: "operator.event.process",
                kind: Kind::Client,
                context: event.attempt.context,
                parent: event.attempt.parent,
                links,
                start: self.start,
                took,
                attributes: event.attributes,
                error: (!is_delivered).then(|| outcome.describe()),
                subject: Subject::Attempt {
                    subscription: subscription.clone().into_owned(),
                    event_type: event.event_type,
                    delivered_after_ms,
                },
            });
        }
    }
}

/// The function that is called, or the subscription.
fn name_target(about: &mut Vec<(&'static str, Value)>, document: &Document) {
    let full_name = document.full_name();
    let remote = Document::function_of(&full_name);
    let function = document.spec.target.function();
    match function.map(|function| (&*function.namespace, &*function.name)).or(remote) {
        Some((namespace, name)) => {
            about.push(("function.name", name.into()));
            about.push(("function.namespace", namespace.into()));
        }
        None => {
            about.push(("klambda.subscription", document.name.as_str().into()));
            about.push(("klambda.namespace", document.namespace.as_str().into()));
        }
    }
}
