//! The interface to the export of traces.

use klambda_core::trace::{Context, Derivation, Sampler, Span, SpanId, TraceId};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Takes finished spans. Must not block.
pub trait SpanSink: Send + Sync {
    fn record(&self, span: Span);
}

/// Records spans. A server that exports no traces has none. Cheap to clone.
#[derive(Clone)]
pub struct Tracer(Arc<Shared>);

struct Shared {
    sampler: Sampler,
    sink: Arc<dyn SpanSink>,
    /// Random ids are derived from a random number and a counter.
    seed: u64,
    next: AtomicU64,
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("sampler", &self.0.sampler).finish_non_exhaustive()
    }
}

const RANDOM: u8 = 0x80;

impl Tracer {
    /// `seed` is random.
    pub fn new(sampler: Sampler, seed: u64, sink: Arc<dyn SpanSink>) -> Tracer {
        Tracer(Arc::new(Shared { sampler, sink, seed, next: AtomicU64::new(0) }))
    }

    pub fn sampler(&self) -> &Sampler {
        &self.0.sampler
    }

    pub fn record(&self, span: Span) {
        self.0.sink.record(span);
    }

    /// The context of a new span that continues `parent`, or begins a trace.
    pub fn begin(&self, parent: Option<&Context>) -> Context {
        let trace = parent.map_or_else(|| self.random().trace_id(), |parent| parent.trace);
        Context { trace, span: self.span_id(), is_sampled: self.sampler().samples(parent, trace) }
    }

    /// The id of a span that nothing else refers to.
    pub fn span_id(&self) -> SpanId {
        self.random().span_id()
    }

    /// Whether a trace that begins here is recorded.
    pub fn sampled(&self, trace: TraceId) -> bool {
        self.sampler().samples(None, trace)
    }

    fn random(&self) -> Derivation {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        Derivation::new(RANDOM).number(self.0.seed).number(number)
    }
}
