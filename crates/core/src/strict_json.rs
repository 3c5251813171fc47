//! Parses JSON into a tree and rejects objects with duplicate members, because parsers disagree on which duplicate
//! counts.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Like `Value`, but rejects duplicate members.
#[derive(Debug)]
pub struct Strict(pub Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(Reader).map(Strict)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let Strict(value) = members.next_value()?;
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the member {name:?} appears twice")));
            }
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_json_holds_and_no_member_twice() {
        let text = r#"{"a":[null,true,-1,18446744073709551615,1.5,"x\n",{"b":{}}],"c":"é"}"#;
        let strict: Strict = serde_json::from_str(text).expect("JSON");
        assert_eq!(strict.0, serde_json::from_str::<Value>(text).expect("JSON"));
        for (twice, name) in [(r#"{"a":1,"a":1}"#, "\"a\""), (r#"[{"x":{"b":1,"c":2,"\u0062":3}}]"#, "\"b\"")]
        {
            let error = serde_json::from_str::<Strict>(twice).expect_err("a duplicate member").to_string();
            assert!(error.contains(name) && error.contains("twice"), "{error}");
        }
        assert!(serde_json::from_str::<Strict>("{} {}").is_err());
    }
}
