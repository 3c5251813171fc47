//! A page of the log. A long page is sent in parts while it is read, so memory holds only what the client has not taken.

use super::Wanted;
use crate::api::{Api, go_on};
use crate::problem::Problem;
use crate::response_memory::Counted;
use crate::stream::{ByteStream, ChunkSender, EVENTS_BYTES, Room};
use axum::Extension;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header;
use klambda_core::ids::Position;
use klambda_dispatch::history::{Cursor, Item, Limits, Page};
use std::io;

/// A page ends here, however many events were requested.
const PAGE_BYTES_MAX: usize = 8 << 20;
const SCANNED_BYTES_MAX: u64 = 64 << 20;
/// A frame of the log is read once for each part that begins in it.
const PART_BYTES: usize = 512 << 10;
/// How much of the log is scanned for one part.
const PART_SCANNED_BYTES: u64 = 8 << 20;

/// The rest of a page.
struct Rest {
    api: Api,
    cursor: Cursor,
    wanted: Wanted,
    events: usize,
    bytes: usize,
    scanned_bytes: u64,
    is_first: bool,
}

pub async fn open(api: Api, after: Position, wanted: Wanted, events: usize) -> Result<Response, Problem> {
    let room = Room::of(&api.connections.held.answers, EVENTS_BYTES).await;
    let cursor = api.blocking(move |history| history.behind(after)).await??;
    let (bytes, scanned_bytes) = (PAGE_BYTES_MAX, SCANNED_BYTES_MAX);
    let mut rest = Rest { api: api.clone(), cursor, wanted, events, bytes, scanned_bytes, is_first: true };
    let mut text = b"{\"items\":[".to_vec();
    let headers = [(header::CONTENT_TYPE, "application/json")];
    if rest.part(&mut text).await? {
        return Ok((Extension(Counted), headers, Body::from(room.fill(text))).into_response());
    }
    let (chunks, stream) = ByteStream::new(&api.connections.held.answers);
    go_on(async move {
        if let Err(problem) = rest.send(text, room, &chunks).await {
            chunks.fail(io::Error::other(problem.detail().to_owned())).await;
        }
    });
    Ok((headers, Body::new(stream)).into_response())
}

impl Rest {
    async fn send(mut self, first: Vec<u8>, room: Room, chunks: &ChunkSender) -> Result<(), Problem> {
        let mut sent = chunks.send(first, room).await;
        while sent.is_some() {
            let room = chunks.room(EVENTS_BYTES).await;
            let mut text = Vec::new();
            let is_last = self.part(&mut text).await?;
            sent = chunks.send(text, room).await.filter(|()| !is_last);
        }
        Ok(())
    }

    /// Appends the next part of the page. Returns true if it was the last.
    async fn part(&mut self, text: &mut Vec<u8>) -> Result<bool, Problem> {
        let page = self.read().await?;
        let scanned_bytes = page.cursor.bytes_since(&self.cursor);
        self.scanned_bytes = self.scanned_bytes.saturating_sub(scanned_bytes);
        self.cursor = page.cursor;
        for item in &page.items {
            self.write(item, text);
        }
        let is_whole = !page.more || self.events == 0 || self.bytes == 0 || self.scanned_bytes == 0;
        if is_whole {
            let next = page.more.then_some(page.cursor.after.0);
            let next = next.map_or_else(|| "null".to_owned(), |next| format!("\"{next}\""));
            text.extend_from_slice(format!("],\"next\":{next}}}").as_bytes());
        }
        Ok(is_whole)
    }

    async fn read(&self) -> Result<Page, Problem> {
        let limits = Limits {
            events: self.events,
            bytes: self.bytes.min(PART_BYTES),
            scanned_bytes: self.scanned_bytes.min(PART_SCANNED_BYTES),
        };
        let (cursor, filter) = (self.cursor, self.wanted.filter.clone());
        Ok(self.api.blocking(move |history| history.read(cursor, &filter, limits)).await??)
    }

    fn write(&mut self, item: &Item, text: &mut Vec<u8>) {
        if !std::mem::take(&mut self.is_first) {
            text.push(b',');
        }
        self.wanted.write(item, text);
        self.events -= 1;
        self.bytes = self.bytes.saturating_sub(item.json.len());
    }
}
