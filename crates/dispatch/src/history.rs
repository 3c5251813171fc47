//! Reads the log as a list of events: in pages, and as it grows. It sees only durable events, so a crash never takes
//! back an event that a reader has seen. Runs on any thread that may block on the disk.

use klambda_core::event_codec::EventView;
use klambda_core::ids::{NamespaceId, Position};
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::log::{self, LogReader};
use klambda_store::record::Record;
use std::io::Write;

#[derive(Clone)]
pub struct History {
    reader: LogReader,
}

/// Selects events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// `None` selects all namespaces.
    pub namespaces: Option<Vec<NamespaceId>>,
    pub kinds: Kinds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinds {
    All,
    Type(String),
    TypePrefix(String),
}

/// Where reading continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    at: LogAddress,
    /// All events up to this position were processed.
    pub after: Position,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub events: usize,
    /// Limit of the returned bytes; a single event may exceed it.
    pub bytes: usize,
    /// Limit of the log bytes that are scanned.
    pub scanned_bytes: u64,
}

#[derive(Debug)]
pub struct Item {
    pub namespace: NamespaceId,
    pub position: Position,
    /// `{"position":…,"acceptedAt":…,"event":{…}}` on one line.
    pub json: Vec<u8>,
}

#[derive(Debug)]
pub struct Page {
    pub items: Vec<Item>,
    pub cursor: Cursor,
    /// The durable end of the log was not reached.
    pub more: bool,
}

/// One event found by its id.
#[derive(Debug)]
pub struct Found {
    pub at: LogAddress,
    pub position: Position,
    pub accepted: Millis,
    pub source: String,
    /// The encoded event; kept only for the newest of several matches.
    pub event: Vec<u8>,
}

