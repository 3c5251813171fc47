//! Waits for new events of a feed, for a long poll or as Server-Sent Events: `id` is the cursor, `data` the event.

use super::page::{Feed, Page};
use super::{Start, permit};
use crate::api::go_on;
use crate::auth::Opener;
use crate::problem::Problem;
use crate::stream::{ByteStream, ChunkSender, EVENT_STREAM, Room};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header;
use klambda_crash::Point;
use klambda_dispatch::history;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often to check whether the log has grown. A check costs one atomic load.
const LOOK: Duration = Duration::from_millis(20);
/// The minimum time between two reads of the feed without events.
const READ_EVERY: Duration = Duration::from_millis(100);
const STREAM_LIMIT: usize = 500;
/// Enough for the line with a cursor, and the ends of lines.
const CURSOR_BYTES: usize = 64;

/// Reads a feed whenever the log has grown.
pub struct Follower<'a> {
    feed: &'a Feed,
    start: Start,
    /// The end of the log at the last read, and its time.
    read: Option<(history::Cursor, Instant)>,
}

impl Follower<'_> {
    pub fn new(feed: &Feed, start: Start) -> Follower<'_> {
        Follower { feed, start, read: None }
    }

    /// The next page. It is empty at the deadline.
    pub async fn until(&mut self, deadline: Instant, limit: usize) -> Result<(Page, Room), Problem> {
        loop {
            self.wait_for_growth(deadline).await;
            self.read = Some((self.feed.api.history.end(), Instant::now()));
            let (page, room) = self.feed.page(self.start, limit).await?;
            self.start = Start::At(page.next());
            if page.more {
                self.read = None;
            }
            if !page.is_empty() || Instant::now() >= deadline {
                return Ok((page, room));
            }
        }
    }

    /// Returns at the deadline at the latest.
    async fn wait_for_growth(&self, deadline: Instant) {
        let Some((end, at)) = &self.read else { return };
        while Instant::now() < deadline {
            if self.feed.api.history.has_more(end) && at.elapsed() >= READ_EVERY {
                return;
            }
            sleep(LOOK).await;
        }
    }
}

/// A stream of events until the client disconnects.
pub async fn open(feed: Feed, start: Start, opener: Opener) -> Result<Response, Problem> {
    let permit = permit(&feed.api)?;
    // A place that does not exist is an error before the stream begins.
    feed.page(start, 1).await?;
    let (chunks, stream) = ByteStream::new(&feed.api.connections.held.answers);
    go_on(run(feed, start, opener, chunks, permit));
    let headers = [(header::CONTENT_TYPE, EVENT_STREAM), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(stream)).into_response())
}

async fn run(feed: Feed, start: Start, opener: Opener, chunks: ChunkSender, _permit: OwnedSemaphorePermit) {
    Point::Tail.pass();
    let shutdown = feed.api.shutdown.clone();
    tokio::select! {
        () = shutdown.requested() => {}
        () = opener.revoked() => {}
        () = chunks.closed() => {}
        _ = follow(&feed, start, &chunks) => {}
    }
}

/// Ends when the client disconnects, or when the feed cannot be read.
async fn follow(feed: &Feed, start: Start, chunks: &ChunkSender) -> Option<()> {
    chunks.say(": following the feed\n\n").await?;
    let mut follower = Follower::new(feed, start);
    loop {
        match follower.until(Instant::now() + KEEP_ALIVE, STREAM_LIMIT).await {
            Ok((page, _)) if page.is_empty() => chunks.say(": keep-alive\n\n").await?,
            Ok((page, room)) => send(&page, room, chunks).await?,
            Err(problem) => return chunks.say(&format!(": {}\n\n", problem.detail())).await,
        }
    }
}

async fn send(page: &Page, room: Room, chunks: &ChunkSender) -> Option<()> {
    let mut text = Vec::with_capacity(page.items().map(|(_, event)| event.len() + CURSOR_BYTES).sum());
    for (cursor, event) in page.items() {
        text.extend_from_slice(format!("id: {cursor}\ndata: ").as_bytes());
        text.extend_from_slice(event);
        text.extend_from_slice(b"\n\n");
    }
    chunks.send(text, room).await
}
