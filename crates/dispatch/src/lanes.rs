//! The lanes that are in memory: those with something to do, and those that had until a moment ago.
//! All others are rows on disk. Slots are plain numbers, so that queues and timers can hold them cheaply. A slot
//! whose lane has left memory names no lane.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use klambda_core::ids::{Address, LaneNumber, Position, Sequence, SubscriptionId};
use klambda_core::lane::{Entry, Lane, State};
use klambda_core::outcome::Reason;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    index: u32,
    /// Counts the lanes that have had this place.
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
    /// The lane's event before the head.
    pub previous: Previous,
    pub previous_number: LaneNumber,
    /// The last event that left from behind the head: the one before what follows the head.
    pub behind: Option<(LaneNumber, Previous)>,
    /// The event in flight, to become `previous`.
    pub current_at: Address,
    pub current_id: String,
    /// Of the subscription's rules.
    pub epoch: u32,
    /// The newest step, where the chain of steps begins.
    pub last_step: Address,
    pub last_error: String,
    /// Of dead letters that were taken back or moved here, from before that; until they leave the lane.
    pub earlier: Vec<Earlier>,
    pub last_reason: Reason,
    /// No early event that is on disk has a lower sequence.
    pub early_from: Sequence,
    /// Differs from its row.
    pub dirty: bool,
    /// Which index row it has on disk.
    pub indexed: Indexed,
    /// Where it is listed by age on disk, and in memory; zero: it is not.
    pub aged_at: Position,
    pub listed_at: Position,
    /// No delivery starts before the log is durable up to here.
    pub barrier: Address,
    /// Stands in its subscription's ready queue.
    pub queued: bool,
    /// How it is counted in its subscription.
    pub counted: Option<State>,
    /// The earliest timer that is set for it; none: none.
    pub timer_at: Option<Millis>,
    /// Stands in the list of idle lanes.
    pub listed_idle: bool,
    /// Arrivals in this and the last ten seconds: the rate for people.
    pub rate: Rate,
    /// Its heap bytes, as counted in `Lanes::heap`.
    heap: usize,
}

/// What is known of a dead letter that goes back to its lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    pub position: Position,
    pub attempts: u32,
    /// The event before it, if it had a place; empty if none is known.
    pub previous_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Previous {
    #[default]
    None,
    Id(String),
    /// Not looked up yet: the event at this address.
    At(Address),
}

/// The index a lane's row is listed in on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexed {
    No,
    /// Something waits and will go on by itself.
    Waiting,
    /// Waits for a person.
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
    /// Those that have nothing to do, and some that had: the first to leave memory.
    idle: VecDeque<Slot>,
    /// Heap bytes of all lanes: entries, keys, ids, errors.
    heap: usize,
}

