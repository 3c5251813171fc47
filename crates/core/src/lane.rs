//! The lane machine: one key of one subscription, a strict FIFO queue with its own state.
//!
//! `Lane::apply(input, policy, now, actions)` is pure: the same lane and input always give the same lane and actions.
//! Every input that changes a lane is one record in the log. Recovery after a crash applies the records again. Only
//! `in_flight`, whether a request is open, is not in the log: after a crash, no request is open.
//!
//! An event of a lane is in one of four places:
//! - `early`: its producer sequence is above the expected one; it has no number yet.
//! - `queue`: it has a number and waits for its turn.
//! - `aside`: a dead letter that is replayed under its old number; it precedes the queue.
//! - gone: delivered, purged, or a dead letter outside the lane.
//!
//! A dead letter that parks its lane is the head of `queue`, and `held` is set.

mod early;
mod gap;
mod gaps;
mod invariants;
mod operators;
mod policy;
mod producer;
mod queue;
mod state;
mod step;
mod turn;

pub use gaps::{Gap, Gaps};
pub use policy::Policy;
pub use queue::{CHUNK, FRONT_MAX, Queue, Spilled};
pub use state::{Hold, State};
pub use step::{Action, Count, Input, Refused, Why};
pub use turn::Turn;

pub(crate) use early::{Early, SpilledEarly};
pub(crate) use gap::GapWait;
pub(crate) use producer::{Passed, Producer, Watermark};
pub(crate) use turn::Delivery;

use crate::ids::{LaneNumber, Locator, Position};
use crate::time::Millis;
use std::collections::VecDeque;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub(crate) queue: Queue,
    pub(crate) aside: VecDeque<Entry>,
    pub(crate) early: Early,
    pub(crate) producer: Producer,
    pub(crate) gap: GapWait,
    pub(crate) delivery: Delivery,
    /// The head failed its last attempt and stays at the head as a dead letter.
    pub(crate) held: bool,
    pub(crate) paused: bool,
    pub(crate) since: Millis,
    pub(crate) active_at: Millis,
}

/// A pending event. It refers to the payload, which stays in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub position: Position,
    pub at: Locator,
    pub number: LaneNumber,
    pub accepted: Millis,
    pub bytes: u32,
    pub flag: Flag,
}

/// The value of `ce-orderstatus` of a delivery.
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
            queue: Queue::default(),
            aside: VecDeque::new(),
            early: Early::default(),
            producer: Producer::default(),
            gap: GapWait::default(),
            delivery: Delivery::default(),
            held: false,
            paused: false,
            since: now,
            active_at: now,
        }
    }

    /// Applies one input. `Err` changes nothing; only inputs from operators can be refused.
    pub fn apply(
        &mut self,
        input: Input,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        let (state, watermark) = (self.state(), self.producer.watermark);
        self.producer.watermark.rotate(self.passed(), policy.window_ms, now);
        if let Err(refused) = self.step(input, policy, now, actions) {
            self.producer.watermark = watermark;
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
                None => self.queue.place(entry),
            },
            Input::Delivered => self.delivered(actions),
            Input::Failed { fatal, retry_at } => self.failed(fatal, retry_at, policy, actions),
            Input::GapExpired => self.gap_expired(policy, now, actions),
            Input::Resume => self.resume(actions),
            Input::Skip => self.skip(policy, now, actions)?,
            Input::Discard => self.discard(actions)?,
            Input::Acknowledge => self.acknowledge(actions)?,
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
