//! Documents of subscriptions and namespaces, as JSON and YAML: an accepted document can be read back from every form
//! in which it is stored or shown.
#![no_main]

use klambda_core::namespace;
use klambda_core::subscription::{Document, HeaderValue};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Some((form, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let documents: Vec<Value> = match form {
        b'{' => serde_json::from_slice(data).into_iter().collect(),
        _ => serde_saphyr::from_multiple::<Value>(text).unwrap_or_default(),
    };
    documents.iter().for_each(check);
});

fn check(value: &Value) {
    match namespace::Document::parse(value) {
        Ok(document) => assert_eq!(namespace::Document::parse(&document.to_json()), Ok(document)),
        Err(faults) => assert!(!faults.is_empty(), "rejected without a reason"),
    }
    match Document::parse(value) {
        Ok(document) => check_document(&document),
        Err(faults) => {
            assert!(!faults.is_empty(), "rejected without a reason");
            assert!(faults.iter().all(|fault| !fault.message.is_empty()));
        }
    }
}

fn check_document(document: &Document) {
    let stored = document.to_stored_json();
    assert_eq!(Document::parse(&stored).as_ref(), Ok(document), "the stored document must be equal");
    let text = serde_json::to_string(&stored).expect("JSON");
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), stored);
    let shown = document.to_json();
    let yaml = serde_saphyr::to_string(&shown).expect("YAML");
    let again: Value = serde_saphyr::from_str(&yaml).unwrap_or_else(|error| panic!("{error}: {yaml}"));
    assert_eq!(again, shown, "{yaml}");
    let headers = document.spec.target.url().map_or(&[][..], |target| &target.headers);
    let hidden = headers.iter().any(|(name, value)| {
        matches!(value, HeaderValue::Literal(text) if shown["spec"]["target"]["headers"][name] != **text)
    });
    match Document::parse(&shown) {
        Ok(again) => assert!(again == *document && !hidden),
        Err(faults) => assert!(hidden && faults.iter().all(|f| f.path.starts_with("spec.target.headers."))),
    }
    assert!(!document.epoch_differs(document));
    let words = ["auth", "cookie", "token", "secret", "key", "password", "credential", "signature"];
    for (name, value) in headers {
        if let HeaderValue::Literal(_) = value
            && words.iter().any(|word| name.contains(word))
        {
            assert_eq!(shown["spec"]["target"]["headers"][name], "***");
        }
    }
}
