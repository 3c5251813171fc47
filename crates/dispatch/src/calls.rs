//! Calls of targets: started, open, and finished but not yet logged.

use crate::endpoint::{EndpointId, Endpoints};
use crate::lanes::{Lanes, Slot};
use crate::metrics::TypeId;
use crate::replies::DelayedReplies;
use bytes::Bytes;
use hashbrown::HashMap;
use klambda_core::breaker::Limits;
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::lane::Flag;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_core::webhook::EventId;
use std::ops::Range;
use std::sync::Arc;

/// Smaller events are not counted: the number of calls is limited, and small events are nearly always sent at once.
pub const COUNTED_BYTES_MIN: usize = 8 << 10;

/// One call of a target, to be made now.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub ticket: Ticket,
    pub document: Arc<Document>,
    /// The log record that holds the event, and the event's bytes within it.
    pub record: Bytes,
    pub event: Range<usize>,
    /// The id under which a webhook endpoint knows the event. `None` for other targets.
    pub event_id: Option<EventId>,
    /// The events after this one in its lane that the same call of a webhook endpoint carries.
    pub following: Vec<Following>,
    /// The place in the lane; `None` for unordered events.
    pub place: Option<Place>,
    pub attempt: u32,
    /// When the attempt began.
    pub time: Millis,
    /// When the event was accepted.
    pub accepted: Millis,
}

impl Delivery {
    /// Copies a small event. As a slice of the log it would keep everything in memory that was written with it.
    pub(crate) fn detach(&mut self) {
        if self.record.len() < COUNTED_BYTES_MIN {
            self.record = Bytes::copy_from_slice(&self.record);
        }
        self.copy_following();
    }

    /// A batch holds many events, and each of them would keep its part of the log in memory.
    pub(crate) fn copy_following(&mut self) {
        for event in &mut self.following {
            event.record = Bytes::copy_from_slice(&event.record);
        }
    }

    /// Drops the event after it was sent. Later readers get it from the log.
    pub(crate) fn let_go(&mut self) {
        self.record = Bytes::new();
        self.following = Vec::new();
    }

    /// True if this system emitted the event. The record decides, not the event's attributes.
    pub fn is_emitted(&self) -> bool {
        klambda_store::record::is_emitted(&self.record)
    }
}

/// A further event of a call. The event before it in the call is its previous event.
#[derive(Clone, Debug)]
pub struct Following {
    /// The log record that holds the event, and the event's bytes within it.
    pub record: Bytes,
    pub event: Range<usize>,
    pub number: LaneNumber,
    pub flag: Flag,
    pub accepted: Millis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub number: LaneNumber,
    pub previous_id: Option<String>,
    pub flag: Flag,
    /// The lane's key, for a webhook endpoint.
    pub workflow: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Lane(Slot),
    Alone(Position),
}

impl Who {
    /// The value that identifies the caller to a breaker.
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
    /// The endpoint of the target when the call began.
    pub endpoint: EndpointId,
    pub started: Millis,
    /// When the event was accepted.
    pub accepted: Millis,
    /// The target has answered, but its reply events wait for room.
    pub put_off: bool,
    /// The event type used in metrics.
    pub kind: TypeId,
    /// Bytes that count against the limit until they are sent.
    pub unsent: usize,
}

/// The events of an open call after its first one.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub events: Vec<Batched>,
    /// Maximum size of one acknowledgement in the log.
    pub step_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Batched {
    pub position: Position,
    /// The event type used in metrics.
    pub kind: TypeId,
}

