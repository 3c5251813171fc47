//! Reads the members of a JSON body strictly: all unknown, missing or invalid members are reported together.

use crate::problem::{Fault, Problem};
use bytes::Bytes;
use klambda_core::fault::unknown;
use klambda_core::strict_json::Strict;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::ops::RangeInclusive;

/// The faults of a whole body, collected over its objects.
#[derive(Default)]
pub struct Faults(RefCell<Vec<Fault>>);

/// One object of a body.
pub struct Members<'a> {
    path: String,
    object: Option<&'a Map<String, Value>>,
    faults: &'a Faults,
}

/// Parses a body as JSON. An empty body is an empty object.
pub fn parse(body: &Bytes) -> Result<Value, Problem> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Object(Map::new()));
    }
    serde_json::from_slice(body)
        .map(|Strict(value)| value)
        .map_err(|error| Problem::bad_request(format!("the body is not valid JSON: {error}")))
}

/// Adds the name and namespace of the URL to the metadata of the document. If both are given, they must agree.
pub fn place(document: &mut Value, address: &[(&str, &str)]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let Some(members) = document.as_object_mut() else { return faults };
    let metadata = put_if_absent(members, "metadata", Map::new().into());
    let Some(metadata) = metadata.as_object_mut() else { return faults };
    for (member, given) in address {
        let said = put_if_absent(metadata, member, (*given).into());
        if let Some(said) = said.as_str().filter(|said| said != given) {
            let message = format!("is `{said}`, but the URL says `{given}`");
            faults.push(Fault::new(format!("metadata.{member}"), message));
        }
    }
    faults
}

/// Treats `null` as absent, like the later readers of the document.
fn put_if_absent<'a>(object: &'a mut Map<String, Value>, name: &str, value: Value) -> &'a mut Value {
    let member = object.entry(name).or_insert(Value::Null);
    if member.is_null() {
        *member = value;
    }
    member
}

impl Faults {
    pub fn add(&self, path: impl Into<String>, message: impl Into<String>) {
        self.0.borrow_mut().push(Fault::new(path, message));
    }

    /// Turns the faults into a problem of this kind.
    pub fn finish(self, problem: fn(String) -> Problem) -> Result<(), Problem> {
        let faults = self.0.into_inner();
        let detail = match faults.as_slice() {
            [] => return Ok(()),
            [one] => one.to_string(),
            many => format!("the body has {} errors", many.len()),
        };
        Err(problem(detail).faults(faults))
    }
}

impl<'a> Members<'a> {
    pub fn of(value: &'a Value, known: &[&str], faults: &'a Faults) -> Members<'a> {
        Members::open(Some(value), String::new(), known, faults)
    }

    fn open(value: Option<&'a Value>, path: String, known: &[&str], faults: &'a Faults) -> Members<'a> {
        let object = value.and_then(Value::as_object);
        if value.is_some() && object.is_none() {
            faults.add(path.clone(), "must be an object");
        }
        let members = Members { path, object, faults };
        for name in object.into_iter().flat_map(Map::keys) {
            if !known.contains(&name.as_str()) {
                members.fault(name, unknown("member", name, known));
            }
        }
        members
    }

    pub fn child(&self, name: &str, known: &[&str]) -> Members<'a> {
        Members::open(self.get(name), self.path(name), known, self.faults)
    }

    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.object?.get(name).filter(|value| !value.is_null())
    }

    fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub fn fault(&self, name: &str, message: impl Into<String>) {
        self.faults.add(self.path(name), message);
    }

    fn wrong<T>(&self, name: &str, message: impl Into<String>) -> Option<T> {
        self.fault(name, message);
        None
    }

    pub fn text(&self, name: &str) -> Option<&'a str> {
        match self.get(name)? {
            Value::String(text) => Some(text),
            _ => self.wrong(name, "must be a string"),
        }
    }

    pub fn parsed<T>(&self, name: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        match read(self.text(name)?) {
            Ok(value) => Some(value),
            Err(message) => self.wrong(name, message),
        }
    }

    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            Value::Bool(flag) => Some(*flag),
            _ => self.wrong(name, "must be true or false"),
        }
    }

    pub fn number(&self, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        match self.get(name)?.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Some(number),
            None => self.wrong(name, format!("must be an integer from {} to {}", range.start(), range.end())),
        }
    }

    pub fn texts(&self, name: &str) -> Vec<String> {
        let Some(value) = self.get(name) else { return Vec::new() };
        let texts = value.as_array().map(|items| items.iter().map(|item| item.as_str().map(str::to_owned)));
        match texts.and_then(Iterator::collect) {
            Some(texts) => texts,
            None => {
                self.fault(name, "must be a list of strings");
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_placed_where_its_address_says_also_if_it_says_null() {
        let address = [("namespace", "shop"), ("name", "orders")];
        let placed = serde_json::json!({"metadata": {"namespace": "shop", "name": "orders"}});
        for body in [
            serde_json::json!({}),
            serde_json::json!({"metadata": null}),
            serde_json::json!({"metadata": {"namespace": null, "name": null}}),
        ] {
            let mut document = body;
            assert_eq!(place(&mut document, &address), []);
            assert_eq!(document, placed);
        }
        let mut elsewhere = serde_json::json!({"metadata": {"namespace": "other", "name": null}});
        assert_eq!(place(&mut elsewhere, &address).len(), 1);
    }

    #[test]
    fn everything_wrong_is_named_with_its_path() {
        let body = serde_json::json!({"dryrun": true, "rate": 0, "selector": {"kye": "k", "key": 5, "ids": ["a", 1]}});
        let faults = Faults::default();
        let top = Members::of(&body, &["dryRun", "rate", "selector"], &faults);
        assert_eq!(top.number("rate", 1..=10), None);
        let selector = top.child("selector", &["key", "ids"]);
        assert_eq!(selector.text("key"), None);
        assert!(selector.texts("ids").is_empty());
        let problem = faults.finish(Problem::invalid_selector).unwrap_err();
        let json: Value = serde_json::from_slice(&problem.to_json()).unwrap();
        let paths: Vec<&str> =
            json["faults"].as_array().unwrap().iter().map(|fault| fault["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["dryrun", "rate", "selector.kye", "selector.key", "selector.ids"]);
    }
}
