//! What happened to one event in every subscription that took it.

use super::attempts::{Search, Tried};
use crate::dead_letters::Attempts;
use crate::engine::{Engine, Failure};
use crate::lanes::Resident;
use crate::rows;
use crate::subscription::Subscription;
use crate::unordered::{Single, read_chunk};
use klambda_core::ids::{LaneNumber, NamespaceId, Position, Sequence, SubscriptionId};
use klambda_core::lane::{Entry, Queue, State};
use klambda_store::address::LogAddress;
use klambda_store::log::LogReader;
use klambda_store::marks::State as MarkState;
use klambda_store::record::{Record, To};
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fate {
    pub subscription: String,
    pub key: Option<String>,
    #[schemars(extend("enum" = [
        "waiting", "buffered", "inFlight", "retrying", "delivered", "deadLetter", "purged", "unknown"
    ]))]
    pub fate: &'static str,
    /// The position at which the subscription took the event. An event sent again after its id window is a new event.
    pub position: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The attempts, newest first. `resolve` completes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempt_log: Vec<Tried>,
    /// There are older attempts than those shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane_sequence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The id of the dead letter, if the event is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<String>,
    #[serde(skip)]
    search: Option<Search>,
}

/// Where an event was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The address in marks and lanes.
    pub at: LogAddress,
    /// The current address of the event or its copy.
    pub located: LogAddress,
}

/// Maximum number of chunks on disk that are searched one by one.
const CHUNKS_MAX: u64 = 64;

struct Place {
    key: Option<String>,
    sequence: Option<Sequence>,
}

impl Engine {
    /// All known places of the event according to marks, oldest first.
    pub fn sightings(
        &self,
        namespace: NamespaceId,
        source: &str,
        id: &str,
    ) -> Result<Vec<Sighting>, Failure> {
        let identity = self.identity(namespace, source, id);
        let inside = self.subscriptions.values().filter(|s| s.namespace == namespace);
        let ids = std::iter::once(SubscriptionId(0)).chain(inside.map(|s| s.id));
        let mut found = Vec::new();
        for id in ids {
            if let Some(mark) = self.store.marks.get(identity, id)? {
                found.push(Sighting { at: mark.at, located: self.located(mark.at)? });
            }
        }
        found.sort_by_key(|sighting| sighting.at);
        found.dedup();
        Ok(found)
    }

    /// The fate of the event written at these places, in every subscription that took it.
    pub fn fates(
        &self,
        namespace: NamespaceId,
        source: &str,
        id: &str,
        written: &[(LogAddress, Position)],
    ) -> Result<Vec<Fate>, Failure> {
        let identity = self.identity(namespace, source, id);
        let mut fates = Vec::new();
        for subscription in self.subscriptions.values().filter(|s| s.namespace == namespace) {
            let id = &subscription.id;
            let mark = self.store.marks.get(identity, *id)?;
            let here = match mark {
                Some(mark) => written.iter().find(|(at, _)| *at == mark.at),
                // The mark has expired, but the record may still name the route.
                None => written.last(),
            };
            let Some((at, position)) = here.copied() else { continue };
            let Some(place) = self.place_of(*id, at, mark.is_some())? else { continue };
            fates.push(self.fate(subscription, at, position, &place, mark.map(|mark| mark.state))?);
        }
        Ok(fates)
    }