/// None of this survives the process: open calls are made again after a restart.
pub(crate) struct Calls {
    pub endpoints: Endpoints,
    open: HashMap<Ticket, InFlight>,
    /// Of those open calls that carry several events.
    batches: HashMap<Ticket, Batch>,
    /// Open calls whose reply events wait for room.
    put_off: u32,
    next_ticket: u64,
    /// Bytes of events in flight that are not sent yet.
    unsent_bytes: usize,
    /// Calls not yet handed to the client.
    begun: Vec<Delivery>,
    /// Answers whose reply events do not fit yet.
    pub held_back: DelayedReplies,
    /// Finished calls whose outcome does not fit into the log yet.
    stalled: Vec<(Ticket, CallOutcome)>,
    /// The subscription that started the most recent call.
    pub turn: SubscriptionId,
    random: u64,
}

impl Calls {
    /// `seed` initializes the jitter.
    pub fn new(breaker: Limits, seed: u64) -> Calls {
        Calls {
            endpoints: Endpoints::new(breaker),
            open: HashMap::new(),
            batches: HashMap::new(),
            put_off: 0,
            next_ticket: 1,
            unsent_bytes: 0,
            begun: Vec::new(),
            held_back: DelayedReplies::default(),
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

    pub fn close(&mut self, ticket: Ticket) -> Option<InFlight> {
        let flight = self.open.remove(&ticket)?;
        self.take_batch(ticket);
        self.unsent_bytes -= flight.unsent;
        self.put_off -= u32::from(flight.put_off);
        Some(flight)
    }

    /// Notes the further events of a call.
    pub fn add_batch(&mut self, ticket: Ticket, batch: Batch) {
        self.batches.insert(ticket, batch);
    }

    pub fn batch(&self, ticket: Ticket) -> Option<&Batch> {
        if self.batches.is_empty() { None } else { self.batches.get(&ticket) }
    }

    pub fn take_batch(&mut self, ticket: Ticket) -> Option<Batch> {
        if self.batches.is_empty() { None } else { self.batches.remove(&ticket) }
    }

    /// All bytes of the call were sent. Returns the subscription and the number of bytes.
    pub fn sent(&mut self, ticket: Ticket) -> Option<(SubscriptionId, usize)> {
        let flight = self.open.get_mut(&ticket)?;
        let bytes = std::mem::take(&mut flight.unsent);
        self.unsent_bytes -= bytes;
        Some((flight.subscription, bytes))
    }

    pub fn get(&self, ticket: Ticket) -> Option<&InFlight> {
        self.open.get(&ticket)
    }

    /// Queues the call to be handed out and stores the event type for metrics.
    pub fn begin(&mut self, delivery: Delivery, kind: TypeId) {
        if let Some(flight) = self.open.get_mut(&delivery.ticket) {
            flight.kind = kind;
        }
        self.begun.push(delivery);
    }

    /// Marks that the answer waits for room. Returns the subscription, or `None` if it was marked before.
    pub fn put_off(&mut self, ticket: Ticket) -> Option<SubscriptionId> {
        let flight = self.open.get_mut(&ticket).filter(|flight| !flight.put_off)?;
        flight.put_off = true;
        self.put_off += 1;
        Some(flight.subscription)
    }

    pub fn stall(&mut self, ticket: Ticket, outcome: CallOutcome) {
        self.stalled.push((ticket, outcome));
    }

    pub fn take_begun(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.begun)
    }

    pub fn take_stalled(&mut self) -> Vec<(Ticket, CallOutcome)> {
        std::mem::take(&mut self.stalled)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &InFlight)> {
        self.open.iter().map(|(ticket, flight)| (*ticket, flight))
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Calls that hold a slot: the target has not answered yet. An answered call may wait for room that only another
    /// call can make, so it must not keep that call from starting.
    pub fn holding_slots(&self) -> u32 {
        self.open.len() as u32 - self.put_off
    }

    pub fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    pub fn memory_bytes(&self) -> usize {
        let batches = self.batches.values().map(|batch| batch.events.capacity() * size_of::<Batched>());
        self.open.capacity() * size_of::<(Ticket, InFlight)>()
            + self.batches.capacity() * size_of::<(Ticket, Batch)>()
            + batches.sum::<usize>()
    }

    /// Splitmix64 is good enough for jitter.
    pub fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
