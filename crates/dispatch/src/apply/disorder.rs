//! Counts and logs early events, late events and sequence gaps.

use crate::engine::Engine;
use crate::lanes::Slot;
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
                let (id, expected_sequence) =
                    (self.event_id_at((*at).into()), expected.map(|sequence| sequence.0));
                let sequence = sequence.0;
                match what {
                    Count::Early => tracing::info!(
                        subscription,
                        key,
                        id,
                        sequence,
                        expected_sequence,
                        "Event arrived early; waiting for lower sequences"
                    ),
                    Count::Late => tracing::info!(
                        subscription,
                        key,
                        id,
                        sequence,
                        expected_sequence,
                        "Event arrived late"
                    ),
                    Count::Gap => tracing::info!(
                        subscription,
                        key,
                        id,
                        sequence,
                        expected_sequence,
                        "Sequence gap timed out"
                    ),
                }
            }
            Action::GapRecorded { from, to, next } => {
                let (id, sequence) =
                    (next.and_then(|at| self.event_id_at(at.into())), next.map(|_| to.0 + 1));
                tracing::info!(
                    subscription, key, id, sequence, expected_sequence = from.0, missing = %range(*from, *to),
                    "Sequence gap skipped"
                );
            }
            _ => {}
        }
    }

    /// The event id for a log line; `None` if the event cannot be read.
    fn event_id_at(&self, at: LogAddress) -> Option<String> {
        self.names_of(at).ok().map(|named| named.id)
    }
}

/// Formats a range: `7`, or `3 to 5`.
pub(crate) fn range(from: Sequence, to: Sequence) -> String {
    if from == to { from.to_string() } else { format!("{from} to {to}") }
}
