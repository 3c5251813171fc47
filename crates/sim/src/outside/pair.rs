//! The knowledge about one event in one subscription, and about one lane, as seen from outside.

use crate::event::EventNo;
use crate::rules::Place;
use std::collections::{BTreeMap, BTreeSet};

/// Whether a subscription has or had the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taken {
    #[default]
    No,
    /// The event was sent but not answered, or its id may have been released.
    Maybe,
    Yes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Waiting,
    /// The engine was told of a success.
    Acked,
    /// Like `Acked`, but a crash may have lost the acknowledgement.
    AckedMaybe,
    /// The event failed permanently. `held`: it stays in its place and parks its lane.
    Dead {
        held: bool,
    },
    /// The event may have failed permanently or been given up.
    DeadMaybe,
    /// Purged, discarded or deleted.
    Gone,
    GoneMaybe,
}

#[derive(Clone, Debug, Default)]
pub struct Pair {
    pub taken: Taken,
    /// A producer was told that the event is accepted, so it must not be lost.
    pub owed: bool,
    pub state: State,
    /// The operation that last changed `state`.
    pub state_op: u64,
    /// Incremented when the event leaves without success.
    pub generation: u32,
    pub pending: u32,
    pub sent_op: u64,
    pub position: Option<u64>,
    pub taken_at: u64,
    pub acked_at: u64,
    pub called: Called,
    pub failures: Failures,
    pub doubts: Doubts,
}

/// The calls so far.
#[derive(Clone, Debug, Default)]
pub struct Called {
    pub number: Option<u64>,
    /// The lane of the last call.
    pub lane: Option<String>,
    pub open: bool,
    pub starts: u32,
    /// The last call had the late flag.
    pub was_late: bool,
    /// The event precedes the queue, as a dead letter that is replayed under its old number.
    pub aside: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// Failures since the last fresh attempts, each with the operation of its outcome.
    pub ops: Vec<u64>,
    /// The number of certain failures.
    pub sure: u32,
    /// The number of `ops` from before the last fresh attempts. They count only if a crash undid the fresh attempts.
    pub stale: usize,
    /// No call is allowed before this time.
    pub retry_after: u64,
    /// How often a user requested a retry since then.
    pub revived: u32,
}

/// Facts that are not visible from outside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Doubts {
    /// Its sequence may have been passed when the event arrived.
    pub may_be_late: bool,
    /// The event may have been skipped because its sequence was passed long ago.
    pub may_be_long_past: bool,
    /// The sequence of its lane was reset after the event arrived. If the event already had its place, its turn says
    /// nothing about the new sequence.
    pub by_old_sequence: bool,
    /// The event was acknowledged, but a decision after a crash may have given it up.
    pub may_be_letter: bool,
}

impl Pair {
    pub fn is_settled(&self) -> bool {
        !matches!(self.state, State::Waiting | State::Dead { held: true } | State::DeadMaybe)
    }

    /// True if the event is in its lane, or may be: a dead letter that a job replays, or a success that a crash may
    /// have lost.
    pub fn may_wait(&self) -> bool {
        let taken_up = self.failures.revived > 0 && self.state == State::Dead { held: false };
        !self.is_settled() || taken_up || self.state == State::AckedMaybe
    }

    /// Its number in this lane. Under other rules it may have had a number in another lane.
    pub fn number_in(&self, place: &Place) -> Option<u64> {
        let here = matches!(place, Place::Lane { key, .. } if self.called.lane.as_ref() == Some(key));
        self.called.number.filter(|_| here)
    }

    pub fn set(&mut self, state: State, op: u64) {
        self.state = state;
        self.state_op = op;
    }

    /// The event left without success. Its id is released.
    pub fn release(&mut self, op: u64, sure: bool) {
        self.generation += 1;
        self.taken = if sure && self.pending == 0 { Taken::No } else { Taken::Maybe };
        self.set(if sure { State::Gone } else { State::GoneMaybe }, op);
        self.owed = false;
        self.position = None;
        self.failures.ops.clear();
        self.fresh_attempts();
        self.failures.retry_after = 0;
    }

    /// The attempts count from zero again.
    pub fn fresh_attempts(&mut self) {
        self.failures.sure = 0;
        self.failures.stale = self.failures.ops.len();
    }

    /// The event is called with this attempt number, so the number of recorded failures is known.
    pub fn called(&mut self, attempt: u32) {
        let failures = attempt as usize - 1;
        self.failures.ops.resize(failures, 0);
        self.failures.sure = attempt - 1;
        self.failures.stale = 0;
        self.failures.retry_after = 0;
    }

