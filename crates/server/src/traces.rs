//! Traces of requests: `operator.api.handle`.
//!
//! Every recorded event has a span of its own in its trace, also if it came in a batch.

use crate::config;
use http::{HeaderMap, Method, StatusCode};
use klambda_core::binding::Rejected;
use klambda_core::event::{Attribute, Event, Value as EventValue};
use klambda_core::trace::{Context, EventTrace, Kind, Span, Subject, TRACEPARENT, TRACESTATE, Value};
use klambda_dispatch::trace_ids::{correlation_id, event_trace};
use klambda_dispatch::traces::Tracer;
use klambda_dispatch::{EventResult, Status};
use klambda_traces::{Error, Export, Settings};
use std::time::{Instant, SystemTime};

const API: &str = "operator.api.handle";

/// Starts the export, if there is an endpoint.
pub fn start(traces: &config::Traces) -> Result<Option<Export>, Error> {
    let settings = Settings {
        endpoint: traces.endpoint.clone(),
        protocol: traces.protocol,
        sample_rate: traces.sample_rate,
        attributes: traces.attributes.clone(),
        queue: traces.queue,
    };
    settings.target(|name| std::env::var(name).ok())?.map(Export::start).transpose()
}

/// A request with events, from the moment that it was read.
pub struct Arrival {
    began: Instant,
    /// The context in its headers.
    context: Option<Context>,
    tracestate: Option<String>,
}

impl Arrival {
    pub fn new<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Arrival {
        let mut arrival = Arrival { began: Instant::now(), context: None, tracestate: None };
        for (name, value) in headers {
            if name.eq_ignore_ascii_case(TRACEPARENT) {
                arrival.context = std::str::from_utf8(value).ok().and_then(Context::parse);
            } else if name.eq_ignore_ascii_case(TRACESTATE) {
                arrival.tracestate = std::str::from_utf8(value).ok().map(str::to_owned);
            }
        }
        arrival
    }

    /// An event without a context gets the one of its request, so that it is still known when the event is delivered.
    /// Returns the events to record.
    pub fn begin(
        &self,
        tracer: &Tracer,
        namespace: &str,
        events: &mut [Result<Event, Rejected>],
    ) -> Vec<Recorded> {
        let mut recorded = Vec::new();
        for (index, event) in events.iter_mut().enumerate() {
            let Ok(event) = event else { continue };
            if let Some(context) = &self.context
                && event.attribute(TRACEPARENT).is_none()
            {
                add(event, TRACEPARENT, context.header().as_str());
                self.tracestate.iter().for_each(|state| add(event, TRACESTATE, state));
            }
            let trace = event_trace(namespace, event, false, tracer.sampler());
            if trace.is_sampled() {
                recorded.push(Recorded::new(index, event, trace));
            }
        }
        recorded
    }

    /// Records what became of the events.
    pub fn end(&self, tracer: &Tracer, recorded: Vec<Recorded>, results: &[EventResult], status: StatusCode) {
        let took = self.began.elapsed();
        let start = SystemTime::now() - took;
        for Recorded { index, trace, mut attributes } in recorded {
            let Some(result) = results.get(index) else { continue };
            attributes.push(("http.request.method", Value::Static("POST")));
            attributes.push(("http.route", Value::Static(crate::router::EVENTS)));
            attributes.push(("http.response.status_code", u64::from(status.as_u16()).into()));
            attributes.push(("klambda.result", Value::Static(result.status.name())));
            let mut context = trace.accept;
            match &result.status {
                Status::Accepted { position } => attributes.push(("klambda.position", position.0.into())),
                // The id belongs to the request that was accepted.
                Status::Skipped { .. } | Status::Rejected(_) => context.span = tracer.span_id(),
            }
            let request = self.context.filter(|request| request.trace != context.trace);
            tracer.record(Span {
                name: API,
                kind: Kind::Server,
                context,
                parent: trace.parent,
                links: trace.cause.into_iter().chain(request).collect(),
                start,
                took,
                attributes,
                error: matches!(result.status, Status::Rejected(_))
                    .then(|| "the event was rejected".to_owned()),
                subject: Subject::Accept,
            });
        }
    }
}

/// An accepted event whose trace is recorded.
pub struct Recorded {
    index: usize,
    trace: EventTrace,
    attributes: Vec<(&'static str, Value)>,
}

impl Recorded {
    fn new(index: usize, event: &Event, trace: EventTrace) -> Recorded {
        let mut attributes = Vec::with_capacity(10);
        attributes.push(("event.type", event.kind.as_str().into()));
        attributes.push(("cloudevents.event_id", event.id.as_str().into()));
        attributes.push(("cloudevents.event_source", event.source.as_str().into()));
        attributes.extend(correlation_id(event).map(|id| ("correlation.id", Value::from(&*id))));
        Recorded { index, trace, attributes }
    }
}

fn add(event: &mut Event, name: &str, value: &str) {
    event.attributes.push(Attribute { name: name.to_owned(), value: EventValue::String(value.to_owned()) });
}

/// A request for another resource.
pub struct Request {
    tracer: Tracer,
    context: Context,
    parent: Option<Context>,
    began: Instant,
    method: Method,
    path: String,
}

impl Request {
    /// `None` if it is not recorded.
    pub fn begin(tracer: &Tracer, method: &Method, path: &str, headers: &HeaderMap) -> Option<Request> {
        let parent = headers.get(TRACEPARENT).and_then(|value| Context::parse(value.to_str().ok()?));
        let context = tracer.begin(parent.as_ref());
        context.is_sampled.then(|| Request {
            tracer: tracer.clone(),
            context,
            parent,
            began: Instant::now(),
            method: method.clone(),
            path: path.to_owned(),
        })
    }

    /// Records the request when its response begins.
    pub fn end(self, status: StatusCode) {
        let took = self.began.elapsed();
        self.tracer.record(Span {
            name: API,
            kind: Kind::Server,
            context: self.context,
            parent: self.parent.map(|parent| parent.span),
            links: Vec::new(),
            start: SystemTime::now() - took,
            took,
            attributes: vec![
                ("http.request.method", self.method.as_str().into()),
                ("url.path", self.path.as_str().into()),
                ("http.response.status_code", u64::from(status.as_u16()).into()),
            ],
            error: status.is_server_error().then(|| status.to_string()),
            subject: Subject::Other,
        });
    }
}
