use super::*;
use crate::arbitrary;
use crate::event_codec::EventView;
use proptest::prelude::*;

fn json(media: &str, body: &str) -> Result<Parsed, Refusal> {
    parse(Some(media), std::iter::empty(), Bytes::from(body.to_owned()), &Limits::default())
}

fn binary(content_type: Option<&str>, headers: &[(&str, &[u8])], body: &str) -> Result<Parsed, Refusal> {
    parse(content_type, headers.iter().copied(), Bytes::from(body.to_owned()), &Limits::default())
}

fn only(parsed: Result<Parsed, Refusal>) -> Result<Event, Rejected> {
    let mut events = parsed.expect("a readable request").events;
    assert_eq!(events.len(), 1);
    events.remove(0)
}

fn faults(parsed: Result<Parsed, Refusal>) -> Vec<String> {
    only(parsed).expect_err("a rejected event").faults.iter().map(ToString::to_string).collect()
}

const MINIMAL: [(&str, &[u8]); 4] =
    [("ce-specversion", b"1.0"), ("CE-ID", b"e1"), ("ce-source", b"/s"), ("ce-type", b"t")];

#[test]
fn an_answer_may_lack_id_and_source() {
    let limits = Limits { may_lack_identity: true, ..Limits::default() };
    let answer =
        |body: &str| parse(Some(STRUCTURED), std::iter::empty(), Bytes::from(body.to_owned()), &limits);
    let event = only(answer(r#"{"specversion":"1.0","type":"t"}"#)).expect("an event");
    assert_eq!((event.id.as_str(), event.source.as_str(), event.kind.as_str()), ("", "", "t"));
    let event = only(answer(r#"{"specversion":"1.0","type":"t","id":"i","source":"/s"}"#)).expect("an event");
    assert_eq!((event.id.as_str(), event.source.as_str()), ("i", "/s"));
    assert_eq!(faults(answer(r#"{"specversion":"1.0","type":"t","id":""}"#))[0], "id: must not be empty");
    assert_eq!(faults(answer(r#"{"specversion":"1.0"}"#)), ["type: missing"]);
    assert_eq!(faults(answer(r#"{"specversion":"1.0","type":""}"#)), ["type: must not be empty"]);
}

#[test]
fn a_structured_event_keeps_everything() {
    let body = r#"{"specversion":"1.0","id":"e1","source":"/s","type":"t","n":7,"flag":true,"gone":null,
        "time":"2026-08-01T12:00:00.5+02:00","data":{"price": 1.10, "big": 12345678901234567890123}}"#;
    let Parsed { mode, events, .. } =
        json("application/cloudevents+json; charset=utf-8", body).expect("event");
    assert_eq!(mode, Mode::Structured);
    let event = events[0].as_ref().expect("valid");
    assert_eq!((event.id.as_str(), event.attributes.len()), ("e1", 3));
    assert_eq!(event.attributes[0].value, Value::Integer(7));
    let data = event.data.as_ref().expect("data");
    assert_eq!(&data.bytes[..], br#"{"price": 1.10, "big": 12345678901234567890123}"#);
    assert_eq!(data.form, Form::Json);
}

#[test]
fn text_and_base64_data_are_told_apart() {
    let event = |rest: &str| {
        let body = format!(r#"{{"specversion":"1.0","id":"e","source":"/s","type":"t",{rest}}}"#);
        let data = only(json(STRUCTURED, &body)).expect("valid").data.expect("data");
        (data.form, String::from_utf8(data.bytes.to_vec()).expect("text"))
    };
    assert_eq!(event(r#""data":"a\nb","datacontenttype":"text/plain""#), (Form::Text, "a\nb".into()));
    assert_eq!(event(r#""data":"a\nb","datacontenttype":"a/b+json""#), (Form::Json, r#""a\nb""#.into()));
    assert_eq!(event(r#""data":"ab""#), (Form::Json, r#""ab""#.into()));
    assert_eq!(event(r#""data":[1],"datacontenttype":"text/xml""#), (Form::Json, "[1]".into()));
    assert_eq!(event(r#""data_base64":"aGk=""#), (Form::Binary, "hi".into()));
    assert_eq!(event(r#""data_base64":"aGk","data":null"#), (Form::Binary, "hi".into()));
}

#[test]
fn all_faults_of_an_event_are_told_at_once() {
    let body = r#"{"specversion":"0.3","id":"","source":"a b","time":"yesterday","partitionKey":"x","deep":{},
        "big":5000000000,"bell":"\u0007","half":"\ud800","subject":3,"data":1,"data_base64":"!","id":"again"}"#;
    let told = faults(json(STRUCTURED, body));
    for path in [
        "specversion",
        "id",
        "source",
        "type",
        "time",
        "partitionKey",
        "deep",
        "big",
        "bell",
        "half",
        "subject",
        "data_base64",
    ] {
        let count = told.iter().filter(|fault| fault.starts_with(&format!("{path}:"))).count();
        assert_eq!(count, if path == "id" { 2 } else { 1 }, "{path}: {told:#?}");
    }
}

#[test]
fn a_batch_is_judged_event_by_event() {
    let good = r#"{"specversion":"1.0","id":"e1","source":"/s","type":"t"}"#;
    let bad = r#"{"specversion":"1.0","id":"e2","source":"/s"}"#;
    let Parsed { mode, events, .. } = json(BATCH, &format!(r#"[{good},{bad},7,{good}]"#)).expect("array");
    assert_eq!(mode, Mode::Batch);
    assert!(events[0].is_ok() && events[3].is_ok());
    let rejected = events[1].as_ref().expect_err("no type");
    assert_eq!(
        (rejected.id.as_deref(), rejected.faults[0].to_string().as_str()),
        (Some("e2"), "[1].type: missing")
    );
    assert_eq!(events[2].as_ref().expect_err("no object").faults[0].path, "[2]");
    assert_eq!(json(BATCH, "[]"), Ok(Parsed { mode: Mode::Batch, events: Vec::new(), unversioned: 0 }));
    let odd =
        [r#"{"\ud800id":"e1"}"#, r#""\ud800""#, "1e999", "[]", "null", "true", r#""text""#, "-1", "0.5"];
    for odd in odd {
        let events = json(BATCH, &format!("[{good},{odd},{good}]")).expect(odd).events;
        assert!(events[0].is_ok() && events[1].is_err() && events[2].is_ok(), "{odd}");
    }
}

#[test]
fn in_the_json_format_no_version_means_the_only_one() {
    let bare = r#"{"id":"e1","source":"/s","type":"t"}"#;
    let parsed = json(STRUCTURED, bare).expect("an event");
    assert!(parsed.events[0].is_ok() && parsed.unversioned == 1, "{parsed:?}");
    let versioned = r#"{"specversion":"1.0","id":"e2","source":"/s","type":"t"}"#;
    let faulty = r#"{"id":"e3","source":"/s"}"#;
    // The last element of the second batch forces the careful pass. No event may be counted twice.
    for odd in ["7", "1e999"] {
        let parsed = json(BATCH, &format!("[{bare},{versioned},{faulty},{bare},{odd}]")).expect("a batch");
        let accepted: Vec<bool> = parsed.events.iter().map(Result::is_ok).collect();
        assert_eq!((accepted.as_slice(), parsed.unversioned), (&[true, true, false, true, false][..], 2));
    }
    assert_eq!(
        faults(json(STRUCTURED, r#"{"specversion":"0.3","id":"e","source":"/s","type":"t"}"#)).len(),
        1
    );
}

#[test]
fn requests_that_cannot_be_taken_apart_are_refused() {
    assert!(matches!(json(BATCH, "{}"), Err(Refusal::BadRequest(_))));
    assert!(matches!(json(STRUCTURED, "[]"), Err(Refusal::BadRequest(_))));
    assert!(matches!(json(STRUCTURED, "{} {}"), Err(Refusal::BadRequest(_))));
    assert!(matches!(json("application/json", "{}"), Err(Refusal::UnsupportedMediaType(_))));
    assert!(matches!(json("application/cloudevents+xml", ""), Err(Refusal::UnsupportedMediaType(_))));
    assert!(matches!(binary(None, &[], ""), Err(Refusal::UnsupportedMediaType(_))));
    assert!(matches!(binary(None, &MINIMAL[1..], ""), Err(Refusal::BadRequest(_))));
    let limits = Limits { batch_events_max: 2, ..Limits::default() };
    let refused = parse(Some(BATCH), std::iter::empty(), Bytes::from("[1,2,3]"), &limits);
    assert_eq!(refused, Err(Refusal::TooLarge { what: "events in a batch", limit: 2 }));
}

#[test]
fn a_binary_event_comes_from_headers_and_body() {
    let headers =
        [&MINIMAL[..], &[("ce-subject", b"Euro%20%E2%82%AC"), ("ce-x", br#""a \"b\"""#), ("host", b"h")]]
            .concat();
    let event = only(binary(Some("application/json"), &headers, "{\"a\":1}")).expect("valid");
    assert_eq!(event.attribute("subject").as_deref(), Some("Euro €"));
    assert_eq!(event.attribute("x").as_deref(), Some("a \"b\""));
    assert_eq!(event.attribute("datacontenttype").as_deref(), Some("application/json"));
    assert_eq!(event.data.expect("data").form, Form::Json);
    assert!(only(binary(None, &MINIMAL, "")).expect("valid").data.is_none());
}

#[test]
fn binary_faults_name_their_attribute() {
    let headers = [
        &MINIMAL[..],
        &[
            ("ce-id", b"e2"),
            ("ce-bad-name", b"x"),
            ("ce-raw", b"\xff"),
            ("ce-pct", b"%ff"),
            ("ce-nul", b"%00"),
        ],
    ]
    .concat();
    let told = faults(binary(Some("application/json"), &headers, "{"));
    for path in ["id", "bad-name", "raw", "pct", "nul"] {
        assert!(told.iter().any(|fault| fault.starts_with(&format!("{path}:"))), "{path}: {told:#?}");
    }
}

#[test]
fn a_body_that_only_claims_to_be_json_is_kept_and_shown_as_bytes() {
    let event = only(binary(Some("application/json"), &MINIMAL, "{")).expect("the body is not parsed");
    assert_eq!(event.to_json()["data_base64"], "ew==");
    let mut bytes = Vec::new();
    event.encode(&mut bytes);
    let mut json = Vec::new();
    crate::event_codec::EventView::decode(&bytes).expect("encoded").write_json(&mut json);
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(json["data_base64"], "ew==");
}

#[test]
fn limits_hold() {
    let limits =
        Limits { event_bytes_max: 40, attributes_max: 2, attribute_bytes_max: 10, ..Limits::default() };
    let judge = |headers: &[(&str, &[u8])], body: &str| {
        let headers = [&MINIMAL[..], headers].concat();
        only(parse(None, headers.into_iter(), Bytes::from(body.to_owned()), &limits))
    };
    assert!(judge(&[("ce-a", b"1"), ("ce-b", b"2")], "").is_ok());
    let many = judge(&[("ce-a", b"1"), ("ce-b", b"2"), ("ce-c", b"3"), ("ce-d", b"4")], "");
    assert_eq!(many.expect_err("many").cause, Cause::Invalid);
    assert!(judge(&[("ce-a", b"12345678901")], "").is_err());
    let long = judge(&[], "123456789012345678901234567890");
    assert_eq!(long.expect_err("long").cause, Cause::TooLarge);
}

#[test]
fn times_are_rfc3339() {
    let judge = |time: &str| {
        only(binary(None, &[&MINIMAL[..], &[("ce-time", time.as_bytes())]].concat(), "")).is_ok()
    };
    for good in ["2026-08-01T12:00:00Z", "2024-02-29t23:59:60.123456789012z", "1969-01-01T00:00:00-08:30"] {
        assert!(judge(good), "{good}");
    }
    for bad in [
        "2026-08-01",
        "2026-02-29T12:00:00Z",
        "2026-08-01 12:00:00Z",
        "2026-08-01T12:00:00",
        "2026-08-01T24:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-08-01T12:00:00.Z",
        "2026-08-01T12:00:00+0200",
        "2026-08-01T12:00:0éZ",
    ] {
        assert!(!judge(bad), "{bad}");
    }
}

/// The event as delivered in binary mode: all attributes are strings, and the delivery attributes are left out.
fn as_delivered(mut event: Event) -> Event {
    event.attributes.retain(|a| !crate::event::DELIVERY_ATTRIBUTES.contains(&a.name.as_str()));
    for attribute in &mut event.attributes {
        attribute.value = Value::String(attribute.value.text().into_owned());
    }
    if event.data.as_ref().is_some_and(|d| d.form == Form::Json)
        && event.attribute("datacontenttype").is_none()
    {
        let value = Value::String("application/json".into());
        event.attributes.push(crate::event::Attribute { name: "datacontenttype".into(), value });
    }
    event
}

proptest! {
    #[test]
    fn structured_mode_brings_back_the_event(event in arbitrary::event()) {
        let mut encoded = Vec::new();
        event.encode(&mut encoded);
        let mut body = Vec::new();
        EventView::decode(&encoded).expect("encoded").write_json(&mut body);
        for body in [body, event.to_json().to_string().into_bytes()] {
            let read = only(parse(Some(STRUCTURED), std::iter::empty(), Bytes::from(body), &Limits::default()));
            prop_assert_eq!(read.expect("valid").to_json(), event.to_json());
        }
    }

    #[test]
    fn binary_mode_brings_back_the_event(event in arbitrary::event()) {
        let mut encoded = Vec::new();
        event.encode(&mut encoded);
        let view = EventView::decode(&encoded).expect("encoded");
        let mut headers = Vec::new();
        view.headers(&mut |name, value| headers.push((name.to_owned(), value.to_owned())));
        let media = headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.as_str());
        let given = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let body = Bytes::copy_from_slice(view.data());
        let read = only(parse(media, given, body, &Limits::default())).expect("valid");
        prop_assert_eq!(read, as_delivered(event));
    }

    #[test]
    fn no_input_panics(
        media in prop_oneof![Just(STRUCTURED), Just(BATCH), Just("application/json"), Just("text/plain")],
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "[\\[{]\"(id|data|data_base64)\":(\"[\\\\ud8a\"]{0,6}\"|[0-9e.+-]{1,6}|null)[}\\],]{1,3}".prop_map(String::into_bytes),
        ],
        header in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let headers = [("ce-specversion", &b"1.0"[..]), ("ce-é", &header), ("ce-id", &header)];
        let _ = parse(Some(media), headers.into_iter(), Bytes::from(body), &Limits::default());
    }
}
