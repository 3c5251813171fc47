//! Calls of targets: those that begin, those that are open, those that ended and wait to be written down.

use crate::endpoint::{EndpointId, Endpoints};
use crate::lanes::{Lanes, Slot};
use crate::metrics::TypeId;
use crate::replies::PutOff;
use bytes::Bytes;
use hashbrown::HashMap;
use klambda_core::breaker::Limits;
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::lane::Flag;
use klambda_core::outcome::Outcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use std::ops::Range;
use std::sync::Arc;

/// Smaller events are not counted: their number is limited, and nearly always they are sent at once.
pub const COUNTED_BYTES_MIN: usize = 8 << 10;

/// One call of a target, to be made now.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub ticket: Ticket,
    pub document: Arc<Document>,
    /// The log record that holds the event, and the event's bytes within it.
    pub record: Bytes,
    pub event: Range<usize>,
    /// Its place in its lane; none for unordered events.
    pub place: Option<Place>,
    pub attempt: u32,
}

impl Delivery {
    /// The event as bytes of its own: as a part of the log it would keep all that was written with it in memory.
    pub(crate) fn detach(&mut self) {
        if self.record.len() < COUNTED_BYTES_MIN {
            self.record = Bytes::copy_from_slice(&self.record);
        }
    }

    /// It has been sent: who needs the event again reads it from the log.
    pub(crate) fn let_go(&mut self) {
        self.record = Bytes::new();
    }

    /// Whether this system emitted the event itself. What the event says has no part in it.
    pub fn is_emitted(&self) -> bool {
        klambda_store::record::is_emitted(&self.record)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub number: LaneNumber,
    pub previous_id: Option<String>,
    pub flag: Flag,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Lane(Slot),
    Alone(Position),
}

impl Who {
    /// Its name for a breaker.
    pub(crate) fn tag(self, lanes: &Lanes) -> u64 {
        match self {
            Who::Lane(slot) => lanes.tag_of(slot),
            Who::Alone(position) => position.0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    pub subscription: SubscriptionId,
    pub who: Who,
    /// As the target was when the call began.
    pub endpoint: EndpointId,
    pub started: Millis,
    /// It was answered, and the events of the answer wait for room.
    pub put_off: bool,
    /// What its event is counted as.
    pub kind: TypeId,
    /// Bytes that count until they are sent.
    pub unsent: usize,
}

/// All of it ends with the process: a call that was open is made again.
pub(crate) struct Calls {
    pub endpoints: Endpoints,
    open: HashMap<Ticket, InFlight>,
    next_ticket: u64,
    /// Bytes of events that are on their way and not sent yet.
    unsent_bytes: usize,
    /// To be handed out.
    begun: Vec<Delivery>,
    /// Answers whose events find no room yet.
    pub held_back: PutOff,
    /// Ended, without room in the log to say so.
    stalled: Vec<(Ticket, Outcome)>,
    /// The subscription that began the last one.
    pub turn: SubscriptionId,
    random: u64,
}

impl Calls {
    /// `seed` drives jitter.
    pub fn new(breaker: Limits, seed: u64) -> Calls {
        Calls {
            endpoints: Endpoints::new(breaker),
            open: HashMap::new(),
            next_ticket: 1,
            unsent_bytes: 0,
            begun: Vec::new(),
            held_back: PutOff::default(),
            stalled: Vec::new(),
            turn: SubscriptionId(0),
            random: seed,
        }
    }

    pub fn open(&mut self, flight: InFlight) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.unsent_bytes += flight.unsent;
        self.open.insert(ticket, flight);
        ticket
    }

    /// The call is over, or given up.
    pub fn close(&mut self, ticket: Ticket) -> Option<InFlight> {
        let flight = self.open.remove(&ticket)?;
        self.unsent_bytes -= flight.unsent;
        Some(flight)
    }

    /// All its bytes have been sent. Answers whose they were and how many.
    pub fn sent(&mut self, ticket: Ticket) -> Option<(SubscriptionId, usize)> {
        let flight = self.open.get_mut(&ticket)?;
        let bytes = std::mem::take(&mut flight.unsent);
        self.unsent_bytes -= bytes;
        Some((flight.subscription, bytes))
    }

    pub fn get(&self, ticket: Ticket) -> Option<&InFlight> {
        self.open.get(&ticket)
    }

    /// Hands it out, and notes what its event is counted as.
    pub fn begin(&mut self, delivery: Delivery, kind: TypeId) {
        if let Some(flight) = self.open.get_mut(&delivery.ticket) {
            flight.kind = kind;
        }
        self.begun.push(delivery);
    }

    /// Its answer waits for room. Answers whose call it is, unless that is known.
    pub fn put_off(&mut self, ticket: Ticket) -> Option<SubscriptionId> {
        let flight = self.open.get_mut(&ticket).filter(|flight| !flight.put_off)?;
        flight.put_off = true;
        Some(flight.subscription)
    }

    pub fn stall(&mut self, ticket: Ticket, outcome: Outcome) {
        self.stalled.push((ticket, outcome));
    }

    pub fn take_begun(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.begun)
    }

    pub fn take_stalled(&mut self) -> Vec<(Ticket, Outcome)> {
        std::mem::take(&mut self.stalled)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &InFlight)> {
        self.open.iter().map(|(ticket, flight)| (*ticket, flight))
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    pub fn memory_bytes(&self) -> usize {
        self.open.capacity() * size_of::<(Ticket, InFlight)>()
    }

    /// Splitmix64: jitter needs no better.
    pub fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
