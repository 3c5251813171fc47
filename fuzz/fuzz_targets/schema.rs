//! JSON Schemas of event types: a schema compiles to the same result again or is refused with a place and a reason, checks
//! agree with a reference implementation of the common keywords, and a violation names a place in the data but no value.
#![no_main]

use klambda_event_schema::Schema;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

/// Replaces every string of the data, to see whether a message repeats it.
const SECRET: &str = "hunter2-hunter2";
const MESSAGE_CHARS_MAX: usize = 301;

fuzz_target!(|data: &[u8]| {
    let (schema, value) = match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &b"null"[..]),
    };
    let Ok(schema) = serde_json::from_slice::<Value>(schema) else { return };
    let Ok(value) = serde_json::from_slice::<Value>(value) else { return };
    let compiled = match Schema::compile(&schema) {
        Ok(compiled) => compiled,
        Err(fault) => {
            assert!(fault.path.is_empty() || fault.path.starts_with('/'), "{fault:?}");
            assert!(!fault.message.is_empty() && fault.path.chars().count() <= data.len() + 64);
            assert_eq!(Schema::compile(&schema).err(), Some(fault), "refused in another way");
            return;
        }
    };
    let found = check(&compiled, &value);
    if let Some(expected) = means(&schema, &value) {
        assert_eq!(found, expected, "{schema} on {value}");
    }
    let again = Schema::compile(&schema).expect("the schema compiled before");
    assert_eq!(check(&again, &value), found, "{schema} on {value}");
    check_secrecy(&compiled, &schema, &value);
});

/// True if the value matches. A violation must lead to a place in the value.
fn check(schema: &Schema, value: &Value) -> bool {
    let Err(violation) = schema.check_value(value) else { return true };
    let is_cut = violation.pointer.ends_with('…');
    assert!(is_cut || value.pointer(&violation.pointer).is_some(), "{violation:?} in {value}");
    assert!(!violation.rule.is_empty() && !violation.message.is_empty(), "{violation:?}");
    assert!(violation.message.chars().count() <= MESSAGE_CHARS_MAX, "{violation:?}");
    false
}

fn check_secrecy(compiled: &Schema, schema: &Value, value: &Value) {
    if schema.to_string().contains(SECRET) || value.to_string().contains(SECRET) {
        return;
    }
    if let Err(violation) = compiled.check_value(&masked(value)) {
        assert!(!violation.message.contains(SECRET), "{violation:?} of {schema}");
    }
}

fn masked(value: &Value) -> Value {
    match value {
        Value::String(_) => SECRET.into(),
        Value::Array(items) => items.iter().map(masked).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), masked(value))).collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}

/// Whether the value matches. `None` if the schema has a keyword that is not known here.
fn means(schema: &Value, value: &Value) -> Option<bool> {
    let members = match schema {
        Value::Bool(all) => return Some(*all),
        Value::Object(members) => members,
        _ => return None,
    };
    let mut holds = true;
    for (keyword, argument) in members {
        holds &= keyword_holds(keyword, argument, value)?;
    }
    Some(holds)
}

fn keyword_holds(keyword: &str, argument: &Value, value: &Value) -> Option<bool> {
    let each = |list: &Value| -> Option<Vec<bool>> {
        list.as_array()?.iter().map(|schema| means(schema, value)).collect()
    };
    let length = |count: Option<usize>, is: fn(u64, u64) -> bool| -> Option<bool> {
        let bound = argument.as_u64()?;
        Some(count.is_none_or(|count| is(count as u64, bound)))
    };
    let items = value.as_array().map(Vec::len);
    let chars = value.as_str().map(|text| text.chars().count());
    match keyword {
        "title" | "description" | "$comment" => argument.is_string().then_some(true),
        "type" => match argument {
            Value::String(name) => is_of(name, value),
            Value::Array(names) => {
                let held: Option<Vec<bool>> = names.iter().map(|name| is_of(name.as_str()?, value)).collect();
                Some(held?.contains(&true))
            }
            _ => None,
        },
        "required" => {
            let names: Option<Vec<&str>> = argument.as_array()?.iter().map(Value::as_str).collect();
            Some(
                value
                    .as_object()
                    .is_none_or(|members| names.iter().flatten().all(|n| members.contains_key(*n))),
            )
        }
        "properties" => {
            let known = argument.as_object()?.iter();
            let held: Option<Vec<bool>> = known
                .map(|(name, schema)| match value.as_object().and_then(|members| members.get(name)) {
                    Some(member) => means(schema, member),
                    None => Some(true),
                })
                .collect();
            Some(!held?.contains(&false))
        }
        "items" if !argument.is_array() => {
            let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let held: Option<Vec<bool>> = items.iter().map(|item| means(argument, item)).collect();
            Some(!held?.contains(&false))
        }
        "allOf" => Some(!each(argument)?.contains(&false)),
        "anyOf" => Some(each(argument)?.contains(&true)),
        "oneOf" => Some(each(argument)?.into_iter().filter(|held| *held).count() == 1),
        "not" => means(argument, value).map(|held| !held),
        "minItems" => length(items, |count, bound| count >= bound),
        "maxItems" => length(items, |count, bound| count <= bound),
        "minLength" => length(chars, |count, bound| count >= bound),
        "maxLength" => length(chars, |count, bound| count <= bound),
        _ => None,
    }
}

fn is_of(name: &str, value: &Value) -> Option<bool> {
    Some(match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => return None,
    })
}
