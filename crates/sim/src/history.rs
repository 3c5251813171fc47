//! What was seen from outside, in order: what producers sent and were told, what receivers were called with and
//! answered, what people decided, crashes, and limits that bit. Nothing in it is taken from the engine's bookkeeping.

use crate::event::EventNo;
use crate::rules::Place;
use klambda_core::lane::Flag;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Names a subscription from its creation to its end; created again, it is another one.
pub type SubNo = u32;

#[derive(Clone, Debug, Hash)]
pub enum Entry {
    /// A producer hands in one event. `op` numbers everything that changes the engine.
    Sent {
        token: u64,
        event: EventNo,
    },
    /// What the producer was told about it.
    Answered {
        token: u64,
        event: EventNo,
        answer: Said,
    },
    /// A request arrives at the receiver.
    Started(Request),
    /// The engine is told how a request ended. `acted`: the receiver did the work, whatever the answer says.
    Ended {
        sub: SubNo,
        event: EventNo,
        ticket: u64,
        ending: Ending,
        retry_after_ms: u64,
        acted: bool,
        stalled: bool,
    },
    /// An outcome for which the log had no room is written at last.
    Unstalled {
        sub: SubNo,
        event: EventNo,
    },
    /// The answer to a call came with this event, which is taken in with the acknowledgement. `taken`: both are written.
    Replied {
        token: u64,
        event: EventNo,
        taken: bool,
    },
    /// The process is asked to end: from here on nothing starts.
    Stopping,
    /// A request of a process that is no more ends: nobody is told.
    EndedUnheard {
        sub: SubNo,
        event: EventNo,
        acted: bool,
    },
    /// A person decided something, and the engine took it or refused it.
    Decided(Decision),
    Refused {
        what: &'static str,
    },
    /// Everything handed in up to here is with the kernel.
    Flushed,
    /// A sync ended well: everything that had been flushed when it began is durable.
    Synced {
        up_to: u64,
    },
    /// The process ended, with or without the power.
    Crashed {
        power: bool,
    },
    /// The store refused to go on, and so did the engine.
    Failed {
        why: String,
    },
    /// Recovery did not get to its end.
    NotOpened {
        why: String,
    },
    Opened {
        now: u64,
        cut: u64,
    },
    /// A subscription is there, or no more, as seen after a start.
    Seen {
        sub: SubNo,
        there: bool,
    },
    /// New ordering rules begin to hold, or it has read the log to its end. `reads`: it still reads the log.
    Switched {
        sub: SubNo,
        reads: bool,
    },
    ClockSet {
        by: i64,
    },
    DiskFull {
        full: bool,
    },
    /// The n-th operation of this kind from now fails.
    DiskError {
        op: &'static str,
        n: u64,
    },
    /// A limit dropped so many of a subscription's events or dead letters, as its metrics say.
    Dropped {
        sub: SubNo,
        count: u64,
    },
    Calm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Said {
    Accepted {
        position: u64,
    },
    Skipped {
        by_watermark: bool,
    },
    /// The log was not touched.
    Rejected,
    /// The store stopped; what became of it is not known.
    Unavailable,
    /// Nothing was said: it is in the log with the acknowledgement of the call that it answers.
    Taken,
}

#[derive(Clone, Debug, Hash)]
pub struct Request {
    pub sub: SubNo,
    pub event: EventNo,
    pub ticket: u64,
    pub place: Place,
    pub number: Option<u64>,
    pub previous: Option<String>,
    pub flag: OrderStatus,
    pub attempt: u32,
    /// Which host was called.
    pub host: Option<u64>,
    pub now: u64,
    /// The event came out as it went in.
    pub unchanged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrderStatus {
    None,
    Late,
    Gap,
}

impl From<Flag> for OrderStatus {
    fn from(flag: Flag) -> OrderStatus {
        match flag {
            Flag::None => OrderStatus::None,
            Flag::Late => OrderStatus::Late,
            Flag::Gap => OrderStatus::Gap,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    Delivered,
    Retry,
    Fatal,
    /// There was nobody to call: no attempt was made.
    NotMade,
}

#[derive(Clone, Debug, Hash)]
pub enum Decision {
    Created {
        sub: SubNo,
    },
    /// `discards`: what waited went; `drains`: the new ordering waits for what is there.
    Changed {
        sub: SubNo,
        discards: bool,
        drains: bool,
        new_epoch: bool,
    },
    Removed {
        sub: SubNo,
    },
    /// A change that discards was refused half-way.
    DiscardedMaybe {
        sub: SubNo,
    },
    Draining {
        sub: SubNo,
    },
    Paused {
        sub: SubNo,
        paused: bool,
    },
    Resume {
        sub: SubNo,
        key: String,
    },
    Skip {
        sub: SubNo,
        key: String,
    },
    Purge {
        sub: SubNo,
        key: String,
    },
    PauseLane {
        sub: SubNo,
        key: String,
    },
    Reset {
        sub: SubNo,
        key: String,
        expected: u64,
    },
    LetterDeleted {
        sub: SubNo,
        event: EventNo,
    },
    /// A replay job over one subscription, or all.
    Replay {
        sub: Option<SubNo>,
    },
    ReplayStopped,
}

#[derive(Default)]
pub struct History {
    entries: Vec<Entry>,
    hash: Fnv,
}

impl History {
    pub fn push(&mut self, entry: Entry) {
        entry.hash(&mut self.hash);
        self.entries.push(entry);
    }

    /// The same for the same history, on every machine.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// FNV-1a: plain, and the same everywhere.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Started(request) => request.fmt(f),
            Entry::Decided(decision) => write!(f, "decided: {decision:?}"),
            Entry::Sent { token, event } => write!(f, "sent event {event} in request {token}"),
            Entry::Answered { token, event, answer } => {
                write!(f, "answered event {event} of {token}: {answer:?}")
            }
            Entry::Ended { sub, event, ending, acted, stalled, .. } => {
                write!(f, "ended: subscription {sub} event {event}: {ending:?}")?;
                f.write_str(if *acted { ", done" } else { "" })?;
                f.write_str(if *stalled { ", not written yet" } else { "" })
            }
            other => write!(f, "{other:?}"),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { sub, event, attempt, now, .. } = self;
        write!(f, "started: subscription {sub} event {event} attempt {attempt}")?;
        if let Place::Lane { key, sequence } = &self.place {
            write!(f, " in {key} number {}", self.number.unwrap_or(0))?;
            if let Some(sequence) = sequence {
                write!(f, " sequence {sequence}")?;
            }
            write!(f, " after {:?} {:?}", self.previous, self.flag)?;
        }
        write!(f, " at {}", now % 100_000_000)
    }
}

impl Entry {
    /// Whether it has to do with this event or, of the same subscription, this lane.
    pub fn concerns(&self, event: Option<EventNo>, lane: Option<(SubNo, &str)>) -> bool {
        let in_lane = |sub: &SubNo, key: &str| lane == Some((*sub, key));
        match self {
            Entry::Sent { event: e, .. }
            | Entry::Answered { event: e, .. }
            | Entry::Replied { event: e, .. } => Some(*e) == event,
            Entry::Started(Request { sub, event: e, place, .. }) => {
                Some(*e) == event || matches!(place, Place::Lane { key, .. } if in_lane(sub, key))
            }
            Entry::Ended { event: e, .. } | Entry::EndedUnheard { event: e, .. } => Some(*e) == event,
            Entry::Decided(decision) => decision.concerns(event, lane),
            Entry::Crashed { .. } | Entry::Failed { .. } | Entry::NotOpened { .. } | Entry::Opened { .. } => {
                true
            }
            Entry::DiskFull { .. } | Entry::DiskError { .. } | Entry::ClockSet { .. } => true,
            Entry::Stopping | Entry::Calm => true,
            Entry::Seen { sub, .. } | Entry::Switched { sub, .. } | Entry::Dropped { sub, .. } => {
                lane.is_none_or(|lane| lane.0 == *sub)
            }
            _ => false,
        }
    }
}

impl Decision {
    fn concerns(&self, event: Option<EventNo>, lane: Option<(SubNo, &str)>) -> bool {
        match self {
            Decision::Resume { sub, key }
            | Decision::Skip { sub, key }
            | Decision::Purge { sub, key }
            | Decision::PauseLane { sub, key }
            | Decision::Reset { sub, key, .. } => lane == Some((*sub, key.as_str())),
            Decision::LetterDeleted { event: e, .. } => Some(*e) == event,
            Decision::Replay { .. } | Decision::ReplayStopped => true,
            Decision::Created { sub }
            | Decision::Changed { sub, .. }
            | Decision::Removed { sub }
            | Decision::DiscardedMaybe { sub }
            | Decision::Draining { sub }
            | Decision::Paused { sub, .. } => lane.is_none_or(|lane| lane.0 == *sub),
        }
    }
}
