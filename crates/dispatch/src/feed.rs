//! The feed of a webhook endpoint: its events in the order in which they took their places in its lanes.
//!
//! Entries are numbered from 1 and stored in chunks. The last chunk is in memory while it grows; a checkpoint stores it
//! as it is. An index finds the number of an entry by its event id. Everything follows from the log, so a restart
//! builds the same feed again.

mod acknowledge;
mod read;
mod resend;

pub use acknowledge::Acknowledged;
pub use read::{FeedItem, FeedPage, Since, Unavailable};
pub use resend::{Resend, ResendCall, Resent};

use crate::deliveries::Deliveries;
use crate::engine::{Engine, Failure};
use crate::lanes::Slot;
use crate::rows;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{FeedNumber, LaneNumber, Position, SubscriptionId};
use klambda_core::lane::{Entry, Flag};
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_core::webhook::EventId;
use klambda_core::wire::{Malformed, Reader, put_bytes, put_varint};
use klambda_store::address::{Kept, LogAddress};
use klambda_store::record::event_of;
use serde::{Deserialize, Serialize};

/// Entries of one row.
const CHUNK: u64 = 64;
/// Chunks that are forgotten at once.
const CHUNKS_PER_ROUND: u64 = 64;

#[derive(Default)]
pub struct Feed {
    pub ends: Ends,
    /// The entries of the last chunk, encoded; `None` while they are only on disk.
    tail: Option<Vec<u8>>,
    /// The attempts to deliver these events.
    pub calls: Deliveries,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// How many entries there have been.
    pub count: u64,
    /// How many entries at the beginning are forgotten.
    pub forgotten: u64,
}

impl Feed {
    /// A feed whose entries are on disk.
    pub fn of(ends: Ends, calls: Ends) -> Feed {
        Feed { ends, tail: None, calls: Deliveries::of(calls) }
    }
}

/// One event of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedEntry {
    pub id: EventId,
    pub position: Position,
    pub at: LogAddress,
    pub accepted: Millis,
    /// Zero in an unordered endpoint.
    pub number: LaneNumber,
    pub workflow: Box<str>,
    pub previous: Option<EventId>,
    pub flag: Flag,
    /// The event was purged or dropped.
    pub is_gone: bool,
}

impl Feed {
    /// The ends of the feed and of the attempts that are not on disk yet.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Feed>() + self.tail.as_ref().map_or(0, Vec::capacity) + self.calls.memory_bytes()
    }
}

