//! Checks whether every common parser can read a JSON text, even inside one of our responses.
//!
//! Valid JSON may be nested without limit, and may contain numbers outside the range of a double (1e999) or half a
//! surrogate pair (`"\ud800"`). Parsers reject such a text together with everything around it, so one event could
//! make a whole page unreadable.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Common parsers fail at depth 128. The difference is for the response around the data.
const DEPTH_MAX: usize = 100;

pub(crate) fn is_readable(bytes: &[u8]) -> bool {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    Inside { depth: 0 }.deserialize(&mut reader).is_ok() && reader.end().is_ok()
}

/// Reads a value and discards it.
#[derive(Clone, Copy)]
struct Inside {
    depth: usize,
}

impl Inside {
    fn deeper<E: Error>(self) -> Result<Inside, E> {
        match self.depth {
            DEPTH_MAX => Err(E::custom("nested too deep")),
            depth => Ok(Inside { depth: depth + 1 }),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Inside {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Inside {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inside = self.deeper()?;
        while items.next_element_seed(inside)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let inside = self.deeper()?;
        while members.next_key_seed(inside)?.is_some() {
            members.next_value_seed(inside)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_readable_is_readable_inside_an_answer() {
        let nested = |n: usize| ["[".repeat(n), "]".repeat(n)].concat();
        let members = |n: usize| ["{\"a\":".repeat(n), "1".into(), "}".repeat(n)].concat();
        let within =
            [r#"{"a":[null,true,-1,18446744073709551616,1.5,"x\n"],"é":{}}"#.to_owned(), " 1 ".into()];
        for text in within.into_iter().chain([nested(DEPTH_MAX), members(DEPTH_MAX)]) {
            assert!(is_readable(text.as_bytes()), "{text}");
            let answer = format!(r#"{{"items":[{{"event":{{"data":{text}}}}}]}}"#);
            serde_json::from_str::<serde_json::Value>(&answer).expect("readable");
        }
        let valid = [nested(DEPTH_MAX + 1), nested(1 << 20), members(DEPTH_MAX + 1), "1e999".into()];
        for text in valid.into_iter().chain([r#"["\ud800"]"#.into(), r#"{"\ud800":1}"#.into()]) {
            assert!(crate::event::is_json(text.as_bytes()) && !is_readable(text.as_bytes()));
        }
        for text in ["", "{", "1 2", "\u{7f}"] {
            assert!(!is_readable(text.as_bytes()), "{text}");
        }
        assert!(!is_readable(b"\"\xff\""));
    }
}
