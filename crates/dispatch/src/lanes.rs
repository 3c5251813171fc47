//! The lanes in memory: those that have work, and those that recently had. All others are rows on disk. Slots are
//! plain numbers, so that queues and timers can store them cheaply. A slot is invalid once its lane has left memory.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use klambda_core::ids::{LaneNumber, Position, Sequence, SubscriptionId};
use klambda_core::lane::{Entry, Lane, State};
use klambda_core::outcome::Reason;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_core::webhook::EventId;
use klambda_store::address::{Kept, LogAddress};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    index: u32,
    /// Incremented whenever the place gets another lane.
    turn: u32,
}

#[derive(Default)]
struct Place {
    turn: u32,
    resident: Option<Resident>,
}

pub struct Resident {
    pub subscription: SubscriptionId,
    pub key: Box<str>,
    pub lane: Lane,
    pub before: Before,
    /// The epoch of the subscription's rules.
    pub epoch: u32,
    /// The newest step, where the chain of steps begins.
    pub last_step: LogAddress,
    /// Why the head failed last.
    pub failure: Failed,
    /// Data of replayed or moved dead letters, until they leave the lane.
    pub earlier: Vec<Earlier>,
    /// No early event on disk has a lower sequence.
    pub early_from: Sequence,
    /// No delivery starts before the log is durable up to this address.
    pub barrier: LogAddress,
    pub row: RowState,
    pub listed: Listed,
    /// Arrivals in the current and the previous period of ten seconds, to display the rate.
    pub rate: Rate,
    /// The heap bytes of this lane that are included in `Lanes::heap`.
    heap: usize,
}

/// The events that the following events name as their previous event.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// The event before the head.
    pub event: Previous,
    pub number: LaneNumber,
    /// The last event that left from behind the head. It precedes the event that follows the head.
    pub behind: Option<(LaneNumber, Previous)>,
    /// The event in flight, which becomes `event` when it leaves.
    pub current_at: LogAddress,
    pub current_id: String,
    /// In the lane of a webhook endpoint: the event that took a place last.
    pub placed: Option<EventId>,
}

#[derive(Clone, Debug)]
pub struct Failed {
    pub reason: Reason,
    pub error: String,
}

/// The state of the row of a lane in memory.
#[derive(Clone, Copy, Debug)]
pub struct RowState {
    /// The lane differs from its row.
    pub dirty: bool,
    /// Which index row the lane has.
    pub indexed: Indexed,
    /// The position in the list by age; 0 if the lane is not listed.
    pub aged_at: Position,
}

/// The lists in memory that contain the lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Listed {
    /// In the ready queue of its subscription.
    pub ready: bool,
    /// The state under which the subscription counts the lane.
    pub counted: Option<State>,
    /// The earliest timer of the lane, if one is set.
    pub timer_at: Option<Millis>,
    /// In the list of idle lanes.
    pub idle: bool,
    /// The position in the list by age; 0 if the lane is not listed.
    pub by_age: Position,
}

/// Data of a dead letter that returns to its lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    pub position: Position,
    pub attempts: u32,
    /// The id of the event before it, if it had a place; empty if unknown.
    pub previous_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Previous {
    #[default]
    None,
    Id(String),
    /// Not looked up yet: the event at this address.
    At(LogAddress),
}

/// The index on disk that lists the lane's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexed {
    No,
    /// Events are pending and will continue without help.
    Waiting,
    /// The lane waits for an operator.
    Parked,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    period: u64,
    current: u32,
    last: u32,
}

impl Rate {
    const PERIOD_MS: u64 = 10_000;

    pub fn count(&mut self, now: Millis) {
        self.turn(now);
        self.current += 1;
    }

    fn turn(&mut self, now: Millis) {
        let period = now.0 / Self::PERIOD_MS;
        if period != self.period {
            self.last = if period == self.period + 1 { self.current } else { 0 };
            self.current = 0;
            self.period = period;
        }
    }

    pub fn per_second(mut self, now: Millis) -> f64 {
        self.turn(now);
        let into = now.0 % Self::PERIOD_MS;
        let share = 1.0 - into as f64 / Self::PERIOD_MS as f64;
        (f64::from(self.current) + f64::from(self.last) * share) * 1000.0 / Self::PERIOD_MS as f64
    }
}

#[derive(Default)]
pub struct Lanes {
    places: Vec<Place>,
    /// Indexes of free places.
    free: Vec<u32>,
    index: HashTable<Slot>,
    hasher: FixedState,
    /// Lanes without work, and some that have got work since. They leave memory first.
    idle: VecDeque<Slot>,
    /// Heap bytes of all lanes: entries, keys, ids, errors.
    heap: usize,
}

