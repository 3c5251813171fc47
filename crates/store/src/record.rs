//! The records of the log: the inputs of the system, in the order in which they took effect. All state derives from
//! them.
//!
//! Every step of a lane contains the address of the previous step of that lane (`previous`). The history of a key is
//! read by following this chain, and nothing in memory has to remember it.

use self::route::{put_route, put_routes, skip_routes, take_route, take_routes};
use crate::address::LogAddress;
use klambda_core::ids::{NamespaceId, Position, SubscriptionId};
use klambda_core::lane::Turn;
use klambda_core::time::Millis;
use klambda_core::wire::{Malformed, Reader, put_bytes, put_varint};
use serde::{Deserialize, Serialize};

mod route;
mod step;

pub use self::route::{Missed, Route, To};
pub use self::step::{Attempt, Step};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// An accepted event and its routes. Uses the next position. `emitted`: the system itself emitted the event,
    /// together with the documents that it reports on. Events from outside never have this mark.
    Event {
        namespace: NamespaceId,
        time: Millis,
        routes: Vec<Route<'a>>,
        event: &'a [u8],
        emitted: bool,
    },
    /// Routes an event of the past to a subscription that catches up.
    Routed {
        time: Millis,
        position: Position,
        at: LogAddress,
        accepted: Millis,
        bytes: u32,
        route: Route<'a>,
    },
    /// `running`: the turn of the lane's open request at that time. Some steps depend on it, and a crash loses it.
    Step {
        time: Millis,
        subscription: SubscriptionId,
        lane: LaneRef<'a>,
        previous: LogAddress,
        running: Option<Turn>,
        step: Step<'a>,
    },
    Subscription {
        time: Millis,
        subscription: SubscriptionId,
        change: Change<'a>,
    },
    /// A dead letter outside the lanes was removed.
    DeadLetterGone {
        time: Millis,
        subscription: SubscriptionId,
        position: Position,
        why: Gone,
    },
    Replay {
        time: Millis,
        id: u64,
        change: ReplayChange<'a>,
    },
    /// A copy of a pending event, made before its segment is removed.
    Kept {
        namespace: NamespaceId,
        from: LogAddress,
        time: Millis,
        position: Position,
        routes: Vec<Route<'a>>,
        event: &'a [u8],
        emitted: bool,
    },
    /// Documents that changed in one step. The events that report the change follow in the same frame.
    Documents {
        time: Millis,
        changes: Vec<DocumentChange<'a>>,
    },
    /// A dead letter of a removed subscription moves to the subscription that now has the same name, for a replay
    /// job. Job 0 means that the job is unknown.
    Moved {
        time: Millis,
        from: SubscriptionId,
        position: Position,
        at: LogAddress,
        accepted: Millis,
        bytes: u32,
        route: Route<'a>,
        job: u64,
    },
    /// The content that deliveries of a dead letter to its subscription send instead of the event. `number` counts the
    /// edits of this dead letter. Retention writes the record again before its segment is removed.
    Edited {
        time: Millis,
        subscription: SubscriptionId,
        position: Position,
        number: u64,
        by: &'a str,
        event: &'a [u8],
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentChange<'a> {
    pub kind: &'a str,
    pub key: &'a str,
    /// `None` means that the document is removed.
    pub content: Option<&'a [u8]>,
}

/// A lane, or a single event or all events of an unordered subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneRef<'a> {
    Key(&'a str),
    Alone(Position),
    Unordered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Created or changed. Contains the whole document as JSON.
    Put {
        document: &'a str,
    },
    Pause,
    Resume,
    /// The subscription gets no new events and is removed when no event is pending.
    Drain,
    Remove,
    /// The cursor of a subscription that catches up.
    Caught {
        up_to: Position,
    },
    /// The subscription gets no new events. Events that are still pending at this time become dead letters.
    Retire {
        until: Millis,
    },
    /// No event is pending any more. The name is free; the dead letters stay.
    Retired,
    /// A webhook endpoint is called no more until it is enabled.
    Disabled {
        why: WhyDisabled,
    },
    Enabled,
}

/// Why a webhook endpoint is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WhyDisabled {
    /// A person disabled it.
    Request,
    /// It answered 410.
    Gone,
    /// No call succeeded for too long.
    NoSuccess,
}

