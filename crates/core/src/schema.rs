//! Schemas of documents. A schema is generated from the Rust types of a document. It checks documents on input and is
//! published to API servers, so the types, the checks and the published schema always agree.
//!
//! Two members are only for our own checks and are not published: a description of the expected value, and the limits
//! of a quantity.

mod check;
pub(crate) mod form;

pub use check::present;

use crate::fault::Fault;
use check::Shape;
use form::Form;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

pub const API_VERSION: &str = "lambda.knative.io/v1alpha1";
/// A description of the expected value: `an object with a name`.
pub(crate) const WANTED: &str = "x-klambda-wanted";
/// The minimum and maximum of a quantity that is written as text.
pub(crate) const BETWEEN: &str = "x-klambda-between";

/// Gives a type a hand-written schema.
macro_rules! written_as {
    ([$($generics:tt)*] $type:ty, $name:literal, $($schema:tt)+) => {
        impl<$($generics)*> schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($($schema)+)
            }
        }
    };
}
pub(crate) use written_as;

/// A schema, as JSON and in the form that the checks use.
pub struct Schema {
    json: Value,
    shape: Shape,
}

impl Schema {
    /// The schema of a type.
    pub fn of<T: JsonSchema>() -> Schema {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        });
        let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
        make_structural(&mut schema);
        Schema::new(schema)
    }

    /// The schema of a complete document. Fields that the server adds to a document are accepted too, so that its
    /// output can be sent back.
    pub fn document(kind: &str, metadata: Value, spec: &Schema, required: &[&str]) -> Schema {
        let anything = json!({ "x-kubernetes-preserve-unknown-fields": true });
        let mut metadata = json!({ "type": "object", "required": ["name"], "properties": metadata });
        metadata[WANTED] = "an object with a name".into();
        metadata["properties"]["createdAt"] = anything.clone();
        Schema::new(json!({
            "type": "object",
            "required": required,
            "properties": {
                "apiVersion": { "type": "string", "enum": [API_VERSION] },
                "kind": { "type": "string", "enum": [kind] },
                "metadata": metadata,
                "spec": spec.json,
                "status": anything,
            },
            WANTED: format!("an object with {}", and(required)),
        }))
    }

    fn new(json: Value) -> Schema {
        let shape = Shape::deserialize(&json).expect("schemas of our own types use known keywords");
        Schema { json, shape }
    }

    /// Checks a document, or the part of it at `path`. Returns false if the value must be discarded. Removes the
    /// parts that do not match the schema.
    pub fn check(&self, path: &str, value: &mut Value, faults: &mut Vec<Fault>) -> bool {
        check::check(&self.shape, path, value, faults)
    }

    /// Checks a document against its schema and against `rules`, which compare several fields. Reports all faults
    /// together. The returned value has no null members.
    pub fn read(
        &self,
        value: &Value,
        rules: impl FnOnce(&Value, &mut Vec<Fault>),
    ) -> Result<Value, Vec<Fault>> {
        let (mut read, mut faults) = (value.clone(), Vec::new());
        self.check("", &mut read, &mut faults);
        rules(value, &mut faults);
        if faults.is_empty() { Ok(read) } else { Err(first_of_each_place(faults)) }
    }

    /// The schema for an API server. Limits that only our checks enforce are described in words.
    pub fn published(&self) -> Value {
        let mut schema = self.json.clone();
        publish(&mut schema);
        schema
    }

    /// The published schema, for readers that accept no unknown members unless a schema says so.
    pub fn closed(&self) -> Value {
        let mut schema = self.published();
        close(&mut schema);
        schema
    }
}

fn close(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    let is_open = members.contains_key("x-kubernetes-preserve-unknown-fields");
    if members.contains_key("properties") && !is_open {
        members.entry("additionalProperties").or_insert(false.into());
    }
    inner(members).for_each(close);
}

fn and(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        words => words.concat(),
    }
}

