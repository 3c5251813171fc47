//! The queue: its front and back are in memory, its middle is on disk in chunks.

use super::{Entry, Flag};
use crate::ids::{LaneNumber, Locator};
use crate::planted::{self, Bug};
use std::collections::VecDeque;
use std::ops::Range;

/// The maximum number of entries in memory at the front. Beyond it, the middle goes to disk.
pub const FRONT_MAX: usize = 256;

pub const CHUNK: usize = 256;

/// Events that have a number and wait for their turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    pub(crate) next_number: LaneNumber,
    pub(crate) front: VecDeque<Entry>,
    pub(crate) spilled: Spilled,
    pub(crate) back: Vec<Entry>,
    /// Flag the next event that joins the queue.
    pub(crate) flag_next: bool,
    /// Flag the first event of the next loaded chunk.
    pub(crate) flag_loaded: bool,
}

/// The chunks of the queue's middle on disk, numbered in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    pub first_chunk: u64,
    pub next_chunk: u64,
    pub entries: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            next_number: LaneNumber(1),
            front: VecDeque::new(),
            spilled: Spilled::default(),
            back: Vec::new(),
            flag_next: false,
            flag_loaded: false,
        }
    }
}

impl Queue {
    pub fn first(&self) -> Option<&Entry> {
        self.front.front()
    }

    pub fn len(&self) -> u64 {
        self.in_memory() as u64 + self.spilled.entries
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn in_memory(&self) -> usize {
        self.front.len() + self.back.len()
    }

    /// Heap memory used, without the struct itself.
    pub fn heap_bytes(&self) -> usize {
        (self.front.capacity() + self.back.capacity()) * size_of::<Entry>()
    }

    /// Releases unused memory.
    pub fn shrink(&mut self) {
        self.front.shrink_to_fit();
        self.back.shrink_to_fit();
    }

    /// The entries in memory, in order. Entries on disk belong between the front and the back.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.front.iter().chain(&self.back)
    }

    /// The entries that joined since the next number was `number`, in order. They are still in memory in the step in
    /// which they joined.
    pub fn placed_since(&self, number: LaneNumber) -> Vec<Entry> {
        let newest_first = self.back.iter().rev().chain(self.front.iter().rev());
        let mut placed: Vec<Entry> =
            newest_first.take_while(|entry| entry.number >= number).copied().collect();
        placed.reverse();
        placed
    }

    /// The number that the next event gets.
    pub fn next_number(&self) -> LaneNumber {
        self.next_number
    }

    /// The events behind the first one, in order, at most `limit`. `read` reads a chunk on disk.
    pub fn behind_first<E>(
        &self,
        limit: usize,
        read: impl Fn(u64) -> Result<Vec<Entry>, E>,
    ) -> Result<Vec<Entry>, E> {
        let mut entries: Vec<Entry> = self.front.iter().skip(1).copied().collect();
        // An event gets its flag when its chunk is loaded.
        let mut chunks = self.chunks().filter(|_| !self.flag_loaded);
        while entries.len() < limit
            && let Some(chunk) = chunks.next()
        {
            entries.extend(read(chunk)?);
        }
        if chunks.next().is_none() && !self.flag_loaded {
            entries.extend(&self.back);
        }
        entries.truncate(limit);
        Ok(entries)
    }

    pub fn front(&self) -> impl Iterator<Item = &Entry> {
        self.front.iter()
    }

    /// Assigns the next number to an event and appends it.
    pub fn place(&mut self, mut entry: Entry) {
        entry.number = self.next_number;
        self.next_number.0 += 1;
        // A late event says nothing about the missing ones. The flag waits for the next event in order.
        if self.flag_next && entry.flag != Flag::Late {
            self.flag_next = false;
            entry.flag = Flag::Gap;
        }
        if self.spilled.entries > 0 || !self.back.is_empty() || self.front.len() >= FRONT_MAX {
            self.back.push(entry);
        } else {
            self.front.push_back(entry);
        }
        if planted::is_on(Bug::Swapped) && entry.number.0.is_multiple_of(7) && self.front.len() > 2 {
            let last = self.front.len() - 1;
            self.front.swap(last - 1, last);
        }
    }

    pub fn pop(&mut self) -> Option<Entry> {
        self.remove(0)
    }

    pub(super) fn remove(&mut self, place: usize) -> Option<Entry> {
        let entry = self.front.remove(place);
        self.refill_from_back();
        entry
    }

    fn refill_from_back(&mut self) {
        if self.front.len() <= 1 && self.spilled.entries == 0 && !self.back.is_empty() {
            self.front.extend(self.back.drain(..));
        }
    }

