//! The history of a run, seen from outside, in order: what producers sent and received, the calls to receivers and
//! their responses, the decisions of operators, crashes, and effects of limits. Nothing in it comes from the internal
//! state of the engine.

mod webhooks;

pub use webhooks::{Acked, EndpointNo, Listed, Page, Pushed, Webhook};

use crate::event::EventNo;
use crate::rules::Place;
use klambda_core::lane::Flag;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Identifies a subscription from its creation to its deletion. If it is created again, it gets a new number.
pub type SubNo = u32;

#[derive(Clone, Debug, Hash)]
pub enum Entry {
    /// A producer sends one event.
    Sent {
        token: u64,
        event: EventNo,
    },
    /// The response to the producer.
    Answered {
        token: u64,
        event: EventNo,
        answer: Said,
    },
    /// A request arrives at the receiver.
    Started(Request),
    /// The engine learns the outcome of a request. `acted`: the receiver did the work, regardless of its response.
    Ended {
        sub: SubNo,
        event: EventNo,
        ticket: u64,
        ending: Ending,
        retry_after_ms: u64,
        acted: bool,
        stalled: bool,
    },
    /// An outcome for which the log had no space is finally written.
    Unstalled {
        sub: SubNo,
        event: EventNo,
    },
    /// The response to a call contained this event, which is accepted together with the acknowledgement. `taken`:
    /// both are written.
    Replied {
        token: u64,
        event: EventNo,
        taken: bool,
    },
    /// A shutdown is requested. Nothing may start from now on.
    Stopping,
    /// A request of a dead process ends. No one receives the outcome.
    EndedUnheard {
        sub: SubNo,
        event: EventNo,
        acted: bool,
    },
    /// An operator made a decision, and the engine accepted it. `Refused` if the engine refused it.
    Decided(Decision),
    Refused {
        what: &'static str,
    },
    /// Everything submitted so far was passed to the kernel.
    Flushed,
    /// A sync succeeded: everything flushed before it began is durable.
    Synced {
        up_to: u64,
    },
    /// The process ended, with or without a power cut.
    Crashed {
        power: bool,
    },
    /// The store failed, and the engine stopped.
    Failed {
        why: String,
    },
    /// Recovery failed.
    NotOpened {
        why: String,
    },
    Opened {
        now: u64,
        cut: u64,
    },
    /// Whether a subscription exists after a restart.
    Seen {
        sub: SubNo,
        there: bool,
    },
    /// New ordering rules take effect, or the subscription has read the log to its end. `reads`: it still reads the
    /// log.
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
    /// A limit dropped this number of events or dead letters of a subscription, according to the metrics.
    Dropped {
        sub: SubNo,
        count: u64,
    },
    /// The receiver or an operator of a webhook endpoint observed or did something.
    Webhook {
        endpoint: EndpointNo,
        what: Webhook,
    },
    /// An operator edited a dead letter. `sure`: the engine accepted the edit.
    Edited {
        sub: SubNo,
        event: EventNo,
        version: u32,
        sure: bool,
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
    /// The event is not in the log.
    Rejected,
    /// The store stopped; the result is unknown.
    Unavailable,
    /// No response: the event is in the log, together with the acknowledgement of the call that returned it.
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
    /// The host that was called.
    pub host: Option<u64>,
    pub now: u64,
    pub content: Content,
}

/// What a delivery contains, compared with what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    Original,
    /// An operator replaced the data, for the n-th time in this run.
    Edit(u32),
    Other,
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
    /// No replica was ready: no attempt was made.
    NotMade,
}

#[derive(Clone, Debug, Hash)]
pub enum Decision {
    Created {
        sub: SubNo,
    },
    /// `discards`: the pending events were discarded. `drains`: the new ordering waits for the pending events.
    Changed {
        sub: SubNo,
        discards: bool,
        drains: bool,
        new_epoch: bool,
    },
    Removed {
        sub: SubNo,
    },
    /// A change with discard was refused halfway.
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
    /// A replay job for one subscription or all.
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

    /// Equal for equal histories, on every machine.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// FNV-1a: simple and the same on all platforms.
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
    /// True if something moves.
    pub fn is_progress(&self) -> bool {
        match self {
            Entry::Started(_) | Entry::Ended { .. } | Entry::Answered { .. } => true,
            Entry::Webhook { what, .. } => what.is_progress(),
            _ => false,
        }
    }

    /// True if the entry concerns this event or this lane.
    pub fn concerns(&self, event: Option<EventNo>, lane: Option<(SubNo, &str)>) -> bool {
        let in_lane = |sub: &SubNo, key: &str| lane == Some((*sub, key));
        match self {
            Entry::Sent { event: e, .. }
            | Entry::Answered { event: e, .. }
            | Entry::Edited { event: e, .. }
            | Entry::Replied { event: e, .. } => Some(*e) == event,
            Entry::Webhook { what, .. } => what.concerns(event, lane.map(|lane| lane.1)),
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
