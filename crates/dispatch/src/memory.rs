//! The memory of the engine, part by part. Computed once per second and on request, never per event.
//!
//! | part | bounded by |
//! |---|---|
//! | lanes | two fifths of `memory`, or what the other parts leave of it; beyond that they move to disk |
//! | changed rows and ids | a checkpoint at a tenth of `memory` (rows) or a 42nd (ids); at half of it, new events wait |
//! | listed unread events | a 32nd of `memory` |
//! | unordered events between attempts | a 16th of `memory`; beyond it no new ones start |
//! | queues of unordered events | 512 events at their ends per subscription; the others are on disk |
//! | lists by age | the lanes in memory, and 2,048 rows per subscription that drops events |
//! | ages and places of pending events | 4,608 ranges per subscription |
//! | addresses of edited dead letters | 10,000 per subscription |
//! | timers | twice the number of lanes in memory |
//! | responses that wait for room | 16 MiB |
//! | filters and indexes of tables | the rows: 14 bits per id, and one key in about a thousand |
//! | replays | the selected dead letters: about 300 bytes per key; and the last 100 jobs |
//! | calls | `limits.concurrency`; their bytes are part of `limits.heldBytes` |

use crate::engine::Engine;
use crate::lanes::Slot;
use crate::subscription::Subscription;
use crate::unordered::{Single, Unordered};
use klambda_core::ids::Position;

/// The share of memory for unordered events between attempts, and the maximum size of one of them without its error.
const SINGLES_SHARE: usize = 16;
const SINGLE_BYTES: usize = 2 * (size_of::<Position>() + size_of::<Single>());
const ERROR_BYTES: usize = 64;
/// Bounds of the number per subscription.
const SINGLES_MIN: usize = 64;
const SINGLES_MAX: usize = 65_536;
/// Memory of a document per byte of its text.
const DOCUMENT_FACTOR: usize = 4;

impl Engine {
    /// Bytes in use, approximately.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// The parts of the table above, so that a report of too much memory can name the part.
    pub fn memory_parts(&self) -> [(&'static str, usize); 11] {
        let tables = self.store.rows.tables().memory_bytes() + self.store.marks.tables().memory_bytes();
        [
            ("lanes", self.lanes.memory_bytes() + self.lanes.slack_bytes()),
            ("changed rows", self.store.rows.memory_bytes()),
            ("changed ids", self.store.marks.memory_bytes()),
            ("end of the log", self.store.log.tail_bytes()),
            ("unread events", self.listed_bytes()),
            ("subscriptions", self.subscriptions.memory_bytes()),
            ("timers", self.wakeups.memory_bytes()),
            ("replays", self.replays.memory_bytes()),
            ("replies that wait for room", self.calls.held_back.bytes()),
            ("calls", self.calls.memory_bytes()),
            ("tables", tables as usize),
        ]
    }

    /// How many unordered events of a subscription may be between attempts. Each of them is in memory.
    pub(crate) fn singles_max(&self) -> usize {
        let all = self.config.memory_bytes / SINGLES_SHARE / (SINGLE_BYTES + ERROR_BYTES);
        (all / self.maintenance.busy.max(1)).clamp(SINGLES_MIN, SINGLES_MAX)
    }
}

impl Subscription {
    pub(crate) fn memory_bytes(&self) -> usize {
        let queues = self.flow.ready.capacity() * size_of::<Slot>()
            + self.on_disk.cursor.capacity()
            + self.on_disk.ages_from.capacity();
        size_of::<Subscription>()
            + self.noted.document_bytes * DOCUMENT_FACTOR
            + self.tally.memory_bytes()
            + self.unordered.memory_bytes()
            + self.on_disk.edits.memory_bytes()
            + self.on_disk.by_age.as_ref().map_or(0, |by_age| by_age.memory_bytes())
            + self.on_disk.feed.as_ref().map_or(0, |feed| feed.memory_bytes())
            + queues
    }
}

impl Unordered {
    fn memory_bytes(&self) -> usize {
        let errors: usize = self.under_way.values().map(|single| single.error.capacity()).sum();
        let positions = (self.ready.capacity() + self.moved.capacity()) * size_of::<Position>();
        self.queue.heap_bytes() + self.under_way.len() * SINGLE_BYTES + errors + positions
    }
}
