//! The steps of a lane.

use crate::address::LogAddress;
use klambda_core::ids::{LaneNumber, Position, Sequence};
use klambda_core::outcome::Reason;
use klambda_core::time::Millis;
use klambda_core::wire::{Malformed, Reader, put_bytes, put_varint};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Contains the position, so that a reader of the log can see which event was acknowledged.
    Delivered {
        position: Position,
        attempt: Attempt<'a>,
    },
    Failed {
        position: Position,
        fatal: bool,
        retry_at: Millis,
        reason: Reason,
        error: &'a str,
        attempt: Attempt<'a>,
    },
    GapExpired,
    Resume,
    Skip,
    /// `events`: the number of purged events.
    Purge {
        events: u64,
    },
    Pause,
    Reset {
        expected: Sequence,
    },
    /// Retries the dead letter at `position` for a replay job. Job 0 means that a user requested it.
    Replay {
        position: Position,
        job: u64,
    },
    DropOldest {
        position: Position,
    },
    /// The subscription is removed: all pending events of the lane become dead letters.
    GiveUp,
    /// A part of a purge that is too large for one step. These events are removed before the rest is purged: the
    /// oldest of the queue in order, or (`early`) the first early events on disk. The positions are listed for
    /// readers of the log. Unordered subscriptions are purged only with this step.
    PurgePart {
        early: bool,
        positions: Vec<Position>,
    },
    /// This number of the oldest events become dead letters before the rest is given up.
    GiveUpPart {
        events: u64,
    },
    /// Removes the dead letter at `position`, which parks its lane, for good.
    Discard {
        position: Position,
    },
    /// The receiver has the event at `position`, the first of its lane, from another source.
    Acknowledged {
        position: Position,
    },
    /// A user sent the event again, beside the lane. Its attempt has the number 0. `number` is 0 without a lane.
    Resent {
        position: Position,
        event: LogAddress,
        number: LaneNumber,
        attempt: Attempt<'a>,
        /// Why there was no response; empty if there was one.
        error: &'a str,
    },
}

/// One call of a target, for people who look for the cause of a failure. No decision depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt<'a> {
    /// Counts all attempts of the event in its subscription, from 1.
    pub number: u32,
    pub duration_ms: u64,
    /// The HTTP status; 0 if there was no response.
    pub status: u16,
    /// The beginning of the response's body in one printable line; empty if there was none.
    pub answer: &'a str,
}

impl<'a> Attempt<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.number));
        put_varint(out, self.duration_ms);
        put_varint(out, u64::from(self.status));
        put_bytes(out, self.answer.as_bytes());
    }

    fn decode(r: &mut Reader<'a>) -> Result<Attempt<'a>, Malformed> {
        Ok(Attempt {
            number: r.u32()?,
            duration_ms: r.varint()?,
            status: u16::try_from(r.varint()?).map_err(|_| Malformed("status"))?,
            answer: r.text()?,
        })
    }
}