impl Engine {
    /// Adds the events of a lane that took a place since the lane's next number was `since`.
    pub(crate) fn feed_lane(&mut self, slot: Slot, since: LaneNumber) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let id = resident.subscription;
        for entry in resident.lane.queue().placed_since(since) {
            let Some(event_id) = self.event_id_of(id, entry.address())? else { continue };
            let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
            let previous = resident.before.placed.replace(event_id);
            let (workflow, number) = (resident.key.clone(), entry.number);
            if planted::is_on(Bug::DisabledUnlisted) && self.is_disabled(id) {
                continue;
            }
            self.append_to_feed(id, &new_entry(event_id, &entry, number, workflow, previous))?;
        }
        Ok(())
    }

    /// Adds an event of an unordered endpoint.
    pub(crate) fn feed_single(&mut self, id: SubscriptionId, entry: &Entry) -> Result<(), Failure> {
        if !self.has_feed(id) {
            return Ok(());
        }
        let Some(event_id) = self.event_id_of(id, entry.address())? else { return Ok(()) };
        self.append_to_feed(id, &new_entry(event_id, entry, LaneNumber(0), "".into(), None))
    }

    pub(crate) fn has_feed(&self, id: SubscriptionId) -> bool {
        self.subscriptions.get(id).is_some_and(|subscription| subscription.on_disk.feed.is_some())
    }

    /// The id under which receivers know an event; `None` if the event can no longer be read.
    pub(crate) fn event_id_of(
        &mut self,
        id: SubscriptionId,
        at: LogAddress,
    ) -> Result<Option<EventId>, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(None) };
        let document = &subscription.document;
        // Most events have just arrived.
        if let Some(event) = self.store.log.in_memory(at).and_then(|record| event_of(record).ok())
            && let Ok((event_id, source)) = EventView::id_and_source(event)
        {
            return Ok(Some(EventId::new(&document.namespace, source, event_id)));
        }
        let document = document.clone();
        self.read_back(at, |_, event| EventId::new(&document.namespace, event.source(), event.id()))
    }

    fn append_to_feed(&mut self, id: SubscriptionId, entry: &FeedEntry) -> Result<(), Failure> {
        self.load_tail(id)?;
        let rows = &mut self.store.rows;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let Some(feed) = subscription.on_disk.feed.as_deref_mut() else { return Ok(()) };
        feed.ends.count += 1;
        rows.put_number(&rows::feed_id(id, entry.id), feed.ends.count);
        let chunk = chunk_of(FeedNumber(feed.ends.count));
        let tail = feed.tail.get_or_insert_default();
        entry.encode(tail);
        if feed.ends.count.is_multiple_of(CHUNK) {
            rows.put(&rows::feed(id, chunk), tail);
            tail.clear();
        }
        Ok(())
    }

    fn load_tail(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let Some(feed) = subscription.on_disk.feed.as_deref().filter(|feed| feed.tail.is_none()) else {
            return Ok(());
        };
        let tail = match feed.ends.count.is_multiple_of(CHUNK) {
            true => Vec::new(),
            false => self.stored_row(id, chunk_of(FeedNumber(feed.ends.count)))?,
        };
        if let Some(feed) = self.subscriptions.get_mut(id).and_then(|s| s.on_disk.feed.as_deref_mut()) {
            feed.tail = Some(tail);
        }
        Ok(())
    }

    /// The row of a chunk. Empty if it is missing.
    fn stored_row(&self, id: SubscriptionId, chunk: u64) -> Result<Vec<u8>, Failure> {
        Ok(self.store.rows.get(&rows::feed(id, chunk))?.unwrap_or_default())
    }

    /// The entries of a chunk, from memory or from its row.
    fn feed_chunk(&self, id: SubscriptionId, chunk: u64) -> Result<Vec<FeedEntry>, Failure> {
        let feed = self.subscriptions.get(id).and_then(|s| s.on_disk.feed.as_deref());
        let is_last = |feed: &&Feed| feed.ends.count / CHUNK == chunk;
        match feed.filter(is_last).and_then(|feed| feed.tail.as_deref()) {
            Some(tail) => Ok(decode(tail)?),
            None => Ok(decode(&self.stored_row(id, chunk)?)?),
        }
    }

    /// Takes an event out of the feed that was purged or dropped.
    pub(crate) fn leave_feed(&mut self, id: SubscriptionId, at: LogAddress) -> Result<(), Failure> {
        if !self.has_feed(id) {
            return Ok(());
        }
        let Some(event_id) = self.event_id_of(id, at)? else { return Ok(()) };
        let Some(number) = self.feed_number(id, event_id)? else { return Ok(()) };
        self.load_tail(id)?;
        let chunk = chunk_of(number);
        let mut entries = self.feed_chunk(id, chunk)?;
        entries.get_mut(place_in_chunk(number)).into_iter().for_each(|entry| entry.is_gone = true);
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let Some(feed) = subscription.on_disk.feed.as_deref_mut() else { return Ok(()) };
        match feed.tail.as_mut().filter(|_| feed.ends.count / CHUNK == chunk) {
            Some(tail) => *tail = encode(&entries),
            None => self.store.rows.put(&rows::feed(id, chunk), &encode(&entries)),
        }
        Ok(())
    }

    fn feed_number(&self, id: SubscriptionId, event_id: EventId) -> Result<Option<FeedNumber>, Failure> {
        Ok(self.store.rows.number(&rows::feed_id(id, event_id))?.map(FeedNumber))
    }

    pub(crate) fn feed_entry(
        &self,
        id: SubscriptionId,
        event_id: EventId,
    ) -> Result<Option<FeedEntry>, Failure> {
        let Some(number) = self.feed_number(id, event_id)? else { return Ok(None) };
        let mut chunk = self.feed_chunk(id, chunk_of(number))?;
        let place = place_in_chunk(number);
        Ok((place < chunk.len()).then(|| chunk.swap_remove(place)))
    }

    // ---- keeping ------------------------------------------------------------------------------------------

    /// Stores the last chunks for a checkpoint and releases their memory.
    pub(crate) fn store_feed(&mut self, id: SubscriptionId) {
        let rows = &mut self.store.rows;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        let Some(feed) = subscription.on_disk.feed.as_deref_mut() else { return };
        if let Some(tail) = feed.tail.take().filter(|tail| !tail.is_empty()) {
            rows.put(&rows::feed(id, feed.ends.count / CHUNK), &tail);
        }
        if let Some((chunk, tail)) = feed.calls.take_tail() {
            rows.put(&rows::calls(id, chunk), &tail);
        }
    }

    /// Forgets entries that lost their events to retention and are older than twice the retention. Returns false if
    /// there is more to do.
    pub(crate) fn trim_feed(&mut self, id: SubscriptionId) -> Result<bool, Failure> {
        let (oldest, age_ms, now) = (self.store.log.oldest(), self.config.retention_age_ms, self.now);
        let remembered_ms = age_ms.saturating_mul(2);
        let is_over =
            |entry: &FeedEntry| age_ms > 0 && entry.at < oldest && now.since(entry.accepted) > remembered_ms;
        for _ in 0..CHUNKS_PER_ROUND {
            let Some(ends) = self.feed_ends(id) else { return Ok(true) };
            if ends.forgotten + CHUNK > ends.count {
                return Ok(true);
            }
            let entries = self.feed_chunk(id, ends.forgotten / CHUNK)?;
            if !entries.iter().all(is_over) {
                return Ok(true);
            }
            self.forget_chunk(id, ends.forgotten, &entries)?;
        }
        Ok(false)
    }

    fn forget_chunk(
        &mut self,
        id: SubscriptionId,
        before: u64,
        entries: &[FeedEntry],
    ) -> Result<(), Failure> {
        for (entry, number) in entries.iter().zip(before + 1..) {
            // The id may have been used again since.
            if self.feed_number(id, entry.id)? == Some(FeedNumber(number)) {
                self.store.rows.delete_number(&rows::feed_id(id, entry.id));
            }
        }
        self.store.rows.delete(&rows::feed(id, before / CHUNK));
        let feed = self.subscriptions.get_mut(id).and_then(|s| s.on_disk.feed.as_deref_mut());
        if let Some(feed) = feed {
            feed.ends.forgotten += CHUNK;
        }
        Ok(())
    }

    fn feed_ends(&self, id: SubscriptionId) -> Option<Ends> {
        Some(self.subscriptions.get(id)?.on_disk.feed.as_deref()?.ends)
    }
}

