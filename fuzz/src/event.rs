//! The properties of every event, regardless of how it was received.

use bytes::Bytes;
use klambda_core::binding::{self, Limits, Mode, Parsed, Rejected};
use klambda_core::event::{Attribute, Attributes, DELIVERY_ATTRIBUTES, Event, Form};
use klambda_core::event_codec::EventView;
use klambda_core::key::{self, SequenceSource, Source};
use serde_json::value::RawValue;

pub const STRUCTURED: &str = "application/cloudevents+json";
pub const BATCH: &str = "application/cloudevents-batch+json";

/// Small limits, so that a fuzzer reaches them.
pub fn limits() -> Limits {
    Limits {
        batch_events_max: 4,
        event_bytes_max: 512,
        attributes_max: 6,
        attribute_bytes_max: 96,
        may_lack_identity: false,
    }
}

pub fn encoded(event: &Event) -> Vec<u8> {
    let mut bytes = Vec::new();
    event.encode(&mut bytes);
    assert!(bytes.len() <= event.encoded_len_max(), "longer than encoded_len_max");
    bytes
}

/// Checks an accepted or a rejected event.
pub fn check(judged: &Result<Event, Rejected>, limits: &Limits) {
    match judged {
        Ok(event) => {
            check_limits(event, limits);
            check_encoding(event);
            check_structured(event, limits);
            check_binary(event, limits);
        }
        Err(rejected) => assert!(!rejected.faults.is_empty(), "rejected without a reason"),
    }
}

fn check_limits(event: &Event, limits: &Limits) {
    let mut bytes = "specversion1.0idsourcetype".len();
    for text in [&event.id, &event.source, &event.kind] {
        assert!(!text.is_empty() && text.len() <= limits.attribute_bytes_max);
        bytes += text.len();
    }
    assert!(event.attributes.len() <= limits.attributes_max);
    for (n, attribute) in event.attributes.iter().enumerate() {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        assert!(!attribute.name.is_empty() && attribute.name.bytes().all(plain));
        assert!(
            !event.attributes[..n].iter().any(|other| other.name == attribute.name),
            "duplicate attribute"
        );
        assert!(attribute.value.text().len() <= limits.attribute_bytes_max);
        assert!(!attribute.value.text().chars().any(char::is_control));
        bytes += attribute.name.len() + attribute.value.text().len().min(8);
    }
    bytes += event.data.as_ref().map_or(0, |data| data.bytes.len());
    assert!(bytes <= limits.event_bytes_max + 8 * limits.attributes_max, "{bytes} bytes were accepted");
}

/// The log encoding gives the same event back, and the in-place view reads the same values.
pub fn check_encoding(event: &Event) {
    let bytes = encoded(event);
    let view = EventView::decode(&bytes).expect("an encoded event decodes");
    assert_eq!(view.to_event(), *event);
    let names = ["id", "source", "type", "specversion", "subject", "partitionkey", "nothing"];
    let own = event.attributes.iter().map(|attribute| attribute.name.as_str());
    for name in names.into_iter().chain(own) {
        assert_eq!(view.attribute(name), event.attribute(name), "{name}");
    }
    assert_eq!(Attributes::json_data(&view), event.json_data());
    assert_eq!(&bytes[view.data_range()], view.data());
    assert_eq!(key::key(&Source::Default, &view), key::key(&Source::Default, event));
    let sequence = SequenceSource::Attribute("sequence".to_owned());
    assert_eq!(key::sequence(&sequence, &view), key::sequence(&sequence, event));
    check_json(&view, event);
}

fn check_json(view: &EventView<'_>, event: &Event) {
    let json = json(view);
    assert!(!json.contains(&b'\n') && !json.contains(&b'\r'), "an event is a single line");
    serde_json::from_slice::<&RawValue>(&json).expect("the output is JSON");
    // Some JSON texts cannot become a tree: they are nested too deep or contain numbers out of range.
    if let Ok(tree) = serde_json::from_slice::<serde_json::Value>(&json)
        && event.to_json()["data"].is_string() == tree["data"].is_string()
    {
        assert_eq!(tree, event.to_json());
    }
}

pub fn json(view: &EventView<'_>) -> Vec<u8> {
    let mut json = Vec::new();
    view.write_json(&mut json);
    json
}

