//! The filter language: filters can be printed and parsed again, limits hold, and evaluation agrees with a reference
//! implementation on the JSON.
#![no_main]

use klambda_core::event::{Attribute, Event, Value as Attr};
use klambda_core::filter::{Filter, all_match, parse_all};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let (attributes, document) = match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (&[][..], data),
    };
    let Ok(document) = serde_json::from_slice::<Value>(document) else { return };
    let mut faults = Vec::new();
    let filters = parse_all(&document, "filters", &mut faults);
    assert!(faults.iter().all(|fault| fault.path.starts_with("filters")), "{faults:?}");
    if !faults.is_empty() {
        return;
    }
    let printed = Value::Array(filters.iter().map(Filter::to_json).collect());
    assert!(document.is_null() || printed == document, "{printed} is not {document}");
    let again = parse_all(&printed, "filters", &mut faults);
    assert_eq!((again, faults.len()), (filters.clone(), 0));
    assert!(filters.iter().map(nodes).sum::<usize>() <= 1000 && filters.iter().all(|f| depth(f) <= 16));
    let event = event(attributes);
    let expected = printed.as_array().is_some_and(|list| list.iter().all(|filter| means(filter, &event)));
    assert_eq!(all_match(&filters, &event), expected);
});

fn nodes(filter: &Filter) -> usize {
    1 + match filter {
        Filter::All(inner) | Filter::Any(inner) => inner.iter().map(nodes).sum(),
        Filter::Not(inner) => nodes(inner),
        Filter::Exact(_) | Filter::Prefix(_) | Filter::Suffix(_) => 0,
    }
}

fn depth(filter: &Filter) -> usize {
    1 + match filter {
        Filter::All(inner) | Filter::Any(inner) => inner.iter().map(depth).max().unwrap_or(0),
        Filter::Not(inner) => depth(inner),
        Filter::Exact(_) | Filter::Prefix(_) | Filter::Suffix(_) => 0,
    }
}

/// Parses `name=value` pairs, separated by `;`.
fn event(attributes: &[u8]) -> Event {
    let text = String::from_utf8_lossy(attributes);
    let own = |(name, value): (&str, &str)| Attribute {
        name: name.to_owned(),
        value: Attr::String(value.to_owned()),
    };
    let attributes = text.split(';').filter_map(|part| part.split_once('=')).map(own).collect();
    Event { id: "1".into(), source: "/shop".into(), kind: "order.paid".into(), attributes, data: None }
}

fn means(filter: &Value, event: &Event) -> bool {
    let (dialect, body) = filter.as_object().and_then(|object| object.iter().next()).expect("one dialect");
    let every = |test: fn(&str, &str) -> bool| {
        body.as_object().expect("comparisons").iter().all(|(name, expected)| {
            let expected = expected.as_str().expect("text");
            event.attribute(name).is_some_and(|text| test(&text, expected))
        })
    };
    let nested = || body.as_array().expect("filters").iter().map(|inner| means(inner, event));
    match dialect.as_str() {
        "exact" => every(|text, expected| text == expected),
        "prefix" => every(|text, expected| text.starts_with(expected)),
        "suffix" => every(|text, expected| text.ends_with(expected)),
        "all" => nested().all(|held| held),
        "any" => nested().any(|held| held),
        "not" => !means(body, event),
        other => panic!("the parser accepted the dialect {other}"),
    }
}