/// Adds a newer match. Older matches keep only their place, so that many events with one id do not fill the memory.
pub fn push(found: &mut Vec<Found>, newer: Found) {
    if let Some(older) = found.last_mut() {
        older.event = Vec::new();
    }
    found.push(newer);
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the log starts at position {oldest}")]
    TooOld { oldest: Position },
    #[error(transparent)]
    Log(#[from] log::Error),
    #[error("this version cannot decode a record of the log: {0}")]
    Malformed(#[from] klambda_core::wire::Malformed),
}

/// How much of the log is searched for an event without a mark.
const SEARCH_BYTES: u64 = 64 << 20;

impl Filter {
    fn wants(&self, namespace: NamespaceId, kind: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|wanted| wanted.contains(&namespace)) && self.kinds.wants(kind)
    }
}

impl Kinds {
    /// A type, or a prefix followed by a star.
    pub fn parse(text: &str) -> Kinds {
        match text.strip_suffix('*') {
            Some("") => Kinds::All,
            Some(prefix) => Kinds::TypePrefix(prefix.to_owned()),
            None => Kinds::Type(text.to_owned()),
        }
    }

    fn wants(&self, kind: &str) -> bool {
        match self {
            Kinds::All => true,
            Kinds::Type(wanted) => kind == wanted,
            Kinds::TypePrefix(prefix) => kind.starts_with(prefix.as_str()),
        }
    }
}

impl Cursor {
    /// The number of log bytes between two cursors.
    pub fn bytes_since(&self, earlier: &Cursor) -> u64 {
        self.at.0.saturating_sub(earlier.at.0)
    }
}

impl History {
    pub fn new(reader: LogReader) -> History {
        History { reader }
    }

    pub fn reader(&self) -> &LogReader {
        &self.reader
    }

    /// The position of the oldest event in the log, or of the first event to come.
    pub fn oldest(&self) -> Position {
        self.reader.oldest().map_or(Position(1), |segment| segment.first_position)
    }

    /// A cursor after this position; 0 means before the oldest event.
    pub fn behind(&self, after: Position) -> Result<Cursor, Error> {
        let oldest = self.oldest();
        if after > Position(0) && after.0 < oldest.0.saturating_sub(1) {
            return Err(Error::TooOld { oldest });
        }
        Ok(Cursor { at: self.reader.seek(after)?, after })
    }

    /// A cursor at the end of the log.
    pub fn end(&self) -> Cursor {
        Cursor { at: self.reader.synced(), after: Position(0) }
    }

    /// True if there may be something to read. This check is cheap.
    pub fn has_more(&self, cursor: &Cursor) -> bool {
        cursor.at < self.reader.synced()
    }

    pub fn read(&self, cursor: Cursor, filter: &Filter, limits: Limits) -> Result<Page, Error> {
        match self.read_on(cursor, filter, limits) {
            // Retention deleted the segment: continue where the log begins now, unless events would be skipped.
            Err(Error::Log(log::Error::Gone(_))) => self.read_on(self.behind(cursor.after)?, filter, limits),
            other => other,
        }
    }

    fn read_on(&self, cursor: Cursor, filter: &Filter, limits: Limits) -> Result<Page, Error> {
        let mut page = Page { items: Vec::new(), cursor, more: false };
        let (mut bytes, mut scanned) = (0, 0);
        while let Some(frame) = self.reader.frame(page.cursor.at)? {
            let mut position = frame.first_position;
            for (_, range) in &frame.records {
                let Record::Event { namespace, time, event, .. } =
                    Record::decode(&frame.bytes[range.clone()])?
                else {
                    continue;
                };
                let here = position;
                position.0 += 1;
                if here <= page.cursor.after {
                    continue;
                }
                let view = EventView::decode(event).map_err(|_| klambda_core::wire::Malformed("event"))?;
                if filter.wants(namespace, view.kind()) {
                    if page.items.len() == limits.events || bytes >= limits.bytes {
                        page.more = true;
                        return Ok(page);
                    }
                    let item = item(namespace, here, time, &view);
                    bytes += item.json.len();
                    page.items.push(item);
                }
                page.cursor.after = here;
            }
            scanned += frame.bytes.len() as u64;
            page.cursor.at = frame.next;
            if scanned >= limits.scanned_bytes {
                page.more = true;
                return Ok(page);
            }
        }
        Ok(page)
    }

    /// The event at an address, read from `located` (its copy if retention moved it). `None` if there is no event or
    /// no position.
    pub fn at(&self, at: LogAddress, located: LogAddress) -> Result<Option<Found>, Error> {
        let record = self.reader.read(located)?;
        let (accepted, event, position) = match Record::decode(&record)? {
            Record::Event { time, event, .. } => {
                let position = self.reader.positions(&[located])?;
                (time, event, position.first().copied().flatten())
            }
            Record::Kept { time, event, position, .. } => (time, event, Some(position)),
            _ => return Ok(None),
        };
        let Some(position) = position else { return Ok(None) };
        let view = EventView::decode(event).map_err(|_| klambda_core::wire::Malformed("event"))?;
        Ok(Some(Found { at, position, accepted, source: view.source().to_owned(), event: event.to_vec() }))
    }

    /// Events with this id in the newest part of the log, oldest first.
    pub fn search(&self, wanted: NamespaceId, id: &str, source: Option<&str>) -> Result<Vec<Found>, Error> {
        let from = LogAddress(self.reader.synced().0.saturating_sub(SEARCH_BYTES));
        let segment = self.reader.segment_of(from).or_else(|| self.reader.oldest());
        let Some(mut at) = segment.map(|segment| segment.start()) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        while let Some(frame) = self.reader.frame(at)? {
            let mut position = frame.first_position;
            for (record_at, range) in &frame.records {
                let Record::Event { namespace, time, event, .. } =
                    Record::decode(&frame.bytes[range.clone()])?
                else {
                    continue;
                };
                let view = EventView::decode(event).map_err(|_| klambda_core::wire::Malformed("event"))?;
                if namespace == wanted
                    && view.id() == id
                    && source.is_none_or(|source| source == view.source())
                {
                    let source = view.source().to_owned();
                    let event = event.to_vec();
                    push(&mut found, Found { at: *record_at, position, accepted: time, source, event });
                }
                position.0 += 1;
            }
            at = frame.next;
        }
        Ok(found)
    }
}

fn item(namespace: NamespaceId, position: Position, accepted: Millis, event: &EventView<'_>) -> Item {
    let mut json = Vec::with_capacity(256 + event.data().len());
    let head = write!(json, "{{\"position\":{position},\"acceptedAt\":\"{}\",\"event\":", accepted.rfc3339());
    head.expect("writing to a Vec cannot fail");
    event.write_json(&mut json);
    json.push(b'}');
    Item { namespace, position, json }
}
