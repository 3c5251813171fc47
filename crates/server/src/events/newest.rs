//! A page of the log, newest events first. The log is read forwards only, so this reads short windows of it, each one
//! before the last.

use super::Wanted;
use crate::api::Api;
use crate::problem::Problem;
use crate::response_memory::Counted;
use crate::stream::{CHUNK_BYTES, EVENTS_BYTES, Room};
use axum::Extension;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header;
use klambda_core::ids::Position;
use klambda_dispatch::history::{Cursor, Item, Limits, Page};
use std::collections::VecDeque;

/// A page ends here, however many events were asked for. Its client follows `next`.
const PAGE_BYTES_MAX: usize = 512 << 10;
/// Of the log that one page looks through.
const SCANNED_BYTES_MAX: u64 = 64 << 20;
/// Positions in the first window. Events can be large, and the size of the next window follows from this one.
const WINDOW_MIN: u64 = 16;
const WINDOW_GROWTH: u64 = 4;
/// Of one read: many short reads, so that other requests get their turn.
const READ_EVENTS_MAX: u64 = 500;
const READ_SCANNED_BYTES_MAX: u64 = 8 << 20;

/// `before`: only events of lower positions; `None` begins with the newest.
pub async fn open(
    api: Api,
    before: Option<Position>,
    wanted: Wanted,
    events: usize,
) -> Result<Response, Problem> {
    let room = Room::of(&api.connections.held.answers, EVENTS_BYTES).await;
    let last = api.query(|engine| engine.view_status().positions.last).await?.unwrap_or(0);
    let upper = before.map_or(last, |before| before.0.saturating_sub(1).min(last));
    let page = Reader { api, wanted, events }.page(upper).await?;
    let headers = [(header::CONTENT_TYPE, "application/json")];
    Ok((Extension(Counted), headers, Body::from(room.fill(page))).into_response())
}

struct Reader {
    api: Api,
    wanted: Wanted,
    events: usize,
}

struct Window {
    kept: Kept,
    start: Cursor,
    scanned_bytes: u64,
}

/// The newest matching events of a window, oldest first.
#[derive(Default)]
struct Kept {
    items: VecDeque<Item>,
    bytes: usize,
    /// There are more in the window, older than these.
    is_cut: bool,
}

impl Kept {
    fn add(&mut self, item: Item, events_max: usize, bytes_max: usize) {
        self.bytes += item.json.len();
        self.items.push_back(item);
        while self.items.len() > events_max || (self.bytes > bytes_max && self.items.len() > 1) {
            self.bytes -= self.items.pop_front().map_or(0, |item| item.json.len());
            self.is_cut = true;
        }
    }
}

impl Reader {
    /// Events up to position `upper`, as JSON.
    async fn page(&self, mut upper: u64) -> Result<Vec<u8>, Problem> {
        let mut text = b"{\"items\":[".to_vec();
        let (mut left, mut bytes_left) = (self.events, PAGE_BYTES_MAX);
        let (mut scanned, mut size, mut end) = (0, WINDOW_MIN, None);
        let next = loop {
            let oldest = self.api.history.oldest().0;
            if upper < oldest {
                break None;
            }
            let lower = upper.saturating_sub(size).max(oldest - 1);
            let window = self.window(lower, upper, end, (left, bytes_left)).await?;
            for item in window.kept.items.iter().rev() {
                if left < self.events {
                    text.push(b',');
                }
                self.wanted.write(item, &mut text);
                left -= 1;
            }
            bytes_left = bytes_left.saturating_sub(window.kept.bytes);
            scanned += window.scanned_bytes;
            if window.kept.is_cut {
                break window.kept.items.front().map(|item| item.position.0);
            }
            size = next_size(
                size,
                upper - lower,
                window.scanned_bytes,
                SCANNED_BYTES_MAX.saturating_sub(scanned),
            );
            (upper, end) = (lower, Some(window.start));
            if left == 0 || bytes_left == 0 || scanned >= SCANNED_BYTES_MAX {
                break (upper >= oldest).then_some(upper + 1);
            }
        };
        let next = next.map_or_else(|| "null".to_owned(), |next| format!("\"{next}\""));
        text.extend_from_slice(format!("],\"next\":{next}}}").as_bytes());
        Ok(text)
    }

    /// Reads the positions above `lower`, up to `upper`, which is about where `end` is.
    async fn window(
        &self,
        lower: u64,
        upper: u64,
        end: Option<Cursor>,
        (events, bytes): (usize, usize),
    ) -> Result<Window, Problem> {
        let start = self.api.blocking(move |history| history.behind(Position(lower))).await??;
        let (mut kept, mut cursor) = (Kept::default(), start);
        loop {
            let page = self.read(cursor, limits(&cursor, upper, end.as_ref())).await?;
            cursor = page.cursor;
            for item in page.items.into_iter().take_while(|item| item.position.0 <= upper) {
                kept.add(item, events, bytes);
            }
            if !page.more || cursor.after.0 >= upper {
                return Ok(Window { kept, start, scanned_bytes: cursor.bytes_since(&start) });
            }
        }
    }

    async fn read(&self, cursor: Cursor, limits: Limits) -> Result<Page, Problem> {
        let filter = self.wanted.filter.clone();
        Ok(self.api.blocking(move |history| history.read(cursor, &filter, limits)).await??)
    }
}

/// A read stops near the end of its window, also when the filter drops everything behind it.
fn limits(cursor: &Cursor, upper: u64, end: Option<&Cursor>) -> Limits {
    let events = upper.saturating_sub(cursor.after.0).clamp(1, READ_EVENTS_MAX);
    let scanned = end.map_or(READ_SCANNED_BYTES_MAX, |end| end.bytes_since(cursor));
    Limits {
        events: events as usize,
        bytes: CHUNK_BYTES,
        scanned_bytes: scanned.clamp(1, READ_SCANNED_BYTES_MAX),
    }
}

/// Larger windows find rare events sooner. None is so large that it exceeds what may still be scanned.
fn next_size(size: u64, positions: u64, scanned_bytes: u64, bytes_left: u64) -> u64 {
    let each = (scanned_bytes / positions.max(1)).max(1);
    size.saturating_mul(WINDOW_GROWTH).min(bytes_left / each).max(WINDOW_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_core::ids::NamespaceId;

    #[test]
    fn a_window_keeps_the_newest() {
        let item = |n: u64| Item { namespace: NamespaceId(1), position: Position(n), json: vec![b'x'; 10] };
        let positions = |kept: &Kept| kept.items.iter().map(|item| item.position.0).collect::<Vec<_>>();
        let mut kept = Kept::default();
        (1..=3).for_each(|n| kept.add(item(n), 3, 100));
        assert_eq!((positions(&kept), kept.is_cut), (vec![1, 2, 3], false));
        kept.add(item(4), 3, 100);
        assert_eq!((positions(&kept), kept.is_cut, kept.bytes), (vec![2, 3, 4], true, 30));
        kept.add(item(5), 3, 5);
        assert_eq!(positions(&kept), [5], "one event may exceed the limit");
    }

    #[test]
    fn windows_grow_within_what_may_be_scanned() {
        assert_eq!(next_size(16, 16, 1_600, 1 << 20), 64);
        assert_eq!(next_size(1 << 20, 1 << 20, 100 << 20, 50_000), 500);
        assert_eq!(next_size(16, 16, 16 << 20, 0), WINDOW_MIN);
    }
}
