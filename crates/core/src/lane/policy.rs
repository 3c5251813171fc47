//! The settings of a subscription that affect its lanes.

use crate::subscription::{GapAction, OnFailure, Ordering, Spec, Start};

/// How an ordered subscription handles its lanes. Fixed within an epoch, except `attempts_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Order by the producer's sequence. Otherwise, order by arrival.
    pub sequenced: bool,
    pub start: Start,
    pub strict: bool,
    pub gap_timeout_ms: u64,
    pub gap_action: GapAction,
    pub buffer_events_max: u64,
    pub buffer_bytes_max: u64,
    pub on_failure: OnFailure,
    /// `None` means unlimited.
    pub attempts_max: Option<u32>,
    /// How long an id is remembered. A sequence that was passed longer ago is a duplicate by the watermark.
    pub window_ms: u64,
    /// How long an empty lane keeps its expected sequence. Zero means forever.
    pub sequence_ttl_ms: u64,
}

impl Policy {
    pub fn new(spec: &Spec) -> Policy {
        let policy = &spec.policy;
        Policy {
            sequenced: spec.ordering == Ordering::Ordered && policy.sequence.is_some(),
            start: policy.sequence.as_ref().map(|sequence| sequence.start).unwrap_or_default(),
            strict: policy.strict,
            gap_timeout_ms: policy.gap.timeout_ms,
            gap_action: policy.gap.action,
            buffer_events_max: policy.buffer.events_max,
            buffer_bytes_max: policy.buffer.bytes_max,
            on_failure: policy.on_failure,
            attempts_max: spec.retry.attempts,
            window_ms: spec.idempotency.ttl_ms,
            sequence_ttl_ms: spec.sequence_ttl_ms,
        }
    }
}
