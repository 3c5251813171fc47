//! The calls of a webhook endpoint, as an index over the log: which attempts there were, newest last.
//!
//! The record of an attempt stays in the log. An entry of the index has its address and what lists are filtered by.
//! Entries are numbered from 1 and stored in chunks, like those of the feed; the last chunk is in memory while it grows.
//! Everything follows from the log, so a restart builds the same index again.

mod read;
mod statistics;

pub use read::{Delivery, DeliveryFilter, DeliveryItem, DeliveryPage, From};
pub use statistics::Statistics;

use crate::engine::{Engine, Failure};
use crate::feed::Ends;
use crate::lanes::Slot;
use crate::rows;
use crate::subscriptions::Subscriptions;
use klambda_core::ids::{LaneNumber, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::time::Millis;
use klambda_core::wire::{Malformed, Reader, put_bytes, put_varint};
use klambda_store::address::{Kept, LogAddress};
use klambda_store::record::Step;

/// Entries of one row.
const CHUNK: u64 = 128;
/// Chunks that are forgotten at once.
const CHUNKS_PER_ROUND: u64 = 4;

#[derive(Default)]
pub struct Deliveries {
    pub ends: Ends,
    /// The entries of the last chunk, encoded; `None` while they are only on disk.
    tail: Option<Vec<u8>>,
}

impl Deliveries {
    pub fn memory_bytes(&self) -> usize {
        self.tail.as_ref().map_or(0, Vec::capacity)
    }

    /// An index whose entries are on disk.
    pub fn of(ends: Ends) -> Deliveries {
        Deliveries { ends, tail: None }
    }
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered<'a> {
    /// The record of the attempt.
    pub step: LogAddress,
    pub event: LogAddress,
    pub time: Millis,
    pub duration_ms: u64,
    pub succeeded: bool,
    /// Zero in an unordered endpoint.
    pub number: LaneNumber,
    pub workflow: &'a str,
}

impl<'a> Delivered<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.step.0);
        put_varint(out, self.event.0);
        put_varint(out, self.time.0);
        put_varint(out, self.duration_ms);
        out.push(u8::from(self.succeeded));
        put_varint(out, self.number.0);
        put_bytes(out, self.workflow.as_bytes());
    }

    fn decode(r: &mut Reader<'a>) -> Result<Delivered<'a>, Malformed> {
        Ok(Delivered {
            step: LogAddress(r.varint()?),
            event: LogAddress(r.varint()?),
            time: Millis(r.varint()?),
            duration_ms: r.varint()?,
            succeeded: r.u8()? == 1,
            number: LaneNumber(r.varint()?),
            workflow: r.text()?,
        })
    }
}

impl Engine {
    /// Notes an attempt of the first event of a lane, before the lane changes.
    pub(crate) fn note_lane_call(
        &mut self,
        at: LogAddress,
        time: Millis,
        slot: Slot,
        step: &Step<'_>,
    ) -> Result<(), Failure> {
        let (position, attempt, succeeded) = match step {
            Step::Delivered { position, attempt } => (*position, attempt, true),
            Step::Failed { position, attempt, .. } => (*position, attempt, false),
            _ => return Ok(()),
        };
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let id = resident.subscription;
        self.load_calls(id)?;
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let head = resident.lane.head().map(|(_, entry)| entry).filter(|entry| entry.position == position);
        let Some(entry) = head.or_else(|| resident.lane.queue().first()) else { return Ok(()) };
        let (event, number, workflow) = (entry.address(), entry.number, &*resident.key);
        let (step, duration_ms) = (at, attempt.duration_ms);
        let call = Delivered { step, event, time, duration_ms, succeeded, number, workflow };
        let full = append(&mut self.subscriptions, id, &call);
        self.store_calls_chunk(id, full)
    }

    /// Notes an attempt of an event of an unordered endpoint.
    pub(crate) fn note_single_call(
        &mut self,
        step: LogAddress,
        time: Millis,
        id: SubscriptionId,
        entry: &Entry,
        attempted: &Step<'_>,
    ) -> Result<(), Failure> {
        let Some(attempt) = attempted.attempt() else { return Ok(()) };
        let succeeded = matches!(attempted, Step::Delivered { .. });
        let (event, duration_ms) = (entry.address(), attempt.duration_ms);
        let number = LaneNumber(0);
        self.note_call(id, &Delivered { step, event, time, duration_ms, succeeded, number, workflow: "" })
    }

    /// Notes a call beside the lanes.
    pub(crate) fn note_resent_call(
        &mut self,
        at: LogAddress,
        time: Millis,
        id: SubscriptionId,
        workflow: &str,
        step: &Step<'_>,
    ) -> Result<(), Failure> {
        let Step::Resent { event, number, attempt, .. } = step else { return Ok(()) };
        let succeeded = (200..300).contains(&attempt.status);
        let (step, event, number, duration_ms) = (at, *event, *number, attempt.duration_ms);
        self.note_call(id, &Delivered { step, event, time, duration_ms, succeeded, number, workflow })
    }

    fn note_call(&mut self, id: SubscriptionId, call: &Delivered<'_>) -> Result<(), Failure> {
        if !self.has_feed(id) {
            return Ok(());
        }
        self.load_calls(id)?;
        let full = append(&mut self.subscriptions, id, call);
        self.store_calls_chunk(id, full)
    }

    fn store_calls_chunk(&mut self, id: SubscriptionId, full: Option<FullChunk>) -> Result<(), Failure> {
        let Some((chunk, row)) = full else { return Ok(()) };
        self.store.rows.put(&rows::calls(id, chunk), &row);
        self.limit_calls(id);
        Ok(())
    }

