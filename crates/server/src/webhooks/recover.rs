//! `…/recover`: sends everything again that an endpoint did not get since a time. This is a replay of its dead letters,
//! in the order of their lanes; an event that was skipped is a dead letter too.

use super::{find, subscription_of};
use crate::api::Api;
use crate::extract::{Json, Path};
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::replays;
use crate::request_body::{self, Faults, Members};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, Uri, header};
use klambda_dispatch::Engine;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::Refused;
use klambda_dispatch::views::Replay;
use serde_json::Value;

pub async fn create(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let (selector, dry_run) = read(&namespace, &name, &request_body::parse(&body)?)?;
    let request = replays::with_defaults(selector);
    let (home, own) = (namespace.clone(), name.clone());
    api.query(move |engine| find(engine, &home, &own)).await??;
    if dry_run {
        return Ok(Json(replays::preview(&api, request).await?).into_response());
    }
    let own = name.clone();
    let home = namespace.clone();
    let created = move |engine: &mut Engine| {
        // Receivers may start recoveries, so each endpoint has one at a time.
        if let Some(running) = engine.running_replay_of(&subscription_of(&home, &own)) {
            let detail = format!(
                "recovery r{running} of this endpoint is still running; wait until it ends, or stop it"
            );
            return Err(Refused::Conflict(detail));
        }
        let id = engine.create_replay(request)?;
        view(engine, &home, &own, id)
    };
    let job = api.command(created).await??;
    let id = job.id.as_deref().unwrap_or_default();
    let location = namespace.address(&format!("webhooks/endpoints/{name}/recover/{id}"));
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(job)).into_response())
}

fn read(namespace: &Namespace, name: &str, body: &Value) -> Result<(Selector, bool), Problem> {
    let faults = Faults::default();
    let members = Members::of(body, &["since", "until", "workflowId", "dryRun"], &faults);
    if !members.has("since") {
        members.fault("since", "is missing");
    }
    let selector = Selector {
        namespace: Some(namespace.to_string()),
        subscription: Some(subscription_of(namespace, name)),
        key: members.text("workflowId").map(str::to_owned),
        since: members.parsed("since", crate::dead_letters::time),
        until: members.parsed("until", crate::dead_letters::time),
        ..Selector::default()
    };
    let dry_run = members.flag("dryRun").unwrap_or(false);
    faults.finish(Problem::invalid_body)?;
    Ok((selector, dry_run))
}

/// A job of another endpoint counts as missing.
fn view(engine: &Engine, namespace: &str, name: &str, id: u64) -> Result<Replay, Refused> {
    let subscription = subscription_of(namespace, name);
    let is_own = engine.replay_subscription(id) == Some(subscription.as_str());
    let job = engine.view_replay(id).filter(|_| is_own);
    job.ok_or_else(|| Refused::NotFound(format!("webhook endpoint {name:?} has no recovery r{id}")))
}

pub async fn show(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let id = replays::parse_id(&id)?;
    Ok(Json(api.query(move |engine| view(engine, &namespace, &name, id)).await??).into_response())
}

/// Stops a recovery. Events that are already in their lane continue; the others stay as they are.
pub async fn stop(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let id = replays::parse_id(&id)?;
    let stopped = move |engine: &mut Engine| {
        view(engine, &namespace, &name, id)?;
        engine.stop_replay(id)?;
        view(engine, &namespace, &name, id)
    };
    Ok(Json(api.command(stopped).await??).into_response())
}
