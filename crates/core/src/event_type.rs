//! Event types: a catalogue of the events of a namespace, with a description, a JSON Schema of their data and an
//! example.
//!
//! This module reads the document. `klambda-event-schema` compiles the schema and checks data.

use crate::fault::Fault;
use crate::namespace;
use crate::quantity::format_bytes;
use crate::schema::{self, API_VERSION, Schema, form, present};
use schemars::{JsonSchema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::LazyLock;

pub const KIND: &str = "EventType";

/// The attribute that a check adds to events whose data does not match the schema.
pub const STATUS_ATTRIBUTE: &str = "schemastatus";
pub const STATUS_INVALID: &str = "invalid";

pub const SCHEMA_BYTES_MAX: usize = 64 << 10;
pub const EXAMPLE_BYTES_MAX: usize = 64 << 10;
const TYPE_BYTES_MAX: usize = 1024;
const DESCRIPTION_BYTES_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub namespace: String,
    pub name: String,
    pub spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Spec {
    /// The CloudEvents type of the events. The name of the resource if it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub r#type: Option<String>,
    /// The meaning of the events, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON Schema of the data: draft 2020-12, or draft-07 if `$schema` says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub schema: Option<Value>,
    /// Data that matches the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub example: Option<Value>,
}

fn any_object(_: &mut SchemaGenerator) -> schemars::Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn anything(_: &mut SchemaGenerator) -> schemars::Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

static SPEC: LazyLock<Schema> = LazyLock::new(Schema::of::<Spec>);
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let metadata = json!({
        "namespace": { "type": "string", "pattern": form::LABEL },
        "name": { "type": "string", "pattern": form::NAME },
    });
    Schema::document(KIND, metadata, &SPEC, &["apiVersion", "kind", "metadata"])
});

/// The schema of `spec`.
pub fn spec_schema() -> &'static Schema {
    &SPEC
}

impl Document {
    /// Parses a document strictly and reports all faults together. The JSON Schema inside is not compiled.
    pub fn parse(value: &Value) -> Result<Document, Vec<Fault>> {
        let mut read = SCHEMA.read(value, check_sizes)?;
        let spec: Option<Spec> = schema::typed(&mut read, "spec")?;
        let text = |name: &str| read["metadata"][name].as_str().map(str::to_owned);
        let namespace = text("namespace").unwrap_or_else(|| namespace::DEFAULT.to_owned());
        Ok(Document { namespace, name: text("name").unwrap_or_default(), spec: spec.unwrap_or_default() })
    }

    /// The CloudEvents type of the events.
    pub fn event_type(&self) -> &str {
        self.spec.r#type.as_deref().unwrap_or(&self.name)
    }

    pub fn to_json(&self) -> Value {
        let metadata = json!({ "namespace": self.namespace, "name": self.name });
        let mut spec = json!(self.spec);
        spec["type"] = self.event_type().into();
        json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec })
    }
}

fn check_sizes(document: &Value, faults: &mut Vec<Fault>) {
    let Some(spec) = document["spec"].as_object() else { return };
    let length = |value: &Value| value.as_str().map_or_else(|| value.to_string().len(), str::len);
    for (member, bytes_max) in [
        ("type", TYPE_BYTES_MAX),
        ("description", DESCRIPTION_BYTES_MAX),
        ("schema", SCHEMA_BYTES_MAX),
        ("example", EXAMPLE_BYTES_MAX),
    ] {
        if present(spec, member).is_some_and(|value| length(value) > bytes_max) {
            let limit = format_bytes(bytes_max as u64);
            faults
                .push(Fault::new(format!("spec.{member}"), format!("must not be longer than {limit} bytes")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(name: &str, spec: Value) -> Value {
        json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec})
    }

    #[test]
    fn the_name_is_the_type_unless_the_document_says_another() {
        let spec = json!({"description": "An order.", "schema": {"const": null}, "example": [null, 1]});
        let read = Document::parse(&document("order.placed", spec)).expect("valid");
        assert_eq!(read.event_type(), "order.placed");
        let shown = read.to_json();
        assert_eq!(shown["spec"]["type"], "order.placed");
        assert_eq!(shown["spec"]["schema"], json!({"const": null}), "null inside a schema has a meaning");
        assert_eq!(shown["spec"]["example"], json!([null, 1]));
        assert_eq!(
            Document::parse(&shown).expect("valid").to_json(),
            shown,
            "what is shown can be sent back"
        );
        let other = Document::parse(&document("order", json!({"type": "com.Example/Order"}))).expect("valid");
        assert_eq!(other.event_type(), "com.Example/Order");
    }

    #[test]
    fn every_fault_is_told() {
        let long = |bytes: usize| "x".repeat(bytes);
        let bad = document(
            "Order",
            json!({"type": "", "schema": true, "example": long(EXAMPLE_BYTES_MAX + 1), "shema": {},
                "description": long(DESCRIPTION_BYTES_MAX + 1)}),
        );
        let faults = Document::parse(&bad).expect_err("faults");
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(
            paths,
            ["metadata.name", "spec.description", "spec.example", "spec.schema", "spec.shema", "spec.type"]
        );
        assert!(faults[2].message.contains("64Ki"), "{}", faults[2]);
        let large = document("a", json!({"schema": {"title": long(SCHEMA_BYTES_MAX)}}));
        assert_eq!(Document::parse(&large).expect_err("too large")[0].path, "spec.schema");
    }
}
