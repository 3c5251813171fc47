//! `/api/v1/webhooks/endpoints/{name}/deliveries`: every attempt to call an endpoint, newest first, or as they happen.

use super::feed::permit;
use crate::api::{Api, go_on};
use crate::auth::Opener;
use crate::extract::{Json, Path};
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::stream::{ByteStream, ChunkSender, EVENT_STREAM, EVENTS_BYTES, Room, wants_stream};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri, header};
use klambda_core::ids::plain_number;
use klambda_core::time::Millis;
use klambda_core::webhook::EventId;
use klambda_crash::Point;
use klambda_dispatch::Engine;
use klambda_dispatch::deliveries::{Delivery, DeliveryFilter, From};
use klambda_dispatch::history::History;
use serde_json::json;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often to check whether the log has grown. A check costs one atomic load.
const LOOK: Duration = Duration::from_millis(100);
const STREAM_LIMIT: usize = 500;

/// The attempts of one endpoint that one client wants to see.
struct Attempts {
    api: Api,
    namespace: Namespace,
    /// The full name of the subscription.
    name: String,
    filter: DeliveryFilter,
}

/// Attempts with their numbers, and where the next page begins.
struct Page {
    items: Vec<(u64, Delivery)>,
    up_to: u64,
    more: bool,
}

pub async fn list(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["workflowId", "status", "since", "eventId", "limit", "cursor"]);
    let before = params.parsed("cursor", |text| cursor(text).ok_or("is not a cursor of this list".into()));
    let filter = filter(&params);
    let last = headers.get("last-event-id").map(|value| value.to_str().ok().and_then(cursor));
    if let Some(None) = last {
        params.fault("Last-Event-ID", "must be an id of this stream");
    }
    let limit = params.limit();
    params.finish()?;
    let subscription = super::subscription_of(&namespace, &name);
    let found = api.query(move |engine| super::find(engine, &namespace, &name).map(|_| namespace)).await?;
    let opener = api.opener(&headers);
    let attempts = Attempts { namespace: found?, name: subscription, filter, api };
    if wants_stream(&headers) {
        return attempts.open(last.flatten(), opener).await;
    }
    let page = attempts.page(before.map_or(From::Newest, From::Before), limit).await?;
    let next = page.more.then(|| page.up_to.to_string());
    let items: Vec<Delivery> = page.items.into_iter().map(|(_, delivery)| delivery).collect();
    Ok(Json(json!({ "items": items, "next": next })).into_response())
}

fn cursor(text: &str) -> Option<u64> {
    plain_number(text)
}

fn filter(params: &Params) -> DeliveryFilter {
    let time =
        |text: &str| Millis::parse_rfc3339(text).ok_or_else(|| format!("`{text}` must be an RFC 3339 time"));
    let event = |text: &str| text.parse::<EventId>().map_err(|_| format!("`{text}` must be an eventId"));
    DeliveryFilter {
        workflow: params.owned("workflowId"),
        succeeded: params.parsed("status", |text| match text {
            "ok" => Ok(true),
            "failed" => Ok(false),
            other => Err(format!("`{other}` must be ok or failed")),
        }),
        since: params.parsed("since", time),
        event: params.parsed("eventId", event),
    }
}

impl Attempts {
    /// A command, so that everything that it finds is durable.
    async fn page(&self, from: From, limit: usize) -> Result<Page, Problem> {
        let (name, filter) = (self.name.clone(), self.filter.clone());
        let looked = move |engine: &mut Engine| engine.read_deliveries(&name, from, &filter, limit);
        let found = self.api.command(looked).await??;
        let namespace = self.namespace.clone();
        let read = move |history: &History| {
            let mut items = Vec::with_capacity(found.items.len());
            for item in found.items {
                let number = item.number;
                let delivery = item.read(&namespace, history.reader());
                let delivery = delivery
                    .map_err(|error| Problem::internal(format!("could not read an attempt: {error}")))?;
                items.extend(delivery.map(|delivery| (number, delivery)));
            }
            Ok(Page { items, up_to: found.up_to, more: found.more })
        };
        self.api.blocking(read).await?
    }

    /// A stream of attempts, from now on or after the last one that the client has, until it disconnects.
    async fn open(self, last: Option<u64>, opener: Opener) -> Result<Response, Problem> {
        let permit = permit(&self.api)?;
        let name = self.name.clone();
        let newest = self.api.command(move |engine| engine.last_delivery(&name)).await??;
        let (chunks, stream) = ByteStream::new(&self.api.connections.held.answers);
        go_on(run(self, last.unwrap_or(newest), opener, chunks, permit));
        let headers = [(header::CONTENT_TYPE, EVENT_STREAM), (header::CACHE_CONTROL, "no-store")];
        Ok((headers, Body::new(stream)).into_response())
    }

    /// Ends when the client disconnects, or when the attempts cannot be read.
    async fn follow(&self, mut last: u64, chunks: &ChunkSender) -> Option<()> {
        chunks.say(": following deliveries\n\n").await?;
        let mut said = Instant::now();
        loop {
            let end = self.api.history.end();
            let room = Room::of(&self.api.connections.held.answers, EVENTS_BYTES).await;
            let page = match self.page(From::After(last), STREAM_LIMIT).await {
                Ok(page) => page,
                Err(problem) => return chunks.say(&format!(": {}\n\n", problem.detail())).await,
            };
            last = page.up_to;
            if !page.items.is_empty() {
                chunks.send(text(&page), room).await?;
                said = Instant::now();
            }
            while !page.more && !self.api.history.has_more(&end) {
                sleep(LOOK).await;
                if said.elapsed() >= KEEP_ALIVE {
                    chunks.say(": keep-alive\n\n").await?;
                    said = Instant::now();
                }
            }
            // Other endpoints let the log grow too.
            sleep(LOOK).await;
        }
    }
}

async fn run(
    attempts: Attempts,
    last: u64,
    opener: Opener,
    chunks: ChunkSender,
    _permit: OwnedSemaphorePermit,
) {
    Point::Tail.pass();
    let shutdown = attempts.api.shutdown.clone();
    tokio::select! {
        () = shutdown.requested() => {}
        () = opener.revoked() => {}
        () = chunks.closed() => {}
        _ = attempts.follow(last, &chunks) => {}
    }
}

fn text(page: &Page) -> Vec<u8> {
    let mut text = Vec::new();
    for (number, delivery) in &page.items {
        text.extend_from_slice(format!("id: {number}\ndata: {}\n\n", json!(delivery)).as_bytes());
    }
    text
}
