//! The members of a JSON body, read strictly: what is unknown, missing or of the wrong kind is named, all at once.

use crate::problem::{Fault, Problem};
use bytes::Bytes;
use klambda_core::fault::unknown;
use klambda_core::strict_json::Strict;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::ops::RangeInclusive;

/// Faults of a whole body, gathered over its objects.
#[derive(Default)]
pub struct Faults(RefCell<Vec<Fault>>);

/// One object of a body.
pub struct Members<'a> {
    path: String,
    object: Option<&'a Map<String, Value>>,
    faults: &'a Faults,
}

/// A body as JSON; an empty one is an empty object.
pub fn parse(body: &Bytes) -> Result<Value, Problem> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Object(Map::new()));
    }
    serde_json::from_slice(body)
        .map(|Strict(value)| value)
        .map_err(|error| Problem::bad_request(format!("the body is no JSON: {error}")))
}

impl Faults {
    pub fn add(&self, path: impl Into<String>, message: impl Into<String>) {
        self.0.borrow_mut().push(Fault::new(path, message));
    }

    /// What is wrong becomes a problem of this kind.
    pub fn finish(self, problem: fn(String) -> Problem) -> Result<(), Problem> {
        let faults = self.0.into_inner();
        let detail = match faults.as_slice() {
            [] => return Ok(()),
            [one] => one.to_string(),
            many => format!("{} things are wrong with the body", many.len()),
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
            faults.add(path.clone(), "should be an object");
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
            _ => self.wrong(name, "should be text"),
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
            _ => self.wrong(name, "should be true or false"),
        }
    }

    pub fn number(&self, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        match self.get(name)?.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Some(number),
            None => self
                .wrong(name, format!("should be a whole number from {} to {}", range.start(), range.end())),
        }
    }

    pub fn texts(&self, name: &str) -> Vec<String> {
        let Some(value) = self.get(name) else { return Vec::new() };
        let texts = value.as_array().map(|items| items.iter().map(|item| item.as_str().map(str::to_owned)));
        match texts.and_then(Iterator::collect) {
            Some(texts) => texts,
            None => {
                self.fault(name, "should be a list of texts");
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
