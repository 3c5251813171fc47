//! Dead letters: events that failed permanently, with the reason. A dead letter that parks its lane stays at the head
//! of the lane and is only listed here. The others exist only here, up to the age and count that the subscription
//! allows.

use crate::engine::{Engine, Failure, if_readable};
use crate::residency::{from_json, to_json};
use crate::rows;
use crate::subscription::Subscription;
use crate::trace_ids::LogIds;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::lane::{Entry, Flag};
use klambda_core::namespace;
use klambda_core::outcome::Reason;
use klambda_core::subscription::{CONTROLLER, OnFull, Overflow};
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::record::{Gone, Record, is_emitted, namespace_of};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub subscription: SubscriptionId,
    /// `None` for an event without a key, or in a subscription without lanes.
    pub key: Option<String>,
    pub entry: Entry,
    pub event_id: String,
    pub source: String,
    pub kind: String,
    pub reason: Reason,
    pub error: String,
    pub attempts: Attempts,
    pub failed: Millis,
    /// The step that made it a dead letter. The steps before it are its attempts.
    pub last_step: LogAddress,
    pub previous_id: Option<String>,
    pub holds_lane: bool,
}

/// How often an event was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Since the attempts were last reset.
    pub fresh: u32,
    pub total: u32,
}

impl Attempts {
    pub fn all(total: u32) -> Attempts {
        Attempts { fresh: total, total }
    }
}

/// The stored form of a dead letter.
#[derive(Serialize, Deserialize)]
struct Row {
    key: Option<String>,
    at: LogAddress,
    number: LaneNumber,
    accepted: Millis,
    bytes: u32,
    id: String,
    source: String,
    kind: String,
    reason: Reason,
    error: String,
    attempts: u32,
    /// Set only if it differs from `attempts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fresh: Option<u32>,
    failed: Millis,
    step: LogAddress,
    previous: Option<String>,
}

/// Facts about the dead letters outside the lanes that save a scan. Kept in memory only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outside {
    /// No dead letter is before this position, so scans start here.
    pub first: Position,
    /// No dead letter failed before this time.
    oldest: Millis,
    /// How far the scan for expired dead letters has come, and the oldest failure among those that stay.
    cursor: Position,
    seen: Millis,
}

/// How many dead letters are dropped per round when there are too many, and how many are checked for their age.
const OVERFLOWING_AT_ONCE: usize = 2048;
const EXPIRING_AT_ONCE: usize = 256;
const GONE_BYTES_MAX: usize = 64;

/// Selects dead letters. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Selector {
    /// `None` selects all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The full name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("enum" = Reason::ALL.map(Reason::name)))]
    pub reason: Option<Reason>,
    /// Compared with the time of the failure.
    #[serde(with = "rfc3339", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::views::Time>")]
    pub since: Option<Millis>,
    #[serde(with = "rfc3339", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::views::Time>")]
    pub until: Option<Millis>,
    /// Ids with full names. An empty list selects nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
    /// Excludes commands, because the caller is not allowed to issue them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_commands: bool,
    /// Confirms that the caller means every dead letter. Has no effect on the selection.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
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
        let (home, own) = namespace::split(name);
        is(&self.namespace, home)
            && !(self.without_commands && own == CONTROLLER)
            && is(&self.subscription, name)
            && self.key.as_deref().is_none_or(|key| letter.key.as_deref() == Some(key))
            && is(&self.kind, &letter.kind)
            && self.reason.is_none_or(|reason| reason == letter.reason)
            && self.since.is_none_or(|since| letter.failed >= since)
            && self.until.is_none_or(|until| letter.failed < until)
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&letter.id(name)))
    }
}

impl DeadLetter {
    /// The id with the given name. Use the full name to make it unique across namespaces.
    pub fn id(&self, subscription: &str) -> String {
        format!("{subscription}.{}", self.entry.position)
    }

    /// The number in a lane. In a lane other than its own, under later rules, the event never had a place.
    pub fn number_in(&self, key: &str) -> LaneNumber {
        if self.key.as_deref() == Some(key) { self.entry.number } else { LaneNumber(0) }
    }

    /// `None` without a lane, because the number has no meaning there.
    pub fn lane_sequence(&self) -> Option<u64> {
        let number = Some(self.entry.number.0).filter(|number| *number > 0);
        self.key.as_ref().and(number)
    }
}

