//! The latest traces behind the buckets of the latency histograms.

use klambda_core::trace::{Span, SpanId, Subject, TraceId};
use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

/// Above this number of histograms, everything is forgotten and collected anew.
const SERIES_MAX: usize = 2048;

/// A measured value and its trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    pub trace: TraceId,
    pub span: SpanId,
    pub seconds: f64,
    pub time: SystemTime,
}

/// The exemplars of one histogram, by the power of two below which their value is.
pub type Series = BTreeMap<usize, Exemplar>;

#[derive(Default)]
pub struct Exemplars {
    /// Requests with events, in microseconds.
    accept: Series,
    /// Calls by subscription and event type, in milliseconds.
    calls: HashMap<(String, String), Series>,
    /// Times from accepting an event to its delivery by subscription, in milliseconds.
    deliveries: HashMap<String, Series>,
}

impl Exemplars {
    pub(crate) fn add(&mut self, spans: &[Span]) {
        if self.calls.len() + self.deliveries.len() >= SERIES_MAX {
            *self = Exemplars::default();
        }
        spans.iter().for_each(|span| self.add_one(span));
    }

    fn add_one(&mut self, span: &Span) {
        let (took, seconds) = (span.took, span.took.as_secs_f64());
        match &span.subject {
            Subject::Accept => put(&mut self.accept, took.as_micros() as u64, exemplar(span, seconds)),
            Subject::Attempt { subscription, event_type, delivered_after_ms } => {
                let calls = self.calls.entry((subscription.clone(), event_type.clone())).or_default();
                put(calls, took.as_millis() as u64, exemplar(span, seconds));
                if let Some(after_ms) = *delivered_after_ms {
                    let deliveries = self.deliveries.entry(subscription.clone()).or_default();
                    put(deliveries, after_ms, exemplar(span, after_ms as f64 / 1e3));
                }
            }
            Subject::Other => {}
        }
    }

    pub fn accept(&self) -> &Series {
        &self.accept
    }

    pub fn calls(&self, subscription: &str, event_type: &str) -> Option<&Series> {
        // A lookup with borrowed parts would need a type of its own. Scrapes are rare.
        self.calls.get(&(subscription.to_owned(), event_type.to_owned()))
    }

    pub fn deliveries(&self, subscription: &str) -> Option<&Series> {
        self.deliveries.get(subscription)
    }
}

fn exemplar(span: &Span, seconds: f64) -> Exemplar {
    let time = span.start + span.took;
    Exemplar { trace: span.context.trace, span: span.context.span, seconds, time }
}

fn put(series: &mut Series, value: u64, exemplar: Exemplar) {
    series.insert(64 - value.leading_zeros() as usize, exemplar);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::tests::span;
    use std::time::Duration;

    #[test]
    fn each_bucket_has_the_latest_trace() {
        let mut exemplars = Exemplars::default();
        let took = |ms| Span { took: Duration::from_millis(ms), ..span() };
        exemplars.add(&[took(1), took(5), took(6)]);
        let calls = exemplars.calls("orders", "order.placed").expect("a histogram");
        assert_eq!(calls.keys().copied().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(calls[&3].seconds, 0.006);
        let deliveries = exemplars.deliveries("orders").expect("a histogram");
        assert_eq!(deliveries[&7].seconds, 0.1);
    }

    #[test]
    fn the_number_of_histograms_is_bounded() {
        let mut exemplars = Exemplars::default();
        for n in 0..3 * SERIES_MAX {
            let subject = Subject::Attempt {
                subscription: n.to_string(),
                event_type: "t".into(),
                delivered_after_ms: Some(1),
            };
            exemplars.add(&[Span { subject, ..span() }]);
        }
        assert!(exemplars.calls.len() + exemplars.deliveries.len() <= SERIES_MAX + 2);
    }
}
