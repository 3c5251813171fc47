//! What a subscription asks of its lanes.

use crate::subscription::{GapAction, OnFailure, Ordering, Spec, Start};

/// How an ordered subscription treats its lanes. Fixed within an epoch except for `attempts_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Order by the producer's sequence; otherwise by arrival.
    pub sequenced: bool,
    pub start: Start,
    pub strict: bool,
    pub gap_timeout_ms: u64,
    pub gap_action: GapAction,
    pub buffer_events_max: u64,
    pub buffer_bytes_max: u64,
    pub on_failure: OnFailure,
    /// `None`: for ever.
    pub attempts_max: Option<u32>,
    /// How long an id is remembered: what was passed longer ago is a duplicate by the watermark.
    pub window_ms: u64,
    /// How long the expected sequence of an empty lane is kept; zero: for ever.
    pub sequence_ttl_ms: u64,
}

impl Policy {
    pub fn new(spec: &Spec) -> Policy {
        let policy = &spec.policy;
        Policy {
            sequenced: spec.ordering == Ordering::Ordered && policy.sequence.is_some(),
            start: policy.start,
            strict: policy.strict,
            gap_timeout_ms: policy.gap_timeout_ms,
            gap_action: policy.gap_action,
            buffer_events_max: policy.buffer_events_max,
            buffer_bytes_max: policy.buffer_bytes_max,
            on_failure: policy.on_failure,
            attempts_max: spec.retry.attempts,
            window_ms: spec.idempotency_ttl_ms,
            sequence_ttl_ms: spec.sequence_ttl_ms,
        }
    }
}
