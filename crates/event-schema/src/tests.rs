use super::*;
use bytes::Bytes;
use klambda_core::event::{Attribute, Data, Form};
use proptest::prelude::*;
use serde_json::json;

fn compiled(schema: Value) -> Schema {
    Schema::compile(&schema).unwrap_or_else(|fault| panic!("{fault} in {schema}"))
}

fn refused(schema: Value) -> Fault {
    Schema::compile(&schema).expect_err(&schema.to_string())
}

fn event(data: Option<(&[u8], Form)>, content_type: Option<&str>) -> Event {
    let value = |text: &str| klambda_core::event::Value::String(text.to_owned());
    let attribute = |text: &str| Attribute { name: "datacontenttype".into(), value: value(text) };
    Event {
        id: "1".into(),
        source: "/s".into(),
        kind: "t".into(),
        attributes: content_type.map(attribute).into_iter().collect(),
        data: data.map(|(bytes, form)| Data { bytes: Bytes::copy_from_slice(bytes), form }),
    }
}

fn order() -> Value {
    json!({
        "type": "object",
        "required": ["total", "lines"],
        "properties": {
            "total": { "type": "number", "minimum": 0 },
            "lines": { "type": "array", "items": { "$ref": "#/$defs/line" } },
        },
        "$defs": { "line": { "type": "object", "required": ["sku"], "properties": { "sku": { "pattern": "^[A-Z]+$" } } } },
    })
}

#[test]
fn a_violation_names_place_and_rule_and_no_value() {
    let schema = compiled(order());
    schema.check_value(&json!({"total": 7, "lines": [{"sku": "AB"}]})).expect("valid");
    for (data, pointer, rule) in [
        (json!({"total": -1, "lines": []}), "/total", "minimum"),
        (json!({"total": "secret", "lines": []}), "/total", "type"),
        (json!({"total": 1, "lines": [{"sku": "A"}, {"sku": "secret"}]}), "/lines/1/sku", "pattern"),
        (json!({"lines": []}), "", "required"),
        (json!(3), "", "type"),
    ] {
        let violation = schema.check_value(&data).expect_err("a violation");
        assert_eq!((violation.pointer.as_str(), violation.rule.as_str()), (pointer, rule), "{violation:?}");
        assert!(!violation.message.contains("secret"), "{violation:?}");
    }
}