impl<'a> Step<'a> {
    /// The call of the target, if the step is the outcome of a turn of its lane.
    pub fn attempt(&self) -> Option<&Attempt<'a>> {
        match self {
            Step::Delivered { attempt, .. } | Step::Failed { attempt, .. } => Some(attempt),
            _ => None,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Step::Delivered { position, attempt } => {
                out.push(0);
                put_varint(out, position.0);
                attempt.encode(out);
            }
            Step::Failed { position, fatal, retry_at, reason, error, attempt } => {
                out.push(1);
                put_varint(out, position.0);
                out.push(u8::from(*fatal));
                put_varint(out, retry_at.0);
                out.push(reason.code());
                put_bytes(out, error.as_bytes());
                attempt.encode(out);
            }
            Step::GapExpired => out.push(2),
            Step::Resume => out.push(3),
            Step::Skip => out.push(4),
            Step::Purge { events } => {
                out.push(5);
                put_varint(out, *events);
            }
            Step::Pause => out.push(6),
            Step::Reset { expected } => {
                out.push(7);
                put_varint(out, expected.0);
            }
            Step::Replay { position, job } => {
                out.push(8);
                put_varint(out, position.0);
                put_varint(out, *job);
            }
            Step::DropOldest { position } => {
                out.push(9);
                put_varint(out, position.0);
            }
            Step::GiveUp => out.push(10),
            Step::PurgePart { early, positions } => {
                out.push(11);
                out.push(u8::from(*early));
                put_positions(out, positions);
            }
            Step::GiveUpPart { events } => {
                out.push(12);
                put_varint(out, *events);
            }
            Step::Discard { position } => {
                out.push(13);
                put_varint(out, position.0);
            }
            Step::Acknowledged { position } => {
                out.push(14);
                put_varint(out, position.0);
            }
            Step::Resent { position, event, number, attempt, error } => {
                out.push(15);
                put_varint(out, position.0);
                put_varint(out, event.0);
                put_varint(out, number.0);
                attempt.encode(out);
                put_bytes(out, error.as_bytes());
            }
        }
    }

    pub(super) fn decode(r: &mut Reader<'a>) -> Result<Step<'a>, Malformed> {
        Ok(match r.u8()? {
            0 => Step::Delivered { position: Position(r.varint()?), attempt: Attempt::decode(r)? },
            1 => Step::Failed {
                position: Position(r.varint()?),
                fatal: r.u8()? != 0,
                retry_at: Millis(r.varint()?),
                reason: Reason::from_code(r.u8()?).ok_or(Malformed("reason"))?,
                error: r.text()?,
                attempt: Attempt::decode(r)?,
            },
            2 => Step::GapExpired,
            3 => Step::Resume,
            4 => Step::Skip,
            5 => Step::Purge { events: r.varint()? },
            6 => Step::Pause,
            7 => Step::Reset { expected: Sequence(r.varint()?) },
            8 => Step::Replay { position: Position(r.varint()?), job: r.varint()? },
            9 => Step::DropOldest { position: Position(r.varint()?) },
            10 => Step::GiveUp,
            11 => Step::PurgePart { early: r.u8()? != 0, positions: take_positions(r)? },
            12 => Step::GiveUpPart { events: r.varint()? },
            13 => Step::Discard { position: Position(r.varint()?) },
            14 => Step::Acknowledged { position: Position(r.varint()?) },
            15 => Step::Resent {
                position: Position(r.varint()?),
                event: LogAddress(r.varint()?),
                number: LaneNumber(r.varint()?),
                attempt: Attempt::decode(r)?,
                error: r.text()?,
            },
            _ => return Err(Malformed("step")),
        })
    }

    pub fn name(&self) -> &'static str {
        match self {
            Step::Delivered { .. } => "delivered",
            Step::Failed { .. } => "failed",
            Step::GapExpired => "gap expired",
            Step::Resume => "resumed",
            Step::Skip => "skipped",
            Step::Purge { .. } | Step::PurgePart { .. } => "purged",
            Step::Pause => "paused",
            Step::Reset { .. } => "reset",
            Step::Replay { .. } => "replayed",
            Step::DropOldest { .. } => "dropped",
            Step::GiveUp | Step::GiveUpPart { .. } => "given up",
            Step::Discard { .. } => "deleted",
            Step::Acknowledged { .. } => "acknowledged",
            Step::Resent { .. } => "resent",
        }
    }
}

/// Positions are close to each other and mostly ascending. Each is encoded as its distance from the previous one,
/// with the sign in the lowest bit.
fn put_positions(out: &mut Vec<u8>, positions: &[Position]) {
    put_varint(out, positions.len() as u64);
    let mut before = 0;
    for position in positions {
        let distance = position.0.wrapping_sub(before) as i64;
        put_varint(out, ((distance << 1) ^ (distance >> 63)) as u64);
        before = position.0;
    }
}

fn take_positions(r: &mut Reader<'_>) -> Result<Vec<Position>, Malformed> {
    let n = r.varint()?;
    if n > r.rest().len() as u64 {
        return Err(Malformed("position count"));
    }
    let mut before = 0_u64;
    let mut take = || {
        let distance = r.varint()?;
        before = before.wrapping_add((distance >> 1) ^ (distance & 1).wrapping_neg());
        Ok(Position(before))
    };
    (0..n).map(|_| take()).collect()
}
