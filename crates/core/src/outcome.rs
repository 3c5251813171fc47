//! The outcome of a delivery, and its consequences for the event, the lane and the endpoint.

use crate::event::Event;
use serde::{Deserialize, Serialize};

/// The result of one call to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    Status {
        code: u16,
        retry_after_ms: Option<u64>,
        /// The beginning of the response's body in one printable line; empty if there is none.
        detail: String,
    },
    /// A webhook endpoint acknowledged only the first events of its call. The others are sent again.
    Prefix {
        code: u16,
        events: usize,
        detail: String,
    },
    /// A webhook endpoint succeeded, but acknowledged an event that is not in its call.
    BadAcknowledgement {
        code: u16,
        why: String,
    },
    Refused(String),
    /// The connection was reset or closed before the response, or the response is not HTTP.
    Broken(String),
    /// Like `Broken`, for a function of this server: its process ended, and another replica replaces it.
    Ended(String),
    Timeout,
    /// The call could not be made, for example because of an invalid header value or a missing certificate.
    Unusable(String),
    /// The call panicked. It is unknown whether the target received the event.
    Internal(String),
    /// A function succeeded and returned events. The caller fills in an empty id or source.
    Replied {
        status: u16,
        replies: Vec<Event>,
    },
    /// A function succeeded, but the events in its response are invalid.
    BadReplies {
        status: u16,
        why: String,
    },
    /// A handler inside this process rejected the event as invalid.
    Invalid(String),
    /// The function has no replica to call, or the target may not be called. This does not count as an attempt.
    NotReady {
        why: String,
        retry_after_ms: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    Retry,
    /// The target will never accept this event.
    Fatal,
}

impl CallOutcome {
    pub fn verdict(&self) -> Verdict {
        match self {
            CallOutcome::Status { code: 200..=299, .. } | CallOutcome::Replied { .. } => Verdict::Delivered,
            CallOutcome::Status { code: 400 | 413 | 415 | 422, .. }
            | CallOutcome::BadReplies { .. }
            | CallOutcome::Invalid(_) => Verdict::Fatal,
            _ => Verdict::Retry,
        }
    }

    /// The same for a webhook endpoint: only 2xx succeeds, and every failure is retried.
    pub fn endpoint_verdict(&self) -> Verdict {
        match self {
            CallOutcome::Status { code: 200..=299, .. } | CallOutcome::Prefix { .. } => Verdict::Delivered,
            _ => Verdict::Retry,
        }
    }

    /// True if the failure counts against the endpoint: it is caused by the target, not by the event.
    pub fn is_endpoint_failure(&self) -> bool {
        match self {
            CallOutcome::Status { code, .. } => matches!(code, 429 | 502 | 503 | 504),
            CallOutcome::Refused(_) | CallOutcome::Broken(_) | CallOutcome::Timeout => true,
            CallOutcome::Prefix { .. }
            | CallOutcome::BadAcknowledgement { .. }
            | CallOutcome::Ended(_)
            | CallOutcome::Unusable(_)
            | CallOutcome::Internal(_)
            | CallOutcome::Replied { .. }
            | CallOutcome::BadReplies { .. }
            | CallOutcome::Invalid(_)
            | CallOutcome::NotReady { .. } => false,
        }
    }

