//! The trace of an event.

use super::{Context, Derivation, Sampler, SpanId, TraceId};
use crate::time::Millis;

/// An attempt this long after the event was accepted begins a trace of its own, because few tools show a trace that lasts
/// for days.
pub const LATER_MS: u64 = 3_600_000;

const TRACE: u8 = 1;
const ACCEPT: u8 = 2;
const ATTEMPT: u8 = 3;
const LATER: u8 = 4;

/// The parts of an event that its trace follows from.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub namespace: &'a str,
    pub source: &'a str,
    pub id: &'a str,
    /// The attribute `traceparent`.
    pub traceparent: Option<&'a str>,
    /// This server made the event: it is the reply of a function, or about a resource.
    pub is_own: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTrace {
    /// The span that accepts the event. An event of our own has none, and only its trace counts.
    pub accept: Context,
    /// The producer's span, in the same trace.
    pub parent: Option<SpanId>,
    /// The span that caused an event of our own, in another trace.
    pub cause: Option<Context>,
    is_own: bool,
}

/// The trace of one call for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub context: Context,
    pub parent: Option<SpanId>,
    pub link: Option<Context>,
}

impl EventTrace {
    pub fn of(event: &Identity<'_>, sampler: &Sampler) -> EventTrace {
        let producer = event.traceparent.and_then(Context::parse);
        let identity =
            |purpose| Derivation::new(purpose).text(event.namespace).text(event.source).text(event.id);
        let trace = match producer {
            Some(producer) if !event.is_own => producer.trace,
            _ => identity(TRACE).trace_id(),
        };
        let is_sampled = sampler.samples(producer.as_ref(), trace);
        // The identity of an event that is not recorded matters to nobody. It costs less to pass the producer's on.
        let span = match producer {
            Some(producer) if !is_sampled && !event.is_own => producer.span,
            _ => identity(ACCEPT).trace(trace).span_id(),
        };
        EventTrace {
            accept: Context { trace, span, is_sampled },
            parent: producer.filter(|_| !event.is_own).map(|producer| producer.span),
            cause: producer.filter(|_| event.is_own),
            is_own: event.is_own,
        }
    }

    pub fn is_sampled(&self) -> bool {
        self.accept.is_sampled
    }

    /// The span that accepted the event, if it is recorded.
    pub fn accept_span(&self) -> Option<SpanId> {
        (self.is_sampled() && !self.is_own).then_some(self.accept.span)
    }

    /// The trace of the call with this number, which is unique together with its time.
    pub fn attempt(&self, call: u64, time: Millis, accepted: Millis) -> Attempt {
        let is_later = time.since(accepted) > LATER_MS;
        if !self.is_sampled() {
            return Attempt { context: self.accept, parent: None, link: None };
        }
        let derive = |purpose| Derivation::new(purpose).trace(self.accept.trace).number(call).number(time.0);
        let origin = if self.is_own { self.cause } else { Some(self.accept) };
        let trace: TraceId = if is_later { derive(LATER).trace_id() } else { self.accept.trace };
        Attempt {
            context: Context { trace, span: derive(ATTEMPT).span_id(), is_sampled: true },
            parent: origin.filter(|_| !is_later && !self.is_own).map(|accept| accept.span),
            link: origin.filter(|_| is_later || self.is_own),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRODUCER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn event(traceparent: Option<&'static str>, is_own: bool) -> Identity<'static> {
        Identity { namespace: "default", source: "/shop", id: "e1", traceparent, is_own }
    }

    fn of(traceparent: Option<&'static str>, is_own: bool) -> EventTrace {
        EventTrace::of(&event(traceparent, is_own), &Sampler::new(true, 1.0))
    }

    #[test]
    fn an_event_continues_the_trace_of_its_producer() {
        let producer = Context::parse(PRODUCER).unwrap();
        let trace = of(Some(PRODUCER), false);
        assert_eq!(
            (trace.accept.trace, trace.parent, trace.cause),
            (producer.trace, Some(producer.span), None)
        );
        assert_ne!(trace.accept.span, producer.span);
        let attempt = trace.attempt(7, Millis(10), Millis(5));
        assert_eq!((attempt.context.trace, attempt.parent), (producer.trace, Some(trace.accept.span)));
        assert_eq!(attempt.link, None);
        let second = trace.attempt(8, Millis(10), Millis(5));
        assert_ne!(attempt.context.span, second.context.span);
    }

    #[test]
    fn an_event_without_a_producer_has_a_trace_that_follows_from_its_identity() {
        let trace = of(None, false);
        assert_eq!(trace, of(None, false));
        assert_eq!((trace.parent, trace.cause), (None, None));
        assert_eq!(of(Some("rubbish"), false), trace);
        let other = Identity { id: "e2", ..event(None, false) };
        let other = EventTrace::of(&other, &Sampler::new(true, 1.0));
        assert_ne!(other.accept.trace, trace.accept.trace);
    }

    #[test]
    fn an_event_that_is_not_recorded_passes_its_producer_on() {
        let trace = of(Some(UNSAMPLED), false);
        let attempt = trace.attempt(1, Millis(1), Millis(0));
        assert_eq!(attempt.context.header().as_str(), UNSAMPLED);
        assert_eq!((attempt.parent, attempt.link), (None, None));
    }

    #[test]
    fn a_late_attempt_is_a_linked_trace() {
        let trace = of(Some(PRODUCER), false);
        let attempt = trace.attempt(1, Millis(LATER_MS + 6), Millis(5));
        assert_ne!(attempt.context.trace, trace.accept.trace);
        assert_eq!((attempt.parent, attempt.link), (None, Some(trace.accept)));
        assert!(attempt.context.is_sampled);
        let at_the_limit = trace.attempt(1, Millis(LATER_MS + 5), Millis(5));
        assert_eq!(at_the_limit.context.trace, trace.accept.trace);
    }

    #[test]
    fn a_reply_is_a_trace_linked_to_its_cause() {
        let producer = Context::parse(PRODUCER).unwrap();
        let attempt = of(Some(PRODUCER), true).attempt(1, Millis(1), Millis(0));
        assert_ne!(attempt.context.trace, producer.trace);
        assert_eq!((attempt.parent, attempt.link), (None, Some(producer)));
        let unsampled = of(Some(UNSAMPLED), true);
        assert!(!unsampled.is_sampled(), "the cause decides");
        let emitted = of(None, true).attempt(1, Millis(1), Millis(0));
        assert_eq!((emitted.parent, emitted.link), (None, None));
    }
}