impl WhyDisabled {
    /// As the API shows it.
    pub fn word(self) -> &'static str {
        match self {
            WhyDisabled::Request => "request",
            WhyDisabled::Gone => "gone",
            WhyDisabled::NoSuccess => "noSuccess",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    Deleted,
    Expired,
    Overflow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayChange<'a> {
    Created {
        job: &'a str,
    },
    Ended {
        job: &'a str,
    },
    /// The plan of the replay, recorded before any of its work.
    Planned {
        job: &'a str,
    },
}

const EVENT: u8 = 1;
const ROUTED: u8 = 2;
const STEP: u8 = 3;
const SUBSCRIPTION: u8 = 4;
const DEAD_LETTER_GONE: u8 = 5;
const REPLAY: u8 = 6;
const KEPT: u8 = 7;
const DOCUMENTS: u8 = 8;
const EMITTED: u8 = 9;
const KEPT_EMITTED: u8 = 10;
const MOVED: u8 = 11;
/// Like `MOVED`, for a replay.
const REPLAYED: u8 = 12;
const EDITED: u8 = 13;

/// True if a record uses a position. Reads only its first byte.
pub fn is_event(body: &[u8]) -> bool {
    matches!(body.first(), Some(&(EVENT | EMITTED)))
}

/// True if a record contains an event that the system emitted. Reads only its first byte.
pub fn is_emitted(body: &[u8]) -> bool {
    matches!(body.first(), Some(&(EMITTED | KEPT_EMITTED)))
}

/// The namespace of an event record.
pub fn namespace_of(body: &[u8]) -> Result<NamespaceId, Malformed> {
    let mut r = Reader::new(body);
    match r.u8()? {
        EVENT | EMITTED | KEPT | KEPT_EMITTED => Ok(NamespaceId(r.varint()?)),
        _ => Err(Malformed("event record")),
    }
}

/// The event in an event record or in an edit.
pub fn event_of(body: &[u8]) -> Result<&[u8], Malformed> {
    let mut r = Reader::new(body);
    let kind = r.u8()?;
    let numbers = match kind {
        EVENT | EMITTED => 2,
        KEPT | KEPT_EMITTED | EDITED => 4,
        _ => return Err(Malformed("event record")),
    };
    for _ in 0..numbers {
        r.varint()?;
    }
    if kind == EDITED {
        r.bytes()?;
    } else {
        skip_routes(&mut r)?;
    }
    Ok(r.rest())
}

/// The part of an event record before the event itself.
#[derive(Clone, Copy, Debug)]
pub struct EventHead<'a> {
    pub namespace: NamespaceId,
    pub time: Millis,
    pub routes: &'a [Route<'a>],
    pub emitted: bool,
}

impl EventHead<'_> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.emitted { EMITTED } else { EVENT });
        put_varint(out, self.namespace.0);
        put_varint(out, self.time.0);
        put_routes(out, self.routes);
    }
}

