//! A subscription as its owner writes it: one consumer of events, its filters, its target and its rules.

mod given;
mod header;
mod parse;
mod print;
mod target;

use crate::fault::Fault;
use crate::filter::Filter;
use crate::key;
use crate::namespace;
use crate::time::Millis;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

pub const API_VERSION: &str = "lambda.knative.io/v1alpha1";
pub const KIND: &str = "Subscription";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub namespace: String,
    pub name: String,
    pub spec: Spec,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// All must match; none lets every event through.
    pub filters: Vec<Filter>,
    pub target: Target,
    pub from: From,
    pub ordering: Ordering,
    /// Means nothing unless ordered.
    pub policy: OrderingPolicy,
    pub retry: Retry,
    /// Requests open at once.
    pub concurrency: u32,
    pub idempotency_ttl_ms: u64,
    /// Zero: never forgotten.
    pub sequence_ttl_ms: u64,
    pub backlog: Backlog,
    pub dead_letters: DeadLetters,
    pub paused: bool,
}

/// Where events are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Url(UrlTarget),
    /// A function of this server.
    Function(FunctionName),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlTarget {
    pub url: String,
    /// Lower-case names, sorted.
    pub headers: Vec<(String, HeaderValue)>,
    pub protocol: Protocol,
    pub tls: Tls,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionName {
    pub namespace: String,
    pub name: String,
}

/// In JSON: `"text"`, `{"file": "/path"}` or `{"env": "NAME"}`.
#[derive(Clone, PartialEq, Eq)]
pub enum HeaderValue {
    Literal(String),
    File(String),
    Env(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Http1,
    H2c,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    pub ca_file: Option<String>,
    /// Together with `key_file` or not at all.
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
}

/// Where in the log a new subscription begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    #[default]
    Latest,
    Earliest,
    Time(Millis),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ordering {
    Ordered,
    #[default]
    Unordered,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderingPolicy {
    pub key: key::Source,
    /// Not named: arrival order.
    pub sequence: Option<key::SequenceSource>,
    pub start: Start,
    /// Late events become dead letters instead of being delivered flagged.
    pub strict: bool,
    pub gap_timeout_ms: u64,
    pub gap_action: GapAction,
    pub buffer_events_max: u64,
    pub buffer_bytes_max: u64,
    pub on_failure: OnFailure,
}

/// The sequence at which a new lane opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At 0 or 1 at once, otherwise at the lowest seen within one gap timeout.
    #[default]
    Auto,
    /// At whatever comes first.
    First,
    At(u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GapAction {
    #[default]
    Skip,
    Park,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    #[default]
    Park,
    Skip,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Calls in all; `None` is unlimited.
    pub attempts: Option<u32>,
    pub backoff_ms: u64,
    pub max_backoff_ms: u64,
    pub timeout_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    pub events_max: u64,
    pub bytes_max: u64,
    /// Zero: no limit.
    pub age_max_ms: u64,
    pub on_full: OnFull,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Events are still accepted; the subscription reads them from the log once it has room.
    #[default]
    Lag,
    Reject,
    Drop,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetters {
    pub events_max: u64,
    pub ttl_ms: u64,
    pub overflow: Overflow,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    #[default]
    DropHead,
    Reject,
}

/// What subscriptions are named that the server makes and keeps itself: `lambda.<namespace>.<name>` of a function.
pub const MANAGED_PREFIX: &str = "lambda.";

/// The server's own, one in each namespace, by which received events act on functions. No function's has this name, and
/// lists leave it out.
pub const CONTROLLER: &str = "lambda.controller";

impl Document {
    /// Its name among those of all namespaces.
    pub fn full_name(&self) -> Cow<'_, str> {
        namespace::full_name(&self.namespace, &self.name)
    }

    /// Whether the server made it for a function, so that people may not change or delete it by itself. Takes a name
    /// or a full name, as `function_of` does.
    pub fn is_managed(name: &str) -> bool {
        namespace::split(name).1.starts_with(MANAGED_PREFIX)
    }

    /// Namespace and name of the function that the server made a subscription for.
    pub fn function_of(name: &str) -> Option<(&str, &str)> {
        namespace::split(name).1.strip_prefix(MANAGED_PREFIX)?.split_once('.')
    }

    /// The server's own, by which received events act.
    pub fn is_controller(&self) -> bool {
        self.name == CONTROLLER
    }

    /// Reads a document, strictly; all that is wrong with it is told at once.
    pub fn parse(value: &Value) -> Result<Document, Vec<Fault>> {
        parse::document(value)
    }

    /// As `parse`, of what a person gives. `***` stands for the secret that `before` has in its place.
    pub fn given(value: &Value, before: Option<&Document>) -> Result<Document, Vec<Fault>> {
        given::document(value, before)
    }

    /// With every default filled in, and without secrets.
    pub fn to_json(&self) -> Value {
        print::document(self, print::Secrets::Hidden)
    }

    /// The same with secrets, for the log. Reads back as this document.
    pub fn to_stored_json(&self) -> Value {
        print::document(self, print::Secrets::Shown)
    }

    /// Whether `other` orders events by other rules, so that what waits must drain first.
    pub fn epoch_differs(&self, other: &Document) -> bool {
        let (ours, theirs) = (&self.spec, &other.spec);
        let rules = |spec: &Spec| (spec.policy.key.clone(), spec.policy.sequence.clone());
        ours.ordering != theirs.ordering
            || (ours.ordering == Ordering::Ordered && rules(ours) != rules(theirs))
    }

    /// This document with the ordering rules of another one: all of it that applies while events drain under those.
    pub fn ordered_as(&self, other: &Document) -> Document {
        let mut document = self.clone();
        document.spec.ordering = other.spec.ordering;
        document.spec.policy = other.spec.policy.clone();
        document
    }
}

impl Default for OrderingPolicy {
    fn default() -> OrderingPolicy {
        OrderingPolicy {
            key: key::Source::Default,
            sequence: None,
            start: Start::Auto,
            strict: false,
            gap_timeout_ms: 30_000,
            gap_action: GapAction::Skip,
            buffer_events_max: 1000,
            buffer_bytes_max: 16 << 20,
            on_failure: OnFailure::Park,
        }
    }
}

impl Default for Retry {
    fn default() -> Retry {
        Retry { attempts: Some(5), backoff_ms: 1000, max_backoff_ms: 60_000, timeout_ms: 30_000 }
    }
}

impl Default for Backlog {
    fn default() -> Backlog {
        Backlog { events_max: 10_000_000, bytes_max: 10 << 30, age_max_ms: 0, on_full: OnFull::Lag }
    }
}

impl Default for DeadLetters {
    fn default() -> DeadLetters {
        DeadLetters { events_max: 50_000, ttl_ms: 7 * 86_400_000, overflow: Overflow::DropHead }
    }
}

/// A literal may be a secret, and what is printed for debugging ends up in logs.
impl fmt::Debug for HeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderValue::Literal(_) => f.write_str("Literal(***)"),
            HeaderValue::File(path) => write!(f, "File({path:?})"),
            HeaderValue::Env(name) => write!(f, "Env({name:?})"),
        }
    }
}

/// A choice that is written as a word.
pub(crate) trait Named: Copy + PartialEq + 'static {
    const NAMES: &'static [(&'static str, Self)];

    fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(_, value)| *value == self);
        named.map(|(name, _)| *name).expect("every choice has a name")
    }
}

impl Named for Protocol {
    const NAMES: &'static [(&'static str, Self)] = &[("http1", Protocol::Http1), ("h2c", Protocol::H2c)];
}

impl Named for Ordering {
    const NAMES: &'static [(&'static str, Self)] =
        &[("ordered", Ordering::Ordered), ("unordered", Ordering::Unordered)];
}

impl Named for GapAction {
    const NAMES: &'static [(&'static str, Self)] = &[("skip", GapAction::Skip), ("park", GapAction::Park)];
}

impl Named for OnFailure {
    const NAMES: &'static [(&'static str, Self)] = &[("park", OnFailure::Park), ("skip", OnFailure::Skip)];
}

impl Named for OnFull {
    const NAMES: &'static [(&'static str, Self)] =
        &[("lag", OnFull::Lag), ("reject", OnFull::Reject), ("drop", OnFull::Drop)];
}

impl Named for Overflow {
    const NAMES: &'static [(&'static str, Self)] =
        &[("drop-head", Overflow::DropHead), ("reject", Overflow::Reject)];
}

#[cfg(test)]
mod tests;
