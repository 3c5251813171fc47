//! Merges documents: JSON merge patch (RFC 7386), and a three-way merge with the last applied document.

use serde_json::{Map, Value};

/// JSON merge patch (RFC 7386): `null` removes a member, objects are merged, any other value replaces.
pub fn patch(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(object) = target else { return };
    for (name, member) in members {
        match member {
            Value::Null => drop(object.remove(name)),
            member => self::patch(object.entry(name).or_insert(Value::Null), member),
        }
    }
}

/// Merges `desired` into `live`. Members that are in `last` but not in `desired` are removed. Members that other writers
/// set stay. A list is replaced as a whole.
pub fn three_way(last: &Value, live: &mut Value, desired: &Value) {
    let (Value::Object(wanted), Value::Object(object)) = (desired, &mut *live) else {
        *live = desired.clone();
        return;
    };
    for name in last.as_object().into_iter().flat_map(Map::keys) {
        if wanted.get(name).is_none_or(Value::is_null) {
            object.remove(name);
        }
    }
    for (name, member) in wanted.iter().filter(|(_, member)| !member.is_null()) {
        three_way(&last[name], object.entry(name).or_insert(Value::Null), member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_examples_of_the_standard_hold() {
        let cases = [
            (json!({ "a": "b" }), json!({ "a": "c" }), json!({ "a": "c" })),
            (json!({ "a": "b" }), json!({ "b": "c" }), json!({ "a": "b", "b": "c" })),
            (json!({ "a": "b" }), json!({ "a": null }), json!({})),
            (json!({ "a": "b", "b": "c" }), json!({ "a": null }), json!({ "b": "c" })),
            (json!({ "a": ["b"] }), json!({ "a": "c" }), json!({ "a": "c" })),
            (json!({ "a": "c" }), json!({ "a": ["b"] }), json!({ "a": ["b"] })),
            (
                json!({ "a": { "b": "c" } }),
                json!({ "a": { "b": "d", "c": null } }),
                json!({ "a": { "b": "d" } }),
            ),
            (json!({ "a": [{ "b": "c" }] }), json!({ "a": [1] }), json!({ "a": [1] })),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({ "a": "b" }), json!(["c"]), json!(["c"])),
            (json!({ "a": "foo" }), json!(null), json!(null)),
            (json!({ "e": null }), json!({ "a": 1 }), json!({ "e": null, "a": 1 })),
            (json!([1, 2]), json!({ "a": "b", "c": null }), json!({ "a": "b" })),
            (json!({}), json!({ "a": { "bb": { "ccc": null } } }), json!({ "a": { "bb": {} } })),
        ];
        for (mut target, change, expected) in cases {
            patch(&mut target, &change);
            assert_eq!(target, expected, "{change}");
        }
    }

    #[test]
    fn what_others_set_stays_and_what_was_withdrawn_goes() {
        let last = json!({ "a": 1, "b": { "c": 1, "d": 2 }, "list": [1] });
        let mut live = json!({ "a": 1, "b": { "c": 1, "d": 2, "other": 9 }, "list": [1], "more": true });
        three_way(&last, &mut live, &json!({ "b": { "d": 3 }, "list": [2, 3] }));
        assert_eq!(live, json!({ "b": { "d": 3, "other": 9 }, "list": [2, 3], "more": true }));
    }
}
