//! Extracts the key of an event, which selects its lane, and the producer's sequence number.

use crate::event::Attributes;
use crate::json::{Scalar, scalar};
use crate::schema::{form, written_as};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

pub use pointer::Pointer;

mod pointer;

/// Every lane stores its key, and keys appear in URLs, so their length is limited.
pub const KEY_BYTES_MAX: usize = 1024;

/// The highest sequence that a producer may use.
pub const SEQUENCE_MAX: u64 = u64::MAX - 1;

/// Where a subscription finds the key of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// `partitionkey`, else `subject`, else `source`. Applies when a document does not configure a key.
    #[default]
    #[serde(skip)]
    Default,
    Attribute(String),
    Pointer(Pointer),
}

/// Where a subscription finds the producer's sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SequenceSource {
    Attribute(String),
    Pointer(Pointer),
}

impl Source {
    pub(crate) fn is_default(&self) -> bool {
        *self == Source::Default
    }
}

/// An object with exactly one of two members, expressed as a structural schema.
macro_rules! place {
    ($type:ident, $name:literal) => {
        written_as!([] $type, $name, {
            "type": "object",
            "properties": {
                "attribute": { "type": "string", "pattern": form::ATTRIBUTE, "description": "The name of an attribute." },
                "pointer": { "type": "string", "pattern": form::POINTER, "description": "A JSON pointer into the data." },
            },
            "x-kubernetes-validations": [
                { "rule": "has(self.attribute) != has(self.pointer)", "message": "specify either attribute or pointer, not both" },
            ],
        });
    };
}

place!(Source, "KeySource");
place!(SequenceSource, "SequenceSource");

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    Found(Cow<'a, str>),
    /// Only the event's `source` was available. All events of that source share one lane.
    FromSource(Cow<'a, str>),
    /// The key is absent, empty, or not a string, number or boolean.
    Missing,
    /// Longer than [`KEY_BYTES_MAX`].
    TooLong,
}

/// The key of an event. Numbers and strings are equivalent: 42, 42.0 and "42" are the same key.
pub fn key<'a>(source: &Source, event: &'a impl Attributes) -> Key<'a> {
    match source {
        Source::Default => default_key(event),
        Source::Attribute(name) => {
            event.attribute(name).map_or(Key::Missing, |text| bounded(text, Key::Found))
        }
        Source::Pointer(pointer) => data_key(pointer, event),
    }
}

/// The producer's sequence of an event: a decimal integer below 2^64 - 1, leading zeros allowed. 2^64 - 1 is excluded
/// because a lane must be able to expect the number after the highest sequence.
pub fn sequence(source: &SequenceSource, event: &impl Attributes) -> Option<u64> {
    any_sequence(source, event).filter(|sequence| *sequence <= SEQUENCE_MAX)
}

fn any_sequence(source: &SequenceSource, event: &impl Attributes) -> Option<u64> {
    match source {
        SequenceSource::Attribute(name) => decimal(&event.attribute(name)?),
        SequenceSource::Pointer(pointer) => match scalar(pointer.find(event.json_data()?)?) {
            Scalar::String(text) => decimal(&text),
            Scalar::Number(text) => decimal(text),
            _ => None,
        },
    }
}

fn default_key(event: &impl Attributes) -> Key<'_> {
    let given = |name| event.attribute(name).filter(|text| !text.is_empty());
    match given("partitionkey").or_else(|| given("subject")) {
        Some(text) => bounded(text, Key::Found),
        None => given("source").map_or(Key::Missing, |text| bounded(text, Key::FromSource)),
    }
}

fn data_key<'a>(pointer: &Pointer, event: &'a impl Attributes) -> Key<'a> {
    let Some(raw) = event.json_data().and_then(|json| pointer.find(json)) else { return Key::Missing };
    match scalar(raw) {
        Scalar::String(text) => bounded(text, Key::Found),
        Scalar::Number(text) => bounded(plain_number(text), Key::Found),
        Scalar::Boolean(true) => Key::Found(Cow::Borrowed("true")),
        Scalar::Boolean(false) => Key::Found(Cow::Borrowed("false")),
        Scalar::Null | Scalar::Compound | Scalar::Unreadable => Key::Missing,
    }
}

fn bounded<'a>(text: Cow<'a, str>, found: fn(Cow<'a, str>) -> Key<'a>) -> Key<'a> {
    match text.len() {
        0 => Key::Missing,
        len if len > KEY_BYTES_MAX => Key::TooLong,
        _ => found(text),
    }
}

fn decimal(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// A number with an integral value as an integer; any other number as written.
fn plain_number(text: &str) -> Cow<'_, str> {
    match text {
        "-0" => Cow::Borrowed("0"),
        _ if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => Cow::Borrowed(text),
        _ => whole_number(text).map_or(Cow::Borrowed(text), Cow::Owned),
    }
}

