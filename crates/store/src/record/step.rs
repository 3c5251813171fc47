//! What happened to a lane.

use klambda_core::ids::{Position, Sequence};
use klambda_core::outcome::Reason;
use klambda_core::time::Millis;
use klambda_core::wire::{Malformed, Reader, put_bytes, put_varint};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Names its event, so that a reader of the log needs nothing else to see who was acknowledged.
    Delivered {
        position: Position,
    },
    Failed {
        position: Position,
        fatal: bool,
        retry_at: Millis,
        reason: Reason,
        error: &'a str,
    },
    GapExpired,
    Resume,
    Skip,
    /// With how many went. Of an unordered subscription only what stands after this position: the rest was on its way.
    Purge {
        events: u64,
        after: Position,
    },
    Pause,
    Reset {
        expected: Sequence,
    },
    /// The dead letter at `position` is tried again for a replay job (0: for a person).
    Replay {
        position: Position,
        job: u64,
    },
    DropOldest {
        position: Position,
    },
    /// Its subscription goes: everything that waits here becomes a dead letter.
    GiveUp,
}

impl<'a> Step<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Step::Delivered { position } => {
                out.push(0);
                put_varint(out, position.0);
            }
            Step::Failed { position, fatal, retry_at, reason, error } => {
                out.push(1);
                put_varint(out, position.0);
                out.push(u8::from(*fatal));
                put_varint(out, retry_at.0);
                out.push(reason.code());
                put_bytes(out, error.as_bytes());
            }
            Step::GapExpired => out.push(2),
            Step::Resume => out.push(3),
            Step::Skip => out.push(4),
            Step::Purge { events, after } => {
                out.push(5);
                put_varint(out, *events);
                put_varint(out, after.0);
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
        }
    }

    pub(super) fn decode(r: &mut Reader<'a>) -> Result<Step<'a>, Malformed> {
        Ok(match r.u8()? {
            0 => Step::Delivered { position: Position(r.varint()?) },
            1 => Step::Failed {
                position: Position(r.varint()?),
                fatal: r.u8()? != 0,
                retry_at: Millis(r.varint()?),
                reason: Reason::from_code(r.u8()?).ok_or(Malformed("reason"))?,
                error: r.text()?,
            },
            2 => Step::GapExpired,
            3 => Step::Resume,
            4 => Step::Skip,
            5 => Step::Purge { events: r.varint()?, after: Position(r.varint()?) },
            6 => Step::Pause,
            7 => Step::Reset { expected: Sequence(r.varint()?) },
            8 => Step::Replay { position: Position(r.varint()?), job: r.varint()? },
            9 => Step::DropOldest { position: Position(r.varint()?) },
            10 => Step::GiveUp,
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
            Step::Purge { .. } => "purged",
            Step::Pause => "paused",
            Step::Reset { .. } => "reset",
            Step::Replay { .. } => "replayed",
            Step::DropOldest { .. } => "dropped",
            Step::GiveUp => "given up",
        }
    }
}
