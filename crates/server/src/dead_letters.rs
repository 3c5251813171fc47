//! `/api/v1/dlq`: events that failed permanently, and operations on them.

pub mod edit;

use crate::api::Api;
use crate::extract::{Json, Path};
use crate::namespace::{Namespace, Scope};
use crate::params::Params;
use crate::problem::Problem;
use crate::request_body::{self, Faults, Members};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{Uri, header};
use klambda_core::fault::unknown;
use klambda_core::ids::{Position, plain_number};
use klambda_core::outcome::Reason;
use klambda_core::time::Millis;
use klambda_dispatch::Engine;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::Refused;
use klambda_dispatch::views::{DeadLetter, Letters, Page};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// Maximum number of short queries to the engine for one page.
const LOOKS_MAX: usize = 200;
/// Number of dead letters that are removed in one step.
const PURGED_AT_ONCE: usize = 500;
const IDS_MAX: usize = 1000;

pub async fn list(api: Api, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    const KNOWN: [&str; 8] = ["subscription", "key", "type", "reason", "since", "until", "limit", "cursor"];
    let params = Params::read(&uri, &KNOWN);
    let subscription = params.text("subscription").map(|name| scope.full_name(name)).transpose()?;
    let selector = Selector {
        namespace: scope.name().map(str::to_owned),
        subscription,
        key: params.owned("key"),
        kind: params.owned("type"),
        reason: params.parsed("reason", reason),
        since: params.parsed("since", time),
        until: params.parsed("until", time),
        ..Selector::default()
    };
    let limit = params.limit();
    let after = params.parsed("cursor", cursor);
    params.finish()?;
    check(&api, &selector).await?;
    let page = page(&api, Letters::new(selector, after, limit).within(scope.within())).await?;
    Ok(Json(page).into_response())
}

async fn page(api: &Api, mut letters: Letters) -> Result<Page<DeadLetter>, Problem> {
    for _ in 0..LOOKS_MAX {
        let (more, back) = api
            .query(move |engine| {
                let more = engine.list_dead_letters(&mut letters);
                (more, letters)
            })
            .await?;
        letters = back;
        if !more? {
            break;
        }
    }
    let next = letters.cut();
    Ok(Page { items: letters.items, next })
}

/// The id of the last dead letter on the previous page.
fn cursor(text: &str) -> Result<(String, Position), String> {
    let parts = text
        .rsplit_once('.')
        .and_then(|(name, number)| Some((name.to_owned(), Position(plain_number(number)?))));
    parts.ok_or_else(|| "is not a cursor of this list".to_owned())
}

fn reason(text: &str) -> Result<Reason, String> {
    let names = Reason::ALL.map(Reason::name);
    Reason::from_name(text).ok_or_else(|| unknown("reason", text, &names))
}

pub fn time(text: &str) -> Result<Millis, String> {
    Millis::parse_rfc3339(text)
        .ok_or_else(|| format!("`{text}` is not an RFC 3339 time, such as 2026-08-01T12:00:00Z"))
}

/// A selector with an unknown namespace or subscription is an error, not an empty list.
pub async fn check(api: &Api, selector: &Selector) -> Result<(), Problem> {
    let (namespace, subscription) = (selector.namespace.clone(), selector.subscription.clone());
    let is_there = move |engine: &mut Engine| {
        namespace.map_or(Ok(()), |namespace| engine.namespace_id(&namespace).map(drop))?;
        subscription.map_or(Ok(()), |name| engine.knows_subscription(&name))
    };
    Ok(api.query(is_there).await??)
}

/// Reads a selector from a body. It selects dead letters in the namespace of the request.
pub fn read_selector(namespace: &Namespace, body: &Members<'_>) -> Selector {
    const NARROWING: [&str; 7] = ["subscription", "key", "type", "reason", "since", "until", "ids"];
    const KNOWN: [&str; 8] = ["subscription", "key", "type", "reason", "since", "until", "ids", "all"];
    let selector = body.child("selector", &KNOWN);
    let (all, narrows) =
        (selector.flag("all").unwrap_or(false), NARROWING.iter().any(|name| selector.has(name)));
    if !body.has("selector") {
        body.fault("selector", "is missing; use {\"all\": true} to select all dead letters");
    } else if !all && !narrows {
        let names = NARROWING.join(", ");
        body.fault(
            "selector",
            format!("is empty; use one of {names}, or {{\"all\": true}} for all dead letters"),
        );
    } else if all && narrows {
        selector.fault("all", "selects all dead letters and cannot be combined with other members");
    }
    let ids = selector.has("ids").then(|| selector.texts("ids"));
    if ids.as_ref().is_some_and(|ids| ids.len() > IDS_MAX) {
        selector.fault("ids", format!("must be at most {IDS_MAX}"));
    }
    let ids = ids.map(|ids| ids.iter().map(|id| namespace.full_name(id)).collect());
    Selector {
        all,
        without_commands: false,
        namespace: Some(namespace.to_string()),
        subscription: selector.text("subscription").map(|name| namespace.full_name(name)),
        key: selector.text("key").map(str::to_owned),
        kind: selector.text("type").map(str::to_owned),
        reason: selector.parsed("reason", reason),
        since: selector.parsed("since", time),
        until: selector.parsed("until", time),
        ids,
    }
}

