//! A document that a user sends. It is parsed like a stored document, with additional checks. A stored document was
//! accepted once and must stay readable.

use super::header::restore_hidden;
use super::{Document, Target};
use crate::fault::Fault;
use serde_json::Value;

/// `before`: the document that this one replaces.
pub(super) fn document(value: &Value, before: Option<&Document>) -> Result<Document, Vec<Fault>> {
    let mut value = value.clone();
    if let Some(before) = before {
        restore(&mut value, before);
    }
    let impossible = impossible(&value);
    match Document::parse(&value) {
        Ok(document) if impossible.is_empty() => Ok(document),
        Ok(_) => Err(impossible),
        Err(faults) => Err(faults.into_iter().chain(impossible).collect()),
    }
}

/// Replaces hidden values with the secrets that they stand for, as long as the requests go to the same server.
/// Otherwise, changing the URL would reveal the secrets to another server.
fn restore(value: &mut Value, before: &Document) {
    let Some(target) = value.pointer_mut("/spec/target") else { return };
    let Target::Url(before) = &before.spec.target else { return };
    let url = target["url"].as_str().unwrap_or_default();
    if !is_same_place(url, &before.url) {
        return;
    }
    if let Some(headers) = target.get_mut("headers").and_then(Value::as_object_mut) {
        restore_hidden(headers, &before.headers);
    }
}

fn is_same_place(one: &str, other: &str) -> bool {
    let place = |url: &str| {
        let uri: http::Uri = url.parse().ok()?;
        Some((uri.scheme()?.clone(), uri.authority()?.clone()))
    };
    place(one).is_some_and(|one| Some(one) == place(other))
}

/// Reports attributes that no event can have.
fn impossible(value: &Value) -> Vec<Fault> {
    let attributes = ["key", "sequence"].map(|of| format!("spec.orderingPolicy.{of}.attribute"));
    let named = |path: &String| value.pointer(&format!("/{}", path.replace('.', "/")));
    let impossible = attributes.into_iter().filter(|path| named(path).is_some_and(|name| name == "data"));
    impossible
        .map(|path| Fault::new(path, "data is not an attribute; use pointer to select a value in the data"))
        .collect()
}
