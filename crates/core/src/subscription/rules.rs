//! Rules that involve several fields of a document, or that a schema cannot express. Most of them also exist as CEL
//! rules in the schema, for API servers.

use super::{Document, Retry, header};
use crate::fault::Fault;
use crate::filter;
use crate::quantity::parse_duration_ms;
use serde_json::Value;

pub(crate) const NAME_RULE: &str =
    "must have 1 to 63 of the characters a-z, 0-9, - and ., and must begin and end with a letter or digit";

pub(crate) fn is_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    // `lambda.<namespace>.<name>` contains two labels.
    let length_max = if Document::is_managed(name) { 134 } else { 63 };
    name.len() <= length_max
        && name.bytes().all(inner)
        && edge(name.bytes().next())
        && edge(name.bytes().last())
}

/// Checks the document as written. Absent values and values of the wrong type read as null.
pub(super) fn check(document: &Value, faults: &mut Vec<Fault>) {
    let spec = &document["spec"];
    filter::parse_all(&spec["filters"], "spec.filters", faults);
    let mut fault = |path: &str, message: &str| faults.push(Fault::new(path, message));
    ordering(spec, &mut fault);
    retry(&spec["retry"], &mut fault);
    target(&spec["target"], &mut fault);
    if let Some(headers) = spec["target"]["headers"].as_object() {
        header::check(headers, "spec.target.headers", faults);
    }
}

fn has(value: &Value, name: &str) -> bool {
    !value[name].is_null()
}

fn ordering(spec: &Value, fault: &mut impl FnMut(&str, &str)) {
    let policy = &spec["orderingPolicy"];
    if !policy.is_null() && (!has(spec, "ordering") || spec["ordering"] == "unordered") {
        fault("spec.orderingPolicy", "requires ordering: ordered; set ordering or remove orderingPolicy");
    }
    for name in ["key", "sequence"] {
        let place = &policy[name];
        let path = format!("spec.orderingPolicy.{name}");
        match (has(place, "attribute"), has(place, "pointer")) {
            (true, true) => fault(&path, "specify either attribute or pointer, not both"),
            (false, false) if !place.is_null() => fault(&path, "must have an attribute or a pointer"),
            _ => {}
        }
    }
}

fn retry(retry: &Value, fault: &mut impl FnMut(&str, &str)) {
    let duration = |name: &str| parse_duration_ms(retry[name].as_str()?).ok();
    let backoff_ms = duration("backoff").unwrap_or(Retry::default().backoff_ms);
    if duration("maxBackoff").is_some_and(|longest_ms| longest_ms < backoff_ms) {
        fault("spec.retry.maxBackoff", "must not be shorter than backoff");
    }
}

fn target(target: &Value, fault: &mut impl FnMut(&str, &str)) {
    if has(target, "function") {
        for name in ["url", "headers", "protocol", "tls"].into_iter().filter(|name| has(target, name)) {
            fault(&format!("spec.target.{name}"), "cannot be combined with function");
        }
    } else if target.is_object() && !has(target, "url") && !has(target, "endpoint") {
        fault("spec.target.url", "missing");
    }
    let tls = &target["tls"];
    match (has(tls, "certFile"), has(tls, "keyFile")) {
        (true, false) => fault("spec.target.tls.keyFile", "missing: a client certificate requires its key"),
        (false, true) => fault("spec.target.tls.certFile", "missing: a key requires its client certificate"),
        _ => {}
    }
    let url = target["url"].as_str().unwrap_or_default();
    let begins = |with: &str| url.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    if begins("https:") && target["protocol"] == "h2c" {
        fault("spec.target.protocol", "h2c is HTTP/2 without TLS and requires an http:// URL");
    }
    if begins("http:") && !tls.is_null() {
        fault("spec.target.tls", "requires an https:// URL");
    }
}
