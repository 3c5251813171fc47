//! Reads a document by its schema: what does not fit is told and left out, and reading goes on, so that the meaning of the
//! rest can be looked at as well.

use crate::resource::{API_VERSION, Form, Kind, Metadata, Resource, Spec};
use crate::{scalar, schema};
use klambda_core::fault::{Fault, unknown};
use klambda_core::time::Millis;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

const TOP: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// What a cluster adds to an object may come back with it.
const METADATA_IGNORED: [&str; 4] = ["managedFields", "finalizers", "ownerReferences", "selfLink"];
/// Names under which people write secrets into manifests.
const SECRETS: [&str; 7] =
    ["accessKey", "secretKey", "secretAccessKey", "password", "token", "credentials", "sshKey"];

pub(crate) fn read(value: &Value, form: Form) -> (Resource, Vec<Fault>) {
    let mut checker = Checker::default();
    let Some(top) = value.as_object() else {
        let message = "must be an object with apiVersion, kind, metadata and spec";
        return (Resource::default(), vec![Fault::new("", message)]);
    };
    for name in top.keys().filter(|name| !TOP.contains(&name.as_str())) {
        checker.fault(name.clone(), unknown("field", name, &TOP));
    }
    let kind = checker.kind(top, form);
    let metadata: Metadata = checker.part(top, "metadata", schema::metadata());
    if form == Form::Manifest && present(top, "spec").is_none() {
        checker.fault("spec", "missing");
    }
    let spec: Spec = checker.part(top, "spec", schema::spec());
    (Resource { kind, metadata, spec, ..Resource::default() }, checker.faults)
}

/// `null` is the same as absent.
fn present<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

#[derive(Default)]
struct Checker {
    faults: Vec<Fault>,
}

impl Checker {
    fn fault(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.faults.push(Fault::new(path, message));
    }

    fn kind(&mut self, top: &Map<String, Value>, form: Form) -> Kind {
        let given = match present(top, "kind") {
            Some(Value::String(name)) => self.named_kind(name),
            Some(_) => self.no_kind("must be a string"),
            None if form == Form::Manifest => self.no_kind("missing"),
            None => None,
        };
        let kind = match form {
            Form::Manifest => given.unwrap_or_default(),
            Form::Body(expected) => expected,
        };
        if given.is_some_and(|given| given != kind) {
            self.fault("kind", format!("must be {}", kind.name()));
        }
        self.api_version(top, form, kind);
        kind
    }

    fn named_kind(&mut self, name: &str) -> Option<Kind> {
        let known = Kind::parse(name);
        if known.is_none() {
            self.fault("kind", unknown("kind", name, &Kind::ALL.map(Kind::name)));
        }
        known
    }

    fn no_kind(&mut self, message: &str) -> Option<Kind> {
        self.fault("kind", message);
        None
    }

    fn api_version(&mut self, top: &Map<String, Value>, form: Form, kind: Kind) {
        match present(top, "apiVersion") {
            Some(Value::String(version)) if kind.takes_api_version(version) => {}
            Some(_) => self.fault("apiVersion", format!("must be {API_VERSION}")),
            None if form == Form::Manifest => self.fault("apiVersion", "missing"),
            None => {}
        }
    }

    /// One part of the document by its schema. What fits is kept, and every type has a default for what does not.
    fn part<T: DeserializeOwned + Default>(
        &mut self,
        top: &Map<String, Value>,
        name: &str,
        schema: &Value,
    ) -> T {
        let Some(value) = present(top, name) else { return T::default() };
        let mut value = value.clone();
        if name == "metadata"
            && let Value::Object(metadata) = &mut value
        {
            metadata.retain(|name, _| !METADATA_IGNORED.contains(&name.as_str()));
        }
        if !self.fits(schema, &mut value, name) {
            return T::default();
        }
        serde_json::from_value(value).unwrap_or_else(|error| {
            self.fault(name, error.to_string());
            T::default()
        })
    }

