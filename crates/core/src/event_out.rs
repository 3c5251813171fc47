//! Output formats of an encoded event: the CloudEvents JSON format, and the headers of the HTTP binary mode.

use crate::event::{DELIVERY_ATTRIBUTES, Form, SPEC_VERSION};
use crate::event_codec::{EventView, ValueRef};
use crate::readable::is_readable;
use crate::scan;
use base64::Engine as _;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use std::borrow::Cow;
use std::io::Write;

/// The characters that the HTTP binding percent-encodes in header values: everything except printable ASCII, plus
/// space, quote and percent.
const HEADER_UNSAFE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

impl EventView<'_> {
    /// Appends the event in the JSON format. The output is always a single line, so that it can be used in line-based
    /// streams. JSON data that common parsers cannot read is written as base64.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"specversion\":\"1.0\",\"id\":");
        write_string(out, self.id());
        out.extend_from_slice(b",\"source\":");
        write_string(out, self.source());
        out.extend_from_slice(b",\"type\":");
        write_string(out, self.kind());
        for (name, value) in self.attributes() {
            out.push(b',');
            write_string(out, name);
            out.push(b':');
            write_value(out, value);
        }
        self.write_data(out);
        out.push(b'}');
    }

    fn write_data(&self, out: &mut Vec<u8>) {
        match self.form() {
            None => {}
            Some(Form::Json) if is_readable(self.data()) => {
                out.extend_from_slice(b",\"data\":");
                write_on_one_line(out, self.data());
            }
            Some(Form::Text) => {
                out.extend_from_slice(b",\"data\":");
                write_string(out, &String::from_utf8_lossy(self.data()));
            }
            Some(form @ (Form::Json | Form::Binary)) => {
                // Base64 data does not show that it is JSON, so the content type must.
                if form == Form::Json && self.raw_attributes().all(|(name, _)| name != "datacontenttype") {
                    out.extend_from_slice(b",\"datacontenttype\":\"application/json\"");
                }
                out.extend_from_slice(b",\"data_base64\":\"");
                write_base64(out, self.data());
                out.push(b'"');
            }
        }
    }

    /// Passes every header of the binary mode to `f`, with lower-case name and encoded value. This includes
    /// `content-type`.
    pub fn headers(&self, f: &mut dyn FnMut(&str, &str)) {
        f("ce-specversion", SPEC_VERSION);
        f("ce-id", &header_value(self.id()));
        f("ce-source", &header_value(self.source()));
        f("ce-type", &header_value(self.kind()));
        let mut name = String::with_capacity(64);
        let mut content_type = None;
        for (attribute, text) in self.raw_attributes() {
            if attribute == "datacontenttype" {
                content_type = Some(text);
            } else if !DELIVERY_ATTRIBUTES.contains(&attribute) {
                name.clear();
                name.push_str("ce-");
                name.push_str(attribute);
                f(&name, &header_value(text));
            }
        }
        let implied = (self.form() == Some(Form::Json)).then_some("application/json");
        if let Some(content_type) = content_type.or(implied) {
            f("content-type", content_type);
        }
    }
}

/// The text of a context attribute, encoded for a header as the HTTP binding requires; borrowed if no encoding is
/// needed.
pub fn header_value(text: &str) -> Cow<'_, str> {
    let is_safe = |byte: u8| (byte > b' ') & (byte < 0x7f) & (byte != b'"') & (byte != b'%');
    match scan::all(text.as_bytes(), is_safe) {
        true => Cow::Borrowed(text),
        false => utf8_percent_encode(text, HEADER_UNSAFE).into(),
    }
}

pub(crate) fn write_value(out: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::String(text) => write_string(out, text),
        ValueRef::Integer(number) => write!(out, "{number}").expect("writing to a Vec does not fail"),
        ValueRef::Boolean(flag) => out.extend_from_slice(if flag { b"true" } else { b"false" }),
    }
}

pub(crate) fn write_string(out: &mut Vec<u8>, text: &str) {
    let is_plain = |byte: u8| (byte >= b' ') & (byte != b'"') & (byte != b'\\');
    if scan::all(text.as_bytes(), is_plain) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        return out.push(b'"');
    }
    serde_json::to_writer(out, text).expect("writing to a Vec does not fail");
}

