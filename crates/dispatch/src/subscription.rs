//! A subscription at work: its document, what waits for it, and who may go next.

use crate::dead_letters::Outside;
use crate::endpoint::EndpointId;
use crate::lanes::Slot;
use crate::overflow::ByAge;
use crate::spread::Spread;
use klambda_core::ids::{Address, NamespaceId, Position, SubscriptionId};
use klambda_core::lane::{Entry, Policy, State};
use klambda_core::outcome::Reason;
use klambda_core::subscription::{Document, Ordering};
use klambda_core::time::Millis;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub struct Subscription {
    pub id: SubscriptionId,
    pub namespace: NamespaceId,
    /// Its name among those of all namespaces.
    name: Box<str>,
    pub document: Arc<Document>,
    pub policy: Policy,
    pub life: Life,
    pub phase: Phase,
    pub next_rules: NextRules,
    pub tally: Tally,
    pub notes: Notes,
    /// What follows ends with the process.
    pub(crate) noted: Noted,
    pub flow: Flow,
    pub unread: Unread,
    pub(crate) on_disk: OnDisk,
    pub outside: Outside,
}

/// What it has been through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Life {
    pub created: Millis,
    /// The first position after its creation: what is before that is history to it.
    pub began: Position,
    /// When it had last read everything: gap timers run from then on.
    pub caught_at: Millis,
    /// How often its ordering rules changed: dead letters from before may have had another lane than they would have now.
    pub epochs: u32,
}

/// New ordering rules that begin when what waits has drained.
#[derive(Default)]
pub struct NextRules {
    pub document: Option<Document>,
    /// The first event that they hold for.
    pub from: Position,
}

/// What others keep of it.
#[derive(Default)]
pub(crate) struct Noted {
    /// It is to be sorted again by what there is to do for it.
    pub to_sort: bool,
    /// It is to be stored in its row.
    pub to_store: bool,
    /// What is owed to it, as it was last counted for its namespace.
    pub owed: u64,
    /// The length of its document as text.
    pub document_bytes: usize,
}

/// What is called and what is ready to be.
#[derive(Default)]
pub struct Flow {
    pub endpoint: EndpointId,
    pub ready: VecDeque<Slot>,
    pub in_flight: u32,
    /// Those of them that were answered with events that wait for room.
    pub put_off: u32,
    /// Of events in flight, bytes that are not sent yet.
    pub unsent_bytes: usize,
    /// Its next event waits for room in memory.
    pub lacks_room: bool,
    /// Unordered: events that left the queue and are called, or wait to be called again.
    pub singles: BTreeMap<Position, Single>,
    pub ready_singles: VecDeque<Position>,
    /// The deepest lane as of a moment ago.
    pub deepest: Option<(Millis, String, u64)>,
    /// Nothing starts for now, through no fault of an event or of the target.
    pub held: Option<Held>,
}

/// Events that it accepted and has not read from the log.
#[derive(Default)]
pub struct Unread {
    /// Those that were accepted after this position: all of them, so that they need not be looked for in the log.
    pub listed: VecDeque<Entry>,
    pub from: Position,
    /// The one that cannot be read back, if it came to one: nothing after it is read.
    pub unreadable: Option<Position>,
    /// It had room for them when it was last looked at, and reads until it is full.
    pub has_room: bool,
}

/// Its lanes on disk.
pub(crate) struct OnDisk {
    /// Those that are on disk alone and would go on by themselves, and when the next of them is due.
    pub waiting: u64,
    pub due: Millis,
    pub cursor: Vec<u8>,
    pub seen_due: Millis,
    /// All of them are listed by age.
    pub lists_ages: bool,
    /// While it has to drop its oldest events: which those are.
    pub by_age: Option<Box<ByAge>>,
    /// The row to go on from while those that were not listed by age are.
    pub ages_from: Vec<u8>,
}

impl Default for OnDisk {
    fn default() -> OnDisk {
        OnDisk {
            waiting: 0,
            due: Millis::ZERO,
            cursor: Vec::new(),
            seen_due: Millis::NEVER,
            lists_ages: false,
            by_age: None,
            ages_from: Vec::new(),
        }
    }
}

/// Why nothing of a subscription starts, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub why: String,
    pub until: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    Live,
    /// Reads the log from here; events that arrive meanwhile are read there too.
    CatchingUp {
        cursor: Address,
        done: Position,
        why: Reading,
    },
    /// Takes no new events and goes when nothing waits.
    Draining,
    /// Takes no new events; what still waits at this time becomes dead letters.
    Retiring {
        until: Millis,
    },
    /// Gone but for its dead letters. Another may have its name.
    Retired,
}

