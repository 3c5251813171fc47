//! The engine's memory, part by part. It is summed up once a second and when people ask, never per event.
//!
//! | part | is bounded by |
//! |---|---|
//! | lanes | two fifths of `memory`, or what the others leave of it: beyond that they go to their rows |
//! | rows and ids that changed | a checkpoint at a tenth of `memory`, and at a 42nd; at half of it, events wait for it |
//! | unread events that are listed | a 32nd of `memory` |
//! | unordered events between attempts | a 16th of `memory`: beyond it no new ones start |
//! | lists by age | the lanes in memory, and 2,048 rows for a subscription that drops |
//! | ages and places of what waits | 4,608 ranges for a subscription |
//! | timers | twice the lanes in memory |
//! | answers that wait for room | 16 MiB |
//! | filters and indexes of tables | the rows: 14 bits for each id, and one key in some thousand |
//! | replays | the dead letters that they mean: some 300 bytes for each key; and the last 100 jobs |
//! | calls | `limits.concurrency`; their bytes are in `limits.heldBytes` |

use crate::engine::Engine;
use crate::lanes::Slot;
use crate::subscription::{Single, Subscription};
use klambda_core::ids::Position;

/// The share of memory for unordered events that wait for their next attempt, and what one of them takes at most, but for
/// its error.
const SINGLES_SHARE: usize = 16;
const SINGLE_BYTES: usize = 2 * (size_of::<Position>() + size_of::<Single>());
const ERROR_BYTES: usize = 64;
/// Bounds of how many of one subscription do.
const SINGLES_MIN: usize = 64;
const SINGLES_MAX: usize = 65_536;
/// What a document takes in memory for each byte of its text.
const DOCUMENT_FACTOR: usize = 4;

impl Engine {
    /// Bytes in use, approximately.
    pub(crate) fn memory_bytes(&self) -> usize {
        let tables = self.store.rows.tables().memory_bytes() + self.store.marks.tables().memory_bytes();
        let parts = [
            self.lanes.memory_bytes() + self.lanes.slack_bytes(),
            self.store.rows.memory_bytes(),
            self.store.marks.memory_bytes(),
            self.store.log.tail_bytes(),
            self.listed_bytes(),
            self.ages_bytes(),
            self.subscriptions.values().map(Subscription::memory_bytes).sum(),
            self.waits.memory_bytes(),
            self.replays.memory_bytes(),
            self.calls.held_back.bytes(),
            self.calls.memory_bytes(),
            tables as usize,
        ];
        parts.into_iter().sum()
    }

    /// How many unordered events of a subscription may wait for their next attempt. Each has a place in memory.
    pub(crate) fn singles_max(&self) -> usize {
        let all = self.config.memory_bytes / SINGLES_SHARE / (SINGLE_BYTES + ERROR_BYTES);
        (all / self.keeping.busy.max(1)).clamp(SINGLES_MIN, SINGLES_MAX)
    }
}

impl Subscription {
    fn memory_bytes(&self) -> usize {
        let errors: usize = self.flow.singles.values().map(|single| single.error.capacity()).sum();
        let singles = self.flow.singles.len() * SINGLE_BYTES + errors;
        let queues = self.flow.ready.capacity() * size_of::<Slot>()
            + self.flow.ready_singles.capacity() * size_of::<Position>()
            + self.on_disk.cursor.capacity()
            + self.on_disk.ages_from.capacity();
        size_of::<Subscription>()
            + self.noted.document_bytes * DOCUMENT_FACTOR
            + self.tally.memory_bytes()
            + singles
            + queues
    }
}
