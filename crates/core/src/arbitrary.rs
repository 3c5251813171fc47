//! Generators for property tests: any event that the HTTP binding accepts.

use crate::event::{Attribute, Data, Event, Form, Value};
use bytes::Bytes;
use proptest::prelude::*;

pub fn event() -> impl Strategy<Value = Event> {
    let extensions = prop::collection::btree_map(
        "x[a-z0-9]{0,9}|subject|partitionkey|lanesequence",
        text_or_number(),
        0..6,
    );
    ("[!-~]{1,20}|\\PC{1,12}", "[!-~]{1,20}", "[a-z.]{1,20}", extensions, content()).prop_map(
        |(id, source, kind, extensions, (media, data))| {
            let mut attributes: Vec<Attribute> =
                extensions.into_iter().map(|(n, v)| attribute(&n, v)).collect();
            attributes.extend(media.map(|media| attribute("datacontenttype", Value::String(media))));
            Event { id, source, kind, attributes, data }
        },
    )
}

/// Any JSON value that `serde_json::Value` can represent.
pub fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        (-1e6..1e6f64).prop_map(Into::into),
        "[a-c~/\"\\\\é\n]{0,4}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map("[a-c~/0-2]{0,2}", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

fn attribute(name: &str, value: Value) -> Attribute {
    // The specification requires the subject to be a string.
    let value = if name == "subject" { Value::String(value.text().into_owned()) } else { value };
    Attribute { name: name.to_owned(), value }
}

fn text_or_number() -> impl Strategy<Value = Value> {
    prop_oneof![
        "\\PC{1,12}".prop_map(Value::String),
        any::<i32>().prop_map(|n| Value::Integer(n.into())),
        any::<bool>().prop_map(Value::Boolean),
    ]
}

fn content() -> impl Strategy<Value = (Option<String>, Option<Data>)> {
    let json_media =
        prop_oneof![Just(None), Just(Some("application/json".to_owned())), Just(Some("a/b+json".to_owned()))];
    prop_oneof![
        (json_media, json(), any::<bool>())
            .prop_filter("null means no data", |(_, v, _)| !v.is_null())
            .prop_map(|(media, value, pretty)| {
                let text =
                    if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
                (media, data(text.expect("a Value serializes").into_bytes(), Form::Json))
            }),
        "\\PC{1,30}".prop_map(|text| (Some("text/plain".to_owned()), data(text.into_bytes(), Form::Text))),
        prop::collection::vec(any::<u8>(), 1..40)
            .prop_map(|bytes| (Some("application/octet-stream".to_owned()), data(bytes, Form::Binary))),
        Just((None, None)),
    ]
}

fn data(bytes: Vec<u8>, form: Form) -> Option<Data> {
    Some(Data { bytes: Bytes::from(bytes), form })
}