impl<'a> Record<'a> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Record::Event { namespace, time, routes, event, emitted } => {
                EventHead { namespace: *namespace, time: *time, routes, emitted: *emitted }.encode(out);
                out.extend_from_slice(event);
            }
            Record::Routed { time, position, at, accepted, bytes, route } => {
                out.push(ROUTED);
                put_varint(out, time.0);
                put_varint(out, position.0);
                put_varint(out, at.0);
                put_varint(out, accepted.0);
                put_varint(out, u64::from(*bytes));
                put_route(out, route);
            }
            Record::Step { time, subscription, lane, previous, running, step } => {
                out.push(STEP);
                put_varint(out, time.0);
                put_varint(out, u64::from(subscription.0));
                put_varint(out, previous.0);
                put_lane(out, *lane);
                out.push(match running {
                    None => 0,
                    Some(Turn::Queue) => 1,
                    Some(Turn::Aside) => 2,
                });
                step.encode(out);
            }
            Record::Subscription { time, subscription, change } => {
                out.push(SUBSCRIPTION);
                put_varint(out, time.0);
                put_varint(out, u64::from(subscription.0));
                change.encode(out);
            }
            Record::DeadLetterGone { time, subscription, position, why } => {
                out.push(DEAD_LETTER_GONE);
                put_varint(out, time.0);
                put_varint(out, u64::from(subscription.0));
                put_varint(out, position.0);
                out.push(*why as u8);
            }
            Record::Replay { time, id, change } => {
                out.push(REPLAY);
                put_varint(out, time.0);
                put_varint(out, *id);
                let (tag, job) = match change {
                    ReplayChange::Created { job } => (0, job),
                    ReplayChange::Ended { job } => (1, job),
                    ReplayChange::Planned { job } => (2, job),
                };
                out.push(tag);
                put_bytes(out, job.as_bytes());
            }
            Record::Kept { namespace, from, time, position, routes, event, emitted } => {
                out.push(if *emitted { KEPT_EMITTED } else { KEPT });
                put_varint(out, namespace.0);
                put_varint(out, from.0);
                put_varint(out, time.0);
                put_varint(out, position.0);
                put_routes(out, routes);
                out.extend_from_slice(event);
            }
            Record::Documents { time, changes } => {
                out.push(DOCUMENTS);
                put_varint(out, time.0);
                put_varint(out, changes.len() as u64);
                changes.iter().for_each(|change| change.encode(out));
            }
            Record::Moved { time, from, position, at, accepted, bytes, route, job } => {
                out.push(if *job > 0 { REPLAYED } else { MOVED });
                put_varint(out, time.0);
                put_varint(out, u64::from(from.0));
                put_varint(out, position.0);
                put_varint(out, at.0);
                put_varint(out, accepted.0);
                put_varint(out, u64::from(*bytes));
                put_route(out, route);
                if *job > 0 {
                    put_varint(out, *job);
                }
            }
            Record::Edited { time, subscription, position, number, by, event } => {
                out.push(EDITED);
                put_varint(out, time.0);
                put_varint(out, u64::from(subscription.0));
                put_varint(out, position.0);
                put_varint(out, *number);
                put_bytes(out, by.as_bytes());
                out.extend_from_slice(event);
            }
        }
    }

    pub fn decode(body: &'a [u8]) -> Result<Record<'a>, Malformed> {
        let mut r = Reader::new(body);
        let r = &mut r;
        let kind = r.u8()?;
        Ok(match kind {
            EVENT | EMITTED => Record::Event {
                namespace: NamespaceId(r.varint()?),
                time: Millis(r.varint()?),
                routes: take_routes(r)?,
                event: r.rest(),
                emitted: kind == EMITTED,
            },
            ROUTED => Record::Routed {
                time: Millis(r.varint()?),
                position: Position(r.varint()?),
                at: LogAddress(r.varint()?),
                accepted: Millis(r.varint()?),
                bytes: r.u32()?,
                route: take_route(r)?,
            },
            STEP => Record::Step {
                time: Millis(r.varint()?),
                subscription: SubscriptionId(r.u32()?),
                previous: LogAddress(r.varint()?),
                lane: take_lane(r)?,
                running: match r.u8()? {
                    0 => None,
                    1 => Some(Turn::Queue),
                    2 => Some(Turn::Aside),
                    _ => return Err(Malformed("turn")),
                },
                step: Step::decode(r)?,
            },
            SUBSCRIPTION => Record::Subscription {
                time: Millis(r.varint()?),
                subscription: SubscriptionId(r.u32()?),
                change: Change::decode(r)?,
            },
            DEAD_LETTER_GONE => Record::DeadLetterGone {
                time: Millis(r.varint()?),
                subscription: SubscriptionId(r.u32()?),
                position: Position(r.varint()?),
                why: match r.u8()? {
                    0 => Gone::Deleted,
                    1 => Gone::Expired,
                    2 => Gone::Overflow,
                    _ => return Err(Malformed("reason")),
                },
            },
            REPLAY => Record::Replay {
                time: Millis(r.varint()?),
                id: r.varint()?,
                change: match r.u8()? {
                    0 => ReplayChange::Created { job: r.text()? },
                    1 => ReplayChange::Ended { job: r.text()? },
                    2 => ReplayChange::Planned { job: r.text()? },
                    _ => return Err(Malformed("replay change")),
                },
            },
            KEPT | KEPT_EMITTED => Record::Kept {
                namespace: NamespaceId(r.varint()?),
                from: LogAddress(r.varint()?),
                time: Millis(r.varint()?),
                position: Position(r.varint()?),
                routes: take_routes(r)?,
                event: r.rest(),
                emitted: kind == KEPT_EMITTED,
            },
            DOCUMENTS => Record::Documents { time: Millis(r.varint()?), changes: take_documents(r)? },
            MOVED | REPLAYED => Record::Moved {
                time: Millis(r.varint()?),
                from: SubscriptionId(r.u32()?),
                position: Position(r.varint()?),
                at: LogAddress(r.varint()?),
                accepted: Millis(r.varint()?),
                bytes: r.u32()?,
                route: take_route(r)?,
                job: if kind == REPLAYED { r.varint()? } else { 0 },
            },
            EDITED => Record::Edited {
                time: Millis(r.varint()?),
                subscription: SubscriptionId(r.u32()?),
                position: Position(r.varint()?),
                number: r.varint()?,
                by: r.text()?,
                event: r.rest(),
            },
            _ => return Err(Malformed("record kind")),
        })
    }

    pub fn time(&self) -> Millis {
        match self {
            Record::Event { time, .. }
            | Record::Routed { time, .. }
            | Record::Step { time, .. }
            | Record::Subscription { time, .. }
            | Record::DeadLetterGone { time, .. }
            | Record::Replay { time, .. }
            | Record::Kept { time, .. }
            | Record::Documents { time, .. }
            | Record::Moved { time, .. }
            | Record::Edited { time, .. } => *time,
        }
    }
}

