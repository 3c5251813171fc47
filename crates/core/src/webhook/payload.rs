//! The body of a webhook call: one event with its place in its workflow.

use super::{EventId, Payload, PayloadForm};
use crate::event::{DELIVERY_ATTRIBUTES, Form};
use crate::event_codec::EventView;
use crate::event_out::{write_base64, write_on_one_line, write_string, write_value};
use crate::lane::Flag;
use crate::readable::is_readable;
use std::borrow::Cow;
use std::io::Write;

/// Attributes that have members of their own. All others are extensions.
const OWN_MEMBERS: [&str; 4] = ["subject", "time", "datacontenttype", "dataschema"];

/// The place of an event in its workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    pub workflow: Cow<'a, str>,
    pub number: u64,
    /// `None` for the first event of the workflow, or if the previous event can no longer be read.
    pub previous: Option<Cow<'a, str>>,
    pub flag: Flag,
}

/// Appends the body for one event. Unordered events have no place.
pub fn write(
    out: &mut Vec<u8>,
    payload: &Payload,
    id: EventId,
    event: &EventView<'_>,
    place: Option<&Place<'_>>,
) {
    match payload.form {
        PayloadForm::Standard => write_standard(out, payload, id, event, place),
        PayloadForm::CloudEvents => write_cloud_event(out, payload, id, event, place),
    }
}

fn write_standard(
    out: &mut Vec<u8>,
    payload: &Payload,
    id: EventId,
    event: &EventView<'_>,
    place: Option<&Place<'_>>,
) {
    out.extend_from_slice(b"{\"eventId\":\"");
    id.with_text(|id| out.extend_from_slice(id.as_bytes()));
    out.extend_from_slice(b"\",\"sequenceNumber\":");
    match place {
        Some(place) => write!(out, "{}", place.number).expect(TO_MEMORY),
        None => out.extend_from_slice(b"null"),
    }
    member(out, "workflowId", place.map(|place| &*place.workflow));
    member(out, "previousEventId", place.and_then(|place| place.previous.as_deref()));
    member(out, "id", Some(event.id()));
    member(out, "type", Some(event.kind()));
    member(out, "source", Some(event.source()));
    for name in OWN_MEMBERS {
        member(out, name, event.attribute(name).as_deref());
    }
    member(out, "orderStatus", place.and_then(|place| status(place.flag)));
    out.extend_from_slice(b",\"extensions\":{");
    let extensions = event.attributes().filter(|(name, _)| is_extension(name));
    for (index, (name, value)) in extensions.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_string(out, name);
        out.push(b':');
        write_value(out, value);
    }
    out.push(b'}');
    write_data(out, payload, event, "dataBase64");
    out.push(b'}');
}

/// The structured mode of CloudEvents, with the place as extensions.
fn write_cloud_event(
    out: &mut Vec<u8>,
    payload: &Payload,
    id: EventId,
    event: &EventView<'_>,
    place: Option<&Place<'_>>,
) {
    out.extend_from_slice(b"{\"specversion\":\"1.0\"");
    member(out, "id", Some(event.id()));
    member(out, "type", Some(event.kind()));
    member(out, "source", Some(event.source()));
    let ours = ["eventid", "sequencenumber", "workflowid", "previouseventid"];
    let attributes =
        event.attributes().filter(|(name, _)| !DELIVERY_ATTRIBUTES.contains(name) && !ours.contains(name));
    for (name, value) in attributes {
        out.push(b',');
        write_string(out, name);
        out.push(b':');
        write_value(out, value);
    }
    write!(out, ",\"eventid\":\"{id}\"").expect(TO_MEMORY);
    if let Some(place) = place {
        // A number of CloudEvents has 32 bits, so the sequence is text.
        write!(out, ",\"sequencenumber\":\"{}\"", place.number).expect(TO_MEMORY);
        member(out, "workflowid", Some(&place.workflow));
        if place.previous.is_some() {
            member(out, "previouseventid", place.previous.as_deref());
        }
        if let Some(status) = status(place.flag) {
            member(out, "orderstatus", Some(status));
        }
    }
    write_data(out, payload, event, "data_base64");
    out.push(b'}');
}

const TO_MEMORY: &str = "writing to memory does not fail";

fn status(flag: Flag) -> Option<&'static str> {
    match flag {
        Flag::None => None,
        Flag::Late => Some("late"),
        Flag::Gap => Some("gap"),
    }
}

fn is_extension(name: &str) -> bool {
    !OWN_MEMBERS.contains(&name) && !DELIVERY_ATTRIBUTES.contains(&name)
}