/// Moves the decimal point digit by digit, because a float would change large numbers.
fn whole_number(text: &str) -> Option<String> {
    const DIGITS_MAX: usize = 64;
    let (sign, magnitude) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (mantissa, exponent) = magnitude.split_once(['e', 'E']).unwrap_or((magnitude, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0').trim_end_matches('0');
    if digits.is_empty() {
        return Some("0".to_owned());
    }
    let leading = i64::try_from(all.len() - all.trim_start_matches('0').len()).ok()?;
    let point = i64::try_from(whole.len()).ok()? - leading + i64::from(exponent.parse::<i32>().ok()?);
    let point = usize::try_from(point).ok().filter(|point| (digits.len()..=DIGITS_MAX).contains(point))?;
    Some(format!("{sign}{digits}{}", "0".repeat(point - digits.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Attribute, Data, Event, Form, Value};

    fn event(attributes: &[(&str, &str)], data: &str) -> Event {
        let own = |(n, v): &(&str, &str)| Attribute { name: (*n).into(), value: Value::String((*v).into()) };
        let data = (!data.is_empty()).then(|| Data { bytes: data.to_owned().into(), form: Form::Json });
        let attributes = attributes.iter().map(own).collect();
        Event { id: "1".into(), source: "/s".into(), kind: "t".into(), attributes, data }
    }

    fn pointer(text: &str) -> Pointer {
        Pointer::parse(text).expect("pointer")
    }

    #[test]
    fn the_default_is_partitionkey_then_subject_then_source() {
        let of = |attributes: &[(&str, &str)]| match key(&Source::Default, &event(attributes, "")) {
            Key::Found(text) => text.into_owned(),
            Key::FromSource(text) => format!("source {text}"),
            other => format!("{other:?}"),
        };
        assert_eq!(of(&[("subject", "b"), ("partitionkey", "a")]), "a");
        assert_eq!(of(&[("subject", "b")]), "b");
        assert_eq!(of(&[]), "source /s");
        assert_eq!(of(&[("partitionkey", &"x".repeat(1025))]), "TooLong");
    }

    #[test]
    fn numbers_and_strings_name_the_same_key() {
        let of = |data: &str| match key(
            &Source::Pointer(pointer("/k")),
            &event(&[], &format!(r#"{{"k": {data} }}"#)),
        ) {
            Key::Found(text) => text.into_owned(),
            other => format!("{other:?}"),
        };
        for same in ["42", "\"42\"", "42.0", "4.2e1", "420e-1", "0.42E+2", "\"\\u0034\\u0032\""] {
            assert_eq!(of(same), "42", "{same}");
        }
        for zero in ["0", "-0", "0.0", "0e9", "-0.0"] {
            assert_eq!(of(zero), "0", "{zero}");
        }
        assert_eq!(of("-1e3"), "-1000");
        assert_eq!(of("12345678901234567890123"), "12345678901234567890123");
        for text in ["4.25", "1e999", "1e-7", "1e99999999999"] {
            assert_eq!(of(text), text);
        }
        assert_eq!(of("true"), "true");
        for missing in ["null", "{}", "[]", "\"\"", "\"\\ud800\""] {
            assert_eq!(of(missing), "Missing", "{missing}");
        }
        assert_eq!(key(&Source::Pointer(pointer("/k")), &event(&[], "")), Key::Missing);
        assert_eq!(key(&Source::Attribute("tenant".into()), &event(&[], "")), Key::Missing);
    }

    #[test]
    fn sequences_are_decimal_integers() {
        let attribute = |text: &str| {
            sequence(&SequenceSource::Attribute("sequence".into()), &event(&[("sequence", text)], ""))
        };
        assert_eq!(attribute("0042"), Some(42));
        assert_eq!(attribute(&format!("{}7", "0".repeat(40))), Some(7));
        assert_eq!(attribute("18446744073709551614"), Some(u64::MAX - 1));
        for bad in ["", "18446744073709551615", "18446744073709551616", "-1", "+1", "1.0", "a", " 1"] {
            assert_eq!(attribute(bad), None, "{bad}");
        }
        let data = |text: &str| {
            sequence(&SequenceSource::Pointer(pointer("/n")), &event(&[], &format!(r#"{{"n":{text}}}"#)))
        };
        assert_eq!((data("42"), data("\"042\"")), (Some(42), Some(42)));
        for bad in ["-1", "1.0", "1e3", "null", "[1]", "true"] {
            assert_eq!(data(bad), None, "{bad}");
        }
    }

    #[test]
    fn json_in_base64_has_keys_too() {
        let mut event = event(&[("datacontenttype", "application/json")], r#"{"k":1}"#);
        event.data.as_mut().expect("data").form = Form::Binary;
        assert_eq!(key(&Source::Pointer(pointer("/k")), &event), Key::Found("1".into()));
        event.attributes.clear();
        assert_eq!(key(&Source::Pointer(pointer("/k")), &event), Key::Missing);
    }
}
