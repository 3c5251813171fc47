//! `/api/v1/audit`: who changed what. The entry of a request is derived from its URL before it is handled.

use crate::api::Api;
use crate::auth::Who;
use crate::extract::Json;
use crate::namespace::Scope;
use crate::params::Params;
use crate::problem::Problem;
use crate::router::Peer;
use crate::routes::Need;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Method, Uri};
use klambda_core::namespace::Within;
use klambda_core::time::Millis;
use klambda_dispatch::audit::{Audited, Entry};
use klambda_dispatch::operate::Refused;
use klambda_dispatch::views::Time;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AuditItem")]
pub struct Item {
    number: u64,
    time: Time,
    #[serde(flatten)]
    entry: Entry,
}

pub async fn list(api: Api, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (limit, before) = (params.limit(), params.number("cursor"));
    params.finish()?;
    let page = api.query(move |engine| {
        scope.must_be_there(engine)?;
        // A deleted namespace with the same name is another namespace.
        let created: Option<BTreeMap<String, Millis>> = match scope.within() {
            Within::All => None,
            Within::These(names) => {
                Some(names.iter().map(|name| (name.clone(), engine.namespace_created(name))).collect())
            }
        };
        let is_wanted = |audited: &Audited| {
            created.as_ref().is_none_or(|created| {
                let since = audited.entry.namespace.as_ref().and_then(|name| created.get(name));
                since.is_some_and(|since| audited.time >= *since)
            })
        };
        Ok::<_, Refused>(engine.audit_page(before, limit, is_wanted)?)
    });
    let (found, next) = page.await??;
    let next = next.map(|next| next.to_string());
    let items: Vec<Item> = found.into_iter().map(Item::from).collect();
    Ok(Json(json!({ "items": items, "next": next })).into_response())
}

impl From<Audited> for Item {
    fn from(Audited { number, time, entry }: Audited) -> Item {
        Item { number, time: Time(time), entry }
    }
}

// ---- the entry of a request -----------------------------------------------------------------------------------

/// The audit entry of a request, or `None` if it only reads. `path` is the path of the route, with unnamed parameters.
pub async fn entry(parts: &mut Parts, path: &str, need: Need) -> Option<Entry> {
    if parts.method == Method::GET || parts.method == Method::HEAD {
        return None;
    }
    let params = RawPathParams::from_request_parts(parts, &()).await.ok()?;
    let (mut names, mut action) = (Vec::new(), None);
    for (name, value) in &params {
        if name == "action" { action = Some(value) } else { names.push(value) }
    }
    let Ok(scope) = Scope::from_request_parts(parts, &()).await;
    let namespace = match (need, scope) {
        (Need::In(_) | Need::Own(..), Scope::One(namespace)) => Some(namespace.to_string()),
        _ => None,
    };
    let extensions = &parts.extensions;
    Some(Entry {
        who: extensions.get::<Who>()?.name.to_string(),
        verb: verb(&parts.method, path, action).to_owned(),
        kind: kind(path).to_owned(),
        namespace,
        name: if names.is_empty() { named_by_query(&parts.uri) } else { names.join("/") },
        from: extensions.get::<Peer>().map(|peer| peer.0.to_string()).unwrap_or_default(),
    })
}

fn verb<'a>(method: &Method, path: &'a str, action: Option<&'a str>) -> &'a str {
    match (method.as_str(), path.rsplit('/').next()) {
        ("PUT", Some("event")) => "edit",
        ("PUT", _) => "put",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        (_, Some("{action}")) => action.unwrap_or("act"),
        (
            _,
            Some(
                word @ ("purge" | "rebuild" | "rekey" | "rollback" | "rotate" | "test" | "resend" | "recover"
                | "link"),
            ),
        ) => word,
        _ => "create",
    }
}

/// The word for it on the command line.
fn kind(path: &str) -> &str {
    let mut words = path.trim_start_matches("/api/v1/").split('/');
    match (words.next().unwrap_or_default(), words.next()) {
        ("subscriptions", _) => "subscription",
        ("lanes", _) => "lane",
        ("dlq", Some("replays")) => "replay",
        ("dlq", _) => "deadletter",
        ("lambda", Some("agents")) => "agent",
        ("lambda", _) => "function",
        ("webhooks", _) => "webhook",
        ("tokens", _) => "token",
        ("secrets", _) => "secret",
        ("event-types", _) => "eventtype",
        ("namespaces", _) => "namespace",
        (other, _) => other,
    }
}

/// Names a lane whose key does not fit into a path.
fn named_by_query(uri: &Uri) -> String {
    let params = Params::read(uri, &["subscription", "key"]);
    let names = ["subscription", "key"].into_iter().filter_map(|name| params.text(name));
    names.collect::<Vec<_>>().join("/")
}
