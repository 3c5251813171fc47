//! The `spec` of a webhook endpoint. Users see the doc comments of the fields: they become the descriptions in the
//! schema.

use super::Tls;
use crate::fault::{Fault, excerpt};
use crate::filter::{self, Filter};
use crate::key::{self, Pointer};
use crate::scalar::{BytesBetween, Duration, MsBetween};
use crate::schema::form;
use crate::subscription::{Buffer, Gap, Ordering, SequenceRule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
const YEAR_MS: u64 = 365 * DAY_MS;
/// The longest delay of a schedule. Timers are limited to it after a restart.
pub const DELAY_MS_MAX: u64 = DAY_MS;
const BATCH_BYTES_MAX: u64 = 16 << 20;

/// The specification of a webhook endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "!has(self.orderingPolicy) || !has(self.ordering) || self.ordering == 'ordered'", "message": "orderingPolicy requires ordering: ordered", "fieldPath": ".orderingPolicy" },
    { "rule": "!has(self.batch) || !has(self.ordering) || self.ordering == 'ordered'", "message": "batch requires ordering: ordered", "fieldPath": ".batch" },
    { "rule": "!has(self.tls) || self.url.lowerAscii().startsWith('https://')", "message": "tls requires an https:// URL", "fieldPath": ".tls" },
]))]
pub struct Spec {
    /// An `http://` or `https://` URL without user, password and fragment.
    #[schemars(extend("pattern" = form::URL, "maxLength" = 4096))]
    pub url: String,
    /// Event types to send: exact, or a prefix followed by `*`. Without types, every event matches except platform events
    /// (`lambda.*`). `*` stands for every event.
    #[serde(default)]
    #[schemars(length(max = 200), extend("x-kubernetes-list-type" = "atomic"))]
    pub types: Vec<String>,
    /// Further conditions. An event must match all filters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), extend("x-kubernetes-list-type" = "atomic"))]
    pub filters: Vec<Filter>,
    /// Where to find the workflow of an event. Events of a workflow are sent in order. Default: `partitionkey`, else
    /// `subject`, else `source`.
    #[serde(default, skip_serializing_if = "key::Source::is_default")]
    pub workflow_key: key::Source,
    /// Whether to send the events of a workflow in order, one at a time.
    #[serde(default = "ordered")]
    pub ordering: Ordering,
    /// How to handle ordered events. Requires `ordering: ordered`.
    #[serde(default, rename = "orderingPolicy")]
    #[schemars(extend("default" = null))]
    pub policy: Policy,
    /// Send several events of a workflow in one call. Requires `ordering: ordered`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// The form of the request body.
    #[serde(default)]
    pub payload: Payload,
    /// How to sign requests: `hmac` (`v1`) or `ed25519` (`v1a`).
    #[serde(default)]
    pub signature: Signature,
    /// Headers to add to every call, with values from secrets of the namespace.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(length(max = 50))]
    pub headers: BTreeMap<String, SecretKey>,
    /// TLS settings, for `https://` only.
    #[serde(default, skip_serializing_if = "Tls::is_default")]
    #[schemars(extend("default" = null))]
    pub tls: Tls,
    /// When to retry a failed call.
    #[serde(default)]
    pub retry: Retry,
    /// Maximum number of concurrent calls.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 65_536))]
    pub concurrency: u32,
    /// Disable the endpoint if no call succeeded for this time, counted from the first failure.
    #[serde(default = "disable_after_ms", rename = "disableAfter", with = "MsBetween::<1000, YEAR_MS>")]
    pub disable_after_ms: u64,
    /// Set to true to stop starting calls.
    #[serde(default)]
    pub paused: bool,
}

/// How to handle ordered events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Policy {
    /// Where to find the producer's sequence. Without it, events are ordered by arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<SequenceRule>,
    /// Turn late events into dead letters instead of sending them with a flag.
    pub strict: bool,
    /// What to do when a sequence is missing.
    pub gap: Gap,
    /// Limits on early events that wait for a missing sequence.
    pub buffer: Buffer,
}

/// How many events of a workflow to send in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Batch {
    /// Maximum number of events.
    #[serde(rename = "maxEvents")]
    #[schemars(range(min = 1, max = 1000))]
    pub events_max: u32,
    /// Maximum size of the request body. One event that is larger is sent alone.
    #[serde(
        default = "batch_bytes_max",
        rename = "maxBytes",
        with = "BytesBetween::<1024, BATCH_BYTES_MAX>"
    )]
    pub bytes_max: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Payload {
    /// `standard`, or `cloudevents` for the structured mode of CloudEvents.
    pub form: PayloadForm,
    /// Replaces `data` by an object with these members, each taken from the original data by a JSON pointer. A member
    /// that the data does not have is left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(length(max = 100))]
    pub pick: BTreeMap<String, PickFrom>,
}

/// A JSON pointer into the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct PickFrom(#[schemars(with = "String", extend("pattern" = form::POINTER))] pub Pointer);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PayloadForm {
    #[default]
    Standard,
    CloudEvents,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Signature {
    #[default]
    Hmac,
    Ed25519,
}