fn new_entry(
    id: EventId,
    entry: &Entry,
    number: LaneNumber,
    workflow: Box<str>,
    previous: Option<EventId>,
) -> FeedEntry {
    FeedEntry {
        id,
        position: entry.position,
        at: entry.address(),
        accepted: entry.accepted,
        number,
        workflow,
        previous,
        flag: entry.flag,
        is_gone: false,
    }
}

fn chunk_of(number: FeedNumber) -> u64 {
    (number.0 - 1) / CHUNK
}

fn place_in_chunk(number: FeedNumber) -> usize {
    ((number.0 - 1) % CHUNK) as usize
}

impl FeedEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.0);
        let flag = match self.flag {
            Flag::None => 0,
            Flag::Late => 1,
            Flag::Gap => 2,
        };
        out.push(flag | u8::from(self.is_gone) << 2 | u8::from(self.previous.is_some()) << 3);
        if let Some(previous) = self.previous {
            out.extend_from_slice(&previous.0);
        }
        put_varint(out, self.position.0);
        put_varint(out, self.at.0);
        put_varint(out, self.accepted.0);
        put_varint(out, self.number.0);
        put_bytes(out, self.workflow.as_bytes());
    }
}

fn encode(entries: &[FeedEntry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.len() * 72);
    entries.iter().for_each(|entry| entry.encode(&mut out));
    out
}

fn decode(row: &[u8]) -> Result<Vec<FeedEntry>, Malformed> {
    let r = &mut Reader::new(row);
    let mut entries = Vec::with_capacity(CHUNK as usize);
    while !r.rest().is_empty() {
        let id = take_id(r)?;
        let bits = r.u8()?;
        let flag = match bits & 3 {
            0 => Flag::None,
            1 => Flag::Late,
            2 => Flag::Gap,
            _ => return Err(Malformed("flag")),
        };
        let previous = if bits & 8 != 0 { Some(take_id(r)?) } else { None };
        entries.push(FeedEntry {
            id,
            flag,
            is_gone: bits & 4 != 0,
            previous,
            position: Position(r.varint()?),
            at: LogAddress(r.varint()?),
            accepted: Millis(r.varint()?),
            number: LaneNumber(r.varint()?),
            workflow: r.text()?.into(),
        });
    }
    Ok(entries)
}

fn take_id(r: &mut Reader<'_>) -> Result<EventId, Malformed> {
    let mut id = [0; 16];
    for byte in &mut id {
        *byte = r.u8()?;
    }
    Ok(EventId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_back_as_written() {
        let entry = |number: u64| FeedEntry {
            id: EventId::new("n", "s", &number.to_string()),
            position: Position(number * 1000),
            at: LogAddress(number << 30),
            accepted: Millis(number),
            number: LaneNumber(number),
            workflow: format!("order-{number}").into(),
            previous: (number > 1).then(|| EventId::new("n", "s", &(number - 1).to_string())),
            flag: [Flag::None, Flag::Late, Flag::Gap][number as usize % 3],
            is_gone: number.is_multiple_of(2),
        };
        let entries: Vec<FeedEntry> = (1..=CHUNK).map(entry).collect();
        assert_eq!(decode(&encode(&entries)), Ok(entries));
    }

    #[test]
    fn damage_is_an_error() {
        assert!(decode(&[0; 20]).is_err());
        assert!(decode(&[255; 40]).is_err());
    }
}
