//! An event under construction: collects attributes from either mode, and the faults found on the way.

use super::{Cause, Limits, Rejected};
use crate::event::{Attribute, Data, Event, SPEC_VERSION, Value};
use crate::fault::{Fault, excerpt};
use crate::scan;

pub(super) struct Draft<'l> {
    limits: &'l Limits,
    /// Index in the batch.
    index: Option<usize>,
    version: bool,
    id: Option<String>,
    source: Option<String>,
    kind: Option<String>,
    attributes: Vec<Attribute>,
    bytes: usize,
    faults: Vec<Fault>,
}

impl<'l> Draft<'l> {
    pub(super) fn new(limits: &'l Limits, index: Option<usize>) -> Draft<'l> {
        let (attributes, faults) = (Vec::with_capacity(6), Vec::new());
        Draft {
            limits,
            index,
            version: false,
            id: None,
            source: None,
            kind: None,
            attributes,
            bytes: 0,
            faults,
        }
    }

    pub(super) fn has_version(&self) -> bool {
        self.version
    }

    /// Assumes version 1.0, the only supported version, if the event has none. Returns true if the event had no
    /// version.
    pub(super) fn assume_version(&mut self) -> bool {
        !std::mem::replace(&mut self.version, true)
    }

    pub(super) fn content_type(&self) -> Option<&str> {
        self.attributes.iter().find(|a| a.name == "datacontenttype").and_then(|a| match &a.value {
            Value::String(text) => Some(text.as_str()),
            Value::Integer(_) | Value::Boolean(_) => None,
        })
    }

    /// Records a fault. An empty `name` means the event as a whole.
    pub(super) fn fault(&mut self, name: &str, message: impl Into<String>) {
        let name = excerpt(name);
        let path = match self.index {
            None => name,
            Some(index) if name.is_empty() => format!("[{index}]"),
            Some(index) => format!("[{index}].{name}"),
        };
        self.faults.push(Fault::new(path, message));
    }

    /// Stores one context attribute, even if it is faulty: a faulty id still identifies the rejected event.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        if let Some(wrong) = wrong_name(name) {
            return self.fault(name, wrong);
        }
        if self.has(name) {
            return self.fault(name, "must not appear more than once");
        }
        if let Some(wrong) = wrong_value(name, &value, self.limits) {
            self.fault(name, wrong);
        }
        self.bytes += name.len() + text_len(&value);
        match (name, value) {
            ("specversion", _) => self.version = true,
            ("id", Value::String(text)) => self.id = Some(text),
            ("source", Value::String(text)) => self.source = Some(text),
            ("type", Value::String(text)) => self.kind = Some(text),
            ("id" | "source" | "type", _) => {}
            (name, value) => self.push(name, value),
        }
    }

    fn push(&mut self, name: &str, value: Value) {
        // Keeps one attribute more than the limit, so that the fault is reported only once.
        match self.attributes.len().cmp(&self.limits.attributes_max) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => {
                self.fault("", format!("more than {} attributes", self.limits.attributes_max))
            }
            std::cmp::Ordering::Greater => return,
        }
        self.attributes.push(Attribute { name: name.to_owned(), value });
    }

    fn has(&self, name: &str) -> bool {
        match name {
            "specversion" => self.version,
            "id" => self.id.is_some(),
            "source" => self.source.is_some(),
            "type" => self.kind.is_some(),
            _ => self.attributes.iter().any(|a| a.name == name),
        }
    }

    pub(super) fn finish(mut self, data: Option<Data>) -> Result<Event, Rejected> {
        if self.limits.may_lack_identity && self.faults.is_empty() {
            self.id.get_or_insert_default();
            self.source.get_or_insert_default();
        }
        let may_lack = self.limits.may_lack_identity;
        for name in ["specversion", "id", "source", "type"] {
            if !(may_lack && matches!(name, "id" | "source")) {
                self.require(name);
            }
        }
        self.bytes += data.as_ref().map_or(0, |data| data.bytes.len());
        let too_large = self.bytes > self.limits.event_bytes_max;
        if too_large {
            self.fault(
                "",
                format!("the event has {} bytes; the maximum is {}", self.bytes, self.limits.event_bytes_max),
            );
        }
        match (self.id, self.source, self.kind) {
            (Some(id), Some(source), Some(kind)) if self.faults.is_empty() => {
                Ok(Event { id, source, kind, attributes: self.attributes, data })
            }
            (id, source, _) => {
                let cause = if too_large { Cause::TooLarge } else { Cause::Invalid };
                Err(Rejected { id, source, faults: self.faults, cause })
            }
        }
    }

    fn require(&mut self, name: &str) {
        let told = |fault: &Fault| fault.path.rsplit('.').next() == Some(name);
        if !self.has(name) && !self.faults.iter().any(told) {
            self.fault(name, "missing");
        }
    }
}

fn wrong_name(name: &str) -> Option<&'static str> {
    let plain = |byte: u8| byte.is_ascii_lowercase() | byte.is_ascii_digit();
    match name {
        "" => Some("an attribute must have a name"),
        "data" => Some("an attribute must not be named data"),
        _ if !scan::all(name.as_bytes(), plain) => {
            Some("attribute names may contain only the letters a-z and digits")
        }
        _ if name.len() > 64 => Some("attribute names may have at most 64 characters"),
        _ => None,
    }
}