/// JSON has line breaks only between tokens, where a space is equivalent.
pub(crate) fn write_on_one_line(out: &mut Vec<u8>, json: &[u8]) {
    let from = out.len();
    out.extend_from_slice(json);
    // Every byte is written, because the compiler can vectorize such a loop.
    for byte in &mut out[from..] {
        *byte = if (*byte == b'\n') | (*byte == b'\r') { b' ' } else { *byte };
    }
}

pub(crate) fn write_base64(out: &mut Vec<u8>, data: &[u8]) {
    let from = out.len();
    out.resize(from + data.len().div_ceil(3) * 4, 0);
    let written = base64::prelude::BASE64_STANDARD.encode_slice(data, &mut out[from..]);
    out.truncate(from + written.expect("the buffer has the exact size"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary;
    use crate::event::{Attribute, Data, Event, Value};
    use proptest::prelude::*;

    fn sample() -> Event {
        let text =
            |name: &str, value: &str| Attribute { name: name.into(), value: Value::String(value.into()) };
        Event {
            id: "e 1%".into(),
            source: "/shop".into(),
            kind: "order.paid".into(),
            attributes: vec![
                text("subject", "Euro € 😀"),
                text("lanesequence", "9"),
                text("previousid", "x"),
                text("orderstatus", "late"),
                Attribute { name: "tries".into(), value: Value::Integer(-3) },
                Attribute { name: "vip".into(), value: Value::Boolean(true) },
            ],
            data: Some(Data { bytes: "{\n \"n\": 1.10}".into(), form: Form::Json }),
        }
    }

    fn headers(event: &Event) -> Vec<(String, String)> {
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        let mut headers = Vec::new();
        EventView::decode(&bytes)
            .expect("encoded")
            .headers(&mut |n, v| headers.push((n.to_owned(), v.to_owned())));
        headers
    }

    #[test]
    fn headers_are_encoded_and_ours_left_out() {
        let expected = [
            ("ce-specversion", "1.0"),
            ("ce-id", "e%201%25"),
            ("ce-source", "/shop"),
            ("ce-type", "order.paid"),
            ("ce-subject", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("ce-tries", "-3"),
            ("ce-vip", "true"),
            ("content-type", "application/json"),
        ];
        assert_eq!(headers(&sample()), expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
    }

    #[test]
    fn json_keeps_the_digits_on_one_line() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        let mut json = Vec::new();
        EventView::decode(&bytes).expect("encoded").write_json(&mut json);
        let json = String::from_utf8(json).expect("text");
        assert!(json.ends_with(r#""tries":-3,"vip":true,"data":{  "n": 1.10}}"#), "{json}");
    }

    #[test]
    fn json_that_readers_refuse_is_written_as_base64() {
        let deep = ["[".repeat(124), "]".repeat(124)].concat();
        for data in [deep.as_str(), "1e999", r#""\ud800""#] {
            let data = Data { bytes: data.to_owned().into(), form: Form::Json };
            let event = Event { attributes: Vec::new(), data: Some(data), ..sample() };
            let mut bytes = Vec::new();
            event.encode(&mut bytes);
            let mut json = Vec::new();
            EventView::decode(&bytes).expect("encoded").write_json(&mut json);
            let value: serde_json::Value = serde_json::from_slice(&json).expect("readable");
            assert_eq!(value["datacontenttype"], "application/json");
            assert!(value["data_base64"].is_string() && value.get("data").is_none(), "{value}");
            assert_eq!(value, event.to_json());
        }
    }

    proptest! {
        #[test]
        fn the_written_json_is_the_event(event in arbitrary::event()) {
            let mut bytes = Vec::new();
            event.encode(&mut bytes);
            let mut json = Vec::new();
            EventView::decode(&bytes).expect("encoded").write_json(&mut json);
            prop_assert!(!json.contains(&b'\n'));
            let value: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
            prop_assert_eq!(value, event.to_json());
        }
    }

    #[test]
    fn a_header_value_that_is_safe_stays_as_it_is() {
        for character in '\0'..='\u{100}' {
            let text = format!("a{character}");
            let encoded = header_value(&text);
            assert_eq!(encoded, utf8_percent_encode(&text, HEADER_UNSAFE).to_string());
            assert_eq!(matches!(encoded, Cow::Borrowed(_)), encoded == text, "{text:?}");
        }
    }
}
