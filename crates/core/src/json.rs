//! Reads single values from raw JSON text without copying. The text must be valid JSON.

use std::borrow::Cow;

/// The value of a raw JSON text.
#[derive(Debug, PartialEq)]
pub(crate) enum Scalar<'a> {
    Null,
    Boolean(bool),
    /// As written, because JSON numbers have no size limit.
    Number(&'a str),
    String(Cow<'a, str>),
    /// An array or an object.
    Compound,
    /// A string with an invalid escape, such as half a surrogate pair.
    Unreadable,
}

pub(crate) fn scalar(raw: &str) -> Scalar<'_> {
    match raw.as_bytes().first() {
        Some(b'n') | None => Scalar::Null,
        Some(b't') => Scalar::Boolean(true),
        Some(b'f') => Scalar::Boolean(false),
        Some(b'{' | b'[') => Scalar::Compound,
        Some(b'"') => string(raw).map_or(Scalar::Unreadable, Scalar::String),
        Some(_) => Scalar::Number(raw),
    }
}

/// The characters of a JSON string; borrowed unless it has escapes.
fn string(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    match inner.contains('\\') {
        false => Some(Cow::Borrowed(inner)),
        true => serde_json::from_str::<String>(raw).ok().map(Cow::Owned),
    }
}
