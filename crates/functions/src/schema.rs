//! The schemas of the resources, made from their types: structural, as custom resource definitions need them, with CEL
//! rules beside what they speak of. The same schemas check what is read, so neither can say what the other does not.

use crate::resource::{Kind, Metadata, Spec, Status};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

static METADATA: LazyLock<Value> = LazyLock::new(of::<Metadata>);
static SPEC: LazyLock<Value> = LazyLock::new(of::<Spec>);
static STATUS: LazyLock<Value> = LazyLock::new(of::<Status>);

/// `openAPIV3Schema` of a kind.
pub fn open_api(kind: Kind) -> Value {
    let mut spec = SPEC.clone();
    if kind == Kind::LambdaFunction {
        spec["required"] = json!(["source"]);
    }
    json!({ "type": "object", "required": ["spec"], "properties": { "spec": spec, "status": *STATUS } })
}

pub(crate) fn metadata() -> &'static Value {
    &METADATA
}

pub(crate) fn spec() -> &'static Value {
    &SPEC
}

fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    make_structural(&mut schema);
    schema
}

/// What the generator writes in words that a definition may not use, said in those that it may.
fn make_structural(value: &mut Value) {
    let Value::Object(schema) = value else { return };
    unwrap_optional(schema);
    schema.remove("title");
    schema.retain(|name, value| !(name == "default" && value.is_null()));
    if let Some(Value::Array(types)) = schema.get("type") {
        let named = types.iter().find(|name| *name != "null").cloned();
        schema.insert("type".into(), named.unwrap_or_default());
    }
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    // Sizes of Rust's numbers; the API server knows only int32 and int64 and warns of others.
    if schema.get("format").and_then(Value::as_str).is_some_and(|format| format != "date-time") {
        schema.remove("format");
    }
    for name in ["items", "additionalProperties"] {
        schema.get_mut(name).into_iter().for_each(make_structural);
    }
    let required: Vec<Value> = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(make_structural);
        // An API server fills defaults in first: what has one would never be missing.
        for name in required.iter().filter_map(Value::as_str) {
            if let Some(Value::Object(property)) = properties.get_mut(name) {
                property.remove("default");
            }
        }
    }
}

/// An optional member is `anyOf` it and null: absent says the same.
fn unwrap_optional(schema: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = schema.remove("anyOf") else { return };
    let inner = choices.into_iter().find(|choice| choice["type"] != "null");
    if let Some(Value::Object(inner)) = inner {
        for (name, value) in inner {
            schema.entry(name).or_insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forbidden(schema: &Value, path: &str, found: &mut Vec<String>) {
        let Some(object) = schema.as_object() else { return };
        for name in ["$ref", "$defs", "oneOf", "anyOf", "allOf", "not", "const", "definitions", "title"] {
            if object.contains_key(name) {
                found.push(format!("{path}: {name}"));
            }
        }
        let typed = object.get("type").is_some_and(Value::is_string);
        if !typed && !object.contains_key("x-kubernetes-int-or-string") {
            found.push(format!("{path}: no type"));
        }
        for (name, property) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
            forbidden(property, &format!("{path}.{name}"), found);
        }
        for name in ["items", "additionalProperties"] {
            object.get(name).into_iter().for_each(|inner| forbidden(inner, &format!("{path}[]"), found));
        }
    }

    #[test]
    fn schemas_are_structural() {
        for kind in Kind::ALL {
            let mut found = Vec::new();
            forbidden(&open_api(kind), kind.name(), &mut found);
            assert_eq!(found, Vec::<String>::new());
        }
    }

    #[test]
    fn the_documented_defaults_are_in_the_schema() {
        let schema = open_api(Kind::LambdaFunction);
        let spec = |pointer: &str| {
            let place = pointer.replace('/', "/properties/");
            schema.pointer(&format!("/properties/spec{place}/default")).cloned().unwrap_or_default()
        };
        assert_eq!(spec("/source/type"), "minio");
        assert_eq!(spec("/source/minio/endpoint"), "minio.minio.svc.cluster.local:9000");
        assert_eq!(spec("/source/s3/region"), "us-east-1");
        assert_eq!(spec("/runtime/handler"), "index.handler");
        assert_eq!(spec("/scaling/minReplicas"), 0);
        assert_eq!(spec("/scaling/maxReplicas"), 50);
        assert_eq!(spec("/scaling/targetConcurrency"), 10);
        assert_eq!(spec("/scaling/scaleToZeroGracePeriod"), "30s");
        assert_eq!(spec("/resources/requests/memory"), "32Mi");
        assert_eq!(spec("/resources/requests/cpu"), "25m");
        assert_eq!(spec("/resources/limits/memory"), "64Mi");
        assert_eq!(spec("/resources/limits/cpu"), "50m");
        assert_eq!(spec("/build/timeout"), "30m");
        assert_eq!(spec("/ordering"), "unordered");
        assert_eq!(spec("/runtime/language"), Value::Null);
        let rules = schema.pointer("/properties/spec/properties/scaling/x-kubernetes-validations/0/rule");
        assert_eq!(rules, Some(&json!("self.minReplicas <= self.maxReplicas")));
    }
}