/// Estimated memory of a lane: its place, its index entry and a few queued entries. Converts bytes into lanes.
pub const LANE_BYTES: usize = PLACE_BYTES + INDEX_BYTES + 4 * size_of::<Entry>();
const PLACE_BYTES: usize = size_of::<Place>();
/// A hash table keeps about half of its buckets free.
const INDEX_BYTES: usize = 2 * (size_of::<Slot>() + 1);
/// The part of a lane that is not in `heap`.
const OWN_BYTES: usize = PLACE_BYTES + INDEX_BYTES;

impl Lanes {
    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn memory_bytes(&self) -> usize {
        self.index.len() * OWN_BYTES + self.heap
    }

    /// Bytes of places without a lane.
    pub fn slack_bytes(&self) -> usize {
        (self.places.capacity() - self.index.len()) * PLACE_BYTES
            + self.free.capacity() * size_of::<u32>()
            + self.idle.capacity() * size_of::<Slot>()
    }

    /// Lists a lane that has no work for now.
    pub fn list_idle(&mut self, slot: Slot) {
        if let Some(resident) = resident_at(&mut self.places, slot)
            && !std::mem::replace(&mut resident.listed.idle, true)
        {
            self.idle.push_back(slot);
        }
    }

    /// Takes the lane that was listed longest. It may have work by now.
    pub fn next_idle(&mut self) -> Option<Slot> {
        while let Some(slot) = self.idle.pop_front() {
            let resident = resident_at(&mut self.places, slot);
            if resident.is_some_and(|resident| std::mem::take(&mut resident.listed.idle)) {
                return Some(slot);
            }
        }
        None
    }

    pub fn find(&self, subscription: SubscriptionId, key: &str) -> Option<Slot> {
        let hash = self.hash(subscription, key);
        self.index.find(hash, |slot| self.is(*slot, subscription, key)).copied()
    }

    fn is(&self, slot: Slot, subscription: SubscriptionId, key: &str) -> bool {
        self.get(slot).is_some_and(|resident| resident.subscription == subscription && *resident.key == *key)
    }

    fn hash(&self, subscription: SubscriptionId, key: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(subscription.0);
        hasher.write(key.as_bytes());
        hasher.finish()
    }

    /// Identifies a lane to a breaker.
    pub fn tag(&self, subscription: SubscriptionId, key: &str) -> u64 {
        self.hash(subscription, key)
    }

    pub fn tag_of(&self, slot: Slot) -> u64 {
        self.get(slot).map_or(0, |resident| self.hash(resident.subscription, &resident.key))
    }

    /// Recounts the memory of a lane after a change.
    pub fn recount(&mut self, slot: Slot) -> Option<&mut Resident> {
        let resident = resident_at(&mut self.places, slot)?;
        let (before, heap) = (resident.heap, resident.heap_bytes());
        resident.heap = heap;
        self.heap = self.heap + heap - before;
        Some(resident)
    }

