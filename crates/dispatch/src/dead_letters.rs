//! Dead letters: events that failed for good, with why. One that holds its lane stands at the lane's head and is only
//! listed here; one outside stands here alone, for as long and as many as the subscription allows.

use crate::engine::{Engine, Failure};
use crate::lanes::Previous;
use crate::residency::{from_json, to_json};
use crate::rows;
use crate::trail::{correlation_id, trace_id};
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Address, LaneNumber, Position, SubscriptionId};
use klambda_core::lane::{Entry, Flag};
use klambda_core::outcome::Reason;
use klambda_core::subscription::Overflow;
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::log;
use klambda_store::record::{Gone, Record};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub subscription: SubscriptionId,
    /// None for an event without a key, or of a subscription without lanes.
    pub key: Option<String>,
    pub entry: Entry,
    pub event_id: String,
    pub source: String,
    pub kind: String,
    pub reason: Reason,
    pub error: String,
    pub attempts: Attempts,
    pub failed: Millis,
    pub previous_id: Option<String>,
    pub holds_lane: bool,
}

/// How often an event was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Since it was last given fresh ones.
    pub fresh: u32,
    pub total: u32,
}

impl Attempts {
    pub fn all(total: u32) -> Attempts {
        Attempts { fresh: total, total }
    }
}

/// A dead letter's row.
#[derive(Serialize, Deserialize)]
struct Row {
    key: Option<String>,
    at: Address,
    number: LaneNumber,
    accepted: Millis,
    bytes: u32,
    id: String,
    source: String,
    kind: String,
    reason: Reason,
    error: String,
    attempts: u32,
    /// Where fewer than all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fresh: Option<u32>,
    failed: Millis,
    previous: Option<String>,
}

/// Which dead letters a request means. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Selector {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// By the time it failed.
    #[serde(with = "rfc3339", skip_serializing_if = "Option::is_none")]
    pub since: Option<Millis>,
    #[serde(with = "rfc3339", skip_serializing_if = "Option::is_none")]
    pub until: Option<Millis>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
}

pub mod rfc3339 {
    use klambda_core::time::Millis;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(time: &Option<Millis>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.serialize_str(&time.rfc3339()),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Millis>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| Millis::parse_rfc3339(&text).ok_or_else(|| D::Error::custom("not an RFC 3339 time")))
            .transpose()
    }
}

impl Selector {
    pub fn matches(&self, letter: &DeadLetter, name: &str) -> bool {
        let is =
            |wanted: &Option<String>, given: &str| wanted.as_deref().is_none_or(|wanted| wanted == given);
        is(&self.subscription, name)
            && self.key.as_deref().is_none_or(|key| letter.key.as_deref() == Some(key))
            && is(&self.kind, &letter.kind)
            && self.reason.is_none_or(|reason| reason == letter.reason)
            && self.since.is_none_or(|since| letter.failed >= since)
            && self.until.is_none_or(|until| letter.failed < until)
            && (self.ids.is_empty() || self.ids.contains(&letter.id(name)))
    }
}

impl DeadLetter {
    pub fn id(&self, subscription: &str) -> String {
        format!("{subscription}.{}", self.entry.position)
    }

    /// Where there are no lanes, a number says nothing.
    pub fn lane_sequence(&self) -> Option<u64> {
        let number = Some(self.entry.number.0).filter(|number| *number > 0);
        self.key.as_ref().and(number)
    }
}

/// How lists and logs call an event.
struct Named {
    id: String,
    source: String,
    kind: String,
    trace_id: Option<String>,
    correlation_id: Option<String>,
}

impl Named {
    fn read(record: &[u8]) -> Result<Named, Failure> {
        let (_, event) = crate::apply::event_of(record)?;
        let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
        Ok(Named {
            id: view.id().to_owned(),
            source: view.source().to_owned(),
            kind: view.kind().to_owned(),
            trace_id: trace_id(&view).map(|id| id.to_string()),
            correlation_id: correlation_id(&view).map(|id| id.to_string()),
        })
    }

    fn unreadable() -> Named {
        let name = || "unreadable".to_owned();
        Named { id: name(), source: name(), kind: name(), trace_id: None, correlation_id: None }
    }
}

