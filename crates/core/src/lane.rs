//! The lane machine: one key of one subscription, a strict FIFO with its own state.
//!
//! `Lane::apply(input, policy, now, actions)` is pure: the same lane and input give the same lane and actions, always.
//! Every input that changes a lane is one record in the log, so a crash is undone by applying the records again.
//! The one thing that is not in the log is whether a request is open (`in_flight`): after a crash none is.
//!
//! Inside a lane an event is in one of four places:
//! - `early`: its producer sequence is above the expected one; it has no number yet;
//! - `queue` (its front in memory, `spilled` chunks on disk, `back` in memory): it has its number and waits its turn;
//! - `aside`: a dead letter that is replayed under its old number; it goes before the queue;
//! - gone: delivered, purged, or a dead letter outside the lane.
//!
//! A dead letter that holds its lane is the head of `queue` while `held` is set.

mod early;
mod gap;
mod gaps;
mod invariants;
mod operators;
mod policy;
mod queue;
mod state;
mod step;
mod turn;

pub use gaps::{Gap, Gaps};
pub use policy::Policy;
pub use queue::{CHUNK, FRONT_MAX, Spilled};
pub use state::{Hold, State};
pub use step::{Action, Count, Input, Refused, Why};
pub use turn::Turn;

pub(crate) use early::{Passed, SpilledEarly, Watermark};

use crate::ids::{Address, LaneNumber, Position, Sequence};
use crate::time::Millis;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub(crate) next_number: LaneNumber,
    pub(crate) queue: VecDeque<Entry>,
    pub(crate) spilled: Spilled,
    pub(crate) back: Vec<Entry>,
    pub(crate) aside: VecDeque<Entry>,
    pub(crate) early: BTreeMap<Sequence, Entry>,
    pub(crate) early_bytes: u64,
    /// Early events on disk; all of them are above all in `early`.
    pub(crate) early_spilled: SpilledEarly,
    pub(crate) expected: Option<Sequence>,
    /// Waiting for lower sequences than the first one seen.
    pub(crate) opening: bool,
    pub(crate) watermark: Watermark,
    /// Sequence ranges that were given up.
    pub(crate) gaps: Gaps,
    pub(crate) gap_until: Option<Millis>,
    /// The head failed its last attempt and stays as a dead letter in its place.
    pub(crate) held: bool,
    /// The gap waits for a person.
    pub(crate) gap_parked: bool,
    /// The sequence moved on to a gap that is not compared with the buffer's limits yet, since the early events before it
    /// are on disk. Only within a step.
    pub(crate) reopened: bool,
    pub(crate) paused: bool,
    /// The event that began its turn keeps it until it is delivered or given up.
    pub(crate) turn: Option<Turn>,
    /// Of the event that began its turn, since it was last given fresh ones.
    pub(crate) attempts: u32,
    /// Of the queue's head in all, holds and resumptions included.
    pub(crate) attempts_total: u32,
    /// Of the first of `aside`, since it came back. Apart, because it goes out while another dead letter holds the lane.
    pub(crate) aside_attempts_total: u32,
    pub(crate) retry_at: Option<Millis>,
    /// The next event to take a place is flagged.
    pub(crate) flag_next: bool,
    /// The first event of the next chunk to be loaded is flagged.
    pub(crate) flag_loaded: bool,
    pub(crate) since: Millis,
    pub(crate) active_at: Millis,
    pub(crate) in_flight: bool,
}

/// A waiting event: where it stands, not what it says. Payloads stay in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub position: Position,
    pub at: Address,
    pub number: LaneNumber,
    pub accepted: Millis,
    pub bytes: u32,
    pub flag: Flag,
}

/// What `ce-orderstatus` says of a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flag {
    #[default]
    None,
    Late,
    Gap,
}

impl Lane {
    pub fn new(now: Millis) -> Lane {
        Lane {
            next_number: LaneNumber(1),
            queue: VecDeque::new(),
            spilled: Spilled::default(),
            back: Vec::new(),
            aside: VecDeque::new(),
            early: BTreeMap::new(),
            early_bytes: 0,
            early_spilled: SpilledEarly::default(),
            expected: None,
            opening: false,
            watermark: Watermark::default(),
            gaps: Gaps::default(),
            reopened: false,
            gap_until: None,
            held: false,
            gap_parked: false,
            paused: false,
            turn: None,
            attempts: 0,
            attempts_total: 0,
            aside_attempts_total: 0,
            retry_at: None,
            flag_next: false,
            flag_loaded: false,
            since: now,
            active_at: now,
            in_flight: false,
        }
    }

    /// Takes one step. `Err` changes nothing; only operators' inputs can be refused.
    pub fn apply(
        &mut self,
        input: Input,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        let (state, watermark) = (self.state(), self.watermark);
        self.watermark.rotate(self.passed(), policy.window_ms, now);
        if let Err(refused) = self.step(input, policy, now, actions) {
            self.watermark = watermark;
            return Err(refused);
        }
        self.active_at = now;
        self.watch_gap(policy, now);
        if self.state() != state {
            self.since = now;
        }
        self.assert_invariants();
        Ok(())
    }

    fn step(
        &mut self,
        input: Input,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        match input {
            Input::Arrived { entry, sequence, taken } => match sequence {
                Some(sequence) => self.arrived(entry, sequence, taken, policy, now, actions),
                None => self.place(entry),
            },
            Input::Delivered => self.delivered(actions),
            Input::Failed { fatal, retry_at } => self.failed(fatal, retry_at, policy, actions),
            Input::GapExpired => self.gap_expired(policy, now, actions),
            Input::Resume => self.resume(actions),
            Input::Skip => self.skip(policy, now, actions)?,
            Input::Discard => self.discard(actions)?,
            Input::Purge => self.purge(now, actions),
            Input::Pause => self.paused = true,
            Input::Reset { expected } => self.reset(expected, policy, now, actions)?,
            Input::Replay => self.replay(actions)?,
            Input::Requeue { entry } => self.requeue(entry),
            Input::DropOldest => self.drop_oldest(actions),
        }
        Ok(())
    }
}