fn wrong_value(name: &str, value: &Value, limits: &Limits) -> Option<String> {
    let text = match value {
        Value::String(text) => text,
        Value::Integer(_) | Value::Boolean(_) => {
            return is_string_by_specification(name).then(|| "must be a string".to_owned());
        }
    };
    if text.len() > limits.attribute_bytes_max {
        return Some(format!("must not be longer than {} bytes", limits.attribute_bytes_max));
    }
    if has_control_characters(text) {
        return Some("must not contain control characters".to_owned());
    }
    wrong_text(name, text)
}

/// Most texts are printable ASCII; only the others need to be decoded.
fn has_control_characters(text: &str) -> bool {
    !scan::all(text.as_bytes(), is_printable) && text.chars().any(char::is_control)
}

fn is_printable(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte)
}

fn wrong_text(name: &str, text: &str) -> Option<String> {
    let spaced = || text.contains(char::is_whitespace);
    match name {
        "specversion" if text != SPEC_VERSION => {
            Some(format!("`{}` is not supported; send 1.0", excerpt(text)))
        }
        _ if text.is_empty() && is_string_by_specification(name) => Some("must not be empty".to_owned()),
        "source" | "dataschema" if spaced() => Some("must be a URI reference without spaces".to_owned()),
        "time" if !is_rfc3339(text) => {
            Some("must be an RFC 3339 time, such as 2026-08-01T12:00:00Z".to_owned())
        }
        "datacontenttype" if !is_media_type(text) => {
            Some("must be a media type, such as application/json".to_owned())
        }
        _ => None,
    }
}

/// The attributes that the specification itself defines. It requires each of them to be a non-empty string.
fn is_string_by_specification(name: &str) -> bool {
    matches!(
        name,
        "specversion" | "id" | "source" | "type" | "datacontenttype" | "dataschema" | "subject" | "time"
    )
}

fn is_media_type(text: &str) -> bool {
    let printable = scan::all(text.as_bytes(), is_printable);
    let slash = text.split(';').next().and_then(|essence| essence.trim().split_once('/'));
    printable && slash.is_some_and(|(top, sub)| !top.is_empty() && !sub.is_empty() && !sub.contains(' '))
}

/// `YYYY-MM-DDThh:mm:ss[.fff](Z|±hh:mm)`, and the day must exist. Hand-written because it runs for every event.
fn is_rfc3339(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() < 20 || !has_separators(bytes) {
        return false;
    }
    let number = |from: usize, to: usize| digits(&bytes[from..to]);
    let (Some(year), Some(month), Some(day)) = (number(0, 4), number(5, 7), number(8, 10)) else {
        return false;
    };
    let (Some(hour), Some(minute), Some(second)) = (number(11, 13), number(14, 16), number(17, 19)) else {
        return false;
    };
    let day_fits = (1..=12).contains(&month) && day >= 1 && day <= days_in(year, month);
    // Second 60 is a leap second.
    day_fits && hour < 24 && minute < 60 && second <= 60 && is_fraction_and_offset(&bytes[19..])
}

fn has_separators(bytes: &[u8]) -> bool {
    let at = |place: usize, byte: u8| bytes[place].eq_ignore_ascii_case(&byte);
    at(4, b'-') && at(7, b'-') && at(10, b'T') && at(13, b':') && at(16, b':')
}

fn is_fraction_and_offset(bytes: &[u8]) -> bool {
    let offset = match bytes {
        [b'.', rest @ ..] => {
            let places = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if places == 0 {
                return false;
            }
            &rest[places..]
        }
        _ => bytes,
    };
    match offset {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => {
            digits(&[*h1, *h2]).is_some_and(|hour| hour < 24)
                && digits(&[*m1, *m2]).is_some_and(|minute| minute < 60)
        }
        _ => false,
    }
}

fn digits(bytes: &[u8]) -> Option<u32> {
    bytes.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u32::from(byte - b'0')))
}

fn days_in(year: u32, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        _ => 31,
    }
}

fn text_len(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Integer(_) | Value::Boolean(_) => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_have_two_parts() {
        for good in ["text/plain", "application/json; charset=utf-8", " text/x ;a=b"] {
            assert!(is_media_type(good), "{good}");
        }
        for bad in ["", "text", "/plain", "text/", "text/pl ain", "t\u{e9}xt/plain", "text/plain\n"] {
            assert!(!is_media_type(bad), "{bad}");
        }
    }

    #[test]
    fn offsets_end_before_a_day_and_an_hour() {
        for good in ["Z", "z", "+23:59", "-00:00", ".1Z", ".123456789+01:30"] {
            assert!(is_fraction_and_offset(good.as_bytes()), "{good}");
        }
        for bad in ["", "+24:00", "+23:60", ".Z", "+1:00", "+0100", "Z0", ".1"] {
            assert!(!is_fraction_and_offset(bad.as_bytes()), "{bad}");
        }
    }
}
