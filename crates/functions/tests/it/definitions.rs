//! The custom resource definitions follow the rules of an API server.

use klambda_core::subscription::Document;
use klambda_functions::crd::definitions;
use serde_json::{Map, Value, json};

/// The members of `JSONSchemaProps` that a structural schema may use and that our schemas use.
const WORDS: [&str; 21] = [
    "additionalProperties",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
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
        let Some(schema) = schema.as_object() else { return self.fault(path, "is not a schema") };
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
                // The default would be filled in before the check for required members.
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
        let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
        match kind {
            Some(kind) if !TYPES.contains(&kind) => self.fault(path, format!("has type {kind}")),
            Some(_) if either => self.fault(path, "has a type beside int-or-string"),
            None if !either && !open => self.fault(path, "has no type"),
            _ => {}
        }
        if kind == Some("object")
            && !schema.contains_key("properties")
            && !schema.contains_key("additionalProperties")
            && !open
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
                self.fault(path, format!("has a rule without a message: {rule}"));
            }
        }
    }

    /// Checks that a default fits its own schema.
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
            assert!(is_known, "{path} is not a member");
        }
    }
}

#[test]
fn definitions_are_named_as_manifests_name_them() {
    let definitions = definitions();
    let [function, agent, subscription, endpoint, event_type, old_agent] = definitions.as_slice() else {
        panic!("six definitions")
    };
    assert_eq!(function["metadata"]["name"], "lambdafunctions.lambda.knative.io");
    assert_eq!(subscription["metadata"]["name"], "subscriptions.lambda.knative.io");
    assert_eq!(function["spec"]["names"]["kind"], "LambdaFunction");
    assert_eq!(subscription["spec"]["names"]["kind"], "Subscription");
    let version = |definition: &Value| definition["spec"]["versions"][0].clone();
    assert_eq!(version(function)["name"], "v1alpha1");
    let required = |definition: &Value| {
        version(definition)["schema"]["openAPIV3Schema"]["properties"]["spec"]["required"].clone()
    };
    assert_eq!(required(function), json!(["source"]));
    assert_eq!(required(agent), Value::Null, "an agent may be applied before it has a source");
    assert_eq!(required(subscription), json!(["target"]));
    assert_eq!(endpoint["spec"]["names"]["kind"], "WebhookEndpoint");
    assert_eq!(required(endpoint), json!(["url"]));
    assert_eq!(event_type["metadata"]["name"], "eventtypes.lambda.knative.io");
    assert_eq!(required(event_type), Value::Null);
    assert_eq!(old_agent["metadata"]["name"], "lambdaagents.lambda.knative.dev");
    assert_eq!(version(old_agent), version(agent), "the same kind in both groups");
    assert_eq!(subscription["spec"]["names"]["shortNames"], json!(["lsub"]), "Knative has subscriptions too");
}

/// Files that users apply are what the program prints. `KLAMBDA_UPDATE=1` writes them.
#[test]
fn the_files_of_the_definitions_are_up_to_date() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let mut names = Vec::new();
    for definition in definitions() {
        let name = format!("{}.yaml", definition["metadata"]["name"].as_str().expect("name"));
        let text = serde_saphyr::to_string(&definition).expect("YAML");
        if std::env::var_os("KLAMBDA_UPDATE").is_some() {
            std::fs::write(folder.join(&name), &text).expect("writable");
        }
        let file = std::fs::read_to_string(folder.join(&name)).unwrap_or_default();
        assert!(file == text, "deploy/crds/{name} differs: run this test with KLAMBDA_UPDATE=1");
        names.push(name);
    }
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .expect("deploy/crds")
        .map(|entry| entry.expect("entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    files.sort();
    assert_eq!(files, names);
}

/// The definition contains the default of every field, and a description of each bound.
#[test]
fn the_definition_of_subscriptions_has_defaults_and_bounds() {
    let definition = definitions().swap_remove(2);
    let spec = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").expect("spec");
    let minimal = json!({ "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": { "name": "a" },
        "spec": { "target": { "url": "http://h/" } } });
    let minimal = Document::parse(&minimal).expect("valid").to_json();
    for (name, value) in
        minimal["spec"].as_object().expect("fields").iter().filter(|(name, _)| *name != "target")
    {
        assert_eq!(spec["properties"][name]["default"], *value, "{name}");
    }
    let of = |place: &str| spec.pointer(&place.replace('/', "/properties/")).cloned().unwrap_or_default();
    assert_eq!(
        of("/orderingPolicy")["default"],
        Value::Null,
        "it has no meaning for unordered subscriptions"
    );
    assert_eq!(of("/retry/timeout")["description"], "Timeout of one attempt. Between 1ms and 1h.");
    assert_eq!(of("/retry/attempts")["pattern"], "^unlimited$");
    assert_eq!(of("/concurrency")["maximum"], 65_536);
    assert_eq!(of("/backlog/onFull")["enum"], json!(["lag", "reject", "drop"]));
    let rules = of("/orderingPolicy/sequence")["x-kubernetes-validations"].clone();
    assert_eq!(rules[0]["rule"], "has(self.attribute) != has(self.pointer)");
}

/// The checks above detect schemas that break a rule.
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
