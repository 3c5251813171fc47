//! Traces of the work on functions. Each generation of a function has one trace, which its first plan begins.

use crate::control::Shared;
use klambda_core::trace::{Context, Derivation, Kind, Span, SpanId, Subject, TraceId, Value};
use klambda_dispatch::traces::Tracer;
use klambda_functions::name::Name;
use klambda_functions::resource::Resource;
use std::time::{Duration, SystemTime};

const GENERATION: u8 = 0x40;
const FIRST: u8 = 0x41;

/// The trace of one generation.
struct Generation<'a> {
    tracer: &'a Tracer,
    trace: TraceId,
    /// The span of the first plan.
    first: SpanId,
}

/// Finished work on a function.
pub(crate) struct Work<'a> {
    pub name: &'static str,
    pub function: &'a Name,
    pub resource: &'a Resource,
    pub phase: &'static str,
    pub took: Duration,
    pub error: Option<String>,
}

impl Shared {
    fn generation(&self, resource: &Resource) -> Option<Generation<'_>> {
        let (tracer, metadata) = (self.options.tracer.as_ref()?, &resource.metadata);
        let derived = Derivation::new(GENERATION)
            .text(resource.kind.word())
            .text(&metadata.namespace)
            .text(&metadata.name)
            .text(&metadata.uid)
            .number(metadata.generation);
        let trace = derived.trace_id();
        let first = || Derivation::new(FIRST).trace(trace).span_id();
        tracer.sampled(trace).then(|| Generation { tracer, trace, first: first() })
    }

    /// Records a plan. `is_first`: it is the first of its generation.
    pub(crate) fn record_plan(&self, work: Work<'_>, is_first: bool) {
        let Some(generation) = self.generation(work.resource) else { return };
        let span = if is_first { generation.first } else { generation.tracer.span_id() };
        generation.record(work, span, is_first);
    }

    /// Records a part of the work that follows from a plan.
    pub(crate) fn record_work(&self, work: Work<'_>) {
        let Some(generation) = self.generation(work.resource) else { return };
        let span = generation.tracer.span_id();
        generation.record(work, span, false);
    }
}

impl Generation<'_> {
    fn record(&self, work: Work<'_>, span: SpanId, is_first: bool) {
        let generation = work.resource.metadata.generation;
        self.tracer.record(Span {
            name: work.name,
            kind: Kind::Internal,
            context: Context { trace: self.trace, span, is_sampled: true },
            parent: (!is_first).then_some(self.first),
            links: Vec::new(),
            start: SystemTime::now() - work.took,
            took: work.took,
            attributes: vec![
                ("function.name", work.function.name().into()),
                ("function.namespace", work.function.namespace().into()),
                ("function.phase", Value::Static(work.phase)),
                ("klambda.generation", generation.into()),
            ],
            error: work.error,
            subject: Subject::Other,
        });
    }
}