    /// Whether the value is to be kept. Parts of it that do not fit are taken out.
    fn fits(&mut self, schema: &Value, value: &mut Value, path: &str) -> bool {
        if value.is_null() {
            return false;
        }
        let before = self.faults.len();
        match schema["type"].as_str() {
            Some("object") => return self.object(schema, value, path),
            Some("array") => return self.array(schema, value, path),
            Some("string") => self.text(schema, value, path),
            Some("integer") => self.number(schema, value, path),
            Some("boolean") if !value.is_boolean() => self.fault(path, "must be true or false"),
            None if schema["x-kubernetes-int-or-string"] == true => self.text_or_number(schema, value, path),
            _ => {}
        }
        self.faults.len() == before
    }

    fn object(&mut self, schema: &Value, value: &mut Value, path: &str) -> bool {
        let Value::Object(object) = value else {
            self.fault(path, "must be an object");
            return false;
        };
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if present(object, name).is_none() {
                self.fault(format!("{path}.{name}"), "missing");
            }
        }
        let properties = schema["properties"].as_object();
        let every = schema.get("additionalProperties").filter(|every| every.is_object());
        let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
        object.retain(|name, value| {
            let place = format!("{path}.{}", shorten(name));
            match properties.and_then(|properties| properties.get(name)).or(every) {
                Some(schema) => self.fits(schema, value, &place),
                None if open => true,
                None => {
                    let known: Vec<&str> =
                        properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
                    self.fault(place, unknown_field(name, &known));
                    false
                }
            }
        });
        true
    }

    /// A list is dropped as a whole if an item cannot stand in it at all, so that the others keep their numbers.
    fn array(&mut self, schema: &Value, value: &mut Value, path: &str) -> bool {
        let Value::Array(items) = value else {
            self.fault(path, "must be a list");
            return false;
        };
        if let Some(most) = schema["maxItems"].as_u64().filter(|most| items.len() as u64 > *most) {
            self.fault(path, format!("must have at most {most} items"));
            return false;
        }
        let mut whole = true;
        for (index, item) in items.iter_mut().enumerate() {
            let place = format!("{path}[{index}]");
            if item.is_null() {
                self.fault(place.clone(), "must not be empty");
            }
            whole &= self.fits(&schema["items"], item, &place);
        }
        whole
    }

    fn text(&mut self, schema: &Value, value: &Value, path: &str) {
        let Some(text) = value.as_str() else {
            let hint = match value {
                Value::Number(_) | Value::Bool(_) => format!("must be a string: write \"{value}\""),
                _ => "must be a string".to_owned(),
            };
            return self.fault(path, hint);
        };
        if let Some(words) = schema["enum"].as_array() {
            let known: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            if !known.contains(&text) {
                self.fault(path, unknown("value", text, &known));
            }
        }
        if schema["format"] == "date-time" && Millis::parse_rfc3339(text).is_none() {
            self.fault(path, "must be an RFC 3339 time, such as 2026-08-01T12:00:00Z");
        }
        self.pattern(schema, text, path);
    }

    fn text_or_number(&mut self, schema: &Value, value: &Value, path: &str) {
        match value {
            Value::String(text) => self.pattern(schema, text, path),
            Value::Number(number) => self.pattern(schema, &number.to_string(), path),
            _ => self.fault(path, "must be a string or a number"),
        }
    }

    fn pattern(&mut self, schema: &Value, text: &str, path: &str) {
        let Some(pattern) = schema["pattern"].as_str() else { return };
        if let Err(message) = scalar::check_pattern(pattern, text) {
            self.fault(path, message);
        }
    }

    fn number(&mut self, schema: &Value, value: &Value, path: &str) {
        let Some(number) = value.as_i64() else { return self.fault(path, "must be a whole number") };
        let (least, most) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
        if least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most) {
            return;
        }
        match (least, most) {
            (Some(least), Some(most)) => self.fault(path, format!("must be between {least} and {most}")),
            (Some(least), None) => self.fault(path, format!("must be at least {least}")),
            _ => self.fault(path, format!("must be at most {}", most.unwrap_or(i64::MAX))),
        }
    }
}

fn unknown_field(name: &str, known: &[&str]) -> String {
    match SECRETS.contains(&name) && !known.contains(&name) {
        true => {
            "secrets are not written into a manifest: put it into a secret and name that in secretRef".into()
        }
        false => unknown("field", name, known),
    }
}

/// Names come from outside, and paths are shown.
fn shorten(name: &str) -> String {
    match name.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
