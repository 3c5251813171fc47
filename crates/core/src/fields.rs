//! A strict reader of JSON objects: unknown fields are faults, and reading goes on after one.

use crate::fault::{Fault, excerpt, unknown};
use crate::quantity::{format_bytes, format_duration_ms, parse_bytes, parse_duration_ms};
use crate::subscription::Named;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::ops::RangeInclusive;

/// Shared by the readers of nested objects.
pub(crate) type Faults = RefCell<Vec<Fault>>;

/// An object at its place in the document. One that is absent reads as empty.
pub(crate) struct Fields<'a> {
    map: Option<&'a Map<String, Value>>,
    path: String,
    faults: &'a Faults,
}

impl<'a> Fields<'a> {
    pub(crate) fn open(
        value: Option<&'a Value>,
        path: String,
        known: &[&str],
        faults: &'a Faults,
    ) -> Fields<'a> {
        let fields = Fields { map: value.and_then(Value::as_object), path, faults };
        match fields.map {
            Some(map) => fields.refuse_unknown(map, known),
            None if value.is_some_and(|value| !value.is_null()) => fields.fault("", "must be an object"),
            None => {}
        }
        fields
    }

    fn refuse_unknown(&self, map: &Map<String, Value>, known: &[&str]) {
        for name in map.keys().filter(|name| !known.contains(&name.as_str())) {
            self.fault(&excerpt(name), unknown("field", name, known));
        }
    }

    pub(crate) fn child(&self, name: &str, known: &[&str]) -> Fields<'a> {
        Fields::open(self.get(name), self.path(name), known, self.faults)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        match (self.path.as_str(), name) {
            (path, "") => path.to_owned(),
            ("", name) => name.to_owned(),
            (path, name) => format!("{path}.{name}"),
        }
    }

    pub(crate) fn fault(&self, name: &str, message: impl Into<String>) {
        self.faults.borrow_mut().push(Fault::new(self.path(name), message));
    }

    pub(crate) fn faults(&self) -> &'a Faults {
        self.faults
    }

    /// `null` is the same as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map?.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        let value = self.get(name)?;
        if value.as_str().is_none() {
            self.fault(name, "must be a string");
        }
        value.as_str()
    }

    /// A text that must be there; an empty one stands in for it once that is said.
    pub(crate) fn required(&self, name: &str) -> &'a str {
        if self.get(name).is_none() {
            self.fault(name, "missing");
        }
        self.text(name).unwrap_or_default()
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> bool {
        let Some(value) = self.get(name) else { return default };
        value.as_bool().unwrap_or_else(|| {
            self.fault(name, "must be true or false");
            default
        })
    }

    pub(crate) fn choice<T: Named + Default>(&self, name: &str) -> T {
        let Some(text) = self.text(name) else { return T::default() };
        let known: Vec<&str> = T::NAMES.iter().map(|(name, _)| *name).collect();
        let chosen = T::NAMES.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        chosen.unwrap_or_else(|| {
            self.fault(name, unknown("value", text, &known));
            T::default()
        })
    }

    pub(crate) fn count(&self, name: &str, range: RangeInclusive<u64>, default: u64) -> u64 {
        let read = |value: &Value| value.as_u64().ok_or_else(|| "must be a whole number".to_owned());
        self.quantity(name, range, default, read, |n| n.to_string())
    }

    pub(crate) fn duration(&self, name: &str, range: RangeInclusive<u64>, default: u64) -> u64 {
        let read = |value: &Value| match value {
            Value::String(text) => parse_duration_ms(text),
            Value::Number(number) if number.as_u64() == Some(0) => Ok(0),
            _ => Err("must be a duration with its unit, such as 30s".to_owned()),
        };
        self.quantity(name, range, default, read, format_duration_ms)
    }

    pub(crate) fn bytes(&self, name: &str, range: RangeInclusive<u64>, default: u64) -> u64 {
        let read = |value: &Value| match value {
            Value::String(text) => parse_bytes(text),
            other => other.as_u64().ok_or_else(|| "must be a size, such as 16Mi".to_owned()),
        };
        self.quantity(name, range, default, read, format_bytes)
    }

    fn quantity(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
        default: u64,
        read: impl Fn(&Value) -> Result<u64, String>,
        print: impl Fn(u64) -> String,
    ) -> u64 {
        let Some(value) = self.get(name) else { return default };
        let within = |n: u64| match range.contains(&n) {
            true => Ok(n),
            false => Err(format!("must be between {} and {}", print(*range.start()), print(*range.end()))),
        };
        read(value).and_then(within).unwrap_or_else(|message| {
            self.fault(name, message);
            default
        })
    }
}
