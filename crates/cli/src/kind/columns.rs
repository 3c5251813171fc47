//! The columns of each kind.

use super::{Kind, data_of, key_of};
use crate::function::{error, phase_in_words, ready, reason, revision_source, runtime, source, target};
use crate::output::{cell, number, shorten, text};
use crate::time::{age_of, fixed, relative};
use klambda_core::time::Millis;
use serde_json::Value;
use std::cmp::Ordering;

const ERROR_CHARS_MAX: usize = 60;

pub struct Column(pub &'static str, Show);

/// How a column reads its cell from the JSON pointer given.
enum Show {
    Text(&'static str),
    TextOr(&'static str, &'static str),
    Count(&'static str),
    Age(&'static str),
    At(&'static str),
    Relative(&'static str),
    Error(&'static str),
    Words(fn(&Value) -> String),
    Key,
    Data,
}

impl Show {
    fn show(&self, item: &Value, now: Millis) -> String {
        match self {
            Show::Text(at) => cell(item, at),
            Show::TextOr(at, otherwise) => text(item, at).unwrap_or_else(|| (*otherwise).to_owned()),
            Show::Count(at) => number(item, at).to_string(),
            Show::Age(at) => age_of(text(item, at).as_deref(), now),
            Show::At(at) => text(item, at).map_or_else(|| "-".to_owned(), |at| fixed(&at)),
            Show::Relative(at) => text(item, at).map_or_else(|| "-".to_owned(), |at| relative(&at, now)),
            Show::Error(at) => shorten(&error(&cell(item, at)), ERROR_CHARS_MAX),
            Show::Words(say) => say(item),
            Show::Key => key_of(&item["event"]),
            Show::Data => shorten(&data_of(&item["event"]), ERROR_CHARS_MAX),
        }
    }
}

impl Column {
    pub fn show(&self, item: &Value, now: Millis) -> String {
        self.1.show(item, now)
    }

    /// Whether the cell changes by itself as time passes.
    pub fn is_time(&self) -> bool {
        matches!(self.1, Age(_) | Relative(_))
    }

    /// Numbers by their value, ages by their length, everything else as text.
    pub fn compare(&self, a: &Value, b: &Value) -> Ordering {
        match self.1 {
            Count(at) => number(a, at).cmp(&number(b, at)),
            Age(at) => text(b, at).cmp(&text(a, at)),
            Text(at) | At(at) | Relative(at) => compare(a.pointer(at), b.pointer(at)),
            _ => self.show(a, Millis(0)).cmp(&self.show(b, Millis(0))),
        }
    }
}

/// The order of two values: numbers by their value, everything else as text, missing ones first.
pub fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    let as_number = |value: Option<&Value>| value.and_then(Value::as_f64);
    match (as_number(a), as_number(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => {
            let as_text = |value: Option<&Value>| value.map(crate::jsonpath::shown);
            as_text(a).cmp(&as_text(b))
        }
    }
}

/// The usual columns of a kind, and those that `-o wide` adds.
pub fn columns(kind: Kind) -> (&'static [Column], &'static [Column]) {
    match kind {
        Kind::Function | Kind::Agent => (FUNCTION, FUNCTION_WIDE),
        Kind::Subscription => (SUBSCRIPTION, SUBSCRIPTION_WIDE),
        Kind::Webhook => (WEBHOOK, WEBHOOK_WIDE),
        Kind::EventType => (EVENT_TYPE, EVENT_TYPE_WIDE),
        Kind::Lane => (LANE, LANE_WIDE),
        Kind::DeadLetter => (DEAD_LETTER, DEAD_LETTER_WIDE),
        Kind::Replay => (REPLAY, REPLAY_WIDE),
        Kind::Event => (EVENT, EVENT_WIDE),
        Kind::Namespace => (NAMESPACES, NAMESPACES_WIDE),
        Kind::Token => (TOKEN, TOKEN_WIDE),
        Kind::Secret => (SECRET, SECRET_WIDE),
        Kind::Audit => (AUDIT, AUDIT_WIDE),
        Kind::Revision => (REVISION, REVISION_WIDE),
    }
}

use Show::{Age, At, Count, Data, Error, Key, Relative, Text, TextOr, Words};

/// The place of names that carry their type.
pub const TYPED: &[Column] = &[Column("NAME", Text("/metadata/name"))];
pub const NAMESPACE: &[Column] = &[Column("NAMESPACE", Words(namespace))];

/// Documents have their namespace in the metadata, everything else at the top.
fn namespace(item: &Value) -> String {
    text(item, "/metadata/namespace").unwrap_or_else(|| cell(item, "/namespace"))
}

const NAMESPACES: &[Column] = &[
    Column("NAME", Text("/metadata/name")),
    Column("SUBSCRIPTIONS", Count("/status/subscriptions")),
    Column("WAITING", Count("/status/waiting")),
    Column("DEAD", Count("/status/deadLetters")),
    Column("AGE", Age("/metadata/createdAt")),
];
const NAMESPACES_WIDE: &[Column] = &[
    Column("MAX-EVENTS/S", Text("/spec/limits/eventsPerSecond")),
    Column("MAX-BACKLOG", Text("/spec/limits/backlog")),
    Column("MAX-SUBSCRIPTIONS", Text("/spec/limits/subscriptions")),
    Column("MAX-FUNCTIONS", Text("/spec/limits/functions")),
    Column("SCHEMA-CHECK", TextOr("/spec/schemaCheck", "off")),
];

const FUNCTION: &[Column] = &[
    Column("NAME", Text("/metadata/name")),
    Column("RUNTIME", Words(runtime)),
    Column("PHASE", Words(phase_in_words)),
    Column("READY", Words(ready)),
    Column("REPLICAS", Count("/status/serviceStatus/replicas")),
    Column("ORDERING", TextOr("/spec/ordering", "unordered")),
    Column("URL", Text("/status/serviceStatus/url")),
    Column("AGE", Age("/metadata/creationTimestamp")),
];
const FUNCTION_WIDE: &[Column] = &[
    Column("HANDLER", Text("/spec/runtime/handler")),
    Column("SOURCE", Words(source)),
    Column("GENERATION", Count("/metadata/generation")),
    Column("VERSION", Text("/status/serviceStatus/version")),
    Column("REASON", Words(reason)),
];

const SUBSCRIPTION: &[Column] = &[
    Column("NAME", Text("/metadata/name")),
    Column("ORDERING", TextOr("/spec/ordering", "unordered")),
    Column("TARGET", Words(target)),
    Column("WAITING", Count("/status/waiting")),
    Column("INFLIGHT", Count("/status/inFlight")),
    Column("PARKED", Count("/status/parked")),
    Column("DEAD", Count("/status/deadLetters")),
    Column("PHASE", Text("/status/phase")),
    Column("AGE", Age("/metadata/createdAt")),
];
const SUBSCRIPTION_WIDE: &[Column] = &[
    Column("DELIVERED", Count("/status/delivered")),
    Column("OLDEST", Age("/status/oldest")),
    Column("RETRYING", Count("/status/lanes/retrying")),
    Column("GAPS", Count("/status/lanes/gap")),
    Column("BREAKER", Text("/status/breaker/state")),
];

const WEBHOOK: &[Column] = &[
    Column("NAME", Text("/metadata/name")),
    Column("URL", Text("/spec/url")),
    Column("TYPES", Words(|endpoint| types(&endpoint["spec"]["types"]))),
    Column("ORDERING", TextOr("/spec/ordering", "ordered")),
    Column("WAITING", Count("/status/waiting")),
    Column("DEAD", Count("/status/deadLetters")),
    Column("PHASE", Text("/status/phase")),
    Column("AGE", Age("/metadata/createdAt")),
];
const WEBHOOK_WIDE: &[Column] = &[
    Column("DELIVERED", Count("/status/delivered")),
    Column("LAST-SUCCESS", Relative("/status/lastSuccessAt")),
    Column("FAILING-SINCE", Relative("/status/failingSince")),
    Column("DISABLED", Text("/status/disabled/reason")),
    Column("PARKED", Count("/status/parked")),
    Column("SIGNATURE", TextOr("/spec/signature", "hmac")),
];

/// Without types, any event matches except platform events.
fn types(types: &Value) -> String {
    match joined(types).as_str() {
        "-" => "any".to_owned(),
        some => some.to_owned(),
    }
}

const EVENT_TYPE: &[Column] = &[
    Column("NAME", Text("/metadata/name")),
    Column("TYPE", Text("/spec/type")),
    Column("SCHEMA", Words(|event_type| yes(event_type["spec"]["schema"].is_object()))),
    Column(
        "DESCRIPTION",
        Words(|event_type| shorten(&cell(event_type, "/spec/description"), ERROR_CHARS_MAX)),
    ),
    Column("AGE", Age("/metadata/createdAt")),
];
const EVENT_TYPE_WIDE: &[Column] =
    &[Column("EXAMPLE", Words(|event_type| example(&event_type["spec"]["example"])))];

fn example(example: &Value) -> String {
    if example.is_null() { "-".to_owned() } else { shorten(&example.to_string(), ERROR_CHARS_MAX) }
}

fn yes(is_true: bool) -> String {
    if is_true { "yes" } else { "-" }.to_owned()
}

const LANE: &[Column] = &[
    Column("SUBSCRIPTION", Text("/subscription")),
    Column("KEY", Text("/key")),
    Column("STATE", Text("/state")),
    Column("DEPTH", Count("/depth")),
    Column("SINCE", Age("/since")),
    Column("WAITS-FOR", Text("/waitsFor")),
];
const LANE_WIDE: &[Column] = &[
    Column("HEAD", Text("/head/id")),
    Column("ATTEMPTS", Text("/head/attempts")),
    Column("NEXT-ATTEMPT", Relative("/head/nextAttempt")),
    Column("EXPECTED", Text("/expectedSequence")),
    Column("BUFFERED", Count("/buffered")),
    Column("LAST-ERROR", Error("/head/lastError")),
];

const DEAD_LETTER: &[Column] = &[
    Column("ID", Text("/id")),
    Column("SUBSCRIPTION", Text("/subscription")),
    Column("KEY", Text("/key")),
    Column("REASON", Text("/reason")),
    Column("ATTEMPTS", Count("/attempts")),
    Column("AGE", Age("/failedAt")),
    Column("LAST-ERROR", Error("/lastError")),
];
const DEAD_LETTER_WIDE: &[Column] = &[
    Column("TYPE", Text("/type")),
    Column("SOURCE", Text("/source")),
    Column("EVENT", Text("/eventId")),
    Column("POSITION", Text("/position")),
    Column("HOLDS-LANE", Text("/holdsLane")),
];

const REPLAY: &[Column] = &[
    Column("ID", Text("/id")),
    Column("STATE", Text("/state")),
    Column("SELECTED", Count("/selected")),
    Column("REPLAYED", Count("/replayed")),
    Column("FAILED", Count("/failed")),
    Column("SKIPPED", Count("/skipped")),
    Column("AGE", Age("/createdAt")),
];
const REPLAY_WIDE: &[Column] = &[
    Column("KEYS", Count("/keys")),
    Column("VIOLATIONS", Count("/orderViolations")),
    Column("DUPLICATES", Count("/duplicates")),
    Column("RATE", Text("/ratePerSecond")),
    Column("PARALLELISM", Text("/parallelism")),
    Column("FINISHED", Relative("/finishedAt")),
];

const EVENT: &[Column] = &[
    Column("POSITION", Text("/position")),
    Column("TYPE", Text("/event/type")),
    Column("SOURCE", Text("/event/source")),
    Column("ID", Text("/event/id")),
    Column("KEY", Key),
    Column("AGE", Age("/acceptedAt")),
];
const EVENT_WIDE: &[Column] = &[
    Column("SEQUENCE", Text("/event/sequence")),
    Column("CONTENT-TYPE", Text("/event/datacontenttype")),
    Column("DATA", Data),
];

const TOKEN: &[Column] = &[
    Column("NAME", Text("/name")),
    Column("ROLE", Text("/role")),
    Column("NAMESPACES", Words(namespaces)),
    Column("EXPIRES", Relative("/expiresAt")),
    Column("LAST-USED", Relative("/lastUsedAt")),
    Column("AGE", Age("/createdAt")),
];
const TOKEN_WIDE: &[Column] = &[Column("CREATED-BY", Text("/createdBy"))];

const SECRET: &[Column] = &[
    Column("NAME", Text("/name")),
    Column("KEYS", Words(|secret| length(&secret["keys"]))),
    Column("VERSION", Count("/version")),
    Column("USED-BY", Words(|secret| joined(&secret["usedBy"]))),
    Column("UPDATED", Age("/updatedAt")),
];
const SECRET_WIDE: &[Column] = &[Column("UNREADABLE", Words(|secret| joined(&secret["unreadable"])))];

fn length(items: &Value) -> String {
    items.as_array().map_or(0, Vec::len).to_string()
}

fn joined(items: &Value) -> String {
    let words: Vec<&str> = items.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}

const AUDIT: &[Column] = &[
    Column("TIME", At("/time")),
    Column("WHO", Text("/who")),
    Column("VERB", Text("/verb")),
    Column("KIND", Text("/kind")),
    Column("NAME", Text("/name")),
];
const AUDIT_WIDE: &[Column] = &[Column("FROM", Text("/from")), Column("NUMBER", Text("/number"))];

const REVISION: &[Column] = &[
    Column("REVISION", Text("/number")),
    Column("GENERATION", Text("/generation")),
    Column("SERVING", Words(serving)),
    Column("SOURCE", Words(revision_source)),
    Column("APPLIED-BY", Text("/appliedBy")),
    Column("AGE", Age("/createdAt")),
];
const REVISION_WIDE: &[Column] = &[
    Column("COMMIT", Text("/commit")),
    Column("SOURCE-DIGEST", Text("/sourceDigest")),
    Column("ARTIFACT", Text("/artifact")),
    Column("VERSION", Text("/version")),
];

fn serving(revision: &Value) -> String {
    yes(revision["serving"] == true)
}

/// Names separated by commas, or `*`.
fn namespaces(token: &Value) -> String {
    match token["namespaces"].as_array() {
        Some(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        None => cell(token, "/namespaces"),
    }
}
