//! A CloudEvent 1.0 in memory: its context attributes in the order of arrival, and its data byte for byte.

use crate::readable::is_readable;
use base64::Engine as _;
use bytes::Bytes;
use serde_json::Map;
use std::borrow::Cow;

/// The only supported version of the specification.
pub const SPEC_VERSION: &str = "1.0";

/// The attributes that a delivery sets. If a producer sets an attribute of the same name, it is not passed on.
pub const DELIVERY_ATTRIBUTES: [&str; 3] = ["lanesequence", "previousid", "orderstatus"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: String,
    pub source: String,
    /// The CloudEvents `type`.
    pub kind: String,
    /// All other context attributes except `specversion`: optional attributes and extensions.
    pub attributes: Vec<Attribute>,
    pub data: Option<Data>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    pub name: String,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    String(String),
    Integer(i64),
    Boolean(bool),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    pub bytes: Bytes,
    pub form: Form,
}

/// How the data appears in a structured event. In binary mode, all three forms are plain bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A JSON text, kept byte for byte.
    Json,
    /// UTF-8 text whose content type is not JSON. In structured mode, it is a JSON string.
    Text,
    /// Anything else. In structured mode, it is `data_base64`.
    Binary,
}

/// The parts of an event that filters, keys and sequences read, for all representations of an event.
pub trait Attributes {
    /// Any context attribute as text, including the required ones.
    fn attribute(&self, name: &str) -> Option<Cow<'_, str>>;

    /// The data, if it is JSON.
    fn json_data(&self) -> Option<&[u8]> {
        None
    }
}

impl Event {
    /// Any context attribute by its CloudEvents name, including `id`, `source`, `type` and `specversion`.
    pub fn attribute(&self, name: &str) -> Option<Cow<'_, str>> {
        match name {
            "id" => Some(Cow::Borrowed(&self.id)),
            "source" => Some(Cow::Borrowed(&self.source)),
            "type" => Some(Cow::Borrowed(&self.kind)),
            "specversion" => Some(Cow::Borrowed(SPEC_VERSION)),
            _ => self.attributes.iter().find(|a| a.name == name).map(|a| a.value.text()),
        }
    }

    /// Passes every context attribute to `take`, including the required ones.
    pub fn each_attribute(&self, mut take: impl FnMut(&str, &str)) {
        take("id", &self.id);
        take("source", &self.source);
        take("type", &self.kind);
        take("specversion", SPEC_VERSION);
        self.attributes.iter().for_each(|attribute| take(&attribute.name, &attribute.value.text()));
    }

    /// The event in the CloudEvents JSON format. Numbers in the data pass through `serde_json::Value` and may lose
    /// digits. To keep every digit, use [`crate::event_codec::EventView::write_json`].
    pub fn to_json(&self) -> serde_json::Value {
        let mut object = Map::new();
        object.insert("specversion".into(), SPEC_VERSION.into());
        object.insert("id".into(), self.id.as_str().into());
        object.insert("source".into(), self.source.as_str().into());
        object.insert("type".into(), self.kind.as_str().into());
        for attribute in &self.attributes {
            object.insert(attribute.name.clone(), attribute.value.to_json());
        }
        if let Some(data) = &self.data {
            let (name, value) = data.to_json();
            if data.form == Form::Json && name == "data_base64" {
                object.entry("datacontenttype").or_insert_with(|| "application/json".into());
            }
            object.insert(name.into(), value);
        }
        serde_json::Value::Object(object)
    }
}

impl Attributes for Event {
    fn attribute(&self, name: &str) -> Option<Cow<'_, str>> {
        Event::attribute(self, name)
    }

    fn json_data(&self) -> Option<&[u8]> {
        let data = self.data.as_ref()?;
        holds_json(data.form, || Event::attribute(self, "datacontenttype")).then_some(&data.bytes[..])
    }
}

/// True if the bytes are a single JSON text.
pub(crate) fn is_json(bytes: &[u8]) -> bool {
    let text = std::str::from_utf8(bytes);
    text.is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok())
}

/// Data sent as `data_base64` counts as JSON if the content type says so.
pub(crate) fn holds_json<'a>(form: Form, content_type: impl FnOnce() -> Option<Cow<'a, str>>) -> bool {
    match form {
        Form::Json => true,
        Form::Text => false,
        Form::Binary => content_type().is_some_and(|media| is_json_media(&media)),
    }
}

/// `application/json`, `text/json`, `application/geo+json; charset=utf-8`, …
pub(crate) fn is_json_media(content_type: &str) -> bool {
    let essence = media_essence(content_type);
    let Some((_, subtype)) = essence.split_once('/') else { return false };
    let subtype = subtype.as_bytes();
    let ends = |suffix: &[u8]| {
        subtype.len() >= suffix.len() && subtype[subtype.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
    };
    subtype.eq_ignore_ascii_case(b"json") || ends(b"+json")
}

/// A media type without its parameters.
pub(crate) fn media_essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

impl Value {
    /// The canonical string of the CloudEvents type system.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Value::String(text) => Cow::Borrowed(text),
            Value::Integer(number) => Cow::Owned(number.to_string()),
            Value::Boolean(true) => Cow::Borrowed("true"),
            Value::Boolean(false) => Cow::Borrowed("false"),
        }
    }

    fn to_json(&self) -> serde_json::Value {
        match self {
            Value::String(text) => text.as_str().into(),
            Value::Integer(number) => (*number).into(),
            Value::Boolean(flag) => (*flag).into(),
        }
    }
}

impl Data {
    /// The member that carries the data in structured mode.
    fn to_json(&self) -> (&'static str, serde_json::Value) {
        let text = || String::from_utf8_lossy(&self.bytes).into_owned();
        match self.form {
            Form::Json if is_readable(&self.bytes) => {
                ("data", serde_json::from_slice(&self.bytes).unwrap_or_default())
            }
            Form::Text => ("data", text().into()),
            Form::Json | Form::Binary => {
                ("data_base64", base64::prelude::BASE64_STANDARD.encode(&self.bytes).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_media_types_are_known() {
        for json in
            ["application/json", "text/JSON", "application/geo+json; charset=utf-8", "application/json;v=1"]
        {
            assert!(is_json_media(json), "{json}");
        }
        for other in ["", "json", "application/jsonp", "text/plain; x=application/json", "application/xml"] {
            assert!(!is_json_media(other), "{other}");
        }
    }
}
