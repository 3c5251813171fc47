//! Counts and logs early events, late events and sequence gaps.

use crate::dead_letters::Named;
use crate::engine::Engine;
use crate::lanes::Slot;
use crate::trace_ids::LogIds;
use klambda_core::ids::Sequence;
use klambda_core::lane::{Action, Count};
use klambda_store::address::LogAddress;

impl Engine {
    pub(super) fn order_disturbed(&mut self, slot: Slot, action: &Action, at: LogAddress) {
        let Some(resident) = self.lanes.get_mut(slot) else { return };
        if let Action::GapRecorded { .. } = action {
            // A decision takes effect only when it is durable.
            resident.barrier = at.after();
        }
        let Some(subscription) = self.subscriptions.get(resident.subscription) else { return };
        if !self.condition.live {
            return;
        }
        let name = subscription.name();
        match action {
            Action::Count { what: Count::Early, .. } => self.metrics.early(name),
            Action::Count { what: Count::Late, .. } => self.metrics.order_violation(name),
            Action::Count { what: Count::Gap, .. } => self.metrics.gap(name),
            _ => {}
        }
        if tracing::enabled!(tracing::Level::INFO) {
            self.log_disorder(slot, action);
        }
    }

    fn log_disorder(&self, slot: Slot, action: &Action) {
        let Some(resident) = self.lanes.get(slot) else { return };
        let (subscription, key) = (self.name_of(resident.subscription), &*resident.key);
        match action {
            Action::Count { what, at, sequence, expected } => {
                let Logged { event_id, event_type, trace_id, span_id, correlation_id } =
                    self.logged((*at).into());
                let (event_sequence, expected_sequence) = (sequence.0, expected.map(|sequence| sequence.0));
                match what {
                    Count::Early => tracing::info!(
                        subscription,
                        key,
                        event_id,
                        event_type,
                        event_sequence,
                        expected_sequence,
                        trace_id,
                        span_id,
                        correlation_id,
                        "Event arrived early; waiting for lower sequences"
                    ),
                    Count::Late => tracing::info!(
                        subscription,
                        key,
                        event_id,
                        event_type,
                        event_sequence,
                        expected_sequence,
                        trace_id,
                        span_id,
                        correlation_id,
                        "Event arrived late"
                    ),
                    Count::Gap => tracing::info!(
                        subscription,
                        key,
                        event_id,
                        event_type,
                        event_sequence,
                        expected_sequence,
                        trace_id,
                        span_id,
                        correlation_id,
                        "Sequence gap timed out"
                    ),
                }
            }
            Action::GapRecorded { from, to, next } => {
                let Logged { event_id, event_type, trace_id, span_id, correlation_id } =
                    next.map(|at| self.logged(at.into())).unwrap_or_default();
                let event_sequence = next.map(|_| to.0 + 1);
                tracing::info!(
                    subscription, key, event_id, event_type, event_sequence, expected_sequence = from.0,
                    missing = %range(*from, *to), trace_id, span_id, correlation_id,
                    "Sequence gap skipped"
                );
            }
            _ => {}
        }
    }

    /// The names of an event for a log line. They are missing if the event cannot be read.
    fn logged(&self, at: LogAddress) -> Logged {
        let Ok(Named { id, kind, ids, .. }) = self.names_of(at) else { return Logged::default() };
        let LogIds { trace_id, span_id, correlation_id } = ids;
        Logged { event_id: Some(id), event_type: Some(kind), trace_id, span_id, correlation_id }
    }
}

#[derive(Default)]
struct Logged {
    event_id: Option<String>,
    event_type: Option<String>,
    trace_id: Option<String>,
    span_id: Option<String>,
    correlation_id: Option<String>,
}

/// Formats a range: `7`, or `3 to 5`.
pub(crate) fn range(from: Sequence, to: Sequence) -> String {
    if from == to { from.to_string() } else { format!("{from} to {to}") }
}
