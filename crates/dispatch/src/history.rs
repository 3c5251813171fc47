//! Reading the log as a list of events: pages of it, and its growing end. Sees only what is durable, so that nobody is
//! shown an event that a crash takes back. Runs on any thread that may wait for the disk.

use klambda_core::event_codec::EventView;
use klambda_core::ids::{Address, NamespaceId, Position};
use klambda_core::time::Millis;
use klambda_store::log::{self, LogReader};
use klambda_store::record::Record;
use std::io::Write;

#[derive(Clone)]
pub struct History {
    reader: LogReader,
}

/// Which events are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// None: all of them.
    pub namespace: Option<NamespaceId>,
    pub kinds: Kinds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinds {
    All,
    Type(String),
    TypePrefix(String),
}

/// Where reading goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    at: Address,
    /// All events up to this one have been looked at.
    pub after: Position,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub events: usize,
    /// Of what is answered; one event may exceed it.
    pub bytes: usize,
    /// Of the log that is looked through.
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
    /// The durable end was not reached.
    pub more: bool,
}

/// One event by its id, as it stands in the log.
#[derive(Debug)]
pub struct Found {
    pub at: Address,
    pub position: Position,
    pub accepted: Millis,
    pub source: String,
    /// The encoded event; of several that were found, only the newest has it.
    pub event: Vec<u8>,
}

/// Adds a newer one. Of those before it only the place is of use: many events of one id would fill the memory.
pub fn push(found: &mut Vec<Found>, newer: Found) {
    if let Some(older) = found.last_mut() {
        older.event = Vec::new();
    }
    found.push(newer);
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the log begins at position {oldest}")]
    TooOld { oldest: Position },
    #[error(transparent)]
    Log(#[from] log::Error),
    #[error("the log says something this version does not understand: {0}")]
    Malformed(#[from] klambda_core::wire::Malformed),
}

/// How far back an event is looked for that no mark remembers.
const SEARCH_BYTES: u64 = 64 << 20;

impl Filter {
    fn wants(&self, namespace: NamespaceId, kind: &str) -> bool {
        self.namespace.is_none_or(|wanted| wanted == namespace) && self.kinds.wants(kind)
    }
}

impl Kinds {
    /// A type, or its beginning with a star behind it.
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
    /// How much of the log lies between two places.
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

    /// The position of the oldest event that is kept, or of the first to come.
    pub fn oldest(&self) -> Position {
        self.reader.oldest().map_or(Position(1), |segment| segment.first_position)
    }

    /// Behind this position; 0 is before the oldest, whatever that is.
    pub fn behind(&self, after: Position) -> Result<Cursor, Error> {
        let oldest = self.oldest();
        if after > Position(0) && after.0 < oldest.0.saturating_sub(1) {
            return Err(Error::TooOld { oldest });
        }
        Ok(Cursor { at: self.reader.seek(after)?, after })
    }

    /// Behind everything that is there.
    pub fn end(&self) -> Cursor {
        Cursor { at: self.reader.synced(), after: Position(0) }
    }

    /// Whether there may be something to read: costs nothing.
    pub fn has_more(&self, cursor: &Cursor) -> bool {
        cursor.at < self.reader.synced()
    }

    pub fn read(&self, cursor: Cursor, filter: &Filter, limits: Limits) -> Result<Page, Error> {
        match self.read_on(cursor, filter, limits) {
            // Retention was faster: go on where the log begins now, unless something would be left out.
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

    /// The event at an address, wherever retention has put it, with its position if its record names it.
    pub fn at(&self, at: Address, located: Address) -> Result<Option<Found>, Error> {
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

    /// Events of this id in the newest part of the log, oldest first.
    pub fn search(&self, wanted: NamespaceId, id: &str, source: Option<&str>) -> Result<Vec<Found>, Error> {
        let from = Address(self.reader.synced().0.saturating_sub(SEARCH_BYTES));
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
    head.expect("a Vec takes every write");
    event.write_json(&mut json);
    json.push(b'}');
    Item { namespace, position, json }
}
