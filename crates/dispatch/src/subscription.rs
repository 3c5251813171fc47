//! A subscription: its document, its pending events, and the lanes that are ready.

use crate::dead_letters::Outside;
use crate::edits::Edits;
use crate::endpoint::EndpointId;
use crate::endpoint::health::Health;
use crate::feed::{self, Feed};
use crate::lanes::Slot;
use crate::overflow::ByAge;
pub use crate::tally::Tally;
use crate::unordered::Unordered;
use klambda_core::ids::{NamespaceId, Position, SubscriptionId};
use klambda_core::lane::{Entry, Policy};
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::{Document, Ordering};
use klambda_core::time::Millis;
use klambda_core::webhook::Batch;
use klambda_store::address::LogAddress;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

pub struct Subscription {
    pub id: SubscriptionId,
    pub namespace: NamespaceId,
    /// The full name, unique across namespaces.
    name: Box<str>,
    pub document: Arc<Document>,
    pub policy: Policy,
    pub life: Life,
    pub phase: Phase,
    pub next_rules: NextRules,
    pub tally: Tally,
    pub notes: Notes,
    /// The following fields are kept in memory only.
    pub(crate) noted: Bookkeeping,
    pub flow: Flow,
    pub unread: Unread,
    pub unordered: Unordered,
    pub(crate) on_disk: OnDisk,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Life {
    pub created: Millis,
    /// The first position after its creation. Earlier events are history for this subscription.
    pub began: Position,
    /// When it had last read everything. Gap timers run from then on.
    pub caught_at: Millis,
    /// How often the ordering rules changed. Older dead letters may belong to a lane other than the one that the
    /// current rules give.
    pub epochs: u32,
    pub health: Health,
}

/// New ordering rules that take effect when the pending events have drained.
#[derive(Default)]
pub struct NextRules {
    pub document: Option<Document>,
    /// The first event that the new rules apply to.
    pub from: Position,
}

/// Bookkeeping of `Subscriptions` about this subscription.
#[derive(Default)]
pub(crate) struct Bookkeeping {
    /// Must be sorted again by its work.
    pub to_sort: bool,
    /// Its row must be written.
    pub to_store: bool,
    /// Its memory must be measured again.
    pub to_measure: bool,
    pub measured_bytes: usize,
    /// The kinds of work that it was last sorted by, one bit each.
    pub works: u16,
    /// The number of owed events, as last counted for its namespace.
    pub owed: u64,
    /// The length of its document as text.
    pub document_bytes: usize,
}

/// Open calls, and lanes that are ready.
#[derive(Default)]
pub struct Flow {
    pub endpoint: EndpointId,
    pub ready: VecDeque<Slot>,
    pub in_flight: u32,
    /// Calls whose reply events wait for room.
    pub put_off: u32,
    /// Bytes of events in flight that are not sent yet.
    pub unsent_bytes: usize,
    /// The next event waits for memory.
    pub lacks_room: bool,
    /// The deepest lane as of the last lookup.
    pub deepest: Option<(Millis, String, u64)>,
    /// Nothing starts for now, for a reason that is not the event's or the target's fault.
    pub suspension: Option<Suspension>,
    /// Fewer concurrent calls than configured, because a webhook endpoint is overloaded.
    pub slowed_to: Option<u32>,
}

impl Flow {
    /// Halves the number of calls when a webhook endpoint is overloaded, and adds one for each success.
    pub fn adapt(&mut self, outcome: &CallOutcome, concurrency: u32) {
        match (outcome, self.slowed_to) {
            (CallOutcome::Status { code: 429 | 502 | 504, .. }, slowed) => {
                self.slowed_to = Some((slowed.unwrap_or(self.in_flight + 1) / 2).max(1));
            }
            (CallOutcome::Status { code: 200..=299, .. } | CallOutcome::Prefix { .. }, Some(slowed)) => {
                self.slowed_to = Some(slowed + 1).filter(|calls| *calls < concurrency);
            }
            _ => {}
        }
    }
}

/// Accepted events that are not read from the log yet.
#[derive(Default)]
pub struct Unread {
    /// All unread events accepted after `from`, so that they need not be searched in the log.
    pub listed: VecDeque<Entry>,
    pub from: Position,
    /// An event that cannot be read. Nothing after it is read.
    pub unreadable: Option<Position>,
    /// There was room at the last check. The subscription then reads until it is full.
    pub has_room: bool,
    /// Nothing could be delivered at twice the limit, so gap timers run until there is room. If they stopped as soon as
    /// one lane moves, the gaps of all lanes would time out one after the other.
    pub gaps_expire: bool,
}

/// Lanes on disk, dead letters outside the lanes, edited dead letters, and the feed.
pub(crate) struct OnDisk {
    /// The number of lanes only on disk that continue without help, and when the next one is due.
    pub waiting: u64,
    pub due: Millis,
    pub cursor: Vec<u8>,
    pub seen_due: Millis,
    /// All lanes are listed by age.
    pub lists_ages: bool,
    /// The oldest events, while the subscription must drop some.
    pub by_age: Option<Box<ByAge>>,
    /// The row to continue from while unlisted lanes are being listed by age.
    pub ages_from: Vec<u8>,
    pub outside: Outside,
    pub edits: Edits,
    /// The events of a webhook endpoint in the order in which they took their places.
    pub feed: Option<Box<Feed>>,
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
            outside: Outside::default(),
            edits: Edits::default(),
            feed: None,
        }
    }
}

