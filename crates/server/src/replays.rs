//! `/api/v1/dlq/replays`: jobs that send dead letters to their targets again.

use crate::api::Api;
use crate::auth::Who;
use crate::dead_letters::{check, read_selector};
use crate::extract::{Json, Path};
use crate::ingress;
use crate::namespace::{Namespace, Scope};
use crate::params::Params;
use crate::problem::Problem;
use crate::request_body::{self, Faults, Members};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, Uri, header};
use klambda_access::{Reach, Role};
use klambda_core::namespace;
use klambda_dispatch::Engine;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::Refused;
use klambda_dispatch::replay::{DryRun, Request};
use klambda_dispatch::views::Replay;
use serde_json::Value;

const RATE_DEFAULT: u64 = 100;
const RATE_MAX: u64 = 1_000_000;
const PARALLELISM_DEFAULT: u64 = 16;
const PARALLELISM_MAX: u64 = 4096;

pub async fn list(api: Api, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let limit = params.limit();
    let before = params
        .parsed("cursor", |text| Replay::parse_id(text).ok_or_else(|| "is not a cursor of this list".into()));
    params.finish()?;
    let page = api.query(move |engine| {
        scope.must_be_there(engine)?;
        Ok::<_, Refused>(engine.view_replays(&scope.within(), before, limit))
    });
    let page = page.await??;
    Ok(Json(page).into_response())
}

pub async fn create(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let (mut request, dry_run) = read(&namespace, &request_body::parse(&body)?)?;
    let named = request.selector.subscription.as_deref().unwrap_or_default();
    ingress::may_act_on(&who, &namespace, namespace::split(named).1)?;
    request.selector.without_commands = !who.allows(Role::Developer, Reach::In(&namespace));
    check(&api, &request.selector).await?;
    if dry_run {
        return Ok(Json(preview(&api, request).await?).into_response());
    }
    let home = namespace.clone();
    let created = move |engine: &mut Engine| {
        let id = engine.create_replay(request)?;
        view(engine, &home, id)
    };
    let job = api.command(created).await??;
    let id = job.id.as_deref().unwrap_or_default();
    let location = namespace.address(&format!("dlq/replays/{id}"));
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(job)).into_response())
}

/// Works in parts, so that no other request waits for all of it.
pub async fn preview(api: &Api, request: Request) -> Result<Replay, Problem> {
    let mut dry = api.query(move |engine| engine.begin_dry_run(request)).await??;
    loop {
        let look = move |engine: &mut Engine| {
            let is_done = engine.continue_dry_run(&mut dry)?;
            Ok::<_, Refused>(if is_done { Looked::All(engine.view_dry_run(dry)) } else { Looked::Part(dry) })
        };
        match api.query(look).await?? {
            Looked::All(replay) => return Ok(replay),
            Looked::Part(part) => dry = part,
        }
    }
}

enum Looked {
    Part(DryRun),
    All(Replay),
}

fn read(namespace: &Namespace, body: &Value) -> Result<(Request, bool), Problem> {
    let faults = Faults::default();
    let members = Members::of(body, &["selector", "dryRun", "ratePerSecond", "parallelism"], &faults);
    let selector = read_selector(namespace, &members);
    let dry_run = members.flag("dryRun").unwrap_or(false);
    let rate = members.number("ratePerSecond", 1..=RATE_MAX).unwrap_or(RATE_DEFAULT);
    let parallelism = members.number("parallelism", 1..=PARALLELISM_MAX).unwrap_or(PARALLELISM_DEFAULT);
    faults.finish(Problem::invalid_selector)?;
    let request = Request { selector, rate_per_second: rate as u32, parallelism: parallelism as u32 };
    Ok((request, dry_run))
}

/// A replay at the default speed.
pub fn with_defaults(selector: Selector) -> Request {
    let (rate_per_second, parallelism) = (RATE_DEFAULT as u32, PARALLELISM_DEFAULT as u32);
    Request { selector, rate_per_second, parallelism }
}

fn view(engine: &Engine, namespace: &str, id: u64) -> Result<Replay, Refused> {
    let job = engine.view_replay(id).filter(|job| job.namespace == namespace);
    job.ok_or_else(|| Refused::NotFound(format!("replay r{id} not found")))
}

pub fn parse_id(text: &str) -> Result<u64, Problem> {
    Replay::parse_id(text).ok_or_else(|| Problem::not_found(format!("replay {text:?} not found")))
}

pub async fn show(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let id = parse_id(&id)?;
    Ok(Json(api.query(move |engine| view(engine, &namespace, id)).await??).into_response())
}

/// Cancels a replay. Events that are already in their lane continue; the others stay as they are.
pub async fn stop(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let id = parse_id(&id)?;
    let stopped = move |engine: &mut Engine| {
        view(engine, &namespace, id)?;
        engine.stop_replay(id)?;
        view(engine, &namespace, id)
    };
    Ok(Json(api.command(stopped).await??).into_response())
}