/// Why a subscription reads the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reading {
    /// It is new and begins in the past.
    Past,
    /// It was full, or had to wait for new ordering rules: it has accepted events that it has not read yet.
    Behind,
    /// As `Behind`, and deleted: it takes no new events and drains once everything is read.
    Draining,
    /// As `Draining`; what still waits at this time becomes dead letters.
    Retiring { until: Millis },
}

/// What is counted of a subscription; the same after a restart as before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tally {
    pub waiting: u64,
    pub waiting_bytes: u64,
    /// Accepted and unread: in no lane, and owed all the same.
    pub later: u64,
    pub later_bytes: u64,
    /// Those of them that were accepted before new ordering rules, which wait for them.
    pub later_old: u64,
    /// None of them was accepted before this.
    pub later_since: Millis,
    /// Dead letters outside lanes.
    pub dead: u64,
    /// Dead letters that hold their lanes.
    pub held: u64,
    pub delivered: u64,
    /// Lanes with something waiting, by state.
    pub lanes: [u64; 6],
    /// Waiting events by the second they were accepted in.
    ages: Spread<512>,
    /// Waiting events and dead letters by the stretch of log they stand in: what retention must keep.
    pins: Spread<4096>,
    /// A stretch is two to the power of this many bytes long.
    pin_shift: PinShift,
    /// Lanes on disk that wait and would go on by themselves.
    pub waiting_lanes: u64,
}

/// Things its owner should know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Notes {
    /// It began later than asked, because the log did.
    pub began_late: Option<Millis>,
    pub events_without_key: u64,
    /// Events that retention removed before they were read, and the last of them.
    pub missed: u64,
    pub missed_last: Position,
}

/// An event of an unordered subscription on its way.
#[derive(Clone, Debug)]
pub struct Single {
    pub entry: Entry,
    pub attempts: u32,
    pub attempts_total: u32,
    pub retry_at: Option<Millis>,
    pub in_flight: bool,
    pub error: String,
    pub reason: Reason,
    pub stored: bool,
}

/// A mebibyte unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct PinShift(u32);

impl Default for PinShift {
    fn default() -> PinShift {
        PinShift(20)
    }
}

impl Tally {
    /// A segment is some stretches long, or what waits in it would pin its neighbours.
    pub fn new(segment_bytes: u64) -> Tally {
        const STRETCHES_LOG2: u32 = 6;
        let shift = segment_bytes.max(1).ilog2().saturating_sub(STRETCHES_LOG2);
        Tally { pin_shift: PinShift(shift.min(PinShift::default().0)), ..Tally::default() }
    }

    pub fn arrived(&mut self, entry: &Entry) {
        self.waiting += 1;
        self.waiting_bytes += u64::from(entry.bytes);
        self.ages.add(entry.accepted.0 / 1000);
        self.pin(entry.at);
    }

    /// Events that were accepted for it and have not reached it.
    pub fn owed(&self) -> u64 {
        self.waiting + self.later
    }

    pub fn owed_bytes(&self) -> u64 {
        self.waiting_bytes + self.later_bytes
    }

    /// When the oldest of these was accepted, to the second.
    pub fn oldest_owed(&self) -> Option<Millis> {
        let unread = (self.later > 0).then_some(self.later_since);
        self.oldest().into_iter().chain(unread).min()
    }

    /// It waits no longer; a dead letter goes on pinning its place in the log.
    pub fn left(&mut self, entry: &Entry) {
        self.waiting -= 1;
        self.waiting_bytes -= u64::from(entry.bytes);
        self.ages.remove(entry.accepted.0 / 1000);
    }

    pub fn pin(&mut self, at: Address) {
        self.pins.add(self.stretch(at));
    }

    pub fn unpin(&mut self, at: Address) {
        self.pins.remove(self.stretch(at));
    }

    fn stretch(&self, at: Address) -> u64 {
        at.0 >> self.pin_shift.0
    }

    /// Whether something stands near here.
    pub fn pins(&self, at: Address) -> bool {
        self.pins_between(at, at)
    }

    pub fn pins_between(&self, from: Address, to: Address) -> bool {
        self.pins.any_between(self.stretch(from), self.stretch(to))
    }