    /// What happened to one event in one subscription.
    pub(crate) fn fate_at(
        &mut self,
        id: SubscriptionId,
        at: LogAddress,
        position: Position,
    ) -> Result<Option<&'static str>, Failure> {
        let mark = match self.identity_at(at)? {
            Some(identity) => self.store.marks.get(identity, id)?.map(|mark| mark.state),
            None => None,
        };
        let Some(place) = self.place_of(id, at, true)? else { return Ok(None) };
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(None) };
        Ok(Some(self.fate(subscription, at, position, &place, mark)?.fate))
    }

    /// The route in the event's record. With `by_rules`, the event was taken, so its key is known even if the record
    /// does not name it.
    fn place_of(&self, id: SubscriptionId, at: LogAddress, by_rules: bool) -> Result<Option<Place>, Failure> {
        let record = self.read_event(at)?;
        let (Record::Event { routes, .. } | Record::Kept { routes, .. }) = Record::decode(&record)? else {
            return Ok(None);
        };
        Ok(match routes.into_iter().find(|route| route.subscription == id).map(|route| route.to) {
            Some(To::Lane { key, sequence }) => Some(Place { key: Some(key.to_owned()), sequence }),
            Some(To::Alone) => Some(Place { key: None, sequence: None }),
            Some(To::Invalid { .. }) => Some(Place { key: None, sequence: None }),
            Some(To::Later | To::Missed { .. }) => {
                Some(Place { key: self.key_by_rules(id, &record)?, sequence: None })
            }
            None if by_rules => Some(Place { key: self.key_by_rules(id, &record)?, sequence: None }),
            None => None,
        })
    }

    fn fate(
        &self,
        subscription: &Subscription,
        at: LogAddress,
        position: Position,
        place: &Place,
        mark: Option<MarkState>,
    ) -> Result<Fate, Failure> {
        let mut fate = Fate {
            subscription: subscription.document.name.clone(),
            key: place.key.clone(),
            fate: "unknown",
            position: position.0,
            attempts: None,
            attempt_log: Vec::new(),
            more: false,
            lane_sequence: None,
            reason: None,
            dead_letter: None,
            search: None,
        };
        let mut last_step = self.last_step_of(subscription, place, mark)?;
        if let Some(letter) = self.find_dead_letter(subscription.id, position)? {
            fate.fate = "deadLetter";
            fate.attempts = Some(letter.attempts.total);
            fate.lane_sequence = letter.lane_sequence();
            fate.reason = Some(format!("{}: {}", letter.reason.name(), letter.error));
            fate.dead_letter = Some(letter.id(&subscription.document.name));
            last_step = Some(letter.last_step);
        } else if let Some(single) = subscription.unordered.under_way.get(&position) {
            fate.describe_single(single);
            last_step = Some(single.last_step);
        } else if !self.find_queued(subscription, at, position, &mut fate)?
            && !self.find_waiting(subscription.id, at, position, place, &mut fate)?
        {
            fate.settle(mark);
        }
        let key = place.key.clone().filter(|_| subscription.is_ordered());
        let is_over = matches!(fate.fate, "delivered" | "unknown");
        let mut search = Search::new(subscription.id, position, key, last_step, is_over);
        search.follow(|at| self.store.log.cached(at));
        fate.search = Some(search);
        Ok(fate)
    }

    /// The last step of the event if its mark names it, otherwise that of its lane.
    fn last_step_of(
        &self,
        subscription: &Subscription,
        place: &Place,
        mark: Option<MarkState>,
    ) -> Result<Option<LogAddress>, Failure> {
        if let Some(MarkState::Delivered(at) | MarkState::Released(at)) = mark {
            return Ok(Some(at));
        }
        let Some(key) = &place.key else { return Ok(None) };
        if let Some(resident) = self.lanes.find(subscription.id, key).and_then(|slot| self.lanes.get(slot)) {
            return Ok(Some(resident.last_step));
        }
        Ok(self.peek_lane(subscription.id, key)?.map(|resident| resident.last_step))
    }

    /// Searches the event in its lane.
    fn find_waiting(
        &self,
        id: SubscriptionId,
        at: LogAddress,
        position: Position,
        place: &Place,
        fate: &mut Fate,
    ) -> Result<bool, Failure> {
        let Some(key) = &place.key else { return Ok(false) };
        let stored;
        let resident = match self.lanes.find(id, key).and_then(|slot| self.lanes.get(slot)) {
            Some(resident) => resident,
            None => match self.peek_lane(id, key)? {
                Some(resident) => {
                    stored = resident;
                    &stored
                }
                None => return Ok(false),
            },
        };
        if let Some(entry) = resident.lane.entries().find(|entry| entry.at == at.into()) {
            fate.describe_entry(resident, entry, self.head_attempts(resident, entry)?);
            return Ok(true);
        }
        if let Some(sequence) = place.sequence
            && resident.lane.has_spilled_early()
            && self.store.rows.get(&rows::early(id, key, sequence))?.is_some()
        {
            fate.fate = "buffered";
            return Ok(true);
        }
        let read = |chunk| self.chunk(id, key, chunk);
        fate.find_in_chunks(resident.lane.queue(), at, position, read)
    }

    /// Searches unordered events that were never called.
    fn find_queued(
        &self,
        subscription: &Subscription,
        at: LogAddress,
        position: Position,
        fate: &mut Fate,
    ) -> Result<bool, Failure> {
        let queue = &subscription.unordered.queue;
        if queue.entries().any(|entry| entry.at == at.into()) {
            fate.fate = "waiting";
            return Ok(true);
        }
        let read = |chunk| read_chunk(&self.store.rows, subscription.id, chunk);
        let is_found = fate.find_in_chunks(queue, at, position, read)?;
        fate.lane_sequence = None;
        Ok(is_found)
    }
}

