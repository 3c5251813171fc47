//! The log's encoding of an event, and a view that reads it without copying.
//!
//! ```text
//! u8      version (1)
//! u8      form of the data: 0 none, 1 JSON, 2 text, 3 binary
//! varint  length of id, of source, of type; number of attributes
//! per attribute: varint length of its name; varint (length of its value << 2 | type: 0 string, 1 integer, 2 boolean)
//! text    id, source, type, then name and value of each attribute, end to end
//! bytes   the data, to the end
//! ```
//! All text is stored together: one UTF-8 check covers it, and every attribute is a slice of it. Integers and
//! booleans are stored as text, because they are delivered as text.

use crate::event::{Attribute, Attributes, Data, Event, Form, SPEC_VERSION, Value, holds_json};
use bytes::Bytes;
use std::borrow::Cow;
use std::io::Write;
use std::ops::Range;

const VERSION: u8 = 1;
const STRING: u64 = 0;
const INTEGER: u64 = 1;
const BOOLEAN: u64 = 2;

/// The bytes are not an encoded event; the text gives the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an encoded event: {0}")]
pub struct Malformed(pub &'static str);

/// An encoded event, validated once and read in place.
#[derive(Clone, Copy, Debug)]
pub struct EventView<'a> {
    bytes: &'a [u8],
    id: &'a str,
    source: &'a str,
    kind: &'a str,
    attributes: RawAttributes<'a>,
    form: Option<Form>,
    data_at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRef<'a> {
    String(&'a str),
    Integer(i64),
    Boolean(bool),
}

impl Event {
    /// Appends the encoding of this event.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len_max());
        out.push(VERSION);
        out.push(form_byte(self.data.as_ref().map(|data| data.form)));
        for text in [&self.id, &self.source, &self.kind] {
            write_varint(out, text.len() as u64);
        }
        write_varint(out, self.attributes.len() as u64);
        for attribute in &self.attributes {
            write_varint(out, attribute.name.len() as u64);
            write_varint(out, value_head(&attribute.value));
        }
        for text in [&self.id, &self.source, &self.kind] {
            out.extend_from_slice(text.as_bytes());
        }
        for attribute in &self.attributes {
            out.extend_from_slice(attribute.name.as_bytes());
            write_value(out, &attribute.value);
        }
        if let Some(data) = &self.data {
            out.extend_from_slice(&data.bytes);
        }
    }

    /// An upper bound for the length of the encoding.
    pub fn encoded_len_max(&self) -> usize {
        let attributes: usize =
            self.attributes.iter().map(|a| a.name.len() + 32 + string_len(&a.value)).sum();
        let data = self.data.as_ref().map_or(0, |data| data.bytes.len());
        64 + self.id.len() + self.source.len() + self.kind.len() + attributes + data
    }
}

impl<'a> EventView<'a> {
    pub fn decode(bytes: &'a [u8]) -> Result<EventView<'a>, Malformed> {
        let Parts { form, lengths: [id, source, kind], count, attributes, text, data } = Parts::of(bytes)?;
        if form.is_none() && !data.is_empty() {
            return Err(Malformed("bytes after an event without data"));
        }
        let mut text = Text(utf8(text)?);
        let (id, source, kind) = (text.take(id)?, text.take(source)?, text.take(kind)?);
        let attributes = RawAttributes { left: count, lengths: attributes, text };
        attributes.check()?;
        Ok(EventView { bytes, id, source, kind, attributes, form, data_at: bytes.len() - data.len() })
    }

    /// Reads only the id and the type. The rest is not validated.
    pub fn id_and_kind(bytes: &'a [u8]) -> Result<(&'a str, &'a str), Malformed> {
        let Parts { lengths: [id, source, kind], text, .. } = Parts::of(bytes)?;
        let (id, rest) = text.split_at(id);
        Ok((utf8(id)?, utf8(&rest[source..][..kind])?))
    }

    /// Reads only the id and the source.
    pub fn id_and_source(bytes: &'a [u8]) -> Result<(&'a str, &'a str), Malformed> {
        let Parts { lengths: [id, source, _], text, .. } = Parts::of(bytes)?;
        let (id, rest) = text.split_at(id);
        Ok((utf8(id)?, utf8(&rest[..source])?))
    }

    pub fn id(&self) -> &'a str {
        self.id
    }

