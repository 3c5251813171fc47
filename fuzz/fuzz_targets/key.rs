//! Keys, sequences and JSON pointers: the pointer search finds the same value as a lookup in the parsed document.
#![no_main]

use bytes::Bytes;
use klambda_core::event::{Data, Event, Form};
use klambda_core::key::{self, KEY_BYTES_MAX, Key, Pointer, SequenceSource, Source};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let (text, document) = (&data[..end], &data[end + 1..]);
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(pointer) = Pointer::parse(text) else {
        return assert!(!text.is_empty(), "the empty pointer is valid");
    };
    assert_eq!(pointer.as_str(), text);
    let found = pointer.find(document);
    // The result is a slice of the document and a JSON value.
    if let Some(raw) = found {
        let range = document.as_ptr_range();
        assert!(range.contains(&raw.as_ptr()) && raw.len() <= document.len());
    }
    let tree = serde_json::from_slice::<Value>(document);
    if let Ok(tree) = &tree {
        let value = found.map(|raw| serde_json::from_str::<Value>(raw).expect("a value"));
        assert_eq!(value.as_ref(), tree.pointer(text), "{text}");
    }
    let event = Event {
        id: "1".into(),
        source: "/s".into(),
        kind: "t".into(),
        attributes: Vec::new(),
        data: Some(Data { bytes: Bytes::copy_from_slice(document), form: Form::Json }),
    };
    let key = key::key(&Source::Pointer(pointer.clone()), &event);
    if tree.is_ok() {
        check_key(&key, found);
    }
    let sequence = key::sequence(&SequenceSource::Pointer(pointer), &event);
    assert!(sequence.is_none() || found.is_some());
    if let (Some(sequence), Some(raw)) = (sequence, found) {
        let digits = raw.trim_matches('"').trim_start_matches('0');
        let digits = if digits.is_empty() { "0" } else { digits };
        // Digits can also be written as escapes.
        assert!(raw.contains('\\') || digits == sequence.to_string(), "{raw} is not {sequence}");
    }
});

fn check_key(key: &Key<'_>, found: Option<&str>) {
    let value = found.map(|raw| serde_json::from_str::<Value>(raw).expect("a value"));
    match (key, value) {
        (Key::Found(text), Some(Value::String(string))) => assert_eq!(*text, string),
        (Key::Found(text), Some(Value::Bool(flag))) => assert_eq!(*text, flag.to_string()),
        (Key::Found(text), Some(Value::Number(_))) => check_number(text, found.unwrap_or_default()),
        (Key::Missing, None | Some(Value::Null | Value::Array(_) | Value::Object(_))) => {}
        (Key::Missing, Some(Value::String(string))) => assert!(string.is_empty()),
        (Key::TooLong, Some(Value::String(string))) => assert!(string.len() > KEY_BYTES_MAX),
        (Key::TooLong, Some(Value::Number(_))) => assert!(found.is_some_and(|raw| raw.len() > KEY_BYTES_MAX)),
        (key, value) => panic!("{key:?} of {value:?}"),
    }
    if let Key::Found(text) = key {
        assert!(!text.is_empty() && text.len() <= KEY_BYTES_MAX);
    }
}

/// The key of a number has the same numeric value. A whole number up to 2^53 is written as an integer.
fn check_number(key: &str, raw: &str) {
    let (key_value, value) = (key.parse::<f64>().expect("a number"), raw.parse::<f64>().expect("a number"));
    assert_eq!(key_value, value, "{raw} became {key}");
    let is_whole = value.fract() == 0.0 && value.abs() < 9.0e15;
    let exact = raw.len() < 16 && !raw.contains(['e', 'E']);
    if is_whole && exact {
        assert_eq!(key, (value as i64).to_string(), "{raw}");
    }
}
