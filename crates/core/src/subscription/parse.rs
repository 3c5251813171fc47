//! From JSON to a document.

use super::target::read_target;
use super::{
    API_VERSION, Backlog, DeadLetters, Document, From, KIND, Ordering, OrderingPolicy, Retry, Spec, Start,
};
use crate::fault::{Fault, unknown};
use crate::fields::{Faults, Fields};
use crate::filter::{self, Filter, is_attribute_name};
use crate::key::{Pointer, SEQUENCE_MAX, SequenceSource, Source};
use crate::namespace::{self, is_label};
use crate::time::Millis;
use serde_json::Value;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
const YEAR_MS: u64 = 365 * DAY_MS;
const COUNT_MAX: u64 = 1_000_000_000_000;
const BYTES_MAX: u64 = 1 << 60;

const SPEC: [&str; 12] = [
    "filters",
    "target",
    "from",
    "ordering",
    "orderingPolicy",
    "retry",
    "concurrency",
    "idempotency",
    "sequenceTtl",
    "backlog",
    "deadLetters",
    "paused",
];

pub(super) fn document(value: &Value) -> Result<Document, Vec<Fault>> {
    if !value.is_object() {
        return Err(vec![Fault::new(
            "",
            "a subscription is an object with apiVersion, kind, metadata and spec",
        )]);
    }
    let faults = Faults::default();
    let document = read_document(value, &faults);
    let faults = faults.into_inner();
    if faults.is_empty() { Ok(document) } else { Err(faults) }
}

fn read_document(value: &Value, faults: &Faults) -> Document {
    // What the server adds to a document may come back with it.
    let top = Fields::open(
        Some(value),
        String::new(),
        &["apiVersion", "kind", "metadata", "spec", "status"],
        faults,
    );
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let text = top.required(name);
        if !text.is_empty() && text != expected {
            top.fault(name, format!("must be {expected}"));
        }
    }
    let metadata = top.child("metadata", &["namespace", "name", "createdAt"]);
    let name = metadata.required("name");
    let namespace = metadata.text("namespace").unwrap_or(namespace::DEFAULT);
    if !is_label(namespace) {
        metadata
            .fault("namespace", "has 1 to 63 of a-z, 0-9 and -, and begins and ends with a letter or digit");
    }
    if top.get("spec").is_none() {
        top.fault("spec", "missing");
    }
    if metadata.get("name").is_some_and(Value::is_string) && !is_name(name) {
        metadata.fault(
            "name",
            "a name has 1 to 63 of a-z, 0-9, - and ., and begins and ends with a letter or digit",
        );
    }
    let spec = read_spec(&top.child("spec", &SPEC));
    Document { namespace: namespace.to_owned(), name: name.to_owned(), spec }
}

pub(super) fn is_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    // `lambda.<namespace>.<name>`: two labels.
    let length_max = if Document::is_managed(name) { 134 } else { 63 };
    name.len() <= length_max
        && name.bytes().all(inner)
        && edge(name.bytes().next())
        && edge(name.bytes().last())
}

fn read_spec(spec: &Fields<'_>) -> Spec {
    let ordering = spec.choice("ordering");
    Spec {
        filters: read_filters(spec),
        target: read_target(spec),
        from: read_from(spec),
        ordering,
        policy: read_policy(spec, ordering),
        retry: read_retry(spec),
        concurrency: u32::try_from(spec.count("concurrency", 1..=65_536, 256)).unwrap_or(256),
        idempotency_ttl_ms: spec.child("idempotency", &["ttl"]).duration("ttl", 1..=YEAR_MS, DAY_MS),
        sequence_ttl_ms: spec.duration("sequenceTtl", 0..=10 * YEAR_MS, DAY_MS),
        backlog: read_backlog(spec),
        dead_letters: read_dead_letters(spec),
        paused: spec.flag("paused", false),
    }
}

fn read_filters(spec: &Fields<'_>) -> Vec<Filter> {
    let filters = spec.get("filters").unwrap_or(&Value::Null);
    filter::parse_all(filters, &spec.path("filters"), &mut spec.faults().borrow_mut())
}

fn read_from(spec: &Fields<'_>) -> From {
    match spec.text("from") {
        None | Some("latest") => From::Latest,
        Some("earliest") => From::Earliest,
        Some(text) => match Millis::parse_rfc3339(text) {
            Some(time) => From::Time(time),
            None => {
                spec.fault(
                    "from",
                    "must be latest, earliest or an RFC 3339 time, such as 2026-08-01T12:00:00Z",
                );
                From::Latest
            }
        },
    }
}

fn read_policy(spec: &Fields<'_>, ordering: Ordering) -> OrderingPolicy {
    let known = ["key", "sequence", "strict", "gap", "buffer", "onFailure"];
    let policy = spec.child("orderingPolicy", &known);
    if ordering == Ordering::Unordered && spec.get("orderingPolicy").is_some() {
        policy.fault("", "has no meaning without ordering: ordered; set that or leave this out");
        return OrderingPolicy::default();
    }
    let sequence = policy.child("sequence", &["attribute", "pointer", "start"]);
    let gap = policy.child("gap", &["timeout", "action"]);
    let buffer = policy.child("buffer", &["maxEvents", "maxBytes"]);
    let default = OrderingPolicy::default();
    OrderingPolicy {
        key: read_key(&policy),
        sequence: read_sequence(&policy, &sequence),
        start: read_start(&sequence),
        strict: policy.flag("strict", default.strict),
        gap_timeout_ms: gap.duration("timeout", 1..=30 * DAY_MS, default.gap_timeout_ms),
        gap_action: gap.choice("action"),
        buffer_events_max: buffer.count("maxEvents", 1..=100_000_000, default.buffer_events_max),
        buffer_bytes_max: buffer.bytes("maxBytes", 1024..=1 << 40, default.buffer_bytes_max),
        on_failure: policy.choice("onFailure"),
    }
}

