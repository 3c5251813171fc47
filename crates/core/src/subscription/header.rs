//! The headers that a subscription adds to its requests. Values may be secrets, so they are not shown again after
//! they are set.

use super::HeaderValue;
use crate::fault::{Fault, excerpt};
use crate::schema::written_as;
use serde::{Deserialize, Deserializer, Serializer};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The placeholder for a secret in a document that is shown.
const HIDDEN: &str = "***";
const HEADERS_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 8192;
const SECRET_NAMES: [&str; 8] =
    ["auth", "cookie", "token", "secret", "key", "password", "credential", "signature"];

/// Headers that belong to the connection, or that the delivery sets.
const RESERVED: [&str; 13] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A list of names and values, written as an object.
pub(super) struct Headers;

written_as!([] Headers, "Headers", {
    "type": "object",
    "maxProperties": HEADERS_MAX,
    "additionalProperties": { "x-kubernetes-preserve-unknown-fields": true },
});

impl Headers {
    pub(super) fn serialize<S: Serializer>(
        headers: &[(String, HeaderValue)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(headers.iter().map(|(name, value)| (name, value)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(String, HeaderValue)>, D::Error> {
        let given: BTreeMap<String, HeaderValue> = Deserialize::deserialize(deserializer)?;
        let lower = given.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
        Ok(lower.collect::<BTreeMap<_, _>>().into_iter().collect())
    }
}

/// Checks the headers beyond the schema.
pub(super) fn check(headers: &Map<String, Value>, path: &str, faults: &mut Vec<Fault>) {
    let mut known = BTreeSet::new();
    for (given, value) in headers.iter().take(HEADERS_MAX).filter(|(_, value)| !value.is_null()) {
        let name = given.to_ascii_lowercase();
        let twice =
            if known.insert(name.clone()) { None } else { Some("must not appear more than once".to_owned()) };
        let wrong = wrong_name(&name).map(str::to_owned).or(twice).or_else(|| wrong_value(value));
        faults.extend(wrong.map(|message| Fault::new(format!("{path}.{}", excerpt(given)), message)));
    }
}

pub(super) fn hide_secrets(headers: &mut Value) {
    for (name, value) in headers.as_object_mut().into_iter().flatten() {
        if value.is_string() && looks_secret(name) {
            *value = HIDDEN.into();
        }
    }
}

/// Restores the values that `hide_secrets` replaced.
pub(super) fn restore_hidden(given: &mut Map<String, Value>, known: &[(String, HeaderValue)]) {
    for (name, value) in given.iter_mut().filter(|(_, value)| *value == HIDDEN) {
        let name = name.to_ascii_lowercase();
        let hidden = known.iter().find(|(known, _)| *known == name && looks_secret(known));
        if let Some((_, HeaderValue::Literal(text))) = hidden {
            *value = json!(text);
        }
    }
}

fn looks_secret(name: &str) -> bool {
    SECRET_NAMES.iter().any(|word| name.contains(word))
}

pub(crate) fn wrong_name(name: &str) -> Option<&'static str> {
    if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Some("not a valid header name");
    }
    if name.starts_with("ce-") {
        return Some("headers that begin with ce- are reserved for the event");
    }
    RESERVED.contains(&name).then_some("this header is set by the delivery and cannot be changed")
}

fn wrong_value(value: &Value) -> Option<String> {
    let only = value.as_object().filter(|object| object.len() == 1).and_then(|object| object.iter().next());
    let fine = match (value, only) {
        (Value::String(text), _) => return wrong_literal(text),
        (_, Some((kind, Value::String(path)))) if kind == "file" => !path.is_empty(),
        (_, Some((kind, Value::String(name)))) if kind == "env" => is_variable(name),
        _ => false,
    };
    (!fine).then(|| "must be a string, {\"file\": \"/path\"} or {\"env\": \"NAME\"}".to_owned())
}

fn wrong_literal(text: &str) -> Option<String> {
    let printable = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
    if text == HIDDEN {
        return Some("*** is the placeholder for a hidden value; send the value itself".to_owned());
    }
    if text.len() > VALUE_BYTES_MAX {
        return Some(format!("must not be longer than {VALUE_BYTES_MAX} bytes"));
    }
    let fine = text.bytes().all(printable) && text.trim() == text;
    (!fine).then(|| "must be printable ASCII without leading or trailing spaces".to_owned())
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}
