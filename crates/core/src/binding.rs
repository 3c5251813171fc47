//! The CloudEvents 1.0 HTTP binding, as a pure function of headers and body.
//!
//! A request is refused as a whole only if it cannot be split into events. Otherwise each event is checked on its
//! own, and all faults of an event are reported together.

mod draft;
mod structured;

use crate::event::{Data, Event, Form, Value, is_json, is_json_media, media_essence};
use crate::fault::{Fault, excerpt};
use crate::scan;
use bytes::Bytes;
use draft::Draft;
use percent_encoding::percent_decode;
use std::borrow::Cow;

const STRUCTURED: &str = "application/cloudevents+json";
const BATCH: &str = "application/cloudevents-batch+json";
const WHAT_TO_SEND: &str = "send application/cloudevents+json, application/cloudevents-batch+json, \
    or any content type with the headers ce-specversion, ce-id, ce-source and ce-type";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub batch_events_max: usize,
    /// Attributes (names and values) and data together.
    pub event_bytes_max: usize,
    pub attributes_max: usize,
    pub attribute_bytes_max: usize,
    /// Accept events without `id` and `source`. The missing attributes are left empty, and the caller fills them in.
    pub may_lack_identity: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            batch_events_max: 1000,
            event_bytes_max: 1 << 20,
            attributes_max: 64,
            attribute_bytes_max: 4096,
            may_lack_identity: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Binary,
    Structured,
    Batch,
}

/// The reason why a request was refused before any of its events was checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    UnsupportedMediaType(String),
    #[error("the request contains no readable event")]
    BadRequest(Vec<Fault>),
    #[error("the request has too many {what}: at most {limit}")]
    TooLarge { what: &'static str, limit: usize },
}

/// An event that cannot be accepted, with the parts of its identity that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    pub id: Option<String>,
    pub source: Option<String>,
    pub faults: Vec<Fault>,
    pub cause: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is not a valid event.
    Invalid,
    TooLarge,
    /// Its data does not match the schema of its type.
    Schema(Box<Mismatch>),
}

/// Where the data of an event does not match the schema of its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub event_type: String,
    /// A JSON pointer in the data.
    pub pointer: String,
    /// The keyword of the schema.
    pub rule: String,
}

/// The events of a request, in request order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    pub mode: Mode,
    pub events: Vec<Result<Event, Rejected>>,
    /// Number of events without `specversion`, which were read as 1.0. Only the JSON format allows this. In binary
    /// mode the `ce-specversion` header is what distinguishes an event from any other request.
    pub unversioned: usize,
}

/// `headers` may contain all headers of the request; `parse` picks those of the event.
pub fn parse<'a>(
    content_type: Option<&str>,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    body: Bytes,
    limits: &Limits,
) -> Result<Parsed, Refusal> {
    let essence = content_type.map(media_essence).unwrap_or_default();
    if essence.eq_ignore_ascii_case(STRUCTURED) {
        return structured::single(&body, limits);
    }
    if essence.eq_ignore_ascii_case(BATCH) {
        return structured::batch(&body, limits);
    }
    if essence.get(..23).is_some_and(|start| start.eq_ignore_ascii_case("application/cloudevents")) {
        return Err(unsupported(essence));
    }
    let events = vec![binary(content_type, headers, body, limits)?];
    Ok(Parsed { mode: Mode::Binary, events, unversioned: 0 })
}

fn binary<'a>(
    content_type: Option<&str>,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    body: Bytes,
    limits: &Limits,
) -> Result<Result<Event, Rejected>, Refusal> {
    let mut draft = Draft::new(limits, None);
    let mut any = false;
    for (name, value) in headers {
        let Some(name) = attribute_name(name) else { continue };
        any = true;
        match header_text(value) {
            Some(text) => draft.set(&name, Value::String(text)),
            None => draft.fault(&name, "the header is not valid UTF-8"),
        }
    }
    if !any {
        return Err(unsupported(content_type.unwrap_or_default()));
    }
    if !draft.has_version() {
        return Err(Refusal::BadRequest(vec![Fault::new(
            "specversion",
            "the header ce-specversion is missing: send 1.0",
        )]));
    }
    if let Some(content_type) = content_type.filter(|text| !text.is_empty()) {
        draft.set("datacontenttype", Value::String(content_type.to_owned()));
    }
    let data = binary_data(&mut draft, body);
    Ok(draft.finish(data))
}

fn unsupported(content_type: &str) -> Refusal {
    Refusal::UnsupportedMediaType(match content_type {
        "" => format!("the request has no content type: {WHAT_TO_SEND}"),
        other => format!("`{}` is not a content type for events: {WHAT_TO_SEND}", excerpt(other)),
    })
}

fn attribute_name(header: &str) -> Option<Cow<'_, str>> {
    let (prefix, name) = header.split_at_checked(3)?;
    if !prefix.eq_ignore_ascii_case("ce-") {
        return None;
    }
    match scan::all(name.as_bytes(), |byte| !byte.is_ascii_uppercase()) {
        true => Some(Cow::Borrowed(name)),
        false => Some(Cow::Owned(name.to_ascii_lowercase())),
    }
}

/// The attribute value in a header: removes the quotes of a quoted string, then undoes percent-encoding once. `None`
/// if the result is not UTF-8.
fn header_text(value: &[u8]) -> Option<String> {
    let unquoted = unquote(value);
    if !unquoted.contains(&b'%') {
        return std::str::from_utf8(&unquoted).ok().map(str::to_owned);
    }
    percent_decode(&unquoted).decode_utf8().ok().map(Cow::into_owned)
}

fn unquote(value: &[u8]) -> Cow<'_, [u8]> {
    let [b'"', inner @ .., b'"'] = value else { return Cow::Borrowed(value) };
    if !inner.contains(&b'\\') {
        return Cow::Borrowed(inner);
    }
    let mut text = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(byte) = bytes.next() {
        text.push(if *byte == b'\\' { *bytes.next().unwrap_or(byte) } else { *byte });
    }
    Cow::Owned(text)
}

/// The body as data; `None` if the body is empty.
fn binary_data(draft: &mut Draft<'_>, body: Bytes) -> Option<Data> {
    if body.is_empty() {
        return None;
    }
    let form = match draft.content_type() {
        // Without a content type, the data is JSON if the body parses as JSON.
        None => {
            if is_json(&body) {
                Form::Json
            } else {
                Form::Binary
            }
        }
        // In binary mode the body is opaque. The content type is trusted here; code that needs JSON checks the body.
        Some(media) if is_json_media(media) => Form::Json,
        Some(media) if is_utf8_text(media) && std::str::from_utf8(&body).is_ok() => Form::Text,
        Some(_) => Form::Binary,
    };
    Some(Data { bytes: body, form })
}

/// `text/…`, unless the charset is neither UTF-8 nor US-ASCII.
fn is_utf8_text(media: &str) -> bool {
    let lower = media.to_ascii_lowercase();
    let encoding = lower.split_once("charset=").map(|(_, rest)| rest.trim_start_matches('"'));
    lower.starts_with("text/")
        && encoding.is_none_or(|name| name.starts_with("utf-8") || name.starts_with("us-ascii"))
}

#[cfg(test)]
mod tests;