impl Fate {
    /// Reads the attempts that are not in memory. Must run on a thread that may block on the disk.
    pub fn resolve(&mut self, reader: &LogReader) {
        let Some(search) = self.search.take() else { return };
        self.attempt_log = search.finish(reader);
        let newest = self.attempt_log.first().map(|tried| tried.attempt.number);
        self.attempts = self.attempts.or(newest);
        self.more = match self.attempt_log.last() {
            Some(oldest) => oldest.attempt.number > 1,
            None => self.attempts.is_some_and(|attempts| attempts > 0) || self.fate == "delivered",
        };
    }

    /// Searches the middle of a long queue: chunks on disk, almost always ordered by position.
    fn find_in_chunks(
        &mut self,
        queue: &Queue,
        at: LogAddress,
        position: Position,
        read: impl Fn(u64) -> Result<Vec<Entry>, Failure>,
    ) -> Result<bool, Failure> {
        if queue.spilled().entries == 0 {
            return Ok(false);
        }
        if self.describe_chunk(&queue.chunk_around(at.into(), &read)?, position) {
            return Ok(true);
        }
        let chunks = queue.chunks();
        for chunk in chunks.clone().take(CHUNKS_MAX as usize) {
            if self.describe_chunk(&read(chunk)?, position) {
                return Ok(true);
            }
        }
        Ok(chunks.end - chunks.start > CHUNKS_MAX)
    }

    fn describe_single(&mut self, single: &Single) {
        self.fate = match (single.in_flight, single.attempts) {
            (true, _) => "inFlight",
            (false, 0) => "waiting",
            (false, _) => "retrying",
        };
        self.attempts = Some(single.attempts_total);
        self.reason = Some(single.error.clone()).filter(|error| !error.is_empty());
    }

    fn describe_entry(&mut self, resident: &Resident, entry: &Entry, of_head: Attempts) {
        let lane = &resident.lane;
        let is_head = lane.head().is_some_and(|(_, head)| head.at == entry.at);
        self.lane_sequence = number(entry.number);
        self.fate = match lane.state() {
            _ if lane.early().any(|(_, early)| early.at == entry.at) => "buffered",
            State::Running if is_head => "inFlight",
            State::Retrying if is_head => "retrying",
            _ => "waiting",
        };
        if is_head && of_head.total > 0 {
            self.attempts = Some(of_head.total);
            self.reason = Some(resident.failure.error.clone()).filter(|error| !error.is_empty());
        }
    }

    fn describe_chunk(&mut self, entries: &[Entry], position: Position) -> bool {
        let entry = entries.iter().find(|entry| entry.position == position);
        if let Some(entry) = entry {
            self.fate = "waiting";
            self.lane_sequence = number(entry.number);
        }
        entry.is_some()
    }

    /// Called if the event is not pending anywhere.
    fn settle(&mut self, mark: Option<MarkState>) {
        (self.fate, self.reason) = match mark {
            Some(MarkState::Taken(_) | MarkState::Delivered(_)) => ("delivered", None),
            Some(MarkState::Released(_)) => ("purged", None),
            Some(MarkState::Later(_)) => {
                ("waiting", Some("the subscription has not read the event from the log yet".into()))
            }
            None => ("unknown", Some("the id window is over and the event is no longer pending".into())),
        };
    }
}

fn number(number: LaneNumber) -> Option<u64> {
    (number != LaneNumber(0)).then_some(number.0)
}
