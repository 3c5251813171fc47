//! `/api/v1/audit`: who changed what. What is noted of a request is worked out from its address, before it is answered.

use crate::api::Api;
use crate::auth::Who;
use crate::extract::Json;
use crate::namespace::Scope;
use crate::params::Params;
use crate::problem::Problem;
use crate::router::Peer;
use crate::routes::Need;
use crate::subscriptions;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Method, Uri};
use klambda_dispatch::audit::{Audited, Entry};
use klambda_dispatch::operate::Refused;
use klambda_dispatch::views::Time;
use serde::Serialize;
use serde_json::json;

#[derive(Serialize)]
struct Item {
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
        subscriptions::check(engine, &scope)?;
        // One of the same name before it is another namespace.
        let created = scope.name().map(|name| engine.namespace_created(name));
        let is_wanted = |audited: &Audited| {
            created.is_none_or(|created| {
                audited.time >= created && audited.entry.namespace.as_deref() == scope.name()
            })
        };
        Ok::<_, Refused>(engine.audit_page(before, limit, is_wanted)?)
    });
    let (found, next) = page.await??;
    let items: Vec<Item> = found.into_iter().map(Item::from).collect();
    Ok(Json(json!({ "items": items, "next": next })).into_response())
}

impl From<Audited> for Item {
    fn from(Audited { number, time, entry }: Audited) -> Item {
        Item { number, time: Time(time), entry }
    }
}

// ---- what a request does --------------------------------------------------------------------------------------

/// What is noted if the request changes something; nothing for one that only reads. `path` is the address of the route,
/// with its parameters unnamed.
pub async fn entry(parts: &mut Parts, path: &str, need: Need) -> Option<Entry> {
    if parts.method == Method::GET || parts.method == Method::HEAD {
        return None;
    }
    let params = RawPathParams::from_request_parts(parts, &()).await.ok()?;
    let (mut names, mut action) = (Vec::new(), None);
    for (name, value) in &params {
        if name == "action" { action = Some(value) } else { names.push(value) }
    }
    let extensions = &parts.extensions;
    let namespace = match (need, extensions.get::<Scope>()) {
        (Need::In(_), Some(Scope::One(namespace))) => Some(namespace.to_string()),
        _ => None,
    };
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
        ("PUT", _) => "put",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        (_, Some("{action}")) => action.unwrap_or("act"),
        (_, Some(word @ ("purge" | "rebuild"))) => word,
        _ => "create",
    }
}

/// The word that the command line has for it.
fn kind(path: &str) -> &str {
    let mut words = path.trim_start_matches("/api/v1/").split('/');
    match (words.next().unwrap_or_default(), words.next()) {
        ("subscriptions", _) => "subscription",
        ("lanes", _) => "lane",
        ("dlq", Some("replays")) => "replay",
        ("dlq", _) => "deadletter",
        ("lambda", Some("agents")) => "agent",
        ("lambda", _) => "function",
        ("tokens", _) => "token",
        ("namespaces", _) => "namespace",
        (other, _) => other,
    }
}

/// A lane whose key does not fit into a path.
fn named_by_query(uri: &Uri) -> String {
    let params = Params::read(uri, &["subscription", "key"]);
    let names = ["subscription", "key"].into_iter().filter_map(|name| params.text(name));
    names.collect::<Vec<_>>().join("/")
}
