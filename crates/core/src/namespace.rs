//! Namespaces: everything lives in one, and nothing crosses from one to another.

use crate::fault::Fault;
use crate::fields::{Faults, Fields};
use crate::subscription::API_VERSION;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// The one that is always there, and that is meant where none is named.
pub const DEFAULT: &str = "default";
pub const KIND: &str = "Namespace";

const LIMIT_MAX: u64 = 1_000_000_000_000;

/// A namespace as its admin writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub name: String,
    pub limits: Limits,
}

/// What all of a namespace may have together. Those of the server hold besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub events_per_second: Option<u64>,
    /// Events that wait, over all its subscriptions.
    pub backlog: Option<u64>,
    /// Those of functions do not count.
    pub subscriptions: Option<u64>,
    pub functions: Option<u64>,
}

/// A name without dots, as namespaces and functions have it.
pub fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte != b'-');
    name.len() <= 63
        && name.bytes().all(inner)
        && is_edge(name.bytes().next())
        && is_edge(name.bytes().last())
}

/// A name that tells namespaces apart: `name` in the default one, `namespace/name` in others. What somebody gives as a name
/// may have a slash in it. Nothing has such a name, and it must not be taken for one of another namespace.
pub fn full_name<'a>(namespace: &str, name: &'a str) -> Cow<'a, str> {
    match namespace {
        DEFAULT if !name.contains('/') => Cow::Borrowed(name),
        other => Cow::Owned(format!("{other}/{name}")),
    }
}

/// Namespace and name of a full name.
pub fn split(full_name: &str) -> (&str, &str) {
    full_name.split_once('/').unwrap_or((DEFAULT, full_name))
}

impl Document {
    /// Reads a document, strictly; all that is wrong with it is told at once.
    pub fn parse(value: &Value) -> Result<Document, Vec<Fault>> {
        if !value.is_object() {
            return Err(vec![Fault::new("", "a namespace is an object with apiVersion, kind and metadata")]);
        }
        let faults = Faults::default();
        let document = read(value, &faults);
        let faults = faults.into_inner();
        if faults.is_empty() { Ok(document) } else { Err(faults) }
    }

    pub fn to_json(&self) -> Value {
        let named = self.limits.named().into_iter();
        let limits: Map<String, Value> =
            named.filter_map(|(name, limit)| Some((name.to_owned(), limit?.into()))).collect();
        json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": { "name": self.name },
            "spec": { "limits": limits },
        })
    }
}

impl Limits {
    const NAMES: [&str; 4] = ["eventsPerSecond", "backlog", "subscriptions", "functions"];

    fn named(&self) -> [(&'static str, Option<u64>); 4] {
        let Limits { events_per_second, backlog, subscriptions, functions } = *self;
        let [a, b, c, d] = Self::NAMES;
        [(a, events_per_second), (b, backlog), (c, subscriptions), (d, functions)]
    }
}

fn read(value: &Value, faults: &Faults) -> Document {
    let known = ["apiVersion", "kind", "metadata", "spec", "status"];
    let top = Fields::open(Some(value), String::new(), &known, faults);
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let text = top.required(name);
        if !text.is_empty() && text != expected {
            top.fault(name, format!("must be {expected}"));
        }
    }
    let metadata = top.child("metadata", &["name", "createdAt"]);
    let name = metadata.required("name");
    if metadata.get("name").is_some_and(Value::is_string) && !is_label(name) {
        metadata.fault("name", "has 1 to 63 of a-z, 0-9 and -, and begins and ends with a letter or digit");
    }
    let limits = top.child("spec", &["limits"]).child("limits", &Limits::NAMES);
    let limit = |name: &str| limits.get(name).map(|_| limits.count(name, 0..=LIMIT_MAX, 0));
    let [events_per_second, backlog, subscriptions, functions] = Limits::NAMES.map(limit);
    Document {
        name: name.to_owned(),
        limits: Limits { events_per_second, backlog, subscriptions, functions },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_read_back_and_every_fault_is_told() {
        let limits = json!({"eventsPerSecond": 100, "functions": 0});
        let given = json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "shop"}, "spec": {"limits": limits},
        });
        let document = Document::parse(&given).expect("a document");
        assert_eq!(document.limits.events_per_second, Some(100));
        assert_eq!((document.limits.functions, document.limits.backlog), (Some(0), None));
        assert_eq!(document.to_json(), given);
        let bad = json!({"kind": "Nmspace", "metadata": {"name": "Shop"}, "spec": {"limits": {"backlogs": 1, "backlog": -1}}});
        let faults = Document::parse(&bad).expect_err("faults");
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(
            paths,
            ["apiVersion", "kind", "metadata.name", "spec.limits.backlogs", "spec.limits.backlog"]
        );
    }

    #[test]
    fn full_names_split_again() {
        for (namespace, name, full) in [(DEFAULT, "orders", "orders"), ("shop", "orders", "shop/orders")] {
            assert_eq!(full_name(namespace, name), full);
            assert_eq!(split(full), (namespace, name));
        }
        assert_eq!(full_name(DEFAULT, "shop/orders"), "default/shop/orders", "not that of shop");
        assert!(is_label("a") && is_label("a-1"));
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "*", &"a".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
    }
}
