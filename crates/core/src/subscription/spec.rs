//! The `spec` of a subscription, as documents write it and as the engine uses it. Users see the doc comments of the
//! fields: they become the descriptions in the schema.

use super::{header, target};
use crate::filter::Filter;
use crate::key;
use crate::scalar::{BytesBetween, MsBetween, MsUpTo, Time};
use crate::schema::{WANTED, form, written_as};
use crate::time::Millis;
use crate::webhook;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
const YEAR_MS: u64 = 365 * DAY_MS;
const YEARS_MS: u64 = 10 * YEAR_MS;
const MONTH_MS: u64 = 30 * DAY_MS;
const COUNT_MAX: u64 = 1_000_000_000_000;
const BYTES_MAX: u64 = 1 << 60;
const BUFFER_BYTES_MAX: u64 = 1 << 40;

/// The specification of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "!has(self.orderingPolicy) || self.ordering == 'ordered'", "message": "orderingPolicy requires ordering: ordered", "fieldPath": ".orderingPolicy" },
]))]
pub struct Spec {
    /// Which events to deliver. An event must match all filters; without filters, every event matches.
    #[serde(default)]
    #[schemars(length(max = 1000), extend("x-kubernetes-list-type" = "atomic"))]
    pub filters: Vec<Filter>,
    /// Where to deliver events.
    pub target: Target,
    /// Where in the log a new subscription starts: `latest`, `earliest` or a time.
    #[serde(default)]
    pub from: From,
    /// Whether to deliver the events of a key in order, one at a time.
    #[serde(default)]
    pub ordering: Ordering,
    /// How to handle ordered events. Requires `ordering: ordered`.
    #[serde(default, rename = "orderingPolicy")]
    #[schemars(extend("default" = null))]
    pub policy: OrderingPolicy,
    /// When to retry a failed call.
    #[serde(default)]
    pub retry: Retry,
    /// Maximum number of concurrent calls.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 65_536))]
    pub concurrency: u32,
    /// How long to remember event ids, so that each event is delivered once.
    #[serde(default)]
    pub idempotency: Idempotency,
    /// An idle, empty lane forgets its expected sequence after this time. Zero means never.
    #[serde(default = "sequence_ttl_ms", rename = "sequenceTtl", with = "SequenceTtl")]
    pub sequence_ttl_ms: u64,
    /// Limits on pending events.
    #[serde(default)]
    pub backlog: Backlog,
    /// Limits on the number and age of dead letters.
    #[serde(default)]
    pub dead_letters: DeadLetters,
    /// Set to true to stop starting deliveries.
    #[serde(default)]
    pub paused: bool,
}

pub type SequenceTtl = MsUpTo<YEARS_MS>;

fn concurrency() -> u32 {
    256
}

pub(crate) fn sequence_ttl_ms() -> u64 {
    DAY_MS
}

/// Where to deliver events. In a document, the members of a URL target and `function` are on the same level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// A function on this server.
    Function(FunctionName),
    /// A webhook endpoint. Only the server writes such a target.
    Endpoint(Box<webhook::Spec>),
    #[serde(untagged)]
    Url(UrlTarget),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UrlTarget {
    /// An `http://` or `https://` URL without user, password and fragment.
    #[schemars(extend("pattern" = form::URL, "maxLength" = target::URL_BYTES_MAX))]
    pub url: String,
    /// Headers to add to every call. Each value is a string, `{file: PATH}` or `{env: NAME}`.
    // Sorted here, with lower-case names.
    #[serde(default, with = "header::Headers", skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, HeaderValue)>,
    /// The HTTP protocol; defaults to `http1`.
    #[serde(default)]
    #[schemars(extend("default" = null))]
    pub protocol: Protocol,
    /// TLS settings, for `https://` only.
    #[serde(default, skip_serializing_if = "Tls::is_default")]
    #[schemars(extend("default" = null))]
    pub tls: Tls,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct FunctionName {
    #[schemars(extend("pattern" = form::LABEL))]
    pub namespace: String,
    #[schemars(extend("pattern" = form::LABEL))]
    pub name: String,
}

/// In JSON: `"text"`, `{"file": "/path"}` or `{"env": "NAME"}`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderValue {
    File(String),
    Env(String),
    #[serde(untagged)]
    Literal(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    #[default]
    Http1,
    H2c,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "has(self.certFile) == has(self.keyFile)", "message": "a client certificate and its key must be specified together" },
]))]
pub struct Tls {
    /// PEM file with the trusted CA certificates. Replaces the certificates of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub ca_file: Option<String>,
    /// PEM file with the client certificate. Requires `keyFile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub cert_file: Option<String>,
    /// PEM file with the key of the client certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub key_file: Option<String>,
}

