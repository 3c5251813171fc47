//! The trace of an event as the engine and the client see it, and the ids for log lines.

use crate::replies::HOPS;
use klambda_core::filter::Attributes;
use klambda_core::trace::{Context, EventTrace, Identity, Sampler, TRACEPARENT};
use std::borrow::Cow;

/// The trace of an event in a namespace. `is_emitted`: this server made it.
pub fn event_trace(
    namespace: &str,
    event: &impl Attributes,
    is_emitted: bool,
    sampler: &Sampler,
) -> EventTrace {
    let [source, id] = ["source", "id"].map(|name| event.attribute(name).unwrap_or_default());
    let traceparent = event.attribute(TRACEPARENT);
    let is_own = is_emitted || event.attribute(HOPS).is_some();
    let traceparent = traceparent.as_deref();
    EventTrace::of(&Identity { namespace, source: &source, id: &id, traceparent, is_own }, sampler)
}

/// The ids that a log line about an event has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogIds {
    pub trace_id: Option<String>,
    /// The span that accepted the event, if it is recorded.
    pub span_id: Option<String>,
    pub correlation_id: Option<String>,
}

impl LogIds {
    /// Without a sampler, the server records no traces, and only the producer's trace is known.
    pub fn of(
        namespace: &str,
        event: &impl Attributes,
        is_emitted: bool,
        sampler: Option<&Sampler>,
    ) -> LogIds {
        let correlation_id = correlation_id(event).map(Cow::into_owned);
        let Some(sampler) = sampler else {
            let producer = event.attribute(TRACEPARENT).and_then(|text| Context::parse(&text));
            let trace_id = producer.map(|producer| producer.trace.to_string());
            return LogIds { trace_id, span_id: None, correlation_id };
        };
        let trace = event_trace(namespace, event, is_emitted, sampler);
        LogIds {
            trace_id: Some(trace.accept.trace.to_string()),
            span_id: trace.accept_span().map(|span| span.to_string()),
            correlation_id,
        }
    }
}

pub fn correlation_id(event: &impl Attributes) -> Option<Cow<'_, str>> {
    event.attribute("correlationid")
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_core::event::{Attribute, Event, Value};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn event(attributes: &[(&str, &str)]) -> Event {
        let attributes = attributes.iter().map(|(name, value)| Attribute {
            name: (*name).to_owned(),
            value: Value::String((*value).to_owned()),
        });
        let attributes = attributes.collect();
        Event { id: "e1".into(), source: "/s".into(), kind: "t".into(), attributes, data: None }
    }

    #[test]
    fn a_server_without_traces_knows_the_trace_of_the_producer() {
        let ids =
            LogIds::of("default", &event(&[("traceparent", PARENT), ("correlationid", "c1")]), false, None);
        assert_eq!(ids.trace_id.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        assert_eq!((ids.span_id, ids.correlation_id.as_deref()), (None, Some("c1")));
        assert_eq!(LogIds::of("default", &event(&[("traceparent", "rubbish")]), false, None).trace_id, None);
    }

    #[test]
    fn every_event_of_a_server_with_traces_has_a_trace() {
        let sampler = Sampler::new(true, 1.0);
        let of =
            |attributes: &[(&str, &str)]| LogIds::of("default", &event(attributes), false, Some(&sampler));
        assert_eq!(
            of(&[("traceparent", PARENT)]).trace_id.as_deref(),
            Some("4bf92f3577b34da6a3ce929d0e0e4736")
        );
        assert!(of(&[]).trace_id.is_some() && of(&[]).span_id.is_some());
        let reply = of(&[("traceparent", PARENT), (HOPS, "1")]);
        assert_ne!(reply.trace_id.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        assert_eq!(reply.span_id, None, "no request accepted it");
    }
}