/// Written in the JSON format and parsed again, the event is the same.
fn check_structured(event: &Event, limits: &Limits) {
    let bytes = encoded(event);
    let view = EventView::decode(&bytes).expect("encoded");
    let body = Bytes::from(json(&view));
    let tree = serde_json::from_slice::<serde_json::Value>(&body);
    let is_base64 = tree.is_ok_and(|tree| tree["data_base64"].is_string());
    // A content type that is added when writing counts as an attribute.
    let limits = &Limits {
        attributes_max: limits.attributes_max + 1,
        event_bytes_max: 2 * limits.event_bytes_max + 64,
        ..limits.clone()
    };
    let Parsed { mode, mut events, .. } =
        binding::parse(Some(STRUCTURED), std::iter::empty(), body, limits).expect("our own output parses");
    assert_eq!((mode, events.len()), (Mode::Structured, 1));
    let again = events.remove(0).expect("an accepted event is accepted again");
    assert_eq!((&again.id, &again.source, &again.kind), (&event.id, &event.source, &event.kind));
    // JSON that parsers reject is written byte for byte, with its content type.
    if is_base64 && event.data.as_ref().is_some_and(|data| data.form == Form::Json) {
        let others = |event: &Event| -> Vec<Attribute> {
            event.attributes.iter().filter(|one| one.name != "datacontenttype").cloned().collect()
        };
        assert_eq!(others(&again), others(event));
        assert_eq!(again.data.map(|data| data.bytes), event.data.as_ref().map(|data| data.bytes.clone()));
        return;
    }
    assert_eq!(again.attributes, event.attributes);
    assert_eq!(data(&again), data(event));
}

/// JSON data keeps its bytes, except surrounding space and line ends. In the JSON format, `null` means no data.
fn data(event: &Event) -> Option<Vec<u8>> {
    let data = event.data.as_ref()?;
    if data.form != Form::Json {
        return Some(data.bytes.to_vec());
    }
    let flat: Vec<u8> =
        data.bytes.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect();
    let is_json = serde_json::from_slice::<&RawValue>(&data.bytes).is_ok();
    match (is_json, flat.trim_ascii()) {
        (false, _) => Some(data.bytes.to_vec()),
        (true, b"null") => None,
        (true, text) => Some(text.to_vec()),
    }
}

/// Written as headers and body and parsed again, the event is the same, except for attribute types and the attributes
/// that every delivery sets.
fn check_binary(event: &Event, limits: &Limits) {
    let bytes = encoded(event);
    let view = EventView::decode(&bytes).expect("encoded");
    let mut headers: Vec<(String, String)> = Vec::new();
    view.headers(&mut |name, value| headers.push((name.to_owned(), value.to_owned())));
    for (name, value) in &headers {
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'));
        assert!(
            value.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
            "{value:?} is not a valid header value"
        );
    }
    let media = headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.clone());
    // An event whose own content type is a CloudEvents envelope cannot be sent in this mode, because it would be
    // ambiguous.
    let is_envelope =
        |media: &str| media.trim_start().to_ascii_lowercase().starts_with("application/cloudevents");
    if media.as_deref().is_some_and(is_envelope) {
        return;
    }
    let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let body = Bytes::copy_from_slice(view.data());
    // A content type that is added on delivery counts as an attribute.
    let limits = Limits {
        attributes_max: limits.attributes_max + 1,
        event_bytes_max: limits.event_bytes_max + 64 + 16 * limits.attributes_max,
        ..limits.clone()
    };
    let parsed = binding::parse(media.as_deref(), pairs, body, &limits);
    let Parsed { mode, mut events, .. } = parsed.expect("our own headers parse");
    assert_eq!((mode, events.len()), (Mode::Binary, 1));
    let again = events.remove(0).expect("an accepted event is accepted again");
    assert_eq!((&again.id, &again.source, &again.kind), (&event.id, &event.source, &event.kind));
    for attribute in event.attributes.iter().filter(|a| !DELIVERY_ATTRIBUTES.contains(&a.name.as_str())) {
        assert_eq!(again.attribute(&attribute.name), Some(attribute.value.text()), "{}", attribute.name);
    }
    let bytes = |event: &Event| event.data.as_ref().map_or(Bytes::new(), |data| data.bytes.clone());
    assert_eq!(bytes(&again), bytes(event));
}
