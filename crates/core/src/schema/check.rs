//! Checks a value against its schema. The checker reports values that do not match, removes them and continues, so
//! that the rules can still check the rest.

use super::form::Form;
use crate::fault::{Fault, excerpt, unknown};
use crate::time::Millis;
use serde::Deserialize;
use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;
use std::fmt;

/// Field names under which users often write secrets into documents.
const SECRETS: [&str; 7] =
    ["accessKey", "secretKey", "secretAccessKey", "password", "token", "credentials", "sshKey"];

/// The keywords of a schema that the checker uses.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Shape {
    r#type: Option<Type>,
    required: Vec<String>,
    properties: BTreeMap<String, Shape>,
    additional_properties: Option<Box<Shape>>,
    max_properties: Option<usize>,
    items: Option<Box<Shape>>,
    max_items: Option<usize>,
    min_items: Option<usize>,
    r#enum: Vec<String>,
    format: Option<String>,
    min_length: usize,
    pattern: Option<Form>,
    minimum: Option<Number>,
    maximum: Option<Number>,
    #[serde(rename = "x-kubernetes-int-or-string")]
    is_number_or_text: bool,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    is_open: bool,
    #[serde(rename = "x-klambda-wanted")]
    wanted: Option<String>,
    #[serde(rename = "x-klambda-between")]
    between: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    Object,
    Array,
    String,
    Integer,
    Boolean,
}