    pub fn source(&self) -> &'a str {
        self.source
    }

    /// The CloudEvents `type`.
    pub fn kind(&self) -> &'a str {
        self.kind
    }

    /// Every context attribute except `specversion`, `id`, `source` and `type`, in the producer's order.
    pub fn attributes(&self) -> impl Iterator<Item = (&'a str, ValueRef<'a>)> + use<'a> {
        self.attributes.filter_map(|(name, kind, text)| Some((name, ValueRef::read(kind, text)?)))
    }

    /// Any context attribute by its CloudEvents name, as text.
    pub fn attribute(&self, name: &str) -> Option<Cow<'a, str>> {
        self.attribute_str(name).map(Cow::Borrowed)
    }

    fn attribute_str(&self, name: &str) -> Option<&'a str> {
        match name {
            "id" => Some(self.id),
            "source" => Some(self.source),
            "type" => Some(self.kind),
            "specversion" => Some(SPEC_VERSION),
            _ => self.raw_attributes().find(|(known, _)| *known == name).map(|(_, text)| text),
        }
    }

    /// The name and text of each attribute, regardless of its type.
    pub(crate) fn raw_attributes(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.attributes.map(|(name, _, text)| (name, text))
    }

    pub fn data(&self) -> &'a [u8] {
        &self.bytes[self.data_at..]
    }

    pub fn has_data(&self) -> bool {
        self.form.is_some()
    }

    /// `None` if the event has no data.
    pub fn form(&self) -> Option<Form> {
        self.form
    }

    /// The range of the data within the decoded slice, for callers that hold the slice as `Bytes`.
    pub fn data_range(&self) -> Range<usize> {
        self.data_at..self.bytes.len()
    }

    pub fn to_event(&self) -> Event {
        let own = |(name, value): (&str, ValueRef<'_>)| Attribute {
            name: name.to_owned(),
            value: value.to_value(),
        };
        Event {
            id: self.id.to_owned(),
            source: self.source.to_owned(),
            kind: self.kind.to_owned(),
            attributes: self.attributes().map(own).collect(),
            data: self.form.map(|form| Data { bytes: Bytes::copy_from_slice(self.data()), form }),
        }
    }
}

impl Attributes for EventView<'_> {
    fn attribute(&self, name: &str) -> Option<Cow<'_, str>> {
        EventView::attribute(self, name)
    }

    fn json_data(&self) -> Option<&[u8]> {
        holds_json(self.form?, || EventView::attribute(self, "datacontenttype")).then(|| self.data())
    }
}

impl<'a> ValueRef<'a> {
    fn read(kind: u64, text: &'a str) -> Option<ValueRef<'a>> {
        match kind {
            STRING => Some(ValueRef::String(text)),
            INTEGER => text.parse().ok().map(ValueRef::Integer),
            BOOLEAN => text.parse().ok().map(ValueRef::Boolean),
            _ => None,
        }
    }

    pub fn to_value(self) -> Value {
        match self {
            ValueRef::String(text) => Value::String(text.to_owned()),
            ValueRef::Integer(number) => Value::Integer(number),
            ValueRef::Boolean(flag) => Value::Boolean(flag),
        }
    }
}

/// An encoded event, split by its lengths.
struct Parts<'a> {
    form: Option<Form>,
    /// The lengths of id, source and type, which come first in the text.
    lengths: [usize; 3],
    /// The number of attributes; `attributes` holds their lengths.
    count: usize,
    attributes: Reader<'a>,
    text: &'a [u8],
    data: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(bytes: &'a [u8]) -> Result<Parts<'a>, Malformed> {
        let mut head = Reader { rest: bytes };
        if head.byte()? != VERSION {
            return Err(Malformed("unknown version"));
        }
        let form = form_of(head.byte()?)?;
        let lengths = [head.length()?, head.length()?, head.length()?];
        let count = head.length()?;
        let attributes = head;
        let mut text_len = lengths.into_iter().fold(0, usize::saturating_add);
        for _ in 0..count {
            let (name, value, _) = head.attribute()?;
            text_len = text_len.saturating_add(name).saturating_add(value);
        }
        let (text, data) = head.rest.split_at_checked(text_len).ok_or(Malformed("the text is truncated"))?;
        Ok(Parts { form, lengths, count, attributes, text, data })
    }
}

fn utf8(text: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(text).map_err(|_| Malformed("the text is not UTF-8"))
}

/// The attributes that are not read yet. Their lengths and their text are in separate places.
#[derive(Clone, Copy, Debug)]
struct RawAttributes<'a> {
    left: usize,
    lengths: Reader<'a>,
    text: Text<'a>,
}

impl<'a> RawAttributes<'a> {
    /// Walks all attributes once, so that a later iteration cannot fail.
    fn check(mut self) -> Result<(), Malformed> {
        while self.left > 0 {
            let (_, kind, text) = self.step()?;
            ValueRef::read(kind, text)
                .ok_or(Malformed("the value of an attribute does not match its type"))?;
        }
        Ok(())
    }

    #[inline]
    fn step(&mut self) -> Result<(&'a str, u64, &'a str), Malformed> {
        let (name, value, kind) = self.lengths.attribute()?;
        self.left -= 1;
        Ok((self.text.take(name)?, kind, self.text.take(value)?))
    }
}

impl<'a> Iterator for RawAttributes<'a> {
    type Item = (&'a str, u64, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 { None } else { self.step().ok() }
    }
}

