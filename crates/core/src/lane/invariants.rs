//! Invariants of a lane, checked after every step, also in release builds. Each check costs a few comparisons. A lane that
//! breaks one would deliver out of order or lose an event.

use super::{Lane, Turn};

impl Lane {
    /// Panics with the name of the broken invariant.
    pub(super) fn assert_invariants(&self) {
        if let Some(broken) = self.broken_invariant() {
            panic!("lane invariant broken: {broken}: {self:?}");
        }
    }

    fn broken_invariant(&self) -> Option<&'static str> {
        if let (Some(front), Some(back)) = (self.queue.front(), self.queue.back()) {
            if front.number > back.number {
                return Some("numbers of the queue ascend");
            }
            if back.number >= self.next_number {
                return Some("a number is given once");
            }
            if self.back.first().is_some_and(|next| next.number <= back.number) {
                return Some("what came later stands behind");
            }
        } else if self.held {
            return Some("a dead letter that holds a lane is its head");
        }
        if self.back.last().is_some_and(|last| last.number >= self.next_number) {
            return Some("a number is given once");
        }
        if self.in_flight && self.turn.is_none() {
            return Some("what is in flight has its turn");
        }
        if self.turn == Some(Turn::Aside) && self.aside.is_empty() {
            return Some("a replayed event that has its turn is there");
        }
        if self.early.is_empty() && self.early_bytes != 0 {
            return Some("bytes of early events are those of early events");
        }
        if let (Some(expected), Some(lowest)) = (self.expected, self.early.keys().next())
            && *lowest <= expected
        {
            return Some("early events are above the expected sequence");
        }
        None
    }
}
