//! The queue: its front in memory, its middle in chunks on disk, its back in memory.

use super::{Entry, Flag, Lane};
use crate::planted::{self, Bug};

/// The most entries a lane keeps in memory at each end before the middle goes to disk.
pub const FRONT_MAX: usize = 256;

pub const CHUNK: usize = 256;

/// Chunks of the queue's middle that are on disk, numbered in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    pub first_chunk: u64,
    pub next_chunk: u64,
    pub entries: u64,
}

impl Lane {
    pub(super) fn place(&mut self, mut entry: Entry) {
        entry.number = self.next_number;
        self.next_number.0 += 1;
        // A late event tells nothing of what is missing here: the flag waits for the next one in order.
        if self.flag_next && entry.flag != Flag::Late {
            self.flag_next = false;
            entry.flag = Flag::Gap;
        }
        if self.spilled.entries > 0 || !self.back.is_empty() || self.queue.len() >= FRONT_MAX {
            self.back.push(entry);
        } else {
            self.queue.push_back(entry);
        }
        if planted::is_on(Bug::Swapped) && entry.number.0.is_multiple_of(7) && self.queue.len() > 2 {
            let last = self.queue.len() - 1;
            self.queue.swap(last - 1, last);
        }
    }

    /// Takes the first of the queue out of the lane: how an unordered subscription, which has no turns, uses it.
    pub fn take_front(&mut self) -> Option<Entry> {
        let entry = self.queue.pop_front();
        self.refill_from_back();
        entry
    }

    pub(super) fn refill_from_back(&mut self) {
        if self.queue.len() <= 1 && self.spilled.entries == 0 && !self.back.is_empty() {
            self.queue.extend(self.back.drain(..));
        }
    }

    /// Something left before this place in the queue without having been delivered.
    pub(super) fn flag_break(&mut self, place: usize) {
        let is_whole = self.spilled.entries == 0;
        let behind = self.back.iter_mut().filter(|_| is_whole);
        match self.queue.iter_mut().skip(place).chain(behind).find(|next| next.flag != Flag::Late) {
            Some(next) => next.flag = Flag::Gap,
            None if is_whole => self.flag_next = true,
            None => self.flag_loaded = true,
        }
    }

    /// A full chunk at the back that should go to disk, and the number to store it under.
    pub fn take_chunk(&mut self) -> Option<(u64, Vec<Entry>)> {
        if self.back.len() < CHUNK {
            return None;
        }
        let chunk = self.spilled.next_chunk;
        self.spilled.next_chunk += 1;
        self.spilled.entries += self.back.len() as u64;
        Some((chunk, std::mem::take(&mut self.back)))
    }

    /// The chunk to load next, if the front has run out but for the head: what follows the head must be in memory,
    /// because it can be flagged or dropped while the head is in flight.
    pub fn wanted_chunk(&self) -> Option<u64> {
        (self.queue.len() <= 1 && self.spilled.entries > 0).then_some(self.spilled.first_chunk)
    }

    pub fn load_chunk(&mut self, entries: impl ExactSizeIterator<Item = Entry>) {
        self.spilled.first_chunk += 1;
        self.spilled.entries -= entries.len() as u64;
        let first = self.queue.len();
        self.queue.extend(entries);
        if std::mem::take(&mut self.flag_loaded) {
            self.flag_break(first);
        }
        self.refill_from_back();
    }
}