/// How lists and logs identify an event.
pub(crate) struct Named {
    pub(crate) id: String,
    source: String,
    pub(crate) kind: String,
    pub(crate) ids: LogIds,
}

impl Named {
    /// `ids` reads the ids for log lines.
    pub(crate) fn read(record: &[u8], ids: impl FnOnce(&EventView<'_>) -> LogIds) -> Result<Named, Failure> {
        let (_, event) = crate::apply::event_of(record)?;
        let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
        Ok(Named {
            id: view.id().to_owned(),
            source: view.source().to_owned(),
            kind: view.kind().to_owned(),
            ids: ids(&view),
        })
    }

    fn unreadable() -> Named {
        let name = || "unreadable".to_owned();
        Named { id: name(), source: name(), kind: name(), ids: LogIds::default() }
    }
}

impl Engine {
    /// Adds a dead letter outside the lanes. If there are too many, the oldest is dropped later.
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
        at: LogAddress,
        previous_id: Option<String>,
    ) -> Result<(), Failure> {
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.on_disk.outside.added(entry.position, time, subscription.tally.dead);
            subscription.tally.dead += 1;
        }
        let attempts = Attempts::all(attempts);
        self.put_dead_letter(rows::DEAD, id, key, entry, reason, error, attempts, time, at, previous_id)
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
        at: LogAddress,
        previous_id: Option<String>,
    ) -> Result<(), Failure> {
        let named = self.names_to_send(id, &entry)?;
        let row = Row {
            key: key.map(str::to_owned),
            at: entry.address(),
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
            step: at,
            previous: previous_id,
        };
        self.store.rows.put(&rows::at_position(letter, id, entry.position), &to_json(&row)?);
        if self.condition.live
            && let Some(subscription) = self.subscriptions.get(id)
        {
            let (name, holds) = (subscription.name(), letter == rows::HELD);
            self.metrics.dead_letter(name, reason);
            tracing::warn!(
                subscription = %name, key, event_id = %row.id, event_type = %row.kind, source = %row.source,
                reason = reason.name(), error, holds,
                trace_id = named.ids.trace_id, span_id = named.ids.span_id, correlation_id = named.ids.correlation_id,
                "Event became a dead letter"
            );
        }
        Ok(())
    }

    /// The type that the list of dead letters shows.
    pub(crate) fn set_letter_type(
        &mut self,
        id: SubscriptionId,
        position: Position,
        kind: &str,
    ) -> Result<(), Failure> {
        for letter in [rows::DEAD, rows::HELD] {
            let key = rows::at_position(letter, id, position);
            if let Some(row) = self.store.rows.get(&key)? {
                let row = Row { kind: kind.to_owned(), ..from_json(&row)? };
                self.store.rows.put(&key, &to_json(&row)?);
            }
        }
        Ok(())
    }

    /// The names of an event. An event that cannot be read gets the name `unreadable`.
    pub(crate) fn names_of(&self, at: LogAddress) -> Result<Named, Failure> {
        let named = self.read_event(at).and_then(|record| {
            let namespace = self.namespace_name(namespace_of(&record)?).unwrap_or_default();
            let sampler = self.config.sampler.as_ref();
            Named::read(&record, |event| LogIds::of(namespace, event, is_emitted(&record), sampler))
        });
        Ok(if_readable(named)?.unwrap_or_else(Named::unreadable))
    }

    pub(crate) fn dead_letter(
        &self,
        letter: u8,
        id: SubscriptionId,
        position: Position,
    ) -> Result<Option<DeadLetter>, Failure> {
        let row = self.store.rows.get(&rows::at_position(letter, id, position))?;
        row.map(|row| decode(letter, id, position, &row)).transpose()
    }

    /// Finds a dead letter inside or outside the lanes.
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

    /// Where to start looking for dead letters of this kind after a position.
    pub(crate) fn first_after(&self, letter: u8, id: SubscriptionId, after: Position) -> Position {
        let outside = self.subscriptions.get(id).filter(|_| letter == rows::DEAD);
        let first = outside.map_or(Position(0), |subscription| subscription.on_disk.outside.first);
        Position(after.0.saturating_add(1)).max(first)
    }

    /// Dead letters of one subscription that match the selector, oldest first, after a position.
    pub fn select_dead_letters(
        &self,
        id: SubscriptionId,
        selector: &Selector,
        after: Position,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(Vec::new()) };
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
        let mut from = rows::at_position(letter, id, self.first_after(letter, id, after));
        let mut count = 0;
        loop {
            let page = self.store.rows.scan(&prefix, &from, PAGE)?;
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

    /// Drops the oldest dead letters above the limit, in portions. Dead letters that park a lane are never dropped.
    pub(crate) fn limit_dead_letters(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let over = usize::try_from(subscription.dead_letters_over()).unwrap_or(usize::MAX);
        if over == 0 {
            return Ok(());
        }
        let (prefix, first) = (rows::of_subscription(rows::DEAD, id), subscription.on_disk.outside.first);
        let from = rows::at_position(rows::DEAD, id, first);
        for (key, _) in self.store.rows.scan(&prefix, &from, over.min(OVERFLOWING_AT_ONCE))? {
            let position = Position(rows::number_of(&key));
            if !self.drop_dead_letter(id, position, Gone::Overflow)? {
                break;
            }
            if let Some(subscription) = self.subscriptions.get_mut(id) {
                subscription.on_disk.outside.first = Position(position.0 + 1);
            }
        }
        Ok(())
    }

    /// Drops expired dead letters. They are stored in the order of their events, and one that was replayed and failed
    /// again is younger than its place, so all of them are checked, in portions. Returns true if there is another
    /// portion.
    pub(crate) fn expire_dead_letters(&mut self, id: SubscriptionId) -> Result<bool, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(false) };
        let ttl_ms = subscription.document.spec.dead_letters.ttl_ms;
        let mut outside = subscription.on_disk.outside;
        if subscription.tally.dead == 0 || self.now.since(outside.oldest) < ttl_ms {
            return Ok(false);
        }
        if outside.cursor == Position(0) {
            outside.seen = Millis::NEVER;
        }
        let prefix = rows::of_subscription(rows::DEAD, id);
        let from = rows::at_position(rows::DEAD, id, outside.cursor.max(outside.first));
        let page = self.store.rows.scan(&prefix, &from, EXPIRING_AT_ONCE)?;
        for (key, row) in &page {
            let position = Position(rows::number_of(key));
            let failed = decode(rows::DEAD, id, position, row)?.failed;
            if self.now.since(failed) < ttl_ms {
                outside.seen = outside.seen.min(failed);
            } else if !self.drop_dead_letter(id, position, Gone::Expired)? {
                return Ok(false);
            }
            outside.cursor = Position(position.0 + 1);
        }
        let is_last = page.len() < EXPIRING_AT_ONCE;
        if is_last {
            (outside.cursor, outside.oldest) = (Position(0), outside.seen);
        }
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.on_disk.outside = outside;
        }
        Ok(!is_last)
    }

    /// Returns false if the log has no room.
    fn drop_dead_letter(
        &mut self,
        id: SubscriptionId,
        position: Position,
        why: Gone,
    ) -> Result<bool, Failure> {
        if !self.store.log.has_room_for_steps(GONE_BYTES_MAX) {
            return Ok(false);
        }
        self.commit(&Record::DeadLetterGone { time: self.now, subscription: id, position, why })?;
        Ok(true)
    }
}

impl Subscription {
    /// How many dead letters exceed the limit.
    pub(crate) fn dead_letters_over(&self) -> u64 {
        let limits = &self.document.spec.dead_letters;
        let drops = self.document.spec.backlog.on_full == OnFull::Drop;
        match limits.overflow {
            Overflow::Reject if !drops => 0,
            Overflow::DropHead | Overflow::Reject => self.tally.dead.saturating_sub(limits.events_max),
        }
    }
}

impl Outside {
    /// Adds one; `others` is the number before.
    fn added(&mut self, position: Position, failed: Millis, others: u64) {
        self.first = if others == 0 { position } else { self.first.min(position) };
        self.oldest = self.oldest.min(failed);
        self.seen = self.seen.min(failed);
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
            at: row.at.into(),
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
        last_step: row.step,
        previous_id: row.previous,
        holds_lane: letter == rows::HELD,
    })
}