/// Converts a part of a checked document to its type. A value that matches the schema also matches the type; any
/// difference is reported as a fault.
pub fn typed<T: DeserializeOwned>(read: &mut Value, part: &str) -> Result<T, Vec<Fault>> {
    serde_json::from_value(read[part].take()).map_err(|error| vec![Fault::new(part, error.to_string())])
}

/// Sorts the faults by path. The schema and the rules may both report a fault at the same path; only the first is
/// kept.
pub fn first_of_each_place(mut faults: Vec<Fault>) -> Vec<Fault> {
    faults.sort_by(|one, other| one.path.cmp(&other.path));
    faults.dedup_by(|later, first| later.path == first.path);
    faults
}

fn publish(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    members.remove(WANTED);
    if let Some(bounds) = members.remove(BETWEEN) {
        let form = Form::from(members["pattern"].as_str().unwrap_or_default().to_owned());
        let [least, most] = [0, 1].map(|end| form.print(bounds[end].as_u64().unwrap_or_default()));
        let told = members.get("description").and_then(Value::as_str).map(|told| format!("{told} "));
        let told = format!("{}Between {least} and {most}.", told.unwrap_or_default());
        members.insert("description".into(), told.into());
    }
    inner(members).for_each(publish);
}

/// The schemas nested in a schema.
fn inner(schema: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    schema.iter_mut().flat_map(|(word, value)| match (word.as_str(), value) {
        ("properties", Value::Object(properties)) => properties.values_mut().collect::<Vec<_>>(),
        ("items" | "additionalProperties", inner) => vec![inner],
        _ => Vec::new(),
    })
}

/// Rewrites the generator's output with the keywords that a structural schema may use.
fn make_structural(value: &mut Value) {
    let Value::Object(schema) = value else { return };
    unwrap_optional(schema);
    join_words(schema);
    schema.remove("title");
    schema.retain(|name, value| !(name == "default" && value.is_null()));
    if let Some(Value::Array(types)) = schema.get("type") {
        let named = types.iter().find(|name| *name != "null").cloned();
        schema.insert("type".into(), named.unwrap_or_default());
    }
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    // The formats are sizes of Rust integers. API servers know only int32 and int64 and warn about others.
    if schema.get("format").and_then(Value::as_str).is_some_and(|format| format != "date-time") {
        schema.remove("format");
    }
    inner(schema).for_each(make_structural);
    let required: Vec<Value> = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        // An API server fills in defaults first, so a required field with a default would never be missing.
        for name in required.iter().filter_map(Value::as_str) {
            if let Some(Value::Object(property)) = properties.get_mut(name) {
                property.remove("default");
            }
        }
    }
}

/// The generator expresses an optional member as `anyOf` the type and null. Absence means the same as null.
fn unwrap_optional(schema: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = schema.remove("anyOf") else { return };
    let inner = choices.into_iter().find(|choice| choice["type"] != "null");
    if let Some(Value::Object(inner)) = inner {
        for (name, value) in inner {
            schema.entry(name).or_insert(value);
        }
    }
}

/// The generator expresses enum values with descriptions as `oneOf`. This joins the descriptions into one.
fn join_words(schema: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = schema.remove("oneOf") else { return };
    let mut words: Vec<Value> = Vec::new();
    let mut told: Vec<String> =
        schema.get("description").and_then(Value::as_str).map(str::to_owned).into_iter().collect();
    for mut choice in choices {
        if let Some(description) = choice["description"].as_str() {
            told.push(format!("`{}`: {description}", choice["const"].as_str().unwrap_or_default()));
        }
        match choice["enum"].take() {
            Value::Array(several) => words.extend(several),
            _ => words.push(choice["const"].take()),
        }
    }
    schema.insert("type".into(), "string".into());
    schema.insert("enum".into(), words.into());
    schema.insert("description".into(), told.join(" ").into());
}
