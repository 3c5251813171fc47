//! One page of a feed: places from the engine, events from the log.

use super::super::resend::place;
use super::{Cursor, Start};
use crate::api::Api;
use crate::problem::Problem;
use crate::stream::{EVENTS_BYTES, Room};
use klambda_core::event_codec::EventView;
use klambda_core::ids::{FeedNumber, SubscriptionId};
use klambda_core::webhook::payload;
use klambda_core::webhook::{Payload, PayloadForm};
use klambda_dispatch::Engine;
use klambda_dispatch::feed::{FeedEntry, FeedItem, FeedPage, Unavailable};
use klambda_dispatch::history::History;
use klambda_dispatch::operate::Refused;
use klambda_store::log;
use klambda_store::record::event_of;
use std::ops::Range;

/// A page ends here, however many events were requested. One event may be longer.
const PAGE_BYTES: usize = 1 << 20;
/// Memory for a page in advance: for an event of usual size, and for all of them with some more for the last one.
const EVENT_BYTES: usize = 2 << 10;
const PAGE_BYTES_FULL: usize = PAGE_BYTES + (64 << 10);
/// How often a page is read again if retention moves its events meanwhile.
const TRIES: usize = 3;

/// The feed of one endpoint, as one client reads it.
pub struct Feed {
    pub api: Api,
    /// The full name of the subscription.
    pub name: String,
    pub workflow: Option<String>,
    pub is_batch: bool,
}

/// Events of a feed as text.
#[derive(Debug)]
pub struct Page {
    /// The beginning of the answer: what stands before the events, then the events, separated by commas.
    text: Vec<u8>,
    items: Vec<(FeedNumber, Range<usize>)>,
    next: Cursor,
    /// There are further entries.
    pub more: bool,
}

impl Page {
    /// The whole answer, without another copy of the events.
    pub fn closed(mut self, end: &str) -> Vec<u8> {
        self.text.extend_from_slice(end.as_bytes());
        self.text
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Every event with the cursor behind it.
    pub fn items(&self) -> impl Iterator<Item = (Cursor, &[u8])> {
        let feed = self.next.feed;
        self.items
            .iter()
            .map(move |(number, range)| (Cursor { feed, number: *number }, &self.text[range.clone()]))
    }

    pub fn next(&self) -> Cursor {
        self.next
    }
}

/// What the engine knows of a page.
struct Places {
    feed: SubscriptionId,
    payload: Payload,
    page: FeedPage,
    /// What stands before the events.
    open: &'static str,
}

impl Feed {
    /// The page, and the memory that is reserved for its text.
    pub async fn page(&self, start: Start, limit: usize) -> Result<(Page, Room), Problem> {
        let room = Room::of(&self.api.connections.held.answers, EVENTS_BYTES).await;
        for _ in 0..TRIES {
            if let Some(page) = self.try_page(start, limit).await? {
                return Ok((page, room));
            }
        }
        Err(Problem::internal("retention removes events while they are read; try again"))
    }

    /// `None` if retention moved an event after its place was looked up.
    async fn try_page(&self, start: Start, limit: usize) -> Result<Option<Page>, Problem> {
        let places = self.places(start, limit).await?;
        self.api.blocking(move |history| render(history, places)).await?
    }

    /// A command, so that everything that it finds is durable.
    async fn places(&self, start: Start, limit: usize) -> Result<Places, Problem> {
        let (name, workflow) = (self.name.clone(), self.workflow.clone());
        let looked = move |engine: &mut Engine| {
            let feed = engine.subscription_id(&name)?;
            let document = engine.endpoint_document(&name);
            let document = document.ok_or_else(|| Refused::NotFound("webhook endpoint not found".into()))?;
            let page = engine.read_feed(&name, start.since(feed), workflow.as_deref(), limit)?;
            Ok::<_, Refused>((feed, document.spec.payload, page))
        };
        let (feed, mut payload, page) = self.api.command(looked).await??;
        if self.is_batch {
            payload.form = PayloadForm::CloudEvents;
        }
        let open = if self.is_batch { "[" } else { "{\"items\":[" };
        Ok(Places { feed, payload, page: page.map_err(unavailable)?, open })
    }
}

fn unavailable(why: Unavailable) -> Problem {
    let (problem, oldest) = match why {
        Unavailable::Passed { oldest } => {
            let detail = "retention has removed events after this place, so some are missing; \
                          read without `since` to continue with the oldest event that is available";
            (Problem::gone(detail), oldest)
        }
        Unavailable::Unknown { oldest } => {
            let detail = "the feed of this endpoint does not know this place; \
                          read without `since` to start with the oldest event that is available";
            (Problem::not_found(detail), oldest)
        }
    };
    problem.with("oldest", oldest.map(|id| id.to_string()))
}

fn render(history: &History, places: Places) -> Result<Option<Page>, Problem> {
    let Places { feed, payload, page, open } = places;
    let next = Cursor { feed, number: page.up_to };
    let mut text = Vec::with_capacity(open.len() + (page.items.len() * EVENT_BYTES).min(PAGE_BYTES_FULL));
    text.extend_from_slice(open.as_bytes());
    let mut rendered = Page { text, items: Vec::with_capacity(page.items.len()), next, more: page.more };
    let mut records = history.reader().sequential();
    for FeedItem { number, entry, located } in &page.items {
        if rendered.text.len() >= PAGE_BYTES {
            // The entry before this one is the last that the client gets.
            rendered.next.number = FeedNumber(number.0 - 1);
            rendered.more = true;
            break;
        }
        let record = match records.read(*located) {
            Ok(record) => record,
            Err(log::Error::Gone(_)) => return Ok(None),
            Err(error) => return Err(unreadable(&error)),
        };
        if !rendered.items.is_empty() {
            rendered.text.push(b',');
        }
        let begin = rendered.text.len();
        write(&mut rendered.text, &payload, entry, record)?;
        rendered.items.push((*number, begin..rendered.text.len()));
    }
    Ok(Some(rendered))
}

fn write(out: &mut Vec<u8>, payload: &Payload, entry: &FeedEntry, record: &[u8]) -> Result<(), Problem> {
    let event = event_of(record).map_err(|error| unreadable(&error))?;
    let view = EventView::decode(event).map_err(|error| unreadable(&error))?;
    payload::write(out, payload, entry.id, &view, place(entry).as_ref());
    Ok(())
}

fn unreadable(error: &dyn std::fmt::Display) -> Problem {
    Problem::internal(format!("could not read an event of the feed: {error}"))
}