impl Engine {
    /// An event becomes a dead letter outside the lanes; the oldest makes room if there are too many.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn add_dead_letter(
        &mut self,
        id: SubscriptionId,
        key: Option<&str>,
        entry: Entry,
        reason: Reason,
        error: &str,
        attempts: u32,
        time: Millis,
        previous: Previous,
    ) -> Result<(), Failure> {
        if let Some(subscription) = self.subscriptions.get_mut(&id) {
            subscription.tally.dead += 1;
        }
        let attempts = Attempts::all(attempts);
        self.put_dead_letter(rows::DEAD, id, key, entry, reason, error, attempts, time, previous)
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn put_dead_letter(
        &mut self,
        letter: u8,
        id: SubscriptionId,
        key: Option<&str>,
        entry: Entry,
        reason: Reason,
        error: &str,
        attempts: Attempts,
        time: Millis,
        previous: Previous,
    ) -> Result<(), Failure> {
        let named = self.names_of(entry.at)?;
        let row = Row {
            key: key.map(str::to_owned),
            at: entry.at,
            number: entry.number,
            accepted: entry.accepted,
            bytes: entry.bytes,
            id: named.id,
            source: named.source,
            kind: named.kind,
            reason,
            error: error.to_owned(),
            attempts: attempts.total,
            fresh: (attempts.fresh < attempts.total).then_some(attempts.fresh),
            failed: time,
            previous: match previous {
                Previous::Id(id) => Some(id),
                _ => None,
            },
        };
        self.rows.put(&rows::at_position(letter, id, entry.position), &to_json(&row)?);
        if self.live
            && let Some(subscription) = self.subscriptions.get(&id)
        {
            let (name, holds) = (subscription.name(), letter == rows::HELD);
            self.metrics.dead_letter(name, reason);
            tracing::warn!(
                subscription = %name, key, id = %row.id, source = %row.source, reason = reason.name(), error, holds,
                trace_id = named.trace_id, correlation_id = named.correlation_id,
                "Dead letter."
            );
        }
        Ok(())
    }

    /// What an event is called. One that cannot be read back is a dead letter like any other, and says so.
    fn names_of(&self, at: Address) -> Result<Named, Failure> {
        let named = self.read_event(at).and_then(|record| Named::read(&record));
        match named {
            Err(Failure::Log(log::Error::Damaged { .. } | log::Error::Gone(_)) | Failure::Malformed(_)) => {
                Ok(Named::unreadable())
            }
            other => other,
        }
    }

    pub(crate) fn dead_letter(
        &self,
        letter: u8,
        id: SubscriptionId,
        position: Position,
    ) -> Result<Option<DeadLetter>, Failure> {
        let row = self.rows.get(&rows::at_position(letter, id, position))?;
        row.map(|row| decode(letter, id, position, &row)).transpose()
    }

    /// Either kind.
    pub fn find_dead_letter(
        &self,
        id: SubscriptionId,
        position: Position,
    ) -> Result<Option<DeadLetter>, Failure> {
        match self.dead_letter(rows::DEAD, id, position)? {
            Some(letter) => Ok(Some(letter)),
            None => self.dead_letter(rows::HELD, id, position),
        }
    }

    /// All that a selector means of one subscription, oldest first, from a position on.
    pub fn select_dead_letters(
        &self,
        id: SubscriptionId,
        selector: &Selector,
        after: Position,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, Failure> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for letter in [rows::DEAD, rows::HELD] {
            self.select_kind(letter, id, subscription.name(), selector, after, limit, &mut found)?;
        }
        found.sort_by_key(|letter| letter.entry.position);
        found.truncate(limit);
        Ok(found)
    }

    #[allow(clippy::too_many_arguments)]
    fn select_kind(
        &self,
        letter: u8,
        id: SubscriptionId,
        name: &str,
        selector: &Selector,
        after: Position,
        limit: usize,
        found: &mut Vec<DeadLetter>,
    ) -> Result<(), Failure> {
        const PAGE: usize = 1000;
        let prefix = rows::of_subscription(letter, id);
        let mut from = rows::at_position(letter, id, Position(after.0 + 1));
        let mut count = 0;
        loop {
            let page = self.rows.scan(&prefix, &from, PAGE)?;
            for (key, row) in &page {
                let dead = decode(letter, id, Position(rows::number_of(key)), row)?;
                if selector.matches(&dead, name) {
                    found.push(dead);
                    count += 1;
                    if count == limit {
                        return Ok(());
                    }
                }
            }
            match page.last() {
                Some((key, _)) if page.len() == PAGE => from = [key.as_slice(), &[0]].concat(),
                _ => return Ok(()),
            }
        }
    }

    /// Holds dead letters to the subscription's limits. Those that hold a lane are never touched.
    pub(crate) fn limit_dead_letters(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        const AT_ONCE: usize = 256;
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(()) };
        let limits = subscription.document.spec.dead_letters.clone();
        let drops = limits.overflow == Overflow::DropHead;
        let over = subscription.tally.dead.saturating_sub(limits.events_max);
        if subscription.tally.dead == 0 {
            return Ok(());
        }
        let prefix = rows::of_subscription(rows::DEAD, id);
        for (n, (key, row)) in self.rows.scan(&prefix, &prefix, AT_ONCE)?.into_iter().enumerate() {
            let position = Position(rows::number_of(&key));
            let letter = decode(rows::DEAD, id, position, &row)?;
            let why = if drops && (n as u64) < over {
                Gone::Overflow
            } else if self.now.since(letter.failed) >= limits.ttl_ms {
                Gone::Expired
            } else {
                break;
            };
            self.commit(&Record::DeadLetterGone { time: self.now, subscription: id, position, why })?;
        }
        Ok(())
    }
}

pub(crate) fn decode(
    letter: u8,
    id: SubscriptionId,
    position: Position,
    row: &[u8],
) -> Result<DeadLetter, Failure> {
    let row: Row = from_json(row)?;
    Ok(DeadLetter {
        subscription: id,
        key: row.key,
        entry: Entry {
            position,
            at: row.at,
            number: row.number,
            accepted: row.accepted,
            bytes: row.bytes,
            flag: Flag::None,
        },
        event_id: row.id,
        source: row.source,
        kind: row.kind,
        reason: row.reason,
        error: row.error,
        attempts: Attempts { fresh: row.fresh.unwrap_or(row.attempts), total: row.attempts },
        failed: row.failed,
        previous_id: row.previous,
        holds_lane: letter == rows::HELD,
    })
}
