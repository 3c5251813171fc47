//! An object that should exist, and how it is compared with the one that does.

use crate::kinds::Kind;
use crate::names;
use klambda_functions::hash;
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    /// The manifest for server-side apply. Has its own hash as an annotation.
    pub manifest: Value,
}

impl Child {
    /// `content` has everything except apiVersion, kind, name and namespace.
    pub fn new(kind: Kind, namespace: &str, name: &str, mut content: Value) -> Child {
        content["apiVersion"] = kind.api_version().into();
        content["kind"] = kind.name().into();
        content["metadata"]["name"] = name.into();
        content["metadata"]["namespace"] = namespace.into();
        content["metadata"]["annotations"][names::HASH] = hash::of(&content).into();
        Child { kind, namespace: namespace.to_owned(), name: name.to_owned(), manifest: content }
    }

    /// Whether applying the child would change nothing. A field that is no longer desired changes the hash.
    pub fn is_covered_by(&self, live: &Value) -> bool {
        covers(live, &self.manifest)
    }

    /// Objects whose content is their name. They are created once.
    pub fn is_immutable(&self) -> bool {
        matches!(self.kind, Kind::Job)
    }
}

/// Whether every value of `desired` is in `live`. Defaults that others add to objects do not matter. Lists must have the
/// same length.
fn covers(live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => {
            desired.iter().all(|(name, value)| covers(live.get(name).unwrap_or(&Value::Null), value))
        }
        (Value::Array(live), Value::Array(desired)) => {
            live.len() == desired.len()
                && live.iter().zip(desired).all(|(live, desired)| covers(live, desired))
        }
        // An API server leaves out empty objects and lists.
        (Value::Null, desired) => *desired == json!({}) || *desired == json!([]) || desired.is_null(),
        (live, desired) => live == desired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_of_others_are_no_difference_and_changes_are() {
        let content = json!({ "metadata": { "labels": { "a": "1" } }, "spec": { "list": [{ "name": "x" }], "none": {} } });
        let child = Child::new(Kind::Trigger, "ns", "t", content.clone());
        let mut live = child.manifest.clone();
        live["spec"]["none"].take();
        live["spec"]["list"][0]["defaulted"] = true.into();
        live["metadata"]["annotations"]["other"] = "x".into();
        live["status"] = json!({ "ready": true });
        assert!(child.is_covered_by(&live));
        let mut fewer = content.clone();
        fewer["metadata"]["labels"] = json!({});
        assert!(
            !Child::new(Kind::Trigger, "ns", "t", fewer).is_covered_by(&live),
            "a label is no longer desired"
        );
        live["spec"]["list"][0]["name"] = "y".into();
        assert!(!child.is_covered_by(&live));
        live["spec"]["list"] = json!([{ "name": "x" }, { "name": "z" }]);
        assert!(!child.is_covered_by(&live));
    }
}