    pub fn crashed(&mut self, kept: u64) {
        self.called.open = false;
        self.pending = 0;
        let sure =
            self.failures.ops.iter().skip(self.failures.stale).filter(|op| **op <= kept).count() as u32;
        self.failures.sure = self.failures.sure.min(sure);
        self.failures.retry_after = 0;
        if self.state_op <= kept {
            return;
        }
        match self.state {
            State::Acked => self.state = State::AckedMaybe,
            State::Dead { .. } => self.state = State::DeadMaybe,
            State::Gone => {
                self.state = State::GoneMaybe;
                self.taken = Taken::Maybe;
            }
            _ => {}
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Lane {
    pub open: Option<EventNo>,
    /// The event of each number.
    pub numbers: BTreeMap<u64, EventNo>,
    /// The highest number that began its turn in the queue in this life of the process.
    pub turn: u64,
    /// The event that was called last and is not settled.
    pub current: Option<EventNo>,
    pub parked: Parked,
    /// The last observed decision about the lane. Nothing may start before it is durable.
    pub decided_op: u64,
    /// The operation with which a user paused the lane. Nothing may start since then.
    pub paused: Option<u64>,
    pub events: Events,
    pub sequence: Followed,
}

#[derive(Clone, Debug, Default)]
pub struct Parked {
    /// The dead letter that parks the lane.
    pub on: Option<EventNo>,
    /// A dead letter that may still park the lane, because a job was to replay it.
    pub maybe: Option<EventNo>,
    /// A user resumed the lane. A gap then waits for one more timeout, regardless of the buffer limit.
    pub resumed: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Events {
    /// Events that are certainly pending, by position, for delivery in arrival order.
    pub waiting: BTreeMap<u64, EventNo>,
    /// Events that arrived in time, by sequence.
    pub by_sequence: BTreeSet<(u64, EventNo)>,
    /// Events that may be pending here, by sequence and by arrival time.
    pub offered: BTreeSet<(u64, EventNo)>,
    pub arrivals: BTreeSet<(u64, EventNo)>,
    /// Delivered events that were sent again when their ids may have been forgotten, and when. They may be pending
    /// here as new events.
    pub again: BTreeMap<EventNo, u64>,
    /// The arrival time of the first event.
    pub first_at: Option<u64>,
}

/// The producer's sequence, as far as it is visible from outside.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// One above the highest sequence that began its turn, without late ones. `None` if unknown.
    pub expected: Option<u64>,
    /// A user or a limit affected the sequence since then.
    pub disturbed: bool,
    /// A user purged the lane and no event has begun its turn since. The next one may be flagged in any case.
    pub purged: bool,
    /// The sequences of all events that were sent.
    pub came: BTreeSet<u64>,
    /// The lowest sequence that began its turn in time.
    pub lowest: Option<u64>,
    /// At some time, something happened to the sequence that is not tracked.
    pub unsure: bool,
}

impl Lane {
    pub fn crashed(&mut self, kept: u64) {
        self.open = None;
        self.turn = 0;
        self.decided_op = 0;
        // A pause that was not durable may be lost.
        self.paused = self.paused.filter(|op| *op <= kept);
    }

    /// True if the sequence is above one that had its turn, and no event with it was ever sent. It was not delivered.
    pub fn never_came(&self, sequence: u64) -> bool {
        let is_between = self.sequence.lowest.is_some_and(|lowest| lowest < sequence);
        is_between && !self.sequence.unsure && !self.sequence.came.contains(&sequence)
    }

    pub fn forget_sequences(&mut self) {
        self.sequence.unsure = true;
        self.sequence.expected = None;
        self.events.by_sequence.clear();
        self.sequence.disturbed = true;
    }

    /// The event no longer waits for its sequence.
    pub fn leaves(&mut self, event: EventNo, sequence: u64, came: u64) {
        self.events.by_sequence.remove(&(sequence, event));
        self.events.offered.remove(&(sequence, event));
        self.events.arrivals.remove(&(came, event));
        self.events.again.remove(&event);
    }

    pub fn settle(&mut self, event: EventNo, position: Option<u64>, sequence: Option<u64>, came: u64) {
        if let Some(position) = position {
            self.events.waiting.remove(&position);
        }
        if let Some(sequence) = sequence {
            self.leaves(event, sequence, came);
        }
        if self.current == Some(event) {
            self.current = None;
        }
        if self.parked.on == Some(event) {
            self.parked.on = None;
        }
        if self.parked.maybe == Some(event) {
            self.parked.maybe = None;
        }
    }
}
