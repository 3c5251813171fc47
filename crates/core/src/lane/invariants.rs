//! Invariants of a lane, checked after every step, also in release builds. Each check costs a few comparisons. A lane
//! that violates one would deliver out of order or lose an event.

use super::{Lane, Turn};

impl Lane {
    /// Panics with the name of the violated invariant.
    pub(super) fn assert_invariants(&self) {
        if let Some(broken) = self.broken_invariant() {
            panic!("lane invariant violated: {broken}: {self:?}");
        }
    }

    fn broken_invariant(&self) -> Option<&'static str> {
        if let (Some(front), Some(back)) = (self.queue.first(), self.queue.front.back()) {
            if front.number > back.number {
                return Some("numbers in the queue ascend");
            }
            if back.number >= self.queue.next_number {
                return Some("a number is assigned only once");
            }
            if self.queue.back.first().is_some_and(|next| next.number <= back.number) {
                return Some("later events are behind earlier ones");
            }
        } else if self.held {
            return Some("a dead letter that parks a lane is its head");
        }
        if self.queue.back.last().is_some_and(|last| last.number >= self.queue.next_number) {
            return Some("a number is assigned only once");
        }
        if self.delivery.in_flight && self.delivery.turn.is_none() {
            return Some("an event in flight has its turn");
        }
        if self.delivery.turn == Some(Turn::Aside) && self.aside.is_empty() {
            return Some("a replayed event that has its turn exists");
        }
        if self.early.entries.is_empty() && self.early.bytes != 0 {
            return Some("the byte count of early events matches the events");
        }
        if let (Some(expected), Some(lowest)) = (self.producer.expected, self.early.entries.keys().next())
            && *lowest <= expected
        {
            return Some("early events are above the expected sequence");
        }
        None
    }
}