/// Estimate of one lane in memory: its place, its index entry and a few queued entries. Used to turn bytes into lanes.
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

    /// Bytes of places that hold no lane.
    pub fn slack_bytes(&self) -> usize {
        (self.places.capacity() - self.index.len()) * PLACE_BYTES
            + self.free.capacity() * size_of::<u32>()
            + self.idle.capacity() * size_of::<Slot>()
    }

    /// It has nothing to do for now.
    pub fn list_idle(&mut self, slot: Slot) {
        if let Some(resident) = resident_at(&mut self.places, slot)
            && !std::mem::replace(&mut resident.listed_idle, true)
        {
            self.idle.push_back(slot);
        }
    }

    /// The one that has been listed longest, and is no longer. It may have something to do by now.
    pub fn next_idle(&mut self) -> Option<Slot> {
        while let Some(slot) = self.idle.pop_front() {
            let resident = resident_at(&mut self.places, slot);
            if resident.is_some_and(|resident| std::mem::take(&mut resident.listed_idle)) {
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

    /// Names a lane to a breaker.
    pub fn tag(&self, subscription: SubscriptionId, key: &str) -> u64 {
        self.hash(subscription, key)
    }

    pub fn tag_of(&self, slot: Slot) -> u64 {
        self.get(slot).map_or(0, |resident| self.hash(resident.subscription, &resident.key))
    }

    /// Counts what a lane takes anew, after something happened to it.
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
                // Grow by an eighth instead of doubling: a place takes some 500 bytes.
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
                places[slot.index as usize].resident.as_ref().expect("an indexed lane is resident");
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
            previous: Previous::None,
            previous_number: LaneNumber(0),
            behind: None,
            current_at: Address(0),
            current_id: String::new(),
            epoch: 0,
            last_step: Address(0),
            last_error: String::new(),
            earlier: Vec::new(),
            early_from: Sequence(0),
            last_reason: Reason::RetriesExhausted,
            dirty: false,
            indexed: Indexed::No,
            aged_at: Position(0),
            listed_at: Position(0),
            barrier: Address(0),
            queued: false,
            counted: None,
            timer_at: None,
            listed_idle: false,
            rate: Rate::default(),
            heap: 0,
        }
    }

    fn heap_bytes(&self) -> usize {
        let id = |previous: &Previous| match previous {
            Previous::Id(id) => id.capacity(),
            Previous::None | Previous::At(_) => 0,
        };
        let behind = self.behind.as_ref().map_or(0, |(_, previous)| id(previous));
        let one = |earlier: &Earlier| size_of::<Earlier>() + earlier.previous_id.capacity();
        let earlier: usize = self.earlier.iter().map(one).sum();
        let own = self.key.len() + self.current_id.capacity() + self.last_error.capacity();
        let texts = own + id(&self.previous) + behind + earlier;
        self.lane.heap_bytes() + if planted::is_on(Bug::TextsUncounted) { 0 } else { texts }
    }

    /// Forgets what was expected under earlier rules.
    pub fn enter(&mut self, epoch: u32) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.dirty = true;
            if self.lane.depth() == 0 {
                self.lane.forget_sequence();
            }
        }
    }

    /// How far the log must be durable before the head may be delivered.
    pub fn needs_synced(&self) -> Address {
        let head = self.lane.head().map_or(Address(0), |(_, entry)| Address(entry.at.0 + 1));
        match () {
            () if planted::is_on(Bug::DeliveryBeforeSync) => Address(0),
            () if planted::is_on(Bug::DecisionUnsynced) => head,
            () => head.max(self.barrier),
        }
    }

    /// The attempts of a replayed dead letter from before its replay, once.
    pub fn take_earlier(&mut self, position: Position) -> u32 {
        let known = self.earlier.iter().position(|earlier| earlier.position == position);
        known.map_or(0, |n| self.earlier.swap_remove(n).attempts)
    }

    /// The event before this one in the lane, as it stood when this one had its turn.
    pub fn previous_id_of(&self, entry: &Entry) -> Option<String> {
        if entry.number > self.previous_number {
            return match &self.previous {
                Previous::Id(id) => Some(id.clone()),
                _ => None,
            };
        }
        let earlier = self.earlier.iter().find(|earlier| earlier.position == entry.position)?;
        Some(earlier.previous_id.clone()).filter(|id| !id.is_empty())
    }

    /// The index its row belongs in, as it is now.
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

    /// As `count_kind`, once no request is open.
    pub fn count_kind_at_rest(&self) -> Option<State> {
        let mut lane = self.lane.clone();
        if lane.in_flight() {
            lane.abandoned(lane.since());
        }
        (lane.depth() > 0 || lane.is_paused()).then(|| lane.state())
    }

    /// How it counts in its subscription's lanes by state: not at all when nothing waits.
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
        lanes.remove(first).expect("it was there");
        let second = lanes.insert(resident("second"));
        assert_eq!(first.index, second.index, "places are used again");
        assert!(
            lanes.get(first).is_none() && lanes.get_mut(first).is_none() && lanes.remove(first).is_none()
        );
        assert_eq!(lanes.get(second).map(|resident| &*resident.key), Some("second"));
        assert_eq!(lanes.iter().map(|(slot, _)| slot).collect::<Vec<Slot>>(), [second]);
    }
}
