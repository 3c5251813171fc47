//! What became of one event in every subscription that took it.

use crate::dead_letters::Attempts;
use crate::engine::{Engine, Failure};
use crate::lanes::Resident;
use crate::rows;
use crate::subscription::{Single, Subscription};
use klambda_core::ids::{Address, LaneNumber, NamespaceId, Position, Sequence, SubscriptionId};
use klambda_core::lane::{Entry, State};
use klambda_store::marks::State as MarkState;
use klambda_store::record::{Record, To};
use serde::Serialize;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fate {
    pub subscription: String,
    pub key: Option<String>,
    pub fate: &'static str,
    /// Where the subscription took it from, since an event sent again after its id window is a new one.
    pub position: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane_sequence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The dead letter it is, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<String>,
}

/// Where an event was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// What marks and lanes know it by.
    pub at: Address,
    /// Where it stands now.
    pub located: Address,
}

/// Chunks of a queue on disk that are looked through one by one.
const CHUNKS_MAX: u64 = 64;

struct Place {
    key: Option<String>,
    sequence: Option<Sequence>,
}

impl Engine {
    /// Every place the event was written to, as far as marks remember. Oldest first.
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

    /// The fate of the event that was written at these places, in every subscription that took one of them.
    pub fn fates(
        &self,
        namespace: NamespaceId,
        source: &str,
        id: &str,
        written: &[(Address, Position)],
    ) -> Result<Vec<Fate>, Failure> {
        let identity = self.identity(namespace, source, id);
        let mut fates = Vec::new();
        for subscription in self.subscriptions.values().filter(|s| s.namespace == namespace) {
            let id = &subscription.id;
            let mark = self.store.marks.get(identity, *id)?;
            let here = match mark {
                Some(mark) => written.iter().find(|(at, _)| *at == mark.at),
                // The mark has expired: the record itself may still say where it went.
                None => written.last(),
            };
            let Some((at, position)) = here.copied() else { continue };
            let Some(place) = self.place_of(*id, at, mark.is_some())? else { continue };
            fates.push(self.fate(subscription, at, position, &place, mark.map(|mark| mark.state))?);
        }
        Ok(fates)
    }

    /// Where the event's record sent it. `by_rules`: it was taken, so its key can be told also if the record does not.
    fn place_of(&self, id: SubscriptionId, at: Address, by_rules: bool) -> Result<Option<Place>, Failure> {
        let record = self.read_event(at)?;
        let (Record::Event { routes, .. } | Record::Kept { routes, .. }) = Record::decode(&record)? else {
            return Ok(None);
        };
        Ok(match routes.into_iter().find(|route| route.subscription == id).map(|route| route.to) {
            Some(To::Lane { key, sequence }) => Some(Place { key: Some(key.to_owned()), sequence }),
            Some(To::Alone) => Some(Place { key: Some(String::new()), sequence: None }),
            Some(To::Invalid { .. }) => Some(Place { key: None, sequence: None }),
            Some(To::Later | To::Missed { .. }) => {
                Some(Place { key: self.lane_by_rules(id, &record)?, sequence: None })
            }
            None if by_rules => Some(Place { key: self.lane_by_rules(id, &record)?, sequence: None }),
            None => None,
        })
    }

    fn fate(
        &self,
        subscription: &Subscription,
        at: Address,
        position: Position,
        place: &Place,
        mark: Option<MarkState>,
    ) -> Result<Fate, Failure> {
        let mut fate = Fate {
            subscription: subscription.document.name.clone(),
            key: place.key.clone().filter(|key| !key.is_empty()),
            fate: "unknown",
            position: position.0,
            attempts: None,
            lane_sequence: None,
            reason: None,
            dead_letter: None,
        };
        if let Some(letter) = self.find_dead_letter(subscription.id, position)? {
            fate.fate = "deadLetter";
            fate.attempts = Some(letter.attempts.total);
            fate.lane_sequence = letter.lane_sequence();
            fate.reason = Some(format!("{}: {}", letter.reason.name(), letter.error));
            fate.dead_letter = Some(letter.id(&subscription.document.name));
        } else if let Some(single) = subscription.flow.singles.get(&position) {
            fate.describe_single(single);
        } else if !self.find_waiting(subscription.id, at, position, place, &mut fate)? {
            fate.settle(mark);
        }
        Ok(fate)
    }

    /// Looks for it among what waits in its lane.
    fn find_waiting(
        &self,
        id: SubscriptionId,
        at: Address,
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
        if let Some(entry) = resident.lane.entries().find(|entry| entry.at == at) {
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
        self.find_in_chunks(resident, at, position, fate)
    }

    /// The middle of a long queue: chunks on disk, nearly always in order of their positions.
    fn find_in_chunks(
        &self,
        resident: &Resident,
        at: Address,
        position: Position,
        fate: &mut Fate,
    ) -> Result<bool, Failure> {
        let spilled = resident.lane.spilled();
        if spilled.entries == 0 {
            return Ok(false);
        }
        if fate.describe_chunk(&self.chunk_around(resident, at)?, position) {
            return Ok(true);
        }
        let chunks = spilled.next_chunk - spilled.first_chunk;
        for chunk in (spilled.first_chunk..spilled.next_chunk).take(CHUNKS_MAX as usize) {
            let entries = self.chunk(resident.subscription, &resident.key, chunk)?;
            if fate.describe_chunk(&entries, position) {
                return Ok(true);
            }
        }
        Ok(chunks > CHUNKS_MAX)
    }
}

impl Fate {
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
            self.reason = Some(resident.last_error.clone()).filter(|error| !error.is_empty());
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

    /// It waits nowhere.
    fn settle(&mut self, mark: Option<MarkState>) {
        (self.fate, self.reason) = match mark {
            Some(MarkState::Taken(_) | MarkState::Delivered(_)) => ("delivered", None),
            Some(MarkState::Released(_)) => ("purged", None),
            Some(MarkState::Later(_)) => {
                ("waiting", Some("the subscription reads the log and comes to it later".into()))
            }
            None => ("unknown", Some("its id window is over, and it waits no longer".into())),
        };
    }
}

fn number(number: LaneNumber) -> Option<u64> {
    (number != LaneNumber(0)).then_some(number.0)
}