    fn load_calls(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let feed = self.subscriptions.get(id).and_then(|s| s.on_disk.feed.as_deref());
        let Some(calls) = feed.map(|feed| &feed.calls).filter(|calls| calls.tail.is_none()) else {
            return Ok(());
        };
        let tail = match calls.ends.count.is_multiple_of(CHUNK) {
            true => Vec::new(),
            false => self.store.rows.get(&rows::calls(id, calls.ends.count / CHUNK))?.unwrap_or_default(),
        };
        if let Some(feed) = self.subscriptions.get_mut(id).and_then(|s| s.on_disk.feed.as_deref_mut()) {
            feed.calls.tail = Some(tail);
        }
        Ok(())
    }

    /// Forgets the oldest attempts beyond the limit, without reading them.
    fn limit_calls(&mut self, id: SubscriptionId) {
        let max = self.config.deliveries_max.max(CHUNK);
        for _ in 0..CHUNKS_PER_ROUND {
            match self.call_ends(id) {
                Some(ends) if ends.count - ends.forgotten > max => self.forget_calls(id, ends.forgotten),
                _ => return,
            }
        }
    }

    /// Forgets the oldest attempts: those beyond the limit, and those whose records retention deleted.
    pub(crate) fn trim_calls(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        self.limit_calls(id);
        for _ in 0..CHUNKS_PER_ROUND {
            let Some(ends) = self.call_ends(id).filter(|ends| ends.forgotten + CHUNK <= ends.count) else {
                return Ok(());
            };
            let row = self.calls_chunk(id, ends.forgotten / CHUNK)?;
            if last_of(&row)?.is_some_and(|last| last.step >= self.store.log.oldest()) {
                return Ok(());
            }
            self.forget_calls(id, ends.forgotten);
        }
        Ok(())
    }

    /// Forgets the chunk after this many attempts.
    fn forget_calls(&mut self, id: SubscriptionId, before: u64) {
        self.store.rows.delete(&rows::calls(id, before / CHUNK));
        if let Some(feed) = self.subscriptions.get_mut(id).and_then(|s| s.on_disk.feed.as_deref_mut()) {
            feed.calls.ends.forgotten += CHUNK;
        }
    }

    fn call_ends(&self, id: SubscriptionId) -> Option<Ends> {
        Some(self.subscriptions.get(id)?.on_disk.feed.as_deref()?.calls.ends)
    }

    /// The encoded entries of a chunk, from memory or from its row.
    fn calls_chunk(&self, id: SubscriptionId, chunk: u64) -> Result<Vec<u8>, Failure> {
        let feed = self.subscriptions.get(id).and_then(|s| s.on_disk.feed.as_deref());
        let calls = feed.map(|feed| &feed.calls).filter(|calls| calls.ends.count / CHUNK == chunk);
        match calls.and_then(|calls| calls.tail.clone()) {
            Some(tail) => Ok(tail),
            None => Ok(self.store.rows.get(&rows::calls(id, chunk))?.unwrap_or_default()),
        }
    }
}

/// The number of a chunk, and its row.
type FullChunk = (u64, Vec<u8>);

fn append(all: &mut Subscriptions, id: SubscriptionId, call: &Delivered<'_>) -> Option<FullChunk> {
    all.get_mut(id)?.on_disk.feed.as_deref_mut()?.calls.append(call)
}

impl Deliveries {
    /// Returns the chunk when it is full.
    fn append(&mut self, call: &Delivered<'_>) -> Option<FullChunk> {
        let tail = self.tail.get_or_insert_default();
        call.encode(tail);
        self.ends.count += 1;
        let is_full = self.ends.count.is_multiple_of(CHUNK);
        is_full.then(|| ((self.ends.count - 1) / CHUNK, std::mem::take(tail)))
    }

    /// The number and the entries of the last chunk, for a checkpoint. Releases its memory.
    pub(crate) fn take_tail(&mut self) -> Option<(u64, Vec<u8>)> {
        let tail = self.tail.take().filter(|tail| !tail.is_empty())?;
        Some((self.ends.count / CHUNK, tail))
    }
}

fn entries(row: &[u8]) -> Result<Vec<Delivered<'_>>, Malformed> {
    let r = &mut Reader::new(row);
    let mut entries = Vec::with_capacity(CHUNK as usize);
    while !r.is_empty() {
        entries.push(Delivered::decode(r)?);
    }
    Ok(entries)
}

fn last_of(row: &[u8]) -> Result<Option<Delivered<'_>>, Malformed> {
    Ok(entries(row)?.pop())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_back_as_written_and_a_full_chunk_is_handed_out() {
        let workflows: Vec<String> = (0..CHUNK).map(|n| format!("order-{n}")).collect();
        let calls: Vec<Delivered<'_>> = (0..CHUNK)
            .zip(&workflows)
            .map(|(n, workflow)| Delivered {
                step: LogAddress(n << 33),
                event: LogAddress(n),
                time: Millis(n * 7),
                duration_ms: n * n,
                succeeded: n % 3 == 0,
                number: LaneNumber(n),
                workflow,
            })
            .collect();
        let mut index = Deliveries::default();
        let mut full: Vec<_> = calls.iter().filter_map(|call| index.append(call)).collect();
        let (chunk, row) = full.pop().expect("a full chunk");
        assert_eq!((chunk, full.len(), entries(&row)), (0, 0, Ok(calls.clone())));
        assert_eq!(index.append(&calls[0]), None);
        assert_eq!(index.take_tail().map(|(chunk, row)| (chunk, entries(&row).is_ok())), Some((1, true)));
        assert!(entries(&[255; 12]).is_err());
    }
}