    /// Removes all entries but the first `kept`. Returns those in memory. The entries on disk no longer belong to the
    /// queue.
    pub(super) fn clear_behind(&mut self, kept: usize) -> impl Iterator<Item = Entry> {
        self.spilled = Spilled { first_chunk: self.spilled.next_chunk, entries: 0, ..self.spilled };
        self.front.drain(kept.min(self.front.len())..).chain(self.back.drain(..))
    }

    /// Flags the first event from this place on, because an event before it left without being delivered.
    pub(super) fn flag_break(&mut self, place: usize) {
        let is_whole = self.spilled.entries == 0;
        let behind = self.back.iter_mut().filter(|_| is_whole);
        match self.front.iter_mut().skip(place).chain(behind).find(|next| next.flag != Flag::Late) {
            Some(next) => next.flag = Flag::Gap,
            None if is_whole => self.flag_next = true,
            None => self.flag_loaded = true,
        }
    }

    /// Removes a full chunk from the back for storage on disk. Returns it with its chunk number.
    pub fn take_chunk(&mut self) -> Option<(u64, Vec<Entry>)> {
        if self.back.len() < CHUNK {
            return None;
        }
        let chunk = self.spilled.next_chunk;
        self.spilled.next_chunk += 1;
        self.spilled.entries += self.back.len() as u64;
        Some((chunk, std::mem::take(&mut self.back)))
    }

    /// The chunk to load next, if the front holds at most the head. The event after the head must be in memory,
    /// because it can be flagged or dropped while the head is in flight.
    pub fn wanted_chunk(&self) -> Option<u64> {
        (self.front.len() <= 1 && self.spilled.entries > 0).then_some(self.spilled.first_chunk)
    }

    pub fn load_chunk(&mut self, entries: impl ExactSizeIterator<Item = Entry>) {
        self.spilled.first_chunk += 1;
        self.spilled.entries -= entries.len() as u64;
        let first = self.front.len();
        self.front.extend(entries);
        if std::mem::take(&mut self.flag_loaded) {
            self.flag_break(first);
        }
        self.refill_from_back();
    }

    pub fn spilled(&self) -> Spilled {
        self.spilled
    }

    /// The numbers of the chunks on disk.
    pub fn chunks(&self) -> Range<u64> {
        self.spilled.first_chunk..self.spilled.next_chunk
    }

    /// Finds the chunk on disk that contains this event, if the queue is in arrival order. Returns an empty list if
    /// there is none.
    pub fn chunk_around<E>(
        &self,
        at: Locator,
        read: impl Fn(u64) -> Result<Vec<Entry>, E>,
    ) -> Result<Vec<Entry>, E> {
        let Range { start: mut low, end: mut high } = self.chunks();
        while low < high {
            let middle = low + (high - low) / 2;
            let entries = read(middle)?;
            match (entries.first(), entries.last()) {
                (Some(first), _) if at < first.at => high = middle,
                (_, Some(last)) if at <= last.at => return Ok(entries),
                _ => low = middle + 1,
            }
        }
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Position;
    use crate::time::Millis;

    /// A queue with its middle on disk.
    fn long_queue(events: u64) -> (Queue, Vec<Vec<Entry>>) {
        let (mut queue, mut chunks) = (Queue::default(), Vec::new());
        for n in 1..=events {
            let (position, number) = (Position(n), LaneNumber(0));
            let at = Locator::new(n);
            queue.place(Entry { position, at, number, accepted: Millis(n), bytes: 1, flag: Flag::None });
            chunks.extend(queue.take_chunk().map(|(_, entries)| entries));
        }
        (queue, chunks)
    }

    fn behind(queue: &Queue, chunks: &[Vec<Entry>], limit: usize) -> Vec<u64> {
        let read = |chunk: u64| Ok::<_, ()>(chunks[chunk as usize].clone());
        queue.behind_first(limit, read).expect("readable").iter().map(|entry| entry.number.0).collect()
    }

    #[test]
    fn the_events_behind_the_first_one_are_in_order_wherever_they_are() {
        let (mut queue, chunks) = long_queue(1000);
        assert_eq!(chunks.len(), 2, "{} entries are in the back", queue.back.len());
        for limit in [0, 1, 255, 256, 300, 700, 767, 768, 900, 2000] {
            let expected: Vec<u64> = (2..=1000).take(limit).collect();
            assert_eq!(behind(&queue, &chunks, limit), expected, "{limit}");
        }
        // The flag of the first event on disk is not known before its chunk is loaded.
        queue.flag_loaded = true;
        assert_eq!(behind(&queue, &chunks, 300).len(), 255);
    }
}
