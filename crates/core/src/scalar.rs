//! Values written as text with a unit: durations, sizes, CPU quantities and times. The module provides types for
//! them, and serde helpers for plain numbers (`#[serde(with = "MsBetween::<1, 1000>")]`).

use crate::quantity::{
    format_bytes, format_cpu, format_duration_ms, parse_bytes, parse_cpu, parse_duration_ms,
};
use crate::schema::{BETWEEN, WANTED, form, written_as};
use crate::time::Millis;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

/// A duration, written `30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration {
    pub ms: u64,
}

/// A number of bytes, written `64Mi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    pub bytes: u64,
}

/// A CPU quantity in thousandths, written `250m` or `0.25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpu {
    pub millis: u64,
}

/// A time, written in RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Millis);

/// Milliseconds within limits, written as a duration. The schema enforces the limits.
pub struct MsBetween<const LEAST: u64, const MOST: u64>;

/// Milliseconds up to a limit, written as a duration. Zero needs no unit.
pub struct MsUpTo<const MOST: u64>;

/// Bytes within limits, written as a size. The schema enforces the limits.
pub struct BytesBetween<const LEAST: u64, const MOST: u64>;

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

/// Accepts a number in place of a string, because users write `cpu: 1`.
fn text_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(de::Error::custom("must be a string")),
    }
}

/// Implements the conversion between a plain number and its text, for use with `#[serde(with)]`.
macro_rules! written_with {
    ([$($generics:tt)*] $type:ty, $number:ty, $parse:expr, $print:expr) => {
        impl<$($generics)*> $type {
            pub fn serialize<S: Serializer>(number: &$number, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&$print(*number))
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$number, D::Error> {
                $parse(&text_of(deserializer)?).map_err(de::Error::custom)
            }
        }
    };
}

/// The same for a newtype around such a number.
macro_rules! written {
    ($type:ident, $field:tt, $number:ty, $parse:expr, $print:expr) => {
        written_with!([] $type, $number, $parse, $print);

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $type::serialize(&self.$field, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                $type::deserialize(deserializer).map(|number| $type { $field: number })
            }
        }
    };
}

written!(Duration, ms, u64, parse_duration_ms, format_duration_ms);
written!(Size, bytes, u64, parse_bytes, format_bytes);
written!(Cpu, millis, u64, parse_cpu, format_cpu);
written!(Time, 0, Millis, parse_time, Millis::rfc3339);
written_with!([const LEAST: u64, const MOST: u64] MsBetween<LEAST, MOST>, u64, parse_duration_ms, format_duration_ms);
written_with!([const MOST: u64] MsUpTo<MOST>, u64, parse_duration_ms, format_duration_ms);
written_with!([const LEAST: u64, const MOST: u64] BytesBetween<LEAST, MOST>, u64, parse_bytes, format_bytes);

fn parse_time(text: &str) -> Result<Millis, &'static str> {
    Millis::parse_rfc3339(text).ok_or("is not an RFC 3339 time")
}

const A_DURATION: &str = "a duration with its unit, such as 30s";
const A_SIZE: &str = "a size, such as 16Mi";

written_as!([] Duration, "Duration", { "type": "string", "pattern": form::DURATION, WANTED: A_DURATION });
written_as!([] Size, "Size", { "x-kubernetes-int-or-string": true, "pattern": form::SIZE, WANTED: A_SIZE });
written_as!([] Cpu, "Cpu", {
    "x-kubernetes-int-or-string": true, "pattern": form::CPU, WANTED: "a CPU quantity, such as 250m",
});
written_as!([] Time, "Time", { "type": "string", "format": "date-time" });
written_as!([const LEAST: u64, const MOST: u64] MsBetween<LEAST, MOST>, "Duration", {
    "type": "string", "pattern": form::DURATION, WANTED: A_DURATION, BETWEEN: [LEAST, MOST],
});
written_as!([const MOST: u64] MsUpTo<MOST>, "Duration", {
    "x-kubernetes-int-or-string": true, "pattern": form::DURATION, "minimum": 0, "maximum": 0, WANTED: A_DURATION, BETWEEN: [0, MOST],
});
written_as!([const LEAST: u64, const MOST: u64] BytesBetween<LEAST, MOST>, "Size", {
    "x-kubernetes-int-or-string": true, "pattern": form::SIZE, WANTED: A_SIZE, BETWEEN: [LEAST, MOST],
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_its_text() {
        assert_eq!(serde_json::from_str::<Cpu>("1").ok(), Some(Cpu { millis: 1000 }));
        assert_eq!(serde_json::from_str::<Size>("1024").ok(), Some(Size { bytes: 1024 }));
        assert!(serde_json::from_str::<Duration>("5").is_err());
    }
}