#[derive(Clone, Copy, Debug)]
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn take(&mut self, len: usize) -> Result<&'a str, Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed("a length splits a character"))?;
        self.0 = rest;
        Ok(taken)
    }
}

#[derive(Clone, Copy, Debug)]
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.rest.split_first().ok_or(Malformed("the encoding is truncated"))?;
        self.rest = rest;
        Ok(*first)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed("a length is too long"))
    }

    fn length(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.varint()?).map_err(|_| Malformed("a length is too long"))
    }

    /// The lengths of the name and the value, and the type of the value.
    fn attribute(&mut self) -> Result<(usize, usize, u64), Malformed> {
        let (name, head) = (self.length()?, self.length()?);
        Ok((name, head >> 2, head as u64 & 3))
    }
}

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn value_head(value: &Value) -> u64 {
    match value {
        Value::String(text) => (text.len() as u64) << 2 | STRING,
        Value::Integer(number) => decimal_len(*number) << 2 | INTEGER,
        Value::Boolean(flag) => (if *flag { 4 } else { 5 }) << 2 | BOOLEAN,
    }
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::String(text) => out.extend_from_slice(text.as_bytes()),
        Value::Integer(number) => write!(out, "{number}").expect("writing to a Vec does not fail"),
        Value::Boolean(flag) => out.extend_from_slice(if *flag { b"true" } else { b"false" }),
    }
}

fn string_len(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Integer(_) | Value::Boolean(_) => 0,
    }
}

fn decimal_len(number: i64) -> u64 {
    let digits = number.unsigned_abs().checked_ilog10().map_or(1, |log| log + 1);
    u64::from(digits) + u64::from(number < 0)
}

fn form_byte(form: Option<Form>) -> u8 {
    match form {
        None => 0,
        Some(Form::Json) => 1,
        Some(Form::Text) => 2,
        Some(Form::Binary) => 3,
    }
}

fn form_of(byte: u8) -> Result<Option<Form>, Malformed> {
    match byte {
        0 => Ok(None),
        1 => Ok(Some(Form::Json)),
        2 => Ok(Some(Form::Text)),
        3 => Ok(Some(Form::Binary)),
        _ => Err(Malformed("unknown data form")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary;
    use proptest::prelude::*;

    fn encoded(event: &Event) -> Vec<u8> {
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        bytes
    }

    /// Reads everything that a view offers. A view that passed validation must never panic.
    fn exercise(bytes: &[u8]) {
        let id_and_kind = EventView::id_and_kind(bytes);
        let Ok(view) = EventView::decode(bytes) else { return };
        assert_eq!(id_and_kind, Ok((view.id(), view.kind())));
        assert_eq!(EventView::id_and_source(bytes), Ok((view.id(), view.source())));
        let event = view.to_event();
        assert_eq!(event.attributes.len(), view.attributes().count());
        assert_eq!(&bytes[view.data_range()], view.data());
        let _ = (view.attribute("subject"), view.json_data());
        view.headers(&mut |_, _| ());
        view.write_json(&mut Vec::new());
        let again = encoded(&event);
        assert_eq!(EventView::decode(&again).expect("encoded").to_event(), event);
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_the_same_event(event in arbitrary::event(), extra in any::<i64>()) {
            let mut event = event;
            event.attributes.push(Attribute { name: "extra".into(), value: Value::Integer(extra) });
            let bytes = encoded(&event);
            let view = EventView::decode(&bytes).expect("encoded");
            prop_assert_eq!(view.to_event(), event.clone());
            prop_assert!(bytes.len() <= event.encoded_len_max());
            for name in ["id", "source", "type", "specversion", "subject", "extra", "datacontenttype", "absent"] {
                prop_assert_eq!(view.attribute(name), event.attribute(name));
            }
            prop_assert_eq!(Attributes::json_data(&view), Attributes::json_data(&event));
        }

        #[test]
        fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), valid in any::<bool>()) {
            if valid && bytes.len() > 2 {
                bytes[0] = VERSION;
                bytes[1] %= 4;
            }
            exercise(&bytes);
        }

        #[test]
        fn damaged_events_never_panic(
            event in arbitrary::event(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = encoded(&event);
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            exercise(&bytes);
            exercise(&bytes[..cut.index(bytes.len())]);
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let huge = [VERSION, 0, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0];
        assert!(EventView::decode(&huge).is_err());
        assert!(EventView::decode(&[VERSION, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
        assert!(EventView::decode(&[2, 0, 0, 0, 0, 0]).is_err());
        assert!(EventView::decode(&[VERSION, 0, 0, 0, 0, 0, b'x']).is_err());
        assert!(EventView::decode(&[VERSION, 0, 1, 1, 0, 0, 0xc3, 0xa9]).is_err());
        assert!(EventView::decode(&[VERSION, 0, 0, 0, 0, 0]).is_ok());
    }
}
