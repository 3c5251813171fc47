//! What a delivery came to, and what that means for the event, the lane and the endpoint.

use crate::event::Event;
use serde::{Deserialize, Serialize};

/// How one call of a target ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Status {
        code: u16,
        retry_after_ms: Option<u64>,
        detail: String,
    },
    Refused(String),
    /// Reset, closed before the answer, or an answer that is no HTTP.
    Broken(String),
    /// The same of a function of this server: its process ended, and another one takes its place.
    Ended(String),
    Timeout,
    /// The call could not even be made: a header value that cannot be read, a certificate that is not there.
    Unusable(String),
    /// The call panicked. Nobody knows how far it got.
    Internal(String),
    /// A function's success with events of its own. An empty id or source is to be filled in.
    Replied {
        replies: Vec<Event>,
    },
    /// A function's success whose events cannot be read.
    BadReplies(String),
    /// Whoever handled it within this process found that it says nothing it could act on.
    Invalid(String),
    /// There is no replica of the function to call: no attempt was made.
    NotReady {
        why: String,
        retry_after_ms: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    Retry,
    /// The target says that this event will never do.
    Fatal,
}

impl Outcome {
    pub fn verdict(&self) -> Verdict {
        match self {
            Outcome::Status { code: 200..=299, .. } | Outcome::Replied { .. } => Verdict::Delivered,
            Outcome::Status { code: 400 | 413 | 415 | 422, .. }
            | Outcome::BadReplies(_)
            | Outcome::Invalid(_) => Verdict::Fatal,
            _ => Verdict::Retry,
        }
    }

    /// Counts against the endpoint: it speaks of the target, not of the event.
    pub fn is_endpoint_failure(&self) -> bool {
        match self {
            Outcome::Status { code, .. } => matches!(code, 429 | 502 | 503 | 504),
            Outcome::Refused(_) | Outcome::Broken(_) | Outcome::Timeout => true,
            Outcome::Ended(_)
            | Outcome::Unusable(_)
            | Outcome::Internal(_)
            | Outcome::Replied { .. }
            | Outcome::BadReplies(_)
            | Outcome::Invalid(_)
            | Outcome::NotReady { .. } => false,
        }
    }

    pub fn is_refused(&self) -> bool {
        matches!(self, Outcome::Refused(_))
    }

    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Outcome::Status { retry_after_ms, .. } => *retry_after_ms,
            Outcome::NotReady { retry_after_ms, .. } => Some(*retry_after_ms),
            _ => None,
        }
    }

    /// The reason of the dead letter that this outcome makes of its event, if it was the last.
    pub fn reason(&self) -> Reason {
        match self {
            Outcome::Status { code: 400 | 413 | 415 | 422, .. } => Reason::Poison,
            Outcome::Status { code: 502..=504, .. }
            | Outcome::Refused(_)
            | Outcome::Unusable(_)
            | Outcome::NotReady { .. } => Reason::Unavailable,
            Outcome::BadReplies(_) | Outcome::Invalid(_) => Reason::Validation,
            Outcome::Timeout => Reason::Timeout,
            Outcome::Status { .. }
            | Outcome::Broken(_)
            | Outcome::Ended(_)
            | Outcome::Internal(_)
            | Outcome::Replied { .. } => Reason::RetriesExhausted,
        }
    }

    /// One line for people: the lane's `lastError`.
    pub fn describe(&self) -> String {
        match self {
            Outcome::Status { code, detail, .. } if detail.is_empty() => format!("HTTP {code}"),
            Outcome::Status { code, detail, .. } => format!("HTTP {code}: {detail}"),
            Outcome::Refused(detail) => format!("connection refused: {detail}"),
            Outcome::Broken(detail) | Outcome::Ended(detail) => format!("connection broken: {detail}"),
            Outcome::Timeout => "no answer within the timeout".into(),
            Outcome::Unusable(detail) => format!("not called: {detail}"),
            Outcome::Replied { replies } => format!("answered with {} events", replies.len()),
            Outcome::BadReplies(detail) => format!("the events it answered with were refused: {detail}"),
            Outcome::Invalid(detail) | Outcome::Internal(detail) => detail.clone(),
            Outcome::NotReady { why, .. } => format!("not called: {why}"),
        }
    }
}

/// Why an event is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    RetriesExhausted,
    /// The target refused it as malformed.
    Poison,
    Unavailable,
    Timeout,
    /// It has no key or sequence where the policy names one.
    Validation,
    Late,
    Gap,
    Overflow,
    /// A person skipped it.
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

    fn status(code: u16, detail: &str) -> Outcome {
        Outcome::Status { code, retry_after_ms: Some(7), detail: detail.into() }
    }

    #[test]
    fn an_outcome_says_what_a_person_must_know() {
        let not_ready = Outcome::NotReady { why: "it is built".into(), retry_after_ms: 9 };
        for (outcome, line, retry_after_ms, of_endpoint) in [
            (status(500, ""), "HTTP 500", Some(7), false),
            (status(503, "busy"), "HTTP 503: busy", Some(7), true),
            (status(429, ""), "HTTP 429", Some(7), true),
            (Outcome::Refused("a:1".into()), "connection refused: a:1", None, true),
            (Outcome::Broken("reset".into()), "connection broken: reset", None, true),
            (Outcome::Ended("reset".into()), "connection broken: reset", None, false),
            (Outcome::Timeout, "no answer within the timeout", None, true),
            (Outcome::Unusable("no file".into()), "not called: no file", None, false),
            (Outcome::Internal("internal error: x".into()), "internal error: x", None, false),
            (Outcome::Replied { replies: Vec::new() }, "answered with 0 events", None, false),
            (Outcome::Invalid("no name".into()), "no name", None, false),
            (not_ready, "not called: it is built", Some(9), false),
        ] {
            assert_eq!(outcome.describe(), line);
            assert_eq!(outcome.retry_after_ms(), retry_after_ms, "{line}");
            assert_eq!(outcome.is_endpoint_failure(), of_endpoint, "{line}");
        }
    }
}