/// Why nothing of the subscription starts, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    pub why: String,
    pub until: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    Live,
    /// Reads the log from `cursor`. New events are read there too.
    CatchingUp {
        cursor: LogAddress,
        done: Position,
        why: Reading,
    },
    /// Accepts no new events and is removed when nothing is pending.
    Draining,
    /// Accepts no new events. Events still pending at this time become dead letters.
    Retiring {
        until: Millis,
    },
    /// Removed except for its dead letters. Another subscription may have its name.
    Retired,
}

/// Why a subscription reads the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reading {
    /// The subscription is new and begins in the past.
    Past,
    /// The subscription reached a limit, or waited for new ordering rules, and has accepted events that it has not
    /// read yet.
    Behind,
    /// Like `Behind`, but deleted: it accepts no new events and drains when everything is read.
    Draining,
    /// Like `Draining`; events still pending at this time become dead letters.
    Retiring { until: Millis },
}

/// Facts that the status reports to the owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Notes {
    /// Began later than requested, because the log has no older events.
    pub began_late: Option<Millis>,
    pub events_without_key: u64,
    /// Events that retention deleted before they were read, and the last of them.
    pub missed: u64,
    pub missed_last: Position,
}

/// The row of a subscription: everything except its lanes.
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
    #[serde(default)]
    pub health: Health,
    #[serde(default)]
    pub feed: Option<feed::Ends>,
    /// The attempts of a webhook endpoint.
    #[serde(default)]
    pub calls: feed::Ends,
}

impl Subscription {
    pub fn new(
        id: SubscriptionId,
        namespace: NamespaceId,
        document: Document,
        created: Millis,
        phase: Phase,
    ) -> Subscription {
        let noted = Bookkeeping { document_bytes: text_bytes(&document), ..Bookkeeping::default() };
        let feed = document.spec.target.endpoint().map(|_| Box::default());
        let on_disk = OnDisk { feed, ..OnDisk::default() };
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
            unordered: Unordered::default(),
            on_disk,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long it remembers the id of a delivered event.
    pub fn window_ms(&self) -> u64 {
        self.document.spec.idempotency.ttl_ms
    }

    /// True if a round may have to delete the subscription, or events that are too old for a disabled endpoint.
    pub(crate) fn needs_check(&self) -> bool {
        match self.phase {
            Phase::Draining | Phase::Retiring { .. } => true,
            Phase::CatchingUp { why: Reading::Retiring { .. }, .. } => true,
            Phase::Retired => self.tally.dead == 0,
            Phase::Live | Phase::CatchingUp { .. } => {
                self.life.health.disabled.is_some() && self.tally.waiting > 0
            }
        }
    }

    pub fn is_ordered(&self) -> bool {
        self.document.spec.ordering == Ordering::Ordered
    }

    /// The limits of calls with several events, for a webhook endpoint that takes them.
    pub fn batch(&self) -> Option<Batch> {
        self.document.spec.target.endpoint()?.batch
    }

    /// True if a call could be made, subject to limits and the state of the target.
    pub fn has_ready(&self) -> bool {
        !self.flow.ready.is_empty() || !self.unordered.ready.is_empty() || !self.unordered.queue.is_empty()
    }

    pub fn is_retired(&self) -> bool {
        self.phase == Phase::Retired
    }

    /// True if nothing new starts: its owner paused it, or it is a disabled endpoint.
    pub fn is_paused(&self) -> bool {
        self.document.spec.paused || self.life.health.disabled.is_some()
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
            health: self.life.health,
            feed: self.on_disk.feed.as_ref().map(|feed| feed.ends),
            calls: self.on_disk.feed.as_ref().map(|feed| feed.calls.ends).unwrap_or_default(),
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
        subscription.life.health = row.health;
        if let Some(ends) = row.feed {
            subscription.on_disk.feed = Some(Box::new(Feed::of(ends, row.calls)));
        }
        Some(subscription)
    }
}

fn text_bytes(document: &Document) -> usize {
    document.to_stored_json().to_string().len()
}
