//! A finished span.

use super::{Context, SpanId};
use std::time::{Duration, SystemTime};

#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub name: &'static str,
    pub kind: Kind,
    pub context: Context,
    pub parent: Option<SpanId>,
    /// Spans of other traces that this one belongs to.
    pub links: Vec<Context>,
    pub start: SystemTime,
    pub took: Duration,
    pub attributes: Vec<(&'static str, Value)>,
    /// Why the operation failed.
    pub error: Option<String>,
    pub subject: Subject,
}

/// The role of a service in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Handles a request.
    Server,
    /// Makes a request.
    Client,
    Internal,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Static(&'static str),
    Integer(i64),
}

impl From<&str> for Value {
    /// Long texts are cut.
    fn from(text: &str) -> Value {
        Value::Text(text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// Maximum size of a text in a span.
pub const TEXT_BYTES_MAX: usize = 256;

/// The measurement that a span belongs to. It becomes an exemplar of that metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A request with events.
    Accept,
    /// A call for an event.
    Attempt {
        /// The full name of the subscription.
        subscription: String,
        event_type: String,
        /// The time since the event was accepted, if the call succeeded.
        delivered_after_ms: Option<u64>,
    },
    Other,
}
