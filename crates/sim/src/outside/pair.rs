//! One event for one subscription, and one lane, as seen from outside.

use crate::event::EventNo;
use crate::rules::Place;
use std::collections::{BTreeMap, BTreeSet};

/// Whether a subscription has the event, or had it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taken {
    #[default]
    No,
    /// It was sent and not answered, or its id may have been released.
    Maybe,
    Yes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Waiting,
    /// The engine was told of a success.
    Acked,
    /// … and then there was a crash that may have lost that.
    AckedMaybe,
    /// It failed for good. `held`: in its place, so that its lane waits.
    Dead {
        held: bool,
    },
    /// It may have failed for good, or been given up.
    DeadMaybe,
    /// Purged, discarded or deleted.
    Gone,
    GoneMaybe,
}

#[derive(Clone, Debug, Default)]
pub struct Pair {
    pub taken: Taken,
    /// Somebody was told that it is accepted: it must come to an end.
    pub owed: bool,
    pub state: State,
    /// Grows when the event leaves without success.
    pub generation: u32,
    pub pending: u32,
    pub sent_op: u64,
    pub position: Option<u64>,
    pub taken_at: u64,
    pub number: Option<u64>,
    /// The lane in which it was called last.
    pub lane: Option<String>,
    pub open: bool,
    pub starts: u32,
    /// The last change of `state`.
    pub state_op: u64,
    /// Failures since it was given fresh attempts; each is the op of its outcome.
    pub failed_ops: Vec<u64>,
    /// So many of them are certain.
    pub failures_sure: u32,
    /// So many of `failed_ops` are from before it was given fresh attempts. They count only if a crash took that back.
    pub stale: usize,
    /// Not to be called again before this.
    pub retry_after: u64,
    /// So many times a person asked for it to be tried again since.
    pub revived: u32,
    /// Its sequence may have been passed when it came.
    pub may_be_late: bool,
    /// It may have been turned away because its sequence was passed long ago.
    pub may_be_long_past: bool,
    /// Its lane's sequence was set anew since it came: if it had its place by then, its turn says nothing of the new one.
    pub by_old_sequence: bool,
    pub acked_at: u64,
    /// It was acknowledged, but may have been given up by a decision after a crash.
    pub may_be_letter: bool,
    /// It was flagged as late when it was called last.
    pub was_late: bool,
    /// It goes out beside the queue, as a dead letter that is replayed under its old number.
    pub aside: bool,
}

impl Pair {
    pub fn is_settled(&self) -> bool {
        !matches!(self.state, State::Waiting | State::Dead { held: true } | State::DeadMaybe)
    }

    /// It is in its lane, or may be: a dead letter that a job took up, or a success that a crash may have lost.
    pub fn may_wait(&self) -> bool {
        let taken_up = self.revived > 0 && self.state == State::Dead { held: false };
        !self.is_settled() || taken_up || self.state == State::AckedMaybe
    }

    /// Its number in this lane. Under other rules it may have had one in another.
    pub fn number_in(&self, place: &Place) -> Option<u64> {
        let here = matches!(place, Place::Lane { key, .. } if self.lane.as_ref() == Some(key));
        self.number.filter(|_| here)
    }

    pub fn set(&mut self, state: State, op: u64) {
        self.state = state;
        self.state_op = op;
    }

    /// It left without success: its id is released.
    pub fn release(&mut self, op: u64, sure: bool) {
        self.generation += 1;
        self.taken = if sure && self.pending == 0 { Taken::No } else { Taken::Maybe };
        self.set(if sure { State::Gone } else { State::GoneMaybe }, op);
        self.owed = false;
        self.position = None;
        self.failed_ops.clear();
        self.fresh_attempts();
        self.retry_after = 0;
    }

    /// From here on its attempts count anew.
    pub fn fresh_attempts(&mut self) {
        self.failures_sure = 0;
        self.stale = self.failed_ops.len();
    }

