//! Values that are written as a text with a unit, or as a text or a number: durations, sizes, shares of a processor, times.

use klambda_core::quantity::{format_bytes, format_duration_ms, parse_bytes, parse_duration_ms};
use klambda_core::time::Millis;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use std::borrow::Cow;

/// What a schema says of a duration; the reader knows it by this pattern and checks it by its own rules.
pub const DURATION_PATTERN: &str = "^(0|([0-9]+(d|h|m|s|ms))+)$";
pub const SIZE_PATTERN: &str = "^[0-9]+(Ki|Mi|Gi|Ti|Pi|Ei|k|K|M|G|T|P|E)?$";
pub const CPU_PATTERN: &str = "^([0-9]+m|[0-9]+([.][0-9]{1,3})?)$";

/// A length of time, written `30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration {
    pub ms: u64,
}

/// A number of bytes, written `64Mi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    pub bytes: u64,
}

/// A share of processors in thousandths, written `250m` or `0.25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpu {
    pub millis: u64,
}

/// An instant, written as RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Millis);

/// A word or a whole number, as in `attempts: unlimited` and `attempts: 5`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct WordOrNumber(pub Value);

pub fn parse_cpu(text: &str) -> Result<u64, String> {
    let bad = || "is no share of a processor: write 250m, 0.5 or 2".to_owned();
    if let Some(millis) = text.strip_suffix('m') {
        return millis.parse().map_err(|_| bad());
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    if part.is_empty() || part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let part: u64 = format!("{part:0<3}").parse().map_err(|_| bad())?;
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    whole.checked_mul(1000).and_then(|millis| millis.checked_add(part)).ok_or_else(bad)
}

pub fn format_cpu(millis: u64) -> String {
    if millis.is_multiple_of(1000) { (millis / 1000).to_string() } else { format!("{millis}m") }
}

/// Whether a text keeps to a pattern of this module; other patterns are not looked at.
pub(crate) fn check_pattern(pattern: &str, text: &str) -> Result<(), String> {
    match pattern {
        DURATION_PATTERN => parse_duration_ms(text).map(drop),
        SIZE_PATTERN => parse_bytes(text).map(drop),
        CPU_PATTERN => parse_cpu(text).map(drop),
        _ => Ok(()),
    }
}

impl Duration {
    pub const fn from_secs(secs: u64) -> Duration {
        Duration { ms: secs * 1000 }
    }
}

impl Size {
    pub const fn mebi(count: u64) -> Size {
        Size { bytes: count << 20 }
    }
}

/// A whole number may stand for its text: `cpu: 1` is what people write.
fn text_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(de::Error::custom("must be a text")),
    }
}

macro_rules! written {
    ($type:ident, $field:ident, $parse:expr, $print:expr, $pattern:expr, $number_too:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&$print(self.$field))
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let text = text_of(deserializer)?;
                $parse(&text).map(|$field| $type { $field }).map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                match $number_too {
                    true => json_schema!({ "x-kubernetes-int-or-string": true, "pattern": $pattern }),
                    false => json_schema!({ "type": "string", "pattern": $pattern }),
                }
            }
        }
    };
}

written!(Duration, ms, parse_duration_ms, format_duration_ms, DURATION_PATTERN, false);
written!(Size, bytes, parse_bytes, format_bytes, SIZE_PATTERN, true);
written!(Cpu, millis, parse_cpu, format_cpu, CPU_PATTERN, true);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.rfc3339())
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = text_of(deserializer)?;
        Millis::parse_rfc3339(&text).map(Time).ok_or_else(|| de::Error::custom("is no RFC 3339 time"))
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

impl<'de> Deserialize<'de> for WordOrNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WordOrNumber, D::Error> {
        Value::deserialize(deserializer).map(WordOrNumber)
    }
}

impl JsonSchema for WordOrNumber {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "WordOrNumber".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_processor_read_and_print() {
        for (text, millis) in [("25m", 25), ("1", 1000), ("0.5", 500), ("1.25", 1250), ("2.001", 2001)] {
            assert_eq!(parse_cpu(text), Ok(millis), "{text}");
            assert_eq!(parse_cpu(&format_cpu(millis)), Ok(millis));
        }
        for text in ["", "m", "-1", "1.", "1.2345", "x", "1e3"] {
            assert!(parse_cpu(text).is_err(), "{text}");
        }
        assert_eq!(serde_json::from_str::<Cpu>("1").ok(), Some(Cpu { millis: 1000 }));
    }
}