fn read_key(policy: &Fields<'_>) -> Source {
    let key = policy.child("key", &["attribute", "pointer"]);
    match place(policy.get("key").is_some(), &key) {
        None => Source::Default,
        Some(Place::Attribute(name)) => Source::Attribute(name),
        Some(Place::Pointer(pointer)) => Source::Pointer(pointer),
    }
}

fn read_sequence(policy: &Fields<'_>, sequence: &Fields<'_>) -> Option<SequenceSource> {
    Some(match place(policy.get("sequence").is_some(), sequence)? {
        Place::Attribute(name) => SequenceSource::Attribute(name),
        Place::Pointer(pointer) => SequenceSource::Pointer(pointer),
    })
}

fn read_start(sequence: &Fields<'_>) -> Start {
    match sequence.get("start") {
        None => Start::Auto,
        Some(Value::String(text)) if text == "auto" => Start::Auto,
        Some(Value::String(text)) if text == "first" => Start::First,
        Some(value) => value.as_u64().filter(|n| *n <= SEQUENCE_MAX).map(Start::At).unwrap_or_else(|| {
            sequence.fault("start", "must be auto, first or a whole number below 2^64 - 1");
            Start::Auto
        }),
    }
}

/// Where in an event a key or a sequence stands.
enum Place {
    Attribute(String),
    Pointer(Pointer),
}

fn place(given: bool, fields: &Fields<'_>) -> Option<Place> {
    match (fields.text("attribute"), fields.text("pointer")) {
        (Some(name), None) if is_attribute_name(name) => return Some(Place::Attribute(name.to_owned())),
        (Some(_), None) => fields.fault("attribute", "attribute names have only the letters a-z and digits"),
        (None, Some(text)) => match Pointer::parse(text) {
            Ok(pointer) => return Some(Place::Pointer(pointer)),
            Err(message) => fields.fault("pointer", message),
        },
        (Some(_), Some(_)) => fields.fault("", "give either attribute or pointer, not both"),
        (None, None) if given && fields.get("attribute").or(fields.get("pointer")).is_none() => {
            fields.fault("", "needs an attribute or a pointer");
        }
        (None, None) => {}
    }
    None
}

fn read_retry(spec: &Fields<'_>) -> Retry {
    let retry = spec.child("retry", &["attempts", "backoff", "maxBackoff", "timeout"]);
    let default = Retry::default();
    let backoff_ms = retry.duration("backoff", 1..=HOUR_MS, default.backoff_ms);
    let max_backoff_ms = retry.duration("maxBackoff", 1..=DAY_MS, default.max_backoff_ms.max(backoff_ms));
    if max_backoff_ms < backoff_ms {
        retry.fault("maxBackoff", "must not be shorter than backoff");
    }
    let timeout_ms = retry.duration("timeout", 1..=HOUR_MS, default.timeout_ms);
    Retry { attempts: read_attempts(&retry), backoff_ms, max_backoff_ms, timeout_ms }
}

fn read_attempts(retry: &Fields<'_>) -> Option<u32> {
    let wrong = "must be a whole number from 1, or unlimited";
    match retry.get("attempts") {
        None => Retry::default().attempts,
        Some(Value::String(text)) if text == "unlimited" => None,
        Some(Value::String(text)) => {
            retry.fault(
                "attempts",
                if text.is_empty() { wrong.to_owned() } else { unknown("value", text, &["unlimited"]) },
            );
            None
        }
        Some(value) => {
            let attempts = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n >= 1);
            if attempts.is_none() {
                retry.fault("attempts", wrong);
            }
            attempts
        }
    }
}

fn read_backlog(spec: &Fields<'_>) -> Backlog {
    let backlog = spec.child("backlog", &["maxEvents", "maxBytes", "maxAge", "onFull"]);
    let default = Backlog::default();
    Backlog {
        events_max: backlog.count("maxEvents", 1..=COUNT_MAX, default.events_max),
        bytes_max: backlog.bytes("maxBytes", 1024..=BYTES_MAX, default.bytes_max),
        age_max_ms: backlog.duration("maxAge", 0..=10 * YEAR_MS, default.age_max_ms),
        on_full: backlog.choice("onFull"),
    }
}

fn read_dead_letters(spec: &Fields<'_>) -> DeadLetters {
    let letters = spec.child("deadLetters", &["maxEvents", "ttl", "overflow"]);
    let default = DeadLetters::default();
    DeadLetters {
        events_max: letters.count("maxEvents", 1..=COUNT_MAX, default.events_max),
        ttl_ms: letters.duration("ttl", 1..=10 * YEAR_MS, default.ttl_ms),
        overflow: letters.choice("overflow"),
    }
}