impl DocumentChange<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.kind.as_bytes());
        put_bytes(out, self.key.as_bytes());
        out.push(u8::from(self.content.is_some()));
        if let Some(content) = self.content {
            put_bytes(out, content);
        }
    }
}

fn take_documents<'a>(r: &mut Reader<'a>) -> Result<Vec<DocumentChange<'a>>, Malformed> {
    let n = r.varint()?;
    if n > r.rest().len() as u64 {
        return Err(Malformed("document count"));
    }
    (0..n).map(|_| take_document(r)).collect()
}

fn take_document<'a>(r: &mut Reader<'a>) -> Result<DocumentChange<'a>, Malformed> {
    Ok(DocumentChange {
        kind: r.text()?,
        key: r.text()?,
        content: match r.u8()? {
            0 => None,
            1 => Some(r.bytes()?),
            _ => return Err(Malformed("document")),
        },
    })
}

fn put_lane(out: &mut Vec<u8>, lane: LaneRef<'_>) {
    match lane {
        LaneRef::Key(key) => {
            out.push(0);
            put_bytes(out, key.as_bytes());
        }
        LaneRef::Alone(position) => {
            out.push(1);
            put_varint(out, position.0);
        }
        LaneRef::Unordered => out.push(2),
    }
}

fn take_lane<'a>(r: &mut Reader<'a>) -> Result<LaneRef<'a>, Malformed> {
    match r.u8()? {
        0 => Ok(LaneRef::Key(r.text()?)),
        1 => Ok(LaneRef::Alone(Position(r.varint()?))),
        2 => Ok(LaneRef::Unordered),
        _ => Err(Malformed("lane")),
    }
}

impl<'a> Change<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Change::Put { document } => {
                out.push(0);
                put_bytes(out, document.as_bytes());
            }
            Change::Pause => out.push(1),
            Change::Resume => out.push(2),
            Change::Drain => out.push(3),
            Change::Remove => out.push(4),
            Change::Caught { up_to } => {
                out.push(5);
                put_varint(out, up_to.0);
            }
            Change::Retire { until } => {
                out.push(6);
                put_varint(out, until.0);
            }
            Change::Retired => out.push(7),
            Change::Disabled { why } => {
                out.push(8);
                out.push(*why as u8);
            }
            Change::Enabled => out.push(9),
        }
    }

    fn decode(r: &mut Reader<'a>) -> Result<Change<'a>, Malformed> {
        Ok(match r.u8()? {
            0 => Change::Put { document: r.text()? },
            1 => Change::Pause,
            2 => Change::Resume,
            3 => Change::Drain,
            4 => Change::Remove,
            5 => Change::Caught { up_to: Position(r.varint()?) },
            6 => Change::Retire { until: Millis(r.varint()?) },
            7 => Change::Retired,
            8 => Change::Disabled {
                why: match r.u8()? {
                    0 => WhyDisabled::Request,
                    1 => WhyDisabled::Gone,
                    2 => WhyDisabled::NoSuccess,
                    _ => return Err(Malformed("reason")),
                },
            },
            9 => Change::Enabled,
            _ => return Err(Malformed("subscription change")),
        })
    }
}

#[cfg(test)]
mod tests;
