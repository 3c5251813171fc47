//! `/api/v1/overview`: traffic, backlog, lanes and what needs manual action, once or as a stream.

use crate::api::{Api, OVERVIEWS_MAX, go_on};
use crate::auth::{Opener, Who};
use crate::extract::Json;
use crate::namespace::Scope;
use crate::params::Params;
use crate::problem::Problem;
use crate::stream::{ByteStream, ChunkSender, EVENT_STREAM, wants_stream};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri, header};
use klambda_access::{Reach, Role};
use klambda_core::namespace::Within;
use klambda_dispatch::views::{self, ATTENTION_MAX, Attention, rank};
use klambda_functions::resource::{Phase, Resource, Truth};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

#[derive(Serialize, JsonSchema)]
pub struct Overview {
    #[serde(flatten)]
    engine: views::Overview,
    /// Functions and agents by phase.
    functions: BTreeMap<&'static str, u64>,
    /// Only for a role in all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<views::Status>,
}

/// The time between two overviews of a stream.
const INTERVAL: Duration = Duration::from_millis(500);

pub async fn show(
    api: Api,
    who: Who,
    scope: Scope,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let asked = scope.clone();
    api.query(move |engine| asked.must_be_there(engine)).await??;
    let source = Source { within: scope.within(), is_whole: who.allows(Role::Viewer, Reach::Everywhere) };
    if !wants_stream(&headers) {
        return Ok(Json(source.read(&api).await?).into_response());
    }
    let permit = api.turns.overviews.clone().try_acquire_owned().map_err(|_| {
        Problem::limit_reached(format!("{OVERVIEWS_MAX} clients already follow the overview"))
            .retry_after(Duration::from_secs(5))
    })?;
    let (chunks, stream) = ByteStream::new(&api.connections.held.answers);
    go_on(follow(api.clone(), source, chunks, api.opener(&headers), permit));
    let headers = [(header::CONTENT_TYPE, EVENT_STREAM), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(stream)).into_response())
}

/// Ends with the client, the server or the token.
async fn follow(
    api: Api,
    source: Source,
    chunks: ChunkSender,
    opener: Opener,
    _permit: OwnedSemaphorePermit,
) {
    let sending = async {
        loop {
            let overview = source.read(&api).await.ok()?;
            let text = serde_json::to_string(&overview).ok()?;
            let room = chunks.room(text.len()).await;
            chunks.send(format!("data: {text}\n\n").into_bytes(), room).await?;
            tokio::select! {
                () = chunks.closed() => return None::<()>,
                () = sleep(INTERVAL) => {}
            }
        }
    };
    tokio::select! {
        () = api.shutdown.requested() => {}
        () = opener.revoked() => {}
        _ = sending => {}
    }
}

/// What a caller may see.
struct Source {
    within: Within,
    is_whole: bool,
}

impl Source {
    async fn read(&self, api: &Api) -> Result<Overview, Problem> {
        let (within, is_whole) = (self.within.clone(), self.is_whole);
        let read =
            api.query(move |engine| (engine.view_overview(&within), is_whole.then(|| engine.view_status())));
        let (mut engine, server) = read.await?;
        engine.attention.extend(server.iter().flat_map(of_store));
        let (mut functions, mut failed) = (BTreeMap::<&str, u64>::new(), Vec::new());
        api.control.each(|resource| {
            if self.within.has(&resource.metadata.namespace) {
                *functions.entry(resource.status.phase.name()).or_default() += 1;
                if failed.len() < ATTENTION_MAX {
                    failed.extend(of_function(resource));
                }
            }
        });
        engine.attention.extend(failed);
        engine.attention.sort_by_key(|item| rank(item.kind));
        engine.attention.truncate(ATTENTION_MAX);
        Ok(Overview { engine, functions, server })
    }
}

fn of_function(resource: &Resource) -> Option<Attention> {
    if resource.status.phase != Phase::Failed {
        return None;
    }
    let mut conditions = resource.status.conditions.iter();
    let why = conditions.find(|condition| condition.status == Truth::False);
    Some(Attention {
        kind: "functionFailed",
        namespace: Some(resource.metadata.namespace.clone()),
        name: Some(resource.metadata.name.clone()),
        message: why.map_or_else(|| "failed".to_owned(), |condition| condition.message.clone()),
        since: None,
    })
}

fn of_store(status: &views::Status) -> Option<Attention> {
    let of = |kind, message| Attention { kind, namespace: None, name: None, message, since: None };
    if let Some(why) = &status.failure {
        return Some(of("storeFailed", format!("the store failed; restart the server: {why}")));
    }
    let full = "the disk is full: new events are refused; free space or lower retention";
    status.disk.full.then(|| of("storeFull", full.to_owned()))
}
