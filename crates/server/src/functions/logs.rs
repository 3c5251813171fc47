//! `GET /api/v1/lambda/functions/{name}/logs`: the output of a function.

use super::kind_of;
use crate::api::{Api, TAILS_MAX, go_on};
use crate::auth::Opener;
use crate::extract::{Json, Path};
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::shutdown::Shutdown;
use crate::stream::{ByteStream, ChunkSender};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri, header};
use klambda_control::Name;
use klambda_functions::platform::{Line, Logs};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

const TAIL_DEFAULT: u64 = 100;
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// With `?follow=true`, or if the client accepts a stream, sends Server-Sent Events that continue.
pub async fn show(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["tail", "follow"]);
    let (name, tail) = (Name::new(&namespace, &name), params.number("tail").unwrap_or(TAIL_DEFAULT));
    let accepts = headers.get(header::ACCEPT).is_some_and(|value| value.as_bytes() == b"text/event-stream");
    let follow = params.flag("follow") || accepts;
    params.finish()?;
    api.control.find(kind_of(&uri), &name)?;
    let tail = usize::try_from(tail).unwrap_or(usize::MAX);
    let logs = api.control.logs(&name, tail);
    if follow {
        let logs = logs.ok_or_else(|| {
            Problem::function_unavailable("the function has not started yet, so it has no log")
                .retry_after(Duration::from_secs(1))
        })?;
        return stream(&api, api.opener(&headers), logs);
    }
    let lines = logs.map(|mut logs| logs.ready()).unwrap_or_default();
    let items: Vec<Value> = lines.iter().map(line).collect();
    Ok(Json(json!({ "items": items, "next": null })).into_response())
}

fn line(line: &Line) -> Value {
    json!({
        "number": line.number,
        "time": line.time.rfc3339(),
        "replica": line.replica,
        "stream": line.stream.name(),
        "text": line.text,
    })
}

fn stream(api: &Api, opener: Opener, logs: Box<dyn Logs>) -> Result<Response, Problem> {
    let permit = api.turns.tails.clone().try_acquire_owned().map_err(|_| {
        Problem::limit_reached(format!("{TAILS_MAX} clients already follow logs"))
            .retry_after(Duration::from_secs(5))
    })?;
    let (chunks, stream) = ByteStream::new(&api.connections.held.answers);
    go_on(run(logs, chunks, api.shutdown.clone(), opener, permit));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(stream)).into_response())
}

async fn run(
    mut logs: Box<dyn Logs>,
    chunks: ChunkSender,
    shutdown: Shutdown,
    opener: Opener,
    permit: OwnedSemaphorePermit,
) {
    tokio::select! {
        () = shutdown.requested() => {}
        () = opener.revoked() => {}
        () = chunks.closed() => {}
        _ = send(&mut *logs, &chunks) => {}
    }
    drop(permit);
}

/// Ends when the function is deleted.
async fn send(logs: &mut dyn Logs, chunks: &ChunkSender) -> Option<()> {
    chunks.say(": following the log\n\n").await?;
    loop {
        match tokio::time::timeout(KEEP_ALIVE, logs.next()).await {
            Ok(Some(next)) => chunks.say(&format!("id: {}\ndata: {}\n\n", next.number, line(&next))).await?,
            Ok(None) => return None,
            Err(_) => chunks.say(": keep-alive\n\n").await?,
        }
    }
}