fn member(out: &mut Vec<u8>, name: &str, text: Option<&str>) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    match text {
        Some(text) => write_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// JSON as it is, text as a string, everything else as base64.
fn write_data(out: &mut Vec<u8>, payload: &Payload, event: &EventView<'_>, base64: &str) {
    if !payload.pick.is_empty() {
        return write_picked(out, payload, event);
    }
    match event.form() {
        None => out.extend_from_slice(b",\"data\":null"),
        Some(Form::Json) if is_readable(event.data()) => {
            out.extend_from_slice(b",\"data\":");
            write_on_one_line(out, event.data());
        }
        Some(Form::Text) => member(out, "data", Some(&String::from_utf8_lossy(event.data()))),
        Some(Form::Json | Form::Binary) => {
            write!(out, ",\"{base64}\":\"").expect(TO_MEMORY);
            write_base64(out, event.data());
            out.push(b'"');
        }
    }
}

/// Only the picked members. Data that is not JSON has none: a receiver must not see more than its endpoint allows.
fn write_picked(out: &mut Vec<u8>, payload: &Payload, event: &EventView<'_>) {
    let json = Some(event.data()).filter(|data| event.form() == Some(Form::Json) && is_readable(data));
    out.extend_from_slice(b",\"data\":{");
    let mut is_first = true;
    for (name, from) in &payload.pick {
        let Some(found) = json.and_then(|json| from.0.find(json)) else { continue };
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        write_string(out, name);
        out.push(b':');
        write_on_one_line(out, found.as_bytes());
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::super::PickFrom;
    use super::*;
    use crate::arbitrary;
    use crate::event::{Attribute, Data, Event, Value as Attr};
    use crate::key::Pointer;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn rendered(payload: &Payload, event: &Event, place: Option<&Place<'_>>) -> Value {
        let (mut encoded, mut out) = (Vec::new(), Vec::new());
        event.encode(&mut encoded);
        let id = EventId::new("default", &event.source, &event.id);
        write(&mut out, payload, id, &EventView::decode(&encoded).expect("encoded"), place);
        assert!(!out.contains(&b'\n'), "one line");
        serde_json::from_slice(&out).expect("JSON")
    }

    fn order() -> Event {
        let text =
            |name: &str, value: &str| Attribute { name: name.into(), value: Attr::String(value.into()) };
        Event {
            id: "1".into(),
            source: "/shop".into(),
            kind: "order.paid".into(),
            attributes: vec![
                text("subject", "order-42"),
                text("lanesequence", "9"),
                Attribute { name: "tries".into(), value: Attr::Integer(3) },
            ],
            data: Some(Data { bytes: r#"{"a": {"b": 1}, "secret": 2}"#.into(), form: Form::Json }),
        }
    }

    fn third(previous: &str) -> Place<'_> {
        Place { workflow: "order-42".into(), number: 3, previous: Some(previous.into()), flag: Flag::Gap }
    }

    #[test]
    fn the_standard_form_has_every_member() {
        let id = EventId::new("default", "/shop", "1").to_string();
        let mut expected = json!({
            "eventId": id, "sequenceNumber": 3, "workflowId": "order-42", "previousEventId": "before",
            "id": "1", "type": "order.paid", "source": "/shop", "subject": "order-42", "time": null,
            "datacontenttype": null, "dataschema": null, "orderStatus": "gap", "extensions": {"tries": 3},
            "data": {"a": {"b": 1}, "secret": 2},
        });
        assert_eq!(rendered(&Payload::default(), &order(), Some(&third("before"))), expected);
        for name in ["sequenceNumber", "workflowId", "previousEventId", "orderStatus"] {
            expected[name] = Value::Null;
        }
        assert_eq!(rendered(&Payload::default(), &order(), None), expected, "unordered");
    }

    #[test]
    fn the_structured_form_is_a_cloud_event() {
        let payload = Payload { form: PayloadForm::CloudEvents, ..Payload::default() };
        let shown = rendered(&payload, &order(), Some(&third("before")));
        let expected = json!({
            "specversion": "1.0", "id": "1", "type": "order.paid", "source": "/shop", "subject": "order-42",
            "tries": 3, "eventid": EventId::new("default", "/shop", "1").to_string(), "sequencenumber": "3",
            "workflowid": "order-42", "previouseventid": "before", "orderstatus": "gap",
            "data": {"a": {"b": 1}, "secret": 2},
        });
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_transform_shows_only_what_it_picks() {
        let pick = [("b", "/a/b"), ("all", "/a"), ("none", "/x")];
        let pick =
            pick.map(|(name, from)| (name.to_owned(), PickFrom(Pointer::parse(from).expect("a pointer"))));
        let payload = Payload { pick: pick.into(), ..Payload::default() };
        assert_eq!(rendered(&payload, &order(), None)["data"], json!({"b": 1, "all": {"b": 1}}));
        let binary = Event { data: Some(Data { bytes: "x".into(), form: Form::Binary }), ..order() };
        assert_eq!(rendered(&payload, &binary, None)["data"], json!({}));
    }

    #[test]
    fn text_and_bytes_have_their_forms() {
        let of =
            |bytes: &'static [u8], form| Event { data: Some(Data { bytes: bytes.into(), form }), ..order() };
        let shown = |event: &Event| rendered(&Payload::default(), event, None);
        assert_eq!(shown(&of(b"hi", Form::Text))["data"], "hi");
        let binary = shown(&of(&[0, 255], Form::Binary));
        assert_eq!((binary["dataBase64"].as_str(), binary.get("data")), (Some("AP8="), None));
        assert_eq!(shown(&Event { data: None, ..order() })["data"], Value::Null);
    }

    proptest! {
        #[test]
        fn every_event_has_a_body_that_parses(event in arbitrary::event(), form: bool) {
            let form = if form { PayloadForm::Standard } else { PayloadForm::CloudEvents };
            let shown = rendered(&Payload { form, ..Payload::default() }, &event, Some(&third("p")));
            prop_assert_eq!(&shown["id"], &json!(event.id));
        }
    }
}