    /// Nothing stands before this.
    pub fn first_pin(&self) -> Option<Address> {
        self.pins.first().map(|stretch| Address(stretch << self.pin_shift.0))
    }

    /// When the oldest event that waits was accepted, to the second; if they are spread over many seconds, to a small part
    /// of the time between them. It is never said to be older than it is.
    pub fn oldest(&self) -> Option<Millis> {
        self.ages.first_at_most().map(|second| Millis(second * 1000))
    }

    pub fn memory_bytes(&self) -> usize {
        self.ages.memory_bytes() + self.pins.memory_bytes()
    }

    pub fn recount(&mut self, before: Option<State>, after: Option<State>) {
        if let Some(before) = before {
            self.lanes[before as usize] -= 1;
        }
        if let Some(after) = after {
            self.lanes[after as usize] += 1;
        }
    }

    pub fn parked(&self) -> u64 {
        self.lanes[State::Parked as usize]
    }
}

/// A subscription's row: everything but its lanes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub namespace: NamespaceId,
    pub document: serde_json::Value,
    pub next_document: Option<serde_json::Value>,
    #[serde(default)]
    pub rules_from: Position,
    #[serde(default)]
    pub caught_at: Millis,
    pub created: Millis,
    #[serde(default)]
    pub began: Position,
    #[serde(default)]
    pub epochs: u32,
    pub phase: Phase,
    pub tally: Tally,
    pub notes: Notes,
    #[serde(default)]
    pub lists_ages: bool,
}

impl Subscription {
    pub fn new(
        id: SubscriptionId,
        namespace: NamespaceId,
        document: Document,
        created: Millis,
        phase: Phase,
    ) -> Subscription {
        let noted = Noted { document_bytes: text_bytes(&document), ..Noted::default() };
        Subscription {
            id,
            namespace,
            name: document.full_name().into(),
            policy: Policy::new(&document.spec),
            document: Arc::new(document),
            life: Life { created, ..Life::default() },
            phase,
            next_rules: NextRules::default(),
            tally: Tally::default(),
            notes: Notes::default(),
            noted,
            flow: Flow::default(),
            unread: Unread::default(),
            on_disk: OnDisk::default(),
            outside: Outside::default(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_ordered(&self) -> bool {
        self.document.spec.ordering == Ordering::Ordered
    }

    /// A call could be made, if the limits and the target allow it.
    pub fn has_ready(&self) -> bool {
        let has_queued = || self.tally.waiting > self.flow.singles.len() as u64;
        !self.flow.ready.is_empty()
            || !self.flow.ready_singles.is_empty()
            || (!self.is_ordered() && has_queued())
    }

    pub fn is_retired(&self) -> bool {
        self.phase == Phase::Retired
    }

    pub fn is_paused(&self) -> bool {
        self.document.spec.paused
    }

    pub fn set_document(&mut self, document: Document) {
        self.policy = Policy::new(&document.spec);
        self.noted.document_bytes = text_bytes(&document);
        self.document = Arc::new(document);
        self.decide_on_ages();
    }

    pub fn row(&self) -> Row {
        Row {
            namespace: self.namespace,
            document: self.document.to_stored_json(),
            next_document: self.next_rules.document.as_ref().map(Document::to_stored_json),
            rules_from: self.next_rules.from,
            caught_at: self.life.caught_at,
            created: self.life.created,
            began: self.life.began,
            epochs: self.life.epochs,
            phase: self.phase,
            tally: self.tally.clone(),
            notes: self.notes.clone(),
            lists_ages: self.on_disk.lists_ages,
        }
    }

    pub fn from_row(id: SubscriptionId, row: Row) -> Option<Subscription> {
        let document = Document::parse(&row.document).ok()?;
        let mut subscription = Subscription::new(id, row.namespace, document, row.created, row.phase);
        subscription.next_rules.document = match row.next_document {
            Some(document) => Some(Document::parse(&document).ok()?),
            None => None,
        };
        subscription.next_rules.from = row.rules_from;
        subscription.life.caught_at = row.caught_at;
        subscription.life.began = row.began;
        subscription.life.epochs = row.epochs;
        subscription.on_disk.waiting = row.tally.waiting_lanes;
        subscription.tally = row.tally;
        subscription.notes = row.notes;
        subscription.on_disk.lists_ages = row.lists_ages;
        Some(subscription)
    }
}

fn text_bytes(document: &Document) -> usize {
    document.to_stored_json().to_string().len()
}