/// One value of a secret of the namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretKey {
    /// The name of the secret.
    #[schemars(extend("pattern" = form::NAME))]
    pub secret: String,
    /// The key in the secret.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// A value of a secret that calls of an endpoint need.
#[derive(Debug, PartialEq, Eq)]
pub struct Needed<'a> {
    /// The field of the specification that names it.
    pub path: String,
    pub secret: &'a str,
    pub key: &'a str,
}

/// Every value of a secret that this `spec` names. Members that are missing or not text are empty.
pub fn needed(spec: &Value) -> Vec<Needed<'_>> {
    let headers = spec["headers"].as_object().into_iter().flatten();
    let headers = headers.map(|(name, from)| (format!("headers.{name}"), from, "key"));
    let tls = [("clientCertificate", "certificate"), ("clientCertificate", "privateKey"), ("ca", "key")];
    let tls = tls.map(|(name, key)| (format!("tls.{name}"), &spec["tls"][name], key));
    let all = headers.chain(tls).filter(|(_, from, _)| from.is_object());
    fn text<'a>(from: &'a Value, member: &str) -> &'a str {
        from[member].as_str().unwrap_or_default()
    }
    all.map(|(path, from, key)| Needed { path, secret: text(from, "secret"), key: text(from, key) }).collect()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Retry {
    /// The delay before each attempt, the first included. After the last attempt the workflow waits for a person.
    #[schemars(length(min = 1, max = 100), extend("x-kubernetes-list-type" = "atomic"))]
    pub schedule: Vec<Duration>,
    /// Timeout of one attempt.
    #[serde(rename = "timeout", with = "MsBetween::<1, HOUR_MS>")]
    pub timeout_ms: u64,
}

/// At once, then after 5 seconds, 5 minutes, half an hour and hours: about three days in all.
const SCHEDULE_S: [u64; 10] = [0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400];

impl Default for Retry {
    fn default() -> Retry {
        Retry { schedule: SCHEDULE_S.map(Duration::from_secs).to_vec(), timeout_ms: 30_000 }
    }
}

impl Retry {
    /// The delay before the next attempt, after this number of failures. Up to a tenth is added by chance, so that
    /// workflows that failed together do not retry together.
    pub fn delay_ms(&self, failures: u32, retry_after_ms: Option<u64>, random: u64) -> u64 {
        let planned =
            self.schedule.get(failures as usize).or(self.schedule.last()).map_or(0, |delay| delay.ms);
        let jittered = planned + random % (planned / 10 + 1);
        jittered.max(retry_after_ms.unwrap_or(0).min(crate::retry::RETRY_AFTER_MS_MAX))
    }
}

fn ordered() -> Ordering {
    Ordering::Ordered
}

fn batch_bytes_max() -> u64 {
    1 << 20
}

fn concurrency() -> u32 {
    256
}

fn disable_after_ms() -> u64 {
    5 * DAY_MS
}

/// Rules that involve several fields, or that a schema cannot express.
pub(super) fn check(document: &Value, faults: &mut Vec<Fault>) {
    let spec = &document["spec"];
    filter::parse_all(&spec["filters"], "spec.filters", faults);
    let mut fault = |path: &str, message: &str| faults.push(Fault::new(path, message));
    if spec["ordering"] == "unordered" && !spec["orderingPolicy"].is_null() {
        fault("spec.orderingPolicy", "requires ordering: ordered; set ordering or remove orderingPolicy");
    }
    if spec["ordering"] == "unordered" && !spec["batch"].is_null() {
        fault("spec.batch", "requires ordering: ordered; set ordering or remove batch");
    }
    for (index, pattern) in spec["types"].as_array().into_iter().flatten().enumerate() {
        let text = pattern.as_str().unwrap_or("*");
        let inner = text.strip_suffix('*').unwrap_or(text);
        if text.is_empty() || inner.contains('*') {
            fault(&format!("spec.types[{index}]"), "must be a type, or a prefix followed by *");
        }
    }
    let schedule = spec["retry"]["schedule"].as_array().into_iter().flatten();
    for (index, delay) in schedule.enumerate() {
        let ms = delay.as_str().and_then(|text| crate::quantity::parse_duration_ms(text).ok());
        if ms.is_some_and(|ms| ms > DELAY_MS_MAX) {
            fault(&format!("spec.retry.schedule[{index}]"), "must not be longer than 1d");
        }
    }
    for name in spec["headers"].as_object().into_iter().flatten().map(|(name, _)| name) {
        if let Some(message) = crate::subscription::wrong_header_name(&name.to_ascii_lowercase()) {
            fault(&format!("spec.headers.{}", excerpt(name)), message);
        }
    }
    let is_https = |url: &str| url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    if !spec["tls"].is_null() && !spec["url"].as_str().is_some_and(is_https) {
        fault("spec.tls", "requires an https:// URL");
    }
    let key = &spec["workflowKey"];
    if !key["attribute"].is_null() && !key["pointer"].is_null() {
        fault("spec.workflowKey", "specify either attribute or pointer, not both");
    }
}
