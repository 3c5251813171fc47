//! `/api/v1/openapi.json` and `/api/v1/docs`: the description of the API, made from the route table, the types of documents
//! and views, and one description for each route.

mod dead_letters;
mod document;
mod event_types;
mod events;
mod functions;
mod lanes;
mod operation;
mod page;
mod schemas;
mod secrets;
mod server;
mod subscriptions;
mod webhooks;

use crate::params::Params;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri, header};
use operation::Operation;
use std::fmt::Write as _;
use std::sync::LazyLock;

/// A text that never changes while the server runs.
struct Fixed {
    text: String,
    etag: String,
}

static JSON: LazyLock<Fixed> = LazyLock::new(|| Fixed::new(document::build(&operations()).to_string()));
static PAGE: LazyLock<Fixed> = LazyLock::new(|| Fixed::new(page::write(&document::build(&operations()))));

/// The page needs nothing but its own style.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn operations() -> Vec<Operation> {
    let of_resources = [
        server::operations,
        events::operations,
        subscriptions::operations,
        lanes::operations,
        dead_letters::operations,
        functions::operations,
        webhooks::operations,
        event_types::operations,
        secrets::operations,
    ];
    of_resources.into_iter().flat_map(|operations| operations()).collect()
}

pub async fn show(uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    Params::none(&uri)?;
    Ok(JSON.answer(&headers, "application/json"))
}

pub async fn show_page(uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let mut response = PAGE.answer(&headers, "text/html; charset=utf-8");
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        response.headers_mut().insert(name, http::HeaderValue::from_static(value));
    }
    Ok(response)
}

impl Fixed {
    fn new(text: String) -> Fixed {
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let mut etag = String::from("\"");
        for byte in digest.as_ref().iter().take(16) {
            let _ = write!(etag, "{byte:02x}");
        }
        etag.push('"');
        Fixed { text, etag }
    }

    /// 304 if the client has the same text.
    fn answer(&'static self, headers: &HeaderMap, content_type: &'static str) -> Response {
        let tag = [(header::ETAG, self.etag.as_str()), (header::CACHE_CONTROL, "no-cache")];
        if self.is_known(headers) {
            return (StatusCode::NOT_MODIFIED, tag).into_response();
        }
        (tag, [(header::CONTENT_TYPE, content_type)], self.text.as_str()).into_response()
    }

    fn is_known(&self, headers: &HeaderMap) -> bool {
        let given = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let mut tags = given.flat_map(|value| value.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == self.etag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::routes;
    use http::Method;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_described_and_every_description_has_a_route() {
        let rows = |rows: Vec<(Method, &str)>| -> BTreeSet<String> {
            rows.iter().map(|(method, path)| format!("{method} {path}")).collect()
        };
        let of_api = routes().into_iter().filter(|route| !crate::ui::is_page(route.path));
        let served = rows(of_api.map(|route| (route.method, route.path)).collect());
        let described = rows(operations().into_iter().map(|one| (one.method, one.path)).collect());
        let undescribed: Vec<_> = served.difference(&described).collect();
        let unserved: Vec<_> = described.difference(&served).collect();
        assert!(
            undescribed.is_empty() && unserved.is_empty(),
            "routes without a description (add one in crates/server/src/openapi/): {undescribed:#?}\n\
             descriptions without a route (remove them there, or add the route to routes.rs): {unserved:#?}"
        );
    }

    #[test]
    fn names_are_unique_and_references_lead_somewhere() {
        let operations = operations();
        let ids: BTreeSet<&str> = operations.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids.len(), operations.len(), "an operation id is used twice");
        for one in &operations {
            assert!(one.summary.ends_with('.') && !one.answers.is_empty(), "{} {}", one.method, one.path);
        }
        let document = document::build(&operations);
        let mut references = BTreeSet::new();
        collect(&document, &mut references);
        for reference in references {
            let found = document.pointer(reference.trim_start_matches('#'));
            assert!(found.is_some(), "{reference} leads nowhere");
        }
        let numbered = document["components"]["schemas"].as_object().expect("schemas").keys();
        let numbered: Vec<_> =
            numbered.filter(|name| name.ends_with(|last: char| last.is_ascii_digit())).collect();
        assert!(numbered.is_empty(), "two types have the same name: {numbered:?}");
    }

    fn collect(value: &Value, references: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    references.insert(reference.clone());
                }
                members.values().for_each(|value| collect(value, references));
            }
            Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
            _ => {}
        }
    }

    #[test]
    fn a_copy_is_known_by_its_tag() {
        let fixed = Fixed::new("text".to_owned());
        for (given, known) in
            [(fixed.etag.clone(), true), (format!("\"x\", W/{}", fixed.etag), true), ("\"x\"".into(), false)]
        {
            let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, given.parse().expect("a value"))]);
            assert_eq!(fixed.is_known(&headers), known, "{given}");
        }
    }
}