/// The location of a value, formatted only when there is a fault.
#[derive(Clone, Copy)]
enum Place<'a> {
    Top(&'a str),
    Member(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Top(name) => f.write_str(name),
            Place::Member(Place::Top(""), name) => f.write_str(&excerpt(name)),
            Place::Member(parent, name) => write!(f, "{parent}.{}", excerpt(name)),
            Place::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// `null` is the same as absent.
pub fn present<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

pub(super) fn check(shape: &Shape, path: &str, value: &mut Value, faults: &mut Vec<Fault>) -> bool {
    let (mut checker, place) = (Checker { faults }, Place::Top(path));
    if value.is_null() {
        checker.misfit(shape, place, "must not be empty");
    }
    checker.fits(shape, value, place)
}

struct Checker<'f> {
    faults: &'f mut Vec<Fault>,
}

impl Checker<'_> {
    fn fault(&mut self, place: Place<'_>, message: impl Into<String>) {
        self.faults.push(Fault::new(place.to_string(), message));
    }

    /// Reports the expected value if the schema describes it, else `message`.
    fn misfit(&mut self, shape: &Shape, place: Place<'_>, message: impl Into<String>) {
        match &shape.wanted {
            Some(wanted) => self.fault(place, format!("must be {wanted}")),
            None => self.fault(place, message),
        }
    }

    fn fits(&mut self, shape: &Shape, value: &mut Value, place: Place<'_>) -> bool {
        if value.is_null() {
            return false;
        }
        let before = self.faults.len();
        match shape.r#type {
            Some(Type::Object) => return self.object(shape, value, place),
            Some(Type::Array) => return self.array(shape, value, place),
            Some(Type::String) => self.text(shape, value, place),
            Some(Type::Integer) => self.number(shape, value, place),
            Some(Type::Boolean) if !value.is_boolean() => self.fault(place, "must be true or false"),
            None if shape.is_number_or_text => self.text_or_number(shape, value, place),
            _ => {}
        }
        self.faults.len() == before
    }

    fn object(&mut self, shape: &Shape, value: &mut Value, place: Place<'_>) -> bool {
        let Value::Object(object) = value else {
            self.misfit(shape, place, "must be an object");
            return false;
        };
        if let Some(most) = shape.max_properties.filter(|most| object.len() > *most) {
            self.fault(place, format!("must have at most {most} members"));
            return false;
        }
        for name in shape.required.iter().filter(|name| present(object, name).is_none()) {
            let wanted = shape.properties.get(name).and_then(|property| property.wanted.as_ref());
            let wanted = wanted.map(|wanted| format!(": must be {wanted}")).unwrap_or_default();
            self.fault(Place::Member(&place, name), format!("missing{wanted}"));
        }
        object.retain(|name, value| {
            let place = Place::Member(&place, name);
            match shape.properties.get(name).or(shape.additional_properties.as_deref()) {
                Some(shape) => self.fits(shape, value, place),
                None if shape.is_open => true,
                None => {
                    self.fault(place, unknown_field(name, shape));
                    false
                }
            }
        });
        true
    }

    /// Discards the whole list if one item does not match, so that the indexes of the others stay valid.
    fn array(&mut self, shape: &Shape, value: &mut Value, place: Place<'_>) -> bool {
        let (Value::Array(list), Some(each)) = (value, &shape.items) else {
            self.misfit(shape, place, "must be a list");
            return false;
        };
        if let Some(most) = shape.max_items.filter(|most| list.len() > *most) {
            self.fault(place, format!("must have at most {most} items"));
            return false;
        }
        if let Some(least) = shape.min_items.filter(|least| list.len() < *least) {
            self.fault(place, format!("must have at least {least} items"));
            return false;
        }
        let mut whole = true;
        for (index, item) in list.iter_mut().enumerate() {
            let place = Place::Item(&place, index);
            if item.is_null() {
                self.fault(place, "must not be empty");
            }
            whole &= self.fits(each, item, place);
        }
        whole
    }

    fn text(&mut self, shape: &Shape, value: &Value, place: Place<'_>) {
        let Some(text) = value.as_str() else {
            let hint = match value {
                Value::Number(_) | Value::Bool(_) => format!("must be a string: write \"{value}\""),
                _ => "must be a string".to_owned(),
            };
            return self.misfit(shape, place, hint);
        };
        match shape.r#enum.as_slice() {
            [] => {}
            words if words.iter().any(|word| word == text) => {}
            [only] => self.fault(place, format!("must be {only}")),
            words => {
                let known: Vec<&str> = words.iter().map(String::as_str).collect();
                self.fault(place, unknown("value", text, &known));
            }
        }
        if text.len() < shape.min_length {
            self.fault(place, "must not be empty");
        }
        if shape.format.as_deref() == Some("date-time") && Millis::parse_rfc3339(text).is_none() {
            self.fault(place, "must be an RFC 3339 time, such as 2026-08-01T12:00:00Z");
        }
        self.form(shape, text, place);
    }

    fn text_or_number(&mut self, shape: &Shape, value: &Value, place: Place<'_>) {
        match value {
            Value::String(text) => self.form(shape, text, place),
            Value::Number(_) if shape.maximum.is_some() => self.number(shape, value, place),
            Value::Number(number) => self.form(shape, &number.to_string(), place),
            _ => self.misfit(shape, place, "must be a string or a number"),
        }
    }

    fn form(&mut self, shape: &Shape, text: &str, place: Place<'_>) {
        if let Some(Err(message)) = shape.pattern.map(|form| form.check(text, shape.between)) {
            self.fault(place, message);
        }
    }

    fn number(&mut self, shape: &Shape, value: &Value, place: Place<'_>) {
        let number = value.as_number().and_then(Number::as_i128);
        let Some(number) = number else { return self.misfit(shape, place, "must be a whole number") };
        let bound = |bound: &Option<Number>| bound.as_ref().and_then(Number::as_i128);
        let (least, most) = (bound(&shape.minimum), bound(&shape.maximum));
        if least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most) {
            return;
        }
        let message = match (least, most) {
            (Some(least), Some(most)) => format!("must be between {least} and {most}"),
            (Some(least), None) => format!("must be at least {least}"),
            (_, most) => format!("must be at most {}", most.unwrap_or_default()),
        };
        self.misfit(shape, place, message);
    }
}

/// Fields that look like secrets get a hint to use `secretRef`, where that exists.
fn unknown_field(name: &str, shape: &Shape) -> String {
    if SECRETS.contains(&name) && shape.properties.contains_key("secretRef") {
        return "do not write secrets into a manifest: use a secret and name it in secretRef".into();
    }
    let known: Vec<&str> = shape.properties.keys().map(String::as_str).collect();
    unknown("field", name, &known)
}
