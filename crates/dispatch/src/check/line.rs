//! The events of one key as the log routed them, in order of arrival, until the log says that they left.

use klambda_core::ids::{Position, Sequence};
use std::collections::VecDeque;

/// One event in a line. Without a producer's sequence, its order is its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub position: Position,
    /// `u64::MAX` means no sequence: an `Option` would make the struct half as large again.
    sequence: u64,
}

impl Waiting {
    pub fn new(position: Position, sequence: Option<Sequence>) -> Waiting {
        Waiting { position, sequence: sequence.map_or(u64::MAX, |sequence| sequence.0) }
    }

    pub fn sequence(&self) -> Option<Sequence> {
        (self.sequence != u64::MAX).then_some(Sequence(self.sequence))
    }

    /// True if this event arrived first and has the lower sequence, so that it must be delivered first.
    fn comes_before(&self, other: &Waiting) -> bool {
        let unordered = self.sequence == u64::MAX || other.sequence == u64::MAX;
        self.position < other.position && (unordered || self.sequence < other.sequence)
    }
}

#[derive(Default)]
pub(super) struct Line {
    waiting: VecDeque<Waiting>,
}

pub(super) struct Delivered {
    pub event: Waiting,
    pub overtaken: Vec<Waiting>,
    /// Late because of its sequence alone.
    pub is_late: bool,
}

impl Line {
    pub fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_over(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter()
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    pub fn take(&mut self, position: Position) -> Option<Waiting> {
        let n = self.find(position)?;
        self.waiting.remove(n)
    }

    /// Removes a delivered event, and the events that it overtakes.
    pub fn deliver(&mut self, position: Position) -> Option<Delivered> {
        let n = self.find(position)?;
        let event = self.waiting.remove(n)?;
        let mut overtaken = Vec::new();
        let mut is_late = false;
        if self.waiting.iter().take(n).any(|waiting| waiting.comes_before(&event)) {
            // A repeated sequence is late. Such an event is delivered at once, before events that wait for a gap.
            is_late = event.sequence().is_some()
                && self.waiting.iter().take(n).any(|w| w.sequence == event.sequence);
            if !is_late {
                overtaken.extend(self.waiting.iter().filter(|waiting| waiting.comes_before(&event)));
                self.waiting.retain(|waiting| !waiting.comes_before(&event));
            }
        }
        Some(Delivered { event, overtaken, is_late })
    }

    /// Positions only increase.
    fn find(&self, position: Position) -> Option<usize> {
        self.waiting.binary_search_by_key(&position, |waiting| waiting.position).ok()
    }
}
