//! The values in the body of a request. Faults name keys, never values.

use crate::problem::Problem;
use crate::request_body::{self, Faults};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use klambda_core::fault::unknown;
use klambda_secrets::{
    Change, EncryptionKey, KEY_RULE, KEYS_MAX, NoRandomness, Place, Stored, Value, is_key, seal,
};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

const MEMBERS: [&str; 2] = ["data", "binaryData"];

/// The requested change of a secret.
pub struct Asked {
    replace: bool,
    set: BTreeMap<String, Value>,
    remove: Vec<String>,
}

impl Asked {
    /// A whole secret with these values.
    pub fn whole(set: BTreeMap<String, Value>) -> Asked {
        Asked { replace: true, set, remove: Vec::new() }
    }

    /// `replace`: the body is the whole secret. Else it is merged, and `null` removes a key.
    pub fn read(body: &Bytes, replace: bool) -> Result<Asked, Problem> {
        let faults = Faults::default();
        let mut asked = Asked { replace, set: BTreeMap::new(), remove: Vec::new() };
        match request_body::parse(body)? {
            Json::Object(members) => asked.take_members(members, &faults),
            _ => faults.add("", "must be an object with data or binaryData"),
        }
        if asked.set.len() > KEYS_MAX {
            faults.add("data", format!("a secret has at most {KEYS_MAX} keys"));
        }
        faults.finish(Problem::invalid_body)?;
        Ok(asked)
    }

    fn take_members(&mut self, members: Map<String, Json>, faults: &Faults) {
        if !MEMBERS.iter().any(|member| members.contains_key(*member)) {
            faults.add("data", "is missing: give values in data or binaryData");
        }
        for (member, value) in members {
            match (member.as_str(), value) {
                ("data", Json::Object(values)) => self.take_values("data", values, faults, from_text),
                ("binaryData", Json::Object(values)) => {
                    self.take_values("binaryData", values, faults, from_base64);
                }
                ("data" | "binaryData", Json::Null) => {}
                ("data" | "binaryData", _) => faults.add(member, "must be an object"),
                _ => faults.add(&*member, unknown("member", &member, &MEMBERS)),
            }
        }
    }

    fn take_values(
        &mut self,
        member: &str,
        values: Map<String, Json>,
        faults: &Faults,
        read: fn(String) -> Result<Value, &'static str>,
    ) {
        for (key, value) in values {
            let path = format!("{member}.{key}");
            if !is_key(&key) {
                faults.add(path, format!("a key {KEY_RULE}"));
                continue;
            }
            if self.set.contains_key(&key) || self.remove.contains(&key) {
                faults.add(path, "is given in both data and binaryData");
                continue;
            }
            match value {
                Json::String(text) => match read(text) {
                    Ok(value) => drop(self.set.insert(key, value)),
                    Err(message) => faults.add(path, message),
                },
                Json::Null if !self.replace => self.remove.push(key),
                _ => faults.add(path, "must be a string"),
            }
        }
    }

    /// Whether the secret has these values already.
    pub fn is_met_by(&self, stored: &Stored) -> bool {
        let has = |(key, value): (&String, &Value)| {
            stored.get(key).is_ok_and(|known| known.as_ref() == Some(value))
        };
        let mut keys = stored.secret.keys();
        let is_extra = |key: &str| match self.replace {
            true => !self.set.contains_key(key),
            false => self.remove.iter().any(|removed| removed == key),
        };
        self.set.iter().all(has) && !keys.any(is_extra)
    }

    pub fn seal(&self, key: &EncryptionKey, namespace: &str, name: &str) -> Result<Change, NoRandomness> {
        let mut change = Change { replace: self.replace, remove: self.remove.clone(), ..Change::default() };
        for (member, value) in &self.set {
            let place = Place { namespace, name, key: member };
            change.set.insert(member.clone(), seal(key, place, value)?);
        }
        Ok(change)
    }
}

fn from_text(text: String) -> Result<Value, &'static str> {
    Ok(Zeroizing::new(text.into_bytes()))
}

fn from_base64(text: String) -> Result<Value, &'static str> {
    let text = Zeroizing::new(text);
    BASE64_STANDARD.decode(text.as_bytes()).map(Zeroizing::new).map_err(|_| "must be base64")
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_core::time::Millis;
    use klambda_secrets::{KeyRing, Secret};
    use serde_json::json;
    use std::sync::Arc;

    fn read(body: Json, replace: bool) -> Result<Asked, Problem> {
        Asked::read(&Bytes::from(body.to_string()), replace)
    }

    fn stored(values: Json) -> Stored {
        let ring = KeyRing::default().with_first(EncryptionKey::random().unwrap());
        let change = read(json!({ "data": values }), true).ok().unwrap();
        let change = change.seal(ring.first().unwrap(), "shop", "db").unwrap();
        let secret = Secret::changed(None, change, Millis(1)).unwrap();
        Stored { namespace: "shop".into(), name: "db".into(), secret, ring: Arc::new(ring) }
    }

    #[test]
    fn what_is_there_already_is_seen() {
        let stored = stored(json!({"a": "1", "b": "2"}));
        for (body, replace, expected) in [
            (json!({"data": {"a": "1", "b": "2"}}), true, true),
            (json!({"data": {"a": "1"}, "binaryData": {"b": "Mg=="}}), true, true),
            (json!({"data": {"a": "1"}}), true, false),
            (json!({"data": {"a": "1"}}), false, true),
            (json!({"data": {"a": "2"}}), false, false),
            (json!({"data": {"c": "1"}}), false, false),
            (json!({"data": {"c": null}}), false, true),
            (json!({"data": {"a": null}}), false, false),
        ] {
            assert_eq!(read(body.clone(), replace).ok().unwrap().is_met_by(&stored), expected, "{body}");
        }
    }

    #[test]
    fn faults_name_keys_and_no_values() {
        let body = json!({"data": {"a/b": "hush-1", "n": 5, "both": "hush-2"}, "binaryData": {"x": "hush-3!", "both": "AA=="},
            "stringData": {"k": "hush-4"}});
        let Err(problem) = read(body, true) else { panic!("it is taken") };
        let told = String::from_utf8(problem.to_json()).unwrap();
        for part in ["data.a/b", "data.n", "binaryData.x", "both data and binaryData", "stringData"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        assert!(!told.contains("hush"), "{told}");
        assert!(read(json!({"data": {"a": null}}), true).is_err());
        for nothing in [json!([1]), json!({}), json!(null)] {
            assert!(read(nothing.clone(), true).is_err() && read(nothing, false).is_err());
        }
        assert!(read(json!({"data": {}}), true).is_ok(), "a secret may be empty");
    }
}
