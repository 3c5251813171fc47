//! Custom resource definitions keep to the rules that an API server has for them.

use klambda_functions::crd::{definition, definitions};
use klambda_functions::resource::Kind;
use serde_json::{Map, Value, json};

/// The members of `JSONSchemaProps` that a structural schema may use and that ours does.
const WORDS: [&str; 17] = [
    "additionalProperties",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maximum",
    "minimum",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];
const TYPES: [&str; 5] = ["object", "array", "string", "integer", "boolean"];
const MAP_KEYS: &str = "x-kubernetes-list-map-keys";

struct Rules {
    faults: Vec<String>,
}

impl Rules {
    fn fault(&mut self, path: &str, fault: impl std::fmt::Display) {
        self.faults.push(format!("{path}: {fault}"));
    }

    fn schema(&mut self, schema: &Value, path: &str) {
        let Some(schema) = schema.as_object() else { return self.fault(path, "is no schema") };
        for word in schema.keys().filter(|word| !WORDS.contains(&word.as_str()) && *word != MAP_KEYS) {
            self.fault(path, format!("may not use {word}"));
        }
        self.kind(schema, path);
        if schema.contains_key("properties") && schema.contains_key("additionalProperties") {
            self.fault(path, "has both properties and additionalProperties");
        }
        for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            let property = name.as_str().and_then(|name| schema.get("properties")?.get(name));
            match property {
                None => self.fault(path, format!("requires {name}, which it does not have")),
                // It would be filled in before anybody looks whether it is there.
                Some(property) if property.get("default").is_some() => {
                    self.fault(path, format!("requires {name}, which has a default"));
                }
                Some(_) => {}
            }
        }
        if let Some(default) = schema.get("default") {
            self.value(&Value::Object(schema.clone()), default, &format!("{path} default"));
        }
        self.inner(schema, path);
    }

    fn kind(&mut self, schema: &Map<String, Value>, path: &str) {
        let kind = schema.get("type").and_then(Value::as_str);
        let either = schema.get("x-kubernetes-int-or-string") == Some(&json!(true));
        match kind {
            Some(kind) if !TYPES.contains(&kind) => self.fault(path, format!("has type {kind}")),
            Some(_) if either => self.fault(path, "has a type beside int-or-string"),
            None if !either => self.fault(path, "has no type"),
            _ => {}
        }
        if kind == Some("object")
            && !schema.contains_key("properties")
            && !schema.contains_key("additionalProperties")
            && schema.get("x-kubernetes-preserve-unknown-fields") != Some(&json!(true))
        {
            self.fault(path, "would lose all its members");
        }
        if kind == Some("array") && !schema.get("items").is_some_and(Value::is_object) {
            self.fault(path, "has no schema for its items");
        }
    }

    fn inner(&mut self, schema: &Map<String, Value>, path: &str) {
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            self.schema(property, &format!("{path}.{name}"));
        }
        for word in ["items", "additionalProperties"] {
            schema.get(word).into_iter().for_each(|inner| self.schema(inner, &format!("{path}[]")));
        }
        let keys = schema.get(MAP_KEYS).and_then(Value::as_array);
        if (schema.get("x-kubernetes-list-type") == Some(&json!("map"))) != keys.is_some() {
            self.fault(path, "is a map without keys, or has keys and is none");
        }
        let required = schema.get("items").and_then(|items| items["required"].as_array());
        for key in keys.into_iter().flatten() {
            if !required.is_some_and(|required| required.contains(key)) {
                self.fault(path, format!("has the key {key}, which its items need not have"));
            }
        }
        for rule in schema.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten() {
            if !rule["rule"].is_string() || !rule["message"].is_string() {
                self.fault(path, format!("has a rule without words: {rule}"));
            }
        }
    }

    /// Whether a default fits its own schema.
    fn value(&mut self, schema: &Value, value: &Value, path: &str) {
        let fits = match schema["type"].as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("integer") => value.is_i64() || value.is_u64(),
            Some("boolean") => value.is_boolean(),
            _ => value.is_string() || value.is_i64(),
        };
        if !fits || schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
            self.fault(path, format!("{value} does not fit"));
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if value.is_object() && value.get(name).is_none() {
                self.fault(path, format!("{name} is required"));
            }
        }
        for (name, member) in value.as_object().into_iter().flatten() {
            match schema["properties"].get(name) {
                Some(property) => self.value(property, member, &format!("{path}.{name}")),
                None => self.fault(path, format!("{name} is unknown")),
            }
        }
    }
}

#[test]
fn definitions_keep_to_the_rules_of_structural_schemas() {
    for definition in definitions() {
        let mut rules = Rules { faults: Vec::new() };
        let version = &definition["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        assert_eq!(schema["type"], "object");
        rules.schema(schema, "");
        assert_eq!(rules.faults, Vec::<String>::new(), "{}", definition["metadata"]["name"]);
        for column in version["additionalPrinterColumns"].as_array().unwrap() {
            let path = column["jsonPath"].as_str().unwrap();
            let place = path.replace('.', "/properties/");
            let is_known = path.starts_with(".metadata") || schema.pointer(&place).is_some();
            assert!(is_known, "{path} is no member");
        }
    }
}

#[test]
fn definitions_are_named_as_manifests_name_them() {
    let function = definition(Kind::LambdaFunction);
    assert_eq!(function["metadata"]["name"], "lambdafunctions.lambda.knative.io");
    assert_eq!(function["spec"]["names"]["kind"], "LambdaFunction");
    assert_eq!(function["spec"]["versions"][0]["name"], "v1alpha1");
    let required = |kind: Kind| {
        let definition = definition(kind);
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema["properties"]["spec"]["required"].clone()
    };
    assert_eq!(required(Kind::LambdaFunction), json!(["source"]));
    assert_eq!(required(Kind::LambdaAgent), Value::Null, "an agent may be applied before it has a source");
}

/// The checks themselves see what they are for.
#[test]
fn a_schema_that_breaks_a_rule_is_faulted() {
    let broken = [
        json!({ "properties": { "a": { "type": "string" } } }),
        json!({ "type": "object" }),
        json!({ "type": "array" }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#/x" } } }),
        json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["b"] }),
        json!({ "type": "object", "properties": { "a": { "type": "string", "default": "" } }, "required": ["a"] }),
        json!({ "type": "object", "properties": { "a": { "type": "integer", "default": "1" } } }),
        json!({ "type": "object", "properties": {}, "additionalProperties": { "type": "string" } }),
        json!({ "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": { "type": "object", "properties": { "k": { "type": "string" } } } }),
    ];
    for schema in broken {
        let mut rules = Rules { faults: Vec::new() };
        rules.schema(&schema, "");
        assert!(!rules.faults.is_empty(), "{schema}");
    }
}