#[test]
fn data_that_is_not_json_does_not_match() {
    let schema = compiled(json!({}));
    schema.check(&event(Some((b"{}", Form::Json)), None)).expect("JSON");
    schema.check(&event(Some((b"{}", Form::Binary)), Some("application/json"))).expect("JSON as bytes");
    let deep = ["[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX)].concat();
    for data in [
        None,
        Some((b"{}".as_slice(), Form::Text)),
        Some((b"{}", Form::Binary)),
        Some((b"{", Form::Json)),
        Some((b"{\"a\":\xff}", Form::Json)),
        Some((deep.as_bytes(), Form::Json)),
    ] {
        assert_eq!(schema.check(&event(data, None)).expect_err("no match").rule, "json");
    }
}

#[test]
fn both_drafts_work_and_no_other() {
    let tuple =
        |draft: &str| json!({"$schema": draft, "items": [{"type": "string"}], "additionalItems": false});
    let draft7 = compiled(tuple("http://json-schema.org/draft-07/schema#"));
    assert!(draft7.check_value(&json!(["a"])).is_ok() && draft7.check_value(&json!(["a", 1])).is_err());
    let prefix = compiled(json!({"prefixItems": [{"type": "string"}], "items": false}));
    assert!(prefix.check_value(&json!(["a"])).is_ok() && prefix.check_value(&json!(["a", 1])).is_err());
    for other in ["http://json-schema.org/draft-04/schema#", "https://example.com/mine"] {
        assert_eq!(refused(json!({"$schema": other})).path, "/$schema");
    }
}

#[test]
fn faults_of_a_schema_have_their_place() {
    for (schema, path) in [
        (json!({"type": "strin"}), "/type"),
        (json!({"properties": {"a/b": {"minimum": "1"}}}), "/properties/a~1b/minimum"),
        (json!({"properties": {"a": {"pattern": "(?=x)"}}}), "/properties/a/pattern"),
        (json!({"pattern": "[a-z]{1000}{1000}"}), "/pattern"),
        (json!({"$ref": "https://example.com/schema.json"}), "/$ref"),
        (json!({"properties": {"a": {"$ref": "other.json#/x"}}}), "/properties/a/$ref"),
        (json!({"$defs": {"a": {"$ref": "file:///etc/passwd"}}}), "/$defs/a/$ref"),
        (json!({"$ref": "#/$defs/none"}), "/$ref"),
        (json!({"$ref": "#anchor", "$anchor": "anchor"}), "/$ref"),
        (json!({"items": {"$dynamicRef": "#x"}}), "/items/$dynamicRef"),
        (json!({"items": {"$id": "https://example.com/x"}}), "/items/$id"),
    ] {
        let fault = refused(schema);
        assert_eq!(fault.path, path, "{fault}");
    }
}

#[test]
fn what_never_ends_or_doubles_at_each_level_is_refused() {
    for endless in [
        json!({"$ref": "#"}),
        json!({"allOf": [{"anyOf": [{"$ref": "#"}]}]}),
        json!({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"if": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}),
    ] {
        assert!(refused(endless).message.contains("never end"));
    }
    let six = |to: &str| json!({"anyOf": vec![json!({"$ref": to}); 6]});
    let steps = json!({"s0": six("#/$defs/s1"), "s1": six("#/$defs/s2"), "s2": six("#/$defs/s3"), "s3": six("#/$defs/s4"), "s4": {}});
    assert!(refused(json!({"$defs": steps, "$ref": "#/$defs/s0"})).message.contains("too expensive"));
    let long: serde_json::Map<String, Value> =
        (0..20).map(|n| (format!("c{n}"), json!({"$ref": format!("#/$defs/c{}", n + 1)}))).collect();
    let mut long = json!({"$defs": long, "$ref": "#/$defs/c0"});
    long["$defs"]["c20"] = json!({});
    assert!(refused(long).message.contains("inside each other"));
    let next = |kind: &str| json!({"properties": {"kind": {"const": kind}, "next": {"$ref": "#"}}});
    assert!(refused(json!({"oneOf": [next("a"), next("b")]})).message.contains("too expensive"));
    let mut nested = json!({});
    for _ in 0..70 {
        nested = json!({"items": nested});
    }
    assert!(refused(nested).message.contains("levels deep"));
}

#[test]
fn ordinary_recursive_schemas_work() {
    let wide: serde_json::Map<String, Value> = (0..3000).map(|n| (format!("m{n}"), json!({}))).collect();
    compiled(json!({"properties": wide}));
    let tree = compiled(json!({
        "required": ["name"],
        "properties": { "name": {"type": "string"}, "left": {"$ref": "#"}, "right": {"$ref": "#"},
            "children": { "type": "array", "items": {"$ref": "#"} } },
        "additionalProperties": {"$ref": "#"},
    }));
    tree.check_value(
        &json!({"name": "a", "left": {"name": "b"}, "children": [{"name": "c"}], "x": {"name": "d"}}),
    )
    .expect("valid");
    let wrong = tree.check_value(&json!({"name": "a", "children": [{"name": "c", "right": {}}]}));
    assert_eq!(wrong.expect_err("a violation").pointer, "/children/0/right");
    let expression = compiled(json!({
        "$defs": { "e": { "oneOf": [
            {"type": "number"},
            {"type": "object", "required": ["left", "right"], "properties": {"left": {"$ref": "#/$defs/e"}, "right": {"$ref": "#/$defs/e"}}},
            {"type": "object", "required": ["negated"], "properties": {"negated": {"$ref": "#/$defs/e"}}},
        ] } },
        "$ref": "#/$defs/e",
    }));
    assert!(expression.check_value(&json!({"left": 1, "right": {"negated": 2}})).is_ok());
    assert!(expression.check_value(&json!({"left": 1, "right": {"negated": "x"}})).is_err());
}

/// The longest chains on the deepest data, on the stack of a thread of the server.
#[test]
fn the_deepest_check_fits_on_the_stack_of_a_thread() {
    let mut part = json!({"properties": {"a": {"$ref": "#"}}, "required": ["b"]});
    for _ in 0..CHAIN_MAX - 2 {
        part = json!({"anyOf": [part]});
    }
    let schema = compiled(part);
    let mut data = json!({"b": 1});
    for _ in 0..DEPTH_MAX - 3 {
        data = json!({"a": data, "b": 1});
    }
    let deepest = data.to_string();
    let check = move || schema.check(&event(Some((deepest.as_bytes(), Form::Json)), None));
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(check).expect("a thread");
    thread.join().expect("no overflow").expect("valid");
}

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = String> + Clone {
    prop::sample::select(words).prop_map(str::to_owned)
}

/// Parts of schemas that refer to each other, sound or not.
fn any_schema() -> impl Strategy<Value = Value> {
    const TYPES: &[&str] = &["string", "number", "object", "array", "null", "wrong"];
    const TARGETS: &[&str] = &["#", "#/$defs/a", "#/$defs/b", "#/$defs/none", "#/properties/a", "http://x/"];
    const PATTERNS: &[&str] = &["^a*$", "(", "(?=a)", "[a-z]{9}"];
    const LISTS: &[&str] = &["allOf", "anyOf", "oneOf", "prefixItems"];
    const SINGLE: &[&str] =
        &["not", "if", "items", "contains", "additionalProperties", "propertyNames", "unevaluatedItems"];
    const MAPS: &[&str] = &["properties", "$defs", "dependentSchemas", "patternProperties"];
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        one_of(TYPES).prop_map(|kind| json!({"type": kind})),
        one_of(TARGETS).prop_map(|target| json!({"$ref": target})),
        one_of(PATTERNS).prop_map(|pattern| json!({"pattern": pattern})),
        (-2i64..3).prop_map(|least| json!({"minimum": least, "required": ["a"]})),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let some = prop::collection::vec(inner.clone(), 1..4);
        let named = prop::collection::btree_map(one_of(&["a", "b", "a/b~"]), inner.clone(), 0..3);
        prop_oneof![
            (one_of(LISTS), some).prop_map(|(word, parts)| json!({word: parts})),
            (one_of(SINGLE), inner.clone()).prop_map(|(word, part)| json!({word: part})),
            (one_of(MAPS), named).prop_map(|(word, parts)| json!({word: parts})),
            (inner.clone(), inner).prop_map(
                |(a, b)| json!({"$defs": {"a": a, "b": b}, "properties": {"a": {"$ref": "#/$defs/a"}}})
            ),
        ]
    })
}

fn any_data() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        (-3i64..3).prop_map(Value::from),
        one_of(&["", "a", "ab"]).prop_map(Value::from)
    ];
    leaf.prop_recursive(6, 40, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(one_of(&["a", "b", "a/b~", "c"]), inner, 0..3)
                .prop_map(|members| json!(members)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever users write: a fault, or a schema whose verdict has a place in the data.
    #[test]
    fn faults_and_violations_have_a_place(schema in any_schema(), data in any_data()) {
        match Schema::compile(&schema) {
            Ok(compiled) => {
                if let Err(violation) = compiled.check_value(&data) {
                    let place = data.pointer(&violation.pointer);
                    prop_assert!(place.is_some(), "{:?} in {} by {}", violation, data, schema);
                    prop_assert!(!violation.rule.is_empty() && !violation.message.is_empty());
                }
            }
            Err(fault) => prop_assert!(!fault.message.is_empty()),
        }
    }
}