    pub fn insert(&mut self, mut resident: Resident) -> Slot {
        let hash = self.hash(resident.subscription, &resident.key);
        resident.heap = resident.heap_bytes();
        self.heap += resident.heap;
        let index = self.free.pop().unwrap_or_else(|| {
            if self.places.len() == self.places.capacity() {
                // Grow by an eighth instead of doubling, because a place takes about 500 bytes.
                self.places.reserve_exact(self.places.len() / 8 + 64);
            }
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        let slot = Slot { index, turn: place.turn };
        place.resident = Some(resident);
        let (places, hasher) = (&self.places, &self.hasher);
        self.index.insert_unique(hash, slot, |slot| {
            let resident =
                places[slot.index as usize].resident.as_ref().expect("an indexed lane must be in memory");
            let mut hasher = hasher.build_hasher();
            hasher.write_u32(resident.subscription.0);
            hasher.write(resident.key.as_bytes());
            hasher.finish()
        });
        slot
    }

    pub fn remove(&mut self, slot: Slot) -> Option<Resident> {
        let place = self.places.get_mut(slot.index as usize).filter(|place| place.turn == slot.turn)?;
        let resident = place.resident.take()?;
        place.turn = place.turn.wrapping_add(1);
        let hash = self.hash(resident.subscription, &resident.key);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.free.push(slot.index);
        self.heap -= resident.heap;
        Some(resident)
    }

    pub fn get(&self, slot: Slot) -> Option<&Resident> {
        self.places.get(slot.index as usize).filter(|place| place.turn == slot.turn)?.resident.as_ref()
    }

    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Resident> {
        resident_at(&mut self.places, slot)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Slot, &mut Resident)> {
        let numbered = (0..).zip(&mut self.places);
        numbered
            .filter_map(|(index, place)| Some((Slot { index, turn: place.turn }, place.resident.as_mut()?)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Resident)> {
        let numbered = (0..).zip(&self.places);
        numbered
            .filter_map(|(index, place)| Some((Slot { index, turn: place.turn }, place.resident.as_ref()?)))
    }
}

fn resident_at(places: &mut [Place], slot: Slot) -> Option<&mut Resident> {
    places.get_mut(slot.index as usize).filter(|place| place.turn == slot.turn)?.resident.as_mut()
}

impl Resident {
    pub fn new(subscription: SubscriptionId, key: &str, lane: Lane) -> Resident {
        Resident {
            subscription,
            key: key.into(),
            lane,
            before: Before::default(),
            epoch: 0,
            last_step: LogAddress(0),
            failure: Failed { reason: Reason::RetriesExhausted, error: String::new() },
            earlier: Vec::new(),
            early_from: Sequence(0),
            barrier: LogAddress(0),
            row: RowState { dirty: false, indexed: Indexed::No, aged_at: Position(0) },
            listed: Listed::default(),
            rate: Rate::default(),
            heap: 0,
        }
    }

    fn heap_bytes(&self) -> usize {
        let id = |previous: &Previous| match previous {
            Previous::Id(id) => id.capacity(),
            Previous::None | Previous::At(_) => 0,
        };
        let behind = self.before.behind.as_ref().map_or(0, |(_, previous)| id(previous));
        let one = |earlier: &Earlier| size_of::<Earlier>() + earlier.previous_id.capacity();
        let earlier: usize = self.earlier.iter().map(one).sum();
        let own = self.key.len() + self.before.current_id.capacity() + self.failure.error.capacity();
        let texts = own + id(&self.before.event) + behind + earlier;
        self.lane.heap_bytes() + if planted::is_on(Bug::TextsUncounted) { 0 } else { texts }
    }

    /// Forgets the sequence that was expected under earlier rules.
    pub fn enter(&mut self, epoch: u32) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.row.dirty = true;
            if self.lane.depth() == 0 {
                self.lane.forget_sequence();
            }
        }
    }

    /// How far the log must be durable before the head may be delivered.
    pub fn needs_synced(&self) -> LogAddress {
        let head = self.lane.head().map_or(LogAddress(0), |(_, entry)| entry.address().after());
        match () {
            () if planted::is_on(Bug::DeliveryBeforeSync) => LogAddress(0),
            () if planted::is_on(Bug::DecisionUnsynced) => head,
            () => head.max(self.barrier),
        }
    }

    /// Takes the attempts that a replayed dead letter had before its replay.
    /// The attempts of an event before it became a dead letter and was replayed.
    pub fn tried_earlier(&self, position: Position) -> u32 {
        let earlier = self.earlier.iter().find(|earlier| earlier.position == position);
        earlier.map_or(0, |earlier| earlier.attempts)
    }

    pub fn take_earlier(&mut self, position: Position) -> u32 {
        let known = self.earlier.iter().position(|earlier| earlier.position == position);
        known.map_or(0, |n| self.earlier.swap_remove(n).attempts)
    }

    /// The id of the event before this one in the lane, as of this event's turn.
    pub fn previous_id_of(&self, entry: &Entry) -> Option<String> {
        if entry.number > self.before.number {
            return match &self.before.event {
                Previous::Id(id) => Some(id.clone()),
                _ => None,
            };
        }
        let earlier = self.earlier.iter().find(|earlier| earlier.position == entry.position)?;
        Some(earlier.previous_id.clone()).filter(|id| !id.is_empty())
    }

    /// The index for the lane's current state.
    pub fn index_kind(&self) -> Indexed {
        if self.lane.depth() == 0 {
            Indexed::No
        } else if self.lane.is_paused() || self.waits_for_a_person() {
            Indexed::Parked
        } else {
            Indexed::Waiting
        }
    }

    fn waits_for_a_person(&self) -> bool {
        self.lane.hold().is_some() && self.lane.head().is_none() && self.lane.gap_timer().is_none()
    }

    /// Like `count_kind`, but as if no request were open.
    pub fn count_kind_at_rest(&self) -> Option<State> {
        let mut lane = self.lane.clone();
        if lane.in_flight() {
            lane.abandoned(lane.since());
        }
        (lane.depth() > 0 || lane.is_paused()).then(|| lane.state())
    }

    /// The state under which the subscription counts the lane; `None` if nothing is pending.
    pub fn count_kind(&self) -> Option<State> {
        (self.lane.depth() > 0 || self.lane.is_paused()).then(|| self.lane.state())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(key: &str) -> Resident {
        Resident::new(SubscriptionId(1), key, Lane::new(Millis(0)))
    }

    #[test]
    fn a_slot_that_is_held_for_longer_than_its_lane_names_no_other() {
        let mut lanes = Lanes::default();
        let first = lanes.insert(resident("first"));
        lanes.remove(first).expect("the lane is in memory");
        let second = lanes.insert(resident("second"));
        assert_eq!(first.index, second.index, "the place is reused");
        assert!(
            lanes.get(first).is_none() && lanes.get_mut(first).is_none() && lanes.remove(first).is_none()
        );
        assert_eq!(lanes.get(second).map(|resident| &*resident.key), Some("second"));
        assert_eq!(lanes.iter().map(|(slot, _)| slot).collect::<Vec<Slot>>(), [second]);
    }
}
