//! The words of a step: what goes into a lane and what follows from it.

use super::Entry;
use crate::ids::{Address, Sequence};
use crate::time::Millis;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// `taken`: an early event on disk already has this sequence.
    Arrived {
        entry: Entry,
        sequence: Option<Sequence>,
        taken: bool,
    },
    /// The event whose turn it was is acknowledged.
    Delivered,
    /// The event whose turn it was failed. `fatal`: no retry can help.
    Failed {
        fatal: bool,
        retry_at: Millis,
    },
    /// The gap timer ran out.
    GapExpired,
    Resume,
    Skip,
    /// The dead letter that holds the lane goes for good. What else has the lane's turn is not touched.
    Discard,
    /// All that waits goes, except what is in flight.
    Purge,
    Pause,
    Reset {
        expected: Sequence,
    },
    /// The dead letter that holds the lane gets fresh attempts in its place.
    Replay,
    /// A dead letter from outside the lane comes back: under its number if it had one, else at the end.
    Requeue {
        entry: Entry,
    },
    /// Room was needed: the oldest waiting event that is not in flight is dropped.
    DropOldest,
}

/// What follows from an input. The caller persists the input itself, then does these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The producer's order is disturbed: to be counted and logged. `at` is the event's address.
    Count {
        what: Count,
        at: Address,
        sequence: Sequence,
        expected: Option<Sequence>,
    },
    /// A dead letter at the head of its lane, which waits behind it.
    Hold(Entry),
    /// The head is tried again: it is no dead letter any more.
    Unhold(Entry),
    /// A dead letter outside the lane.
    DeadLetter {
        entry: Entry,
        why: Why,
    },
    Delivered(Entry),
    /// Left without success: its id is released.
    Dropped(Entry),
    /// An early event beyond the buffer of a parked gap: to be kept on disk.
    SpillEarly {
        sequence: Sequence,
        entry: Entry,
    },
    /// A tombstone: the lane does not wait for these sequences any more. `next` is the address of the event after them.
    GapRecorded {
        from: Sequence,
        to: Sequence,
        next: Option<Address>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Failed at its turn and the policy goes on, or a person skipped it.
    Failed,
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Early,
    Late,
    Gap,
}

/// An operator's action that does not fit the lane's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the head is being delivered; pause the lane first and wait for it")]
    Running,
    #[error("there is nothing to skip: the lane is neither parked, retrying nor waiting for a gap")]
    NothingToSkip,
    #[error("the lane is not parked at a dead letter")]
    NotParked,
    #[error("the subscription does not order by a producer's sequence")]
    NotSequenced,
}