pub async fn show(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let id = namespace.full_name(&id);
    let _turn = api.turns.shows.acquire().await;
    Ok(shown(api.query(move |engine| view(engine, &id)).await??))
}

/// The ETag is the number of edits.
fn shown(letter: DeadLetter) -> Response {
    let edits = letter.edit.as_ref().map_or(0, |edit| edit.edits);
    ([(header::ETAG, format!("\"{edits}\""))], Json(letter)).into_response()
}

fn view(engine: &Engine, id: &str) -> Result<DeadLetter, Refused> {
    let (subscription, position) = engine.dead_letter_id(id)?;
    let letter = engine.view_dead_letter(subscription, position)?;
    letter.ok_or_else(|| Refused::NotFound(format!("dead letter {id:?} not found")))
}

/// Returns the deleted dead letter.
pub async fn delete(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let id = namespace.full_name(&id);
    let _turn = api.turns.shows.acquire().await;
    let done = move |engine: &mut Engine| {
        let letter = match view(engine, &id) {
            // The engine distinguishes one that is in flight from one that does not exist.
            Err(missing @ Refused::NotFound(_)) => {
                return Err(engine.delete_dead_letter(&id).err().unwrap_or(missing));
            }
            other => other?,
        };
        engine.delete_dead_letter(&id)?;
        Ok::<DeadLetter, Refused>(letter)
    };
    Ok(Json(api.command(done).await??).into_response())
}

/// The answer to a purge.
#[derive(Serialize, JsonSchema)]
pub struct Purged {
    purged: u64,
    /// Dead letters that were kept because they block a lane and `holders` is not true.
    kept: u64,
}

pub async fn purge(api: Api, namespace: Namespace, uri: Uri, body: Bytes) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let (selector, holders) = read_purge(&namespace, &request_body::parse(&body)?)?;
    check(&api, &selector).await?;
    let purged = purge_all(&api, selector, holders).await?;
    Ok(Json(purged).into_response())
}

fn read_purge(namespace: &Namespace, body: &Value) -> Result<(Selector, bool), Problem> {
    let faults = Faults::default();
    let members = Members::of(body, &["selector", "holders"], &faults);
    let selector = read_selector(namespace, &members);
    let holders = members.flag("holders").unwrap_or(false);
    faults.finish(Problem::invalid_selector)?;
    Ok((selector, holders))
}

/// Works in steps, so that no other request waits for all of it.
async fn purge_all(api: &Api, selector: Selector, holders: bool) -> Result<Purged, Problem> {
    let mut done = Purged { purged: 0, kept: 0 };
    let mut after = None;
    loop {
        let found = page(api, Letters::new(selector.clone(), after, PURGED_AT_ONCE)).await?;
        let (wanted, kept): (Vec<_>, Vec<_>) =
            found.items.into_iter().partition(|letter| holders || !letter.holds_lane);
        done.kept += kept.len() as u64;
        let ids: Vec<String> = wanted.into_iter().map(|letter| letter.full_id()).collect();
        done.purged += api.command(move |engine| delete_some(engine, &ids)).await??;
        after = match found.next {
            Some(next) => cursor(&next).ok(),
            None => return Ok(done),
        };
    }
}

fn delete_some(engine: &mut Engine, ids: &[String]) -> Result<u64, Refused> {
    let mut deleted = 0;
    for id in ids {
        match engine.delete_dead_letter(id) {
            Ok(()) => deleted += 1,
            // It was replayed meanwhile or is being delivered now: skip it.
            Err(Refused::NotFound(_) | Refused::Conflict(_)) => {}
            Err(refused) => return Err(refused),
        }
    }
    Ok(deleted)
}