    /// It is called for this attempt: so many failures are written, whatever was seen of them.
    pub fn called(&mut self, attempt: u32) {
        let failures = attempt as usize - 1;
        self.failed_ops.resize(failures, 0);
        self.failures_sure = attempt - 1;
        self.stale = 0;
        self.retry_after = 0;
    }

    pub fn crashed(&mut self, kept: u64) {
        self.open = false;
        self.pending = 0;
        let sure = self.failed_ops.iter().skip(self.stale).filter(|op| **op <= kept).count() as u32;
        self.failures_sure = self.failures_sure.min(sure);
        self.retry_after = 0;
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
    /// Who has which number.
    pub numbers: BTreeMap<u64, EventNo>,
    /// The highest number that began its turn in the queue in this life.
    pub turn: u64,
    /// The event that was called last and is not settled.
    pub current: Option<EventNo>,
    /// The dead letter that holds it.
    pub parked_on: Option<EventNo>,
    /// … which may hold it still: a job was to take it up.
    pub parked_maybe: Option<EventNo>,
    /// A person resumed it: then a gap waits one more timeout, whatever its buffer's limit is.
    pub resumed: bool,
    /// The last decision about it that was seen: nothing starts before that is durable.
    pub decided_op: u64,
    /// Since when nothing may start: a person paused it.
    pub paused: Option<u64>,
    /// Events that certainly wait, by position: what goes in order of arrival.
    pub waiting: BTreeMap<u64, EventNo>,
    /// Events that were taken in time, by sequence.
    pub by_sequence: BTreeSet<(u64, EventNo)>,
    /// Events that may wait here, by sequence, and by when they came.
    pub offered: BTreeSet<(u64, EventNo)>,
    pub arrivals: BTreeSet<(u64, EventNo)>,
    /// The sequence after the highest that began its turn, not counting late ones. None: not known.
    pub expected: Option<u64>,
    /// A person or a limit did something to its sequence since then.
    pub disturbed: bool,
    /// A person purged it, and no event has begun its turn since: the next one may be flagged, whatever went.
    pub purged: bool,
    /// When its first event came.
    pub first_at: Option<u64>,
    /// The sequences of which an event was offered.
    pub came: BTreeSet<u64>,
    /// The lowest sequence that began its turn in time.
    pub lowest: Option<u64>,
    /// Something happened to its sequence that is not followed, at some time.
    pub unsure: bool,
}

impl Lane {
    pub fn crashed(&mut self, kept: u64) {
        self.open = None;
        self.turn = 0;
        self.decided_op = 0;
        // A pause that was not durable may be gone.
        self.paused = self.paused.filter(|op| *op <= kept);
    }

    /// The sequence is above one that had its turn, and no event with it was ever offered: it was not delivered.
    pub fn never_came(&self, sequence: u64) -> bool {
        let is_between = self.lowest.is_some_and(|lowest| lowest < sequence);
        is_between && !self.unsure && !self.came.contains(&sequence)
    }

    pub fn forget_sequences(&mut self) {
        self.unsure = true;
        self.expected = None;
        self.by_sequence.clear();
        self.disturbed = true;
    }

    /// It waits for its sequence no longer.
    pub fn leaves(&mut self, event: EventNo, sequence: u64, came: u64) {
        self.by_sequence.remove(&(sequence, event));
        self.offered.remove(&(sequence, event));
        self.arrivals.remove(&(came, event));
    }

    pub fn settle(&mut self, event: EventNo, position: Option<u64>, sequence: Option<u64>, came: u64) {
        if let Some(position) = position {
            self.waiting.remove(&position);
        }
        if let Some(sequence) = sequence {
            self.leaves(event, sequence, came);
        }
        if self.current == Some(event) {
            self.current = None;
        }
        if self.parked_on == Some(event) {
            self.parked_on = None;
        }
        if self.parked_maybe == Some(event) {
            self.parked_maybe = None;
        }
    }
}
