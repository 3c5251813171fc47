//! The headers that a subscription adds to its requests. Values may be secrets: they are taken once and not shown again.

use super::HeaderValue;
use crate::fields::Fields;
use serde_json::{Map, Value, json};

/// What stands for a secret where a document is shown.
const HIDDEN: &str = "***";
const HEADERS_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 8192;
const SECRET_NAMES: [&str; 8] =
    ["auth", "cookie", "token", "secret", "key", "password", "credential", "signature"];

/// Headers that belong to the connection, or that every delivery writes itself.
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

pub(super) fn read_headers(target: &Fields<'_>) -> Vec<(String, HeaderValue)> {
    let Some(value) = target.get("headers") else { return Vec::new() };
    let Some(map) = value.as_object() else {
        target.fault("headers", "must be an object of names and values");
        return Vec::new();
    };
    if map.len() > HEADERS_MAX {
        target.fault("headers", format!("at most {HEADERS_MAX} headers"));
        return Vec::new();
    }
    let mut headers: Vec<(String, HeaderValue)> = Vec::with_capacity(map.len());
    for (given, value) in map {
        let path = format!("headers.{given}");
        let name = given.to_ascii_lowercase();
        if let Some(wrong) = wrong_name(&name) {
            target.fault(&path, wrong);
        } else if headers.iter().any(|(known, _)| *known == name) {
            target.fault(&path, "given twice");
        }
        match read_value(value) {
            Ok(value) => headers.push((name, value)),
            Err(message) => target.fault(&path, message),
        }
    }
    headers.sort_by(|a, b| a.0.cmp(&b.0));
    headers
}

pub(super) fn header_json(name: &str, value: &HeaderValue, hide: bool) -> Value {
    match value {
        HeaderValue::Literal(_) if hide && looks_secret(name) => json!(HIDDEN),
        HeaderValue::Literal(text) => json!(text),
        HeaderValue::File(path) => json!({ "file": path }),
        HeaderValue::Env(name) => json!({ "env": name }),
    }
}

/// Puts back what `header_json` has hidden.
pub(super) fn restore_hidden(given: &mut Map<String, Value>, known: &[(String, HeaderValue)]) {
    for (name, value) in given.iter_mut().filter(|(_, value)| *value == HIDDEN) {
        let hidden = known.iter().find(|(known, value)| {
            known.eq_ignore_ascii_case(name) && header_json(known, value, true) == HIDDEN
        });
        if let Some((_, HeaderValue::Literal(text))) = hidden {
            *value = json!(text);
        }
    }
}

fn looks_secret(name: &str) -> bool {
    SECRET_NAMES.iter().any(|word| name.contains(word))
}

fn wrong_name(name: &str) -> Option<&'static str> {
    if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Some("not a header name");
    }
    if name.starts_with("ce-") {
        return Some("headers that begin with ce- carry the event");
    }
    RESERVED.contains(&name).then_some("this header is set by the delivery itself")
}

fn read_value(value: &Value) -> Result<HeaderValue, String> {
    match value {
        Value::String(text) => literal(text),
        Value::Object(map) if map.len() == 1 => match map.iter().next() {
            Some((kind, Value::String(text))) if kind == "file" && !text.is_empty() => {
                Ok(HeaderValue::File(text.clone()))
            }
            Some((kind, Value::String(text))) if kind == "env" && is_variable(text) => {
                Ok(HeaderValue::Env(text.clone()))
            }
            _ => Err(WANTED.to_owned()),
        },
        _ => Err(WANTED.to_owned()),
    }
}

const WANTED: &str = "must be a text, {\"file\": \"/path\"} or {\"env\": \"NAME\"}";

fn literal(text: &str) -> Result<HeaderValue, String> {
    if text == HIDDEN {
        return Err("*** only stands for a value that is not shown: send the value again".to_owned());
    }
    if text.len() > VALUE_BYTES_MAX {
        return Err(format!("longer than {VALUE_BYTES_MAX} bytes"));
    }
    let printable = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
    if !text.bytes().all(printable) || text.trim() != text {
        return Err("must be printable ASCII without spaces around it".to_owned());
    }
    Ok(HeaderValue::Literal(text.to_owned()))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}