    pub fn is_refused(&self) -> bool {
        matches!(self, CallOutcome::Refused(_))
    }

    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            CallOutcome::Status { retry_after_ms, .. } => *retry_after_ms,
            CallOutcome::NotReady { retry_after_ms, .. } => Some(*retry_after_ms),
            _ => None,
        }
    }

    /// The reason of the dead letter if this outcome was the last attempt.
    pub fn reason(&self) -> Reason {
        match self {
            CallOutcome::Status { code: 400 | 413 | 415 | 422, .. } => Reason::Poison,
            CallOutcome::Status { code: 502..=504, .. }
            | CallOutcome::Refused(_)
            | CallOutcome::Unusable(_)
            | CallOutcome::NotReady { .. } => Reason::Unavailable,
            CallOutcome::BadReplies { .. } | CallOutcome::Invalid(_) => Reason::Validation,
            CallOutcome::Timeout => Reason::Timeout,
            CallOutcome::Status { .. }
            | CallOutcome::Prefix { .. }
            | CallOutcome::BadAcknowledgement { .. }
            | CallOutcome::Broken(_)
            | CallOutcome::Ended(_)
            | CallOutcome::Internal(_)
            | CallOutcome::Replied { .. } => Reason::RetriesExhausted,
        }
    }

    /// The HTTP status of the response; 0 if there was none.
    pub fn status(&self) -> u16 {
        match self {
            CallOutcome::Status { code: status, .. }
            | CallOutcome::Prefix { code: status, .. }
            | CallOutcome::BadAcknowledgement { code: status, .. }
            | CallOutcome::Replied { status, .. }
            | CallOutcome::BadReplies { status, .. } => *status,
            _ => 0,
        }
    }

    /// The beginning of the response's body, as short as it is stored.
    pub fn answer(&self) -> &str {
        match self {
            CallOutcome::Status { code, detail, .. } | CallOutcome::Prefix { code, detail, .. } => {
                &detail[..detail.floor_char_boundary(answer_bytes_max(*code))]
            }
            _ => "",
        }
    }

    /// A one-line description for users: the `lastError` of the lane.
    pub fn describe(&self) -> String {
        match self {
            CallOutcome::Status { code, detail, .. } if detail.is_empty() => format!("HTTP {code}"),
            CallOutcome::Status { code, detail, .. } => format!("HTTP {code}: {detail}"),
            CallOutcome::Prefix { code, events, .. } => format!("HTTP {code}: {events} events acknowledged"),
            CallOutcome::BadAcknowledgement { code, why } => format!("HTTP {code}, but {why}"),
            CallOutcome::Refused(detail) => format!("cannot connect to {detail}"),
            CallOutcome::Broken(detail) | CallOutcome::Ended(detail) => {
                format!("connection broken: {detail}")
            }
            CallOutcome::Timeout => "timed out without a response".into(),
            CallOutcome::Unusable(detail) => format!("not called: {detail}"),
            CallOutcome::Replied { replies, .. } => format!("events in the response: {}", replies.len()),
            CallOutcome::BadReplies { why, .. } => format!("the response contains invalid events: {why}"),
            CallOutcome::Invalid(detail) | CallOutcome::Internal(detail) => detail.clone(),
            CallOutcome::NotReady { why, .. } => format!("not called: {why}"),
        }
    }
}

/// How much of a response's body is stored. The body of a failure says what to correct.
pub fn answer_bytes_max(status: u16) -> usize {
    if (200..300).contains(&status) { 64 } else { 256 }
}

/// Why an event is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    RetriesExhausted,
    /// The target rejected the event as invalid.
    Poison,
    Unavailable,
    Timeout,
    /// The event has no valid key or sequence although the policy requires one.
    Validation,
    Late,
    Gap,
    Overflow,
    /// A user skipped the event.
    Skipped,
}

impl Reason {
    pub const ALL: [Reason; 9] = [
        Reason::RetriesExhausted,
        Reason::Poison,
        Reason::Unavailable,
        Reason::Timeout,
        Reason::Validation,
        Reason::Late,
        Reason::Gap,
        Reason::Overflow,
        Reason::Skipped,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Reason::RetriesExhausted => "retries-exhausted",
            Reason::Poison => "poison",
            Reason::Unavailable => "unavailable",
            Reason::Timeout => "timeout",
            Reason::Validation => "validation",
            Reason::Late => "late",
            Reason::Gap => "gap",
            Reason::Overflow => "overflow",
            Reason::Skipped => "skipped",
        }
    }

    pub fn from_name(name: &str) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| reason.name() == name)
    }

    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn from_code(code: u8) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, detail: &str) -> CallOutcome {
        CallOutcome::Status { code, retry_after_ms: Some(7), detail: detail.into() }
    }

    #[test]
    fn an_outcome_says_what_a_person_must_know() {
        let not_ready = CallOutcome::NotReady { why: "the build is running".into(), retry_after_ms: 9 };
        for (outcome, line, retry_after_ms, of_endpoint) in [
            (status(500, ""), "HTTP 500", Some(7), false),
            (status(503, "busy"), "HTTP 503: busy", Some(7), true),
            (status(429, ""), "HTTP 429", Some(7), true),
            (CallOutcome::Refused("a:1".into()), "cannot connect to a:1", None, true),
            (CallOutcome::Broken("reset".into()), "connection broken: reset", None, true),
            (CallOutcome::Ended("reset".into()), "connection broken: reset", None, false),
            (CallOutcome::Timeout, "timed out without a response", None, true),
            (CallOutcome::Unusable("no file".into()), "not called: no file", None, false),
            (CallOutcome::Internal("internal error: x".into()), "internal error: x", None, false),
            (
                CallOutcome::Replied { status: 200, replies: Vec::new() },
                "events in the response: 0",
                None,
                false,
            ),
            (CallOutcome::Invalid("no name".into()), "no name", None, false),
            (not_ready, "not called: the build is running", Some(9), false),
        ] {
            assert_eq!(outcome.describe(), line);
            assert_eq!(outcome.retry_after_ms(), retry_after_ms, "{line}");
            assert_eq!(outcome.is_endpoint_failure(), of_endpoint, "{line}");
        }
    }
}
