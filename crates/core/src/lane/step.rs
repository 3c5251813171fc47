//! The inputs and actions of a step.

use super::Entry;
use crate::ids::{Locator, Sequence};
use crate::time::Millis;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// `taken`: an early event on disk already has this sequence.
    Arrived {
        entry: Entry,
        sequence: Option<Sequence>,
        taken: bool,
    },
    /// The target acknowledged the event whose turn it was.
    Delivered,
    /// The event whose turn it was failed. `fatal`: retrying cannot succeed.
    Failed {
        fatal: bool,
        retry_at: Millis,
    },
    /// The gap timer expired.
    GapExpired,
    Resume,
    Skip,
    /// Removes the dead letter that parks the lane for good. Does not affect another event that has its turn.
    Discard,
    /// The receiver has the first event of the queue already, so it counts as delivered.
    Acknowledge,
    /// Removes all pending events except the one in flight.
    Purge,
    Pause,
    Reset {
        expected: Sequence,
    },
    /// Gives fresh attempts to the dead letter that parks the lane. It keeps its place.
    Replay,
    /// Returns a dead letter from outside to the lane: under its number if it has one, else at the end.
    Requeue {
        entry: Entry,
    },
    /// Drops the oldest pending event that is not in flight, because the subscription is full.
    DropOldest,
}

/// An effect of an input. The caller persists the input first, then performs the actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Count and log a violation of the producer's order. `at` is the location of the event.
    Count {
        what: Count,
        at: Locator,
        sequence: Sequence,
        expected: Option<Sequence>,
    },
    /// The head became a dead letter and parks its lane.
    Hold(Entry),
    /// The head is retried and is no longer a dead letter.
    Unhold(Entry),
    /// An event became a dead letter outside the lane.
    DeadLetter {
        entry: Entry,
        why: Why,
    },
    Delivered(Entry),
    /// An event left without success. Its id is released.
    Dropped(Entry),
    /// Store an early event on disk, because it exceeds the buffer of a parked gap.
    SpillEarly {
        sequence: Sequence,
        entry: Entry,
    },
    /// A tombstone: the lane no longer waits for these sequences. `next` is the location of the event after them.
    GapRecorded {
        from: Sequence,
        to: Sequence,
        next: Option<Locator>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The event failed at its turn and the policy is to skip it, or a user skipped it.
    Failed,
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Early,
    Late,
    Gap,
}

/// The lane's state does not allow an operator's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the head is in flight; pause the lane and wait until the delivery ends")]
    Running,
    #[error("nothing to skip: the lane is not parked, retrying or waiting for a gap")]
    NothingToSkip,
    #[error("the lane is not parked at a dead letter")]
    NotParked,
    #[error("no event is pending in the lane")]
    NothingPending,
    #[error("the subscription does not order by a producer's sequence")]
    NotSequenced,
}
