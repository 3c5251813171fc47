//! The log as it grows, as Server-Sent Events: `id` is the position, `data` one item of the list.

use super::Wanted;
use crate::api::{Api, TAILS_MAX, go_on};
use crate::auth::Opener;
use crate::problem::Problem;
use crate::stream::{ByteStream, CHUNK_BYTES, ChunkSender, EVENT_STREAM, EVENTS_BYTES, Room};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header;
use klambda_core::ids::Position;
use klambda_crash::Point;
use klambda_dispatch::history::{Cursor, Item, Limits, Page};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often to check for new events. A check costs one atomic load.
const LOOK: Duration = Duration::from_millis(20);
const LIMITS: Limits = Limits { events: 500, bytes: CHUNK_BYTES, scanned_bytes: 8 << 20 };

/// Starts after the given position, or with new events.
pub async fn open(
    api: Api,
    opener: Opener,
    after: Option<Position>,
    wanted: Wanted,
    limit: Option<usize>,
) -> Result<Response, Problem> {
    let permit = api.turns.tails.clone().try_acquire_owned().map_err(|_| {
        Problem::limit_reached(format!("{TAILS_MAX} clients already follow the log"))
            .retry_after(Duration::from_secs(5))
    })?;
    let cursor = match after {
        Some(after) => api.blocking(move |history| history.behind(after)).await??,
        None => api.history.end(),
    };
    let (chunks, stream) = ByteStream::new(&api.connections.held.answers);
    let tail = Tail { api, cursor, wanted, left: limit.unwrap_or(usize::MAX), chunks, _permit: permit };
    go_on(tail.run(opener));
    let headers = [(header::CONTENT_TYPE, EVENT_STREAM), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(stream)).into_response())
}

struct Tail {
    api: Api,
    cursor: Cursor,
    wanted: Wanted,
    left: usize,
    chunks: ChunkSender,
    _permit: OwnedSemaphorePermit,
}

impl Tail {
    async fn run(mut self, opener: Opener) {
        Point::Tail.pass();
        let shutdown = self.api.shutdown.clone();
        tokio::select! {
            () = shutdown.requested() => {}
            () = opener.revoked() => {}
            _ = self.follow() => {}
        }
    }

    /// Ends when the client disconnects or has all it wanted, or when the log cannot be read.
    async fn follow(&mut self) -> Option<()> {
        self.say(": following the log\n\n").await?;
        let mut said = Instant::now();
        while self.left > 0 {
            if self.api.history.has_more(&self.cursor) {
                let room = self.chunks.room(EVENTS_BYTES).await;
                let page = self.next_page().await?;
                self.cursor = page.cursor;
                if !page.items.is_empty() {
                    self.send(&page.items, room).await?;
                    said = Instant::now();
                }
            } else if said.elapsed() >= KEEP_ALIVE {
                self.say(": keep-alive\n\n").await?;
                said = Instant::now();
            } else {
                tokio::select! {
                    () = self.chunks.closed() => return None,
                    () = sleep(LOOK) => {}
                }
            }
        }
        Some(())
    }

    async fn next_page(&self) -> Option<Page> {
        let (cursor, filter) = (self.cursor, self.wanted.filter.clone());
        let limits = Limits { events: LIMITS.events.min(self.left), ..LIMITS };
        match self.api.blocking(move |history| history.read(cursor, &filter, limits)).await {
            Ok(Ok(page)) => Some(page),
            Ok(Err(error)) => {
                tracing::warn!(%error, "Could not follow the log");
                self.say(&format!(": {error}\n\n")).await;
                None
            }
            Err(_) => None,
        }
    }

    async fn send(&mut self, items: &[Item], room: Room) -> Option<()> {
        self.wanted.know(&self.api, items).await.ok()?;
        let mut text = Vec::with_capacity(items.iter().map(|item| item.json.len() + 40).sum());
        for item in items {
            text.extend_from_slice(format!("id: {}\ndata: ", item.position).as_bytes());
            self.wanted.write(item, &mut text);
            text.extend_from_slice(b"\n\n");
        }
        self.left = self.left.saturating_sub(items.len());
        self.chunks.send(text, room).await
    }

    async fn say(&self, comment: &str) -> Option<()> {
        self.chunks.say(comment).await
    }
}
