//! JSON pointers (RFC 6901) into raw JSON text. The search skips everything off the path and builds no document.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fmt;

/// Far below the nesting depth at which the JSON parser fails.
const TOKENS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

impl Pointer {
    pub fn parse(text: &str) -> Result<Pointer, String> {
        let Some(path) = text.strip_prefix('/') else {
            return match text {
                "" => Ok(Pointer { text: String::new(), tokens: Vec::new() }),
                _ => Err("a JSON pointer must begin with /, such as /order/id".to_owned()),
            };
        };
        let tokens = path.split('/').map(unescape).collect::<Option<Vec<String>>>();
        let tokens = tokens.ok_or("in a JSON pointer, write ~ as ~0 and / as ~1")?;
        if tokens.len() > TOKENS_MAX {
            return Err(format!("a JSON pointer may have at most {TOKENS_MAX} segments"));
        }
        Ok(Pointer { text: text.to_owned(), tokens })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The raw text of the value at this pointer. If an object has several members of the same name, the last one
    /// counts.
    pub fn find<'a>(&self, json: &'a [u8]) -> Option<&'a str> {
        let mut json = serde_json::Deserializer::from_slice(json);
        Step { tokens: &self.tokens }.deserialize(&mut json).ok().flatten()
    }
}

impl TryFrom<String> for Pointer {
    type Error = String;

    fn try_from(text: String) -> Result<Pointer, String> {
        Pointer::parse(&text)
    }
}

impl From<Pointer> for String {
    fn from(pointer: Pointer) -> String {
        pointer.text
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut parts = token.split('~');
    let mut text = parts.next()?.to_owned();
    for part in parts {
        text.push(match part.as_bytes().first()? {
            b'0' => '~',
            b'1' => '/',
            _ => return None,
        });
        text.push_str(&part[1..]);
    }
    Some(text)
}

/// The rest of the path, starting at the next value.
struct Step<'p> {
    tokens: &'p [String],
}

impl<'de> DeserializeSeed<'de> for Step<'_> {
    type Value = Option<&'de str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<&'de str>, D::Error> {
        match self.tokens.is_empty() {
            true => <&RawValue>::deserialize(deserializer).map(|raw| Some(raw.get())),
            false => deserializer.deserialize_any(self),
        }
    }
}

/// Only objects and arrays can contain the rest of the path.
impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<&'de str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<&'de str>, A::Error> {
        let Some((name, rest)) = self.tokens.split_first() else { return Ok(None) };
        let mut found = None;
        while let Some(is_next) = map.next_key_seed(Is { name })? {
            match is_next {
                true => found = map.next_value_seed(Step { tokens: rest })?,
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<&'de str>, A::Error> {
        let Some((token, rest)) = self.tokens.split_first() else { return Ok(None) };
        let wanted = index(token);
        let (mut found, mut at) = (None, 0);
        loop {
            if wanted == Some(at) {
                let Some(value) = seq.next_element_seed(Step { tokens: rest })? else { return Ok(found) };
                found = value;
            } else if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(found);
            }
            at += 1;
        }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Option<&'de str>, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Option<&'de str>, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Option<&'de str>, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Option<&'de str>, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Option<&'de str>, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Option<&'de str>, E> {
        Ok(None)
    }
}

/// RFC 6901 allows no leading zeros. `-` means the element after the last one, which does not exist.
fn index(token: &str) -> Option<usize> {
    let plain = token.bytes().all(|byte| byte.is_ascii_digit()) && (token == "0" || !token.starts_with('0'));
    if plain { token.parse().ok() } else { None }
}

/// Compares a member name without copying it.
struct Is<'p> {
    name: &'p str,
}

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary;
    use proptest::prelude::*;
    use serde_json::Value;

    fn check(text: &str, document: &str) -> Result<(), TestCaseError> {
        let value: Value = serde_json::from_str(document).expect("JSON");
        let found = Pointer::parse(text).expect("pointer").find(document.as_bytes());
        let found = found.map(|raw| serde_json::from_str::<Value>(raw).expect("a JSON value"));
        prop_assert_eq!(found.as_ref(), value.pointer(text), "{} in {}", text, document);
        Ok(())
    }

    /// Collects all pointers to existing values of a document.
    fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
        all.push(at.to_owned());
        match value {
            Value::Object(map) => map.iter().for_each(|(name, inner)| {
                pointers(inner, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), all);
            }),
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(index, inner)| pointers(inner, &format!("{at}/{index}"), all));
            }
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn finds_what_a_document_tree_finds(value in arbitrary::json(), stray in "(/([a-c]|~0|~1|[0-2]|01|-|)){0,4}", pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.expect("JSON");
            let mut all = vec![stray];
            pointers(&value, "", &mut all);
            for pointer in all {
                check(&pointer, &text)?;
            }
        }
    }

    #[test]
    fn the_last_of_two_members_counts() {
        for document in
            [r#"{"a":{"b":1},"a":{"b":2}}"#, r#"{"a":{"b":1},"a":{"c":2}}"#, r#"{"a":{"b":1},"a":7}"#]
        {
            check("/a/b", document).expect("the same result as serde_json");
        }
        assert_eq!(Pointer::parse("/\u{e9}").expect("pointer").find(br#"{"\u00e9":1}"#), Some("1"));
    }

    #[test]
    fn bad_pointers_and_texts_find_nothing() {
        for bad in ["a", "#/a", "/~", "/a~2", "/a~"] {
            assert!(Pointer::parse(bad).is_err(), "{bad}");
        }
        let pointer = Pointer::parse("/a").expect("pointer");
        for bad in ["", "{", "{\"a\"", "[1", "\u{feff}{\"a\":1}"] {
            assert_eq!(pointer.find(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(pointer.find(b"{\"a\":\"\xff\"}"), None);
    }
}