/// Where in the log a new subscription starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    #[default]
    Latest,
    Earliest,
    #[serde(untagged)]
    Time(#[serde(with = "Time")] Millis),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    Ordered,
    #[default]
    Unordered,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct OrderingPolicy {
    /// Where to find the key that selects the lane of an event. Default: `partitionkey`, else `subject`, else
    /// `source`.
    #[serde(skip_serializing_if = "key::Source::is_default")]
    pub key: key::Source,
    /// Where to find the producer's sequence. Without it, events are ordered by arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<SequenceRule>,
    /// Turn late events into dead letters instead of delivering them with a flag.
    pub strict: bool,
    /// What to do when a sequence is missing.
    pub gap: Gap,
    /// Limits on early events that wait for a missing sequence.
    pub buffer: Buffer,
    /// What to do with the lane when an event fails.
    pub on_failure: OnFailure,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SequenceRule {
    #[serde(flatten)]
    pub source: key::SequenceSource,
    /// The first sequence of a new lane: `auto`, `first` or a number.
    #[serde(default)]
    pub start: Start,
}

/// The first sequence of a new lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// 0 or 1 opens the lane immediately. Otherwise, the lane opens at the lowest sequence seen within one gap
    /// timeout.
    #[default]
    Auto,
    /// The lane opens at the sequence of its first event.
    First,
    #[serde(untagged)]
    At(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Gap {
    /// How long to wait for a missing sequence.
    #[serde(rename = "timeout", with = "MsBetween::<1, MONTH_MS>")]
    pub timeout_ms: u64,
    /// What to do after the timeout.
    pub action: GapAction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GapAction {
    #[default]
    Skip,
    Park,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Buffer {
    /// Maximum number of events.
    #[serde(rename = "maxEvents")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub events_max: u64,
    /// Maximum total size of the events.
    #[serde(rename = "maxBytes", with = "BytesBetween::<1024, BUFFER_BYTES_MAX>")]
    pub bytes_max: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    #[default]
    Park,
    Skip,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Retry {
    /// Total number of attempts: a number, or `unlimited`.
    // `None` means unlimited.
    #[serde(with = "Attempts")]
    pub attempts: Option<u32>,
    /// Delay before the second attempt. It doubles with each further attempt, and half of it is random.
    #[serde(rename = "backoff", with = "MsBetween::<1, HOUR_MS>")]
    pub backoff_ms: u64,
    /// Maximum delay between attempts, at least `backoff`. Default: `1m`, or `backoff` if that is longer.
    #[serde(rename = "maxBackoff", with = "MsBetween::<1, DAY_MS>")]
    #[schemars(extend("default" = null))]
    pub max_backoff_ms: u64,
    /// Timeout of one attempt.
    #[serde(rename = "timeout", with = "MsBetween::<1, HOUR_MS>")]
    pub timeout_ms: u64,
}

/// A number, or `unlimited`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Attempts {
    Unlimited,
    #[serde(untagged)]
    Count(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Idempotency {
    /// How long to remember an event id.
    #[serde(rename = "ttl", with = "MsBetween::<1, YEAR_MS>")]
    pub ttl_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Backlog {
    /// Maximum number of pending events.
    #[serde(rename = "maxEvents")]
    #[schemars(range(min = 1, max = COUNT_MAX))]
    pub events_max: u64,
    /// Maximum total size of the pending events.
    #[serde(rename = "maxBytes", with = "BytesBetween::<1024, BYTES_MAX>")]
    pub bytes_max: u64,
    /// Maximum age of the oldest pending event. Zero means no limit.
    #[serde(rename = "maxAge", with = "MsUpTo::<YEARS_MS>")]
    pub age_max_ms: u64,
    /// What to do when a limit is reached.
    pub on_full: OnFull,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// Continue to accept events. The subscription reads them from the log when it has room.
    #[default]
    Lag,
    /// Reject events for all subscriptions.
    Reject,
    /// Drop the oldest pending event.
    Drop,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DeadLetters {
    /// Maximum number of dead letters that do not park a lane.
    #[serde(rename = "maxEvents")]
    #[schemars(range(min = 1, max = COUNT_MAX))]
    pub events_max: u64,
    /// Drop a dead letter that does not park a lane after this time.
    #[serde(rename = "ttl", with = "MsBetween::<1, YEARS_MS>")]
    pub ttl_ms: u64,
    /// What to do at the limit: drop the oldest dead letter, or handle new events as `backlog.onFull` says.
    pub overflow: Overflow,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    #[default]
    DropHead,
    Reject,
}

written_as!([] From, "From", { "type": "string", "pattern": form::FROM });
written_as!([] Start, "Start", {
    "x-kubernetes-int-or-string": true, "pattern": form::START, "minimum": 0, "maximum": key::SEQUENCE_MAX,
    WANTED: "auto, first or a whole number below 2^64 - 1",
});
written_as!([] Attempts, "Attempts", {
    "x-kubernetes-int-or-string": true, "pattern": form::ATTEMPTS, "minimum": 1, "maximum": u32::MAX,
    WANTED: "a whole number from 1, or unlimited",
});

impl Attempts {
    fn serialize<S: Serializer>(attempts: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
        Serialize::serialize(&attempts.map_or(Attempts::Unlimited, Attempts::Count), serializer)
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
        <Attempts as Deserialize>::deserialize(deserializer).map(|attempts| match attempts {
            Attempts::Unlimited => None,
            Attempts::Count(count) => Some(count),
        })
    }
}

impl From {
    pub(crate) fn parse(text: &str) -> Option<From> {
        match text {
            "latest" => Some(From::Latest),
            "earliest" => Some(From::Earliest),
            time => Millis::parse_rfc3339(time).map(From::Time),
        }
    }
}

pub(crate) const FROM_RULE: &str =
    "must be latest, earliest or an RFC 3339 time, such as 2026-08-01T12:00:00Z";

impl Default for Gap {
    fn default() -> Gap {
        Gap { timeout_ms: 30_000, action: GapAction::Skip }
    }
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer { events_max: 1000, bytes_max: 16 << 20 }
    }
}

impl Default for Idempotency {
    fn default() -> Idempotency {
        Idempotency { ttl_ms: DAY_MS }
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
        DeadLetters { events_max: 50_000, ttl_ms: 7 * DAY_MS, overflow: Overflow::DropHead }
    }
}

/// Hides literals, which may be secrets, because debug output ends up in logs.
impl fmt::Debug for HeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderValue::Literal(_) => f.write_str("Literal(***)"),
            HeaderValue::File(path) => write!(f, "File({path:?})"),
            HeaderValue::Env(name) => write!(f, "Env({name:?})"),
        }
    }
}
