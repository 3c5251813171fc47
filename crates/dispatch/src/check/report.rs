//! The result of a check, for people and for scripts.

use hashbrown::HashMap;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_store::inspect::Census;
use serde::Serialize;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub segments: u64,
    pub bytes: u64,
    pub tables: u64,
    pub table_bytes: u64,
    pub frames: u64,
    pub records: u64,
    /// Where the log begins. Earlier history is known from the tables only.
    pub first_position: Position,
    pub events: u64,
    pub subscriptions: u64,
    /// Lanes with at least one step in this log.
    pub lanes: u64,
    pub delivered: u64,
    pub waiting: u64,
    pub dead_letters: u64,
    /// Left without success: purged, dropped, deleted or expired.
    pub purged: u64,
    /// Delivered after an event that comes after it in order.
    pub late: u64,
    /// Gaps in the producers' sequences, as delivered.
    pub gaps: u64,
    /// Steps and pending events that arrived before the start of the log.
    pub before_log: u64,
    pub duplicate_acknowledgements: u64,
    pub order_violations: u64,
    pub lost: u64,
    /// An unsynced tail that the next start cuts off. It was never reported as durable.
    pub cut: Option<Cut>,
    pub problems: Problems,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cut {
    pub file: String,
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problems {
    pub count: u64,
    /// The first problems; `count` is the total.
    pub listed: Vec<Problem>,
}

impl Problems {
    /// Adds what was found outside the log and the tables.
    pub fn add(&mut self, kind: ProblemKind, text: String) {
        self.count += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(Problem { kind, text });
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    pub kind: ProblemKind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ProblemKind {
    Damage,
    DuplicateAcknowledgement,
    OrderViolation,
    Lost,
    /// Acknowledged or pending, but never routed there.
    Unaccounted,
    /// The log and the tables do not form a consistent state.
    State,
    /// A secret that cannot be read.
    Secret,
    /// An event type that cannot be used.
    EventType,
}

impl Report {
    pub fn is_ok(&self) -> bool {
        self.problems.count == 0
    }

    pub(super) fn add_census(&mut self, census: &Census) {
        self.segments = census.segments;
        self.bytes = census.bytes;
        self.frames = census.frames;
        self.records = census.records;
        self.first_position = census.first_position;
        let cut = census.cut.as_ref();
        self.cut = cut.map(|tail| Cut { file: tail.file.clone(), offset: tail.offset, bytes: tail.bytes });
    }
}

const LISTED_MAX: usize = 1000;

/// Collects problems during a check.
#[derive(Default)]
pub(super) struct Findings {
    counts: HashMap<ProblemKind, u64>,
    listed: Vec<(ProblemKind, Option<SubscriptionId>, String)>,
    names: HashMap<SubscriptionId, String>,
}

impl Findings {
    pub fn add(&mut self, kind: ProblemKind, subscription: Option<SubscriptionId>, text: String) {
        *self.counts.entry(kind).or_default() += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push((kind, subscription, text));
        }
    }

    pub fn count(&self, kind: ProblemKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    pub fn is_undamaged(&self) -> bool {
        self.count(ProblemKind::Damage) == 0
    }

    pub fn name_subscriptions(&mut self, names: impl Iterator<Item = (SubscriptionId, String)>) {
        self.names.extend(names);
    }

    pub fn into_problems(self) -> Problems {
        let name = |id: SubscriptionId| match self.names.get(&id) {
            Some(name) => name.clone(),
            None => format!("subscription {id}"),
        };
        let listed = self.listed.into_iter().map(|(kind, id, text)| {
            let text = id.map_or(text.clone(), |id| format!("{}: {text}", name(id)));
            Problem { kind, text }
        });
        Problems { listed: listed.collect(), count: self.counts.values().sum() }
    }
}
