//! Lists lanes by the age of the event that they would drop first.
//!
//! A subscription with `onFull: drop` has a row for each lane on disk, keyed by the position of that event. Lanes in
//! memory are listed in memory, together with the next few rows. So a drop checks only one or two lanes, regardless
//! of their number.
//!
//! A row is written with the row of its lane and is exact until the lane is loaded; from then on the list in memory
//! counts. A subscription that changes to `onFull: drop` while events are pending has no such rows. In that case each
//! drop lists a part of the lanes and takes the oldest of those listed so far.

use super::Oldest;
use crate::engine::{Engine, Failure};
use crate::lanes::{Resident, Slot};
use crate::rows;
use crate::subscription::Subscription;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::subscription::OnFull;
use klambda_core::time::Millis;
use std::collections::BTreeMap;

/// A list that was not used for this long is dropped.
const UNUSED_MS_MAX: u64 = 60_000;
/// Rows read at once.
const ROWS_AT_ONCE: usize = 512;
/// Lanes checked per drop, as long as some are not listed.
const LISTED_AT_ONCE: usize = 2048;

pub(crate) struct ByAge {
    /// Every lane in memory that could drop an event, listed at the position of that event or of an older one that
    /// has left.
    resident: BTreeMap<Position, Slot>,
    /// Lanes on disk listed before the horizon. Some may have been loaded since.
    stored: BTreeMap<Position, Box<str>>,
    /// Rows from this position on are not read yet.
    horizon: Position,
    used: Millis,
}

/// A lane that may have the oldest event.
enum First {
    Resident(Position, Slot),
    Stored(Position),
}

impl ByAge {
    fn first(&self) -> Option<First> {
        let resident = self.resident.first_key_value().map(|(position, slot)| (*position, *slot));
        let stored = self.stored.first_key_value().map(|(position, _)| *position);
        match (resident, stored) {
            (Some((position, slot)), stored) if stored.is_none_or(|stored| position < stored) => {
                Some(First::Resident(position, slot))
            }
            (_, stored) => stored.map(First::Stored),
        }
    }

    fn list_resident(&mut self, slot: Slot, resident: &mut Resident) {
        let first = resident.lane.first_droppable().map_or(Position(0), |entry| entry.position);
        if first != resident.listed.by_age {
            self.resident.remove(&resident.listed.by_age);
            if first > Position(0) {
                self.resident.insert(first, slot);
            }
            resident.listed.by_age = first;
        }
    }

    fn list_stored(&mut self, position: Position, key: &str) {
        if position >= self.horizon {
            return;
        }
        self.stored.insert(position, key.into());
        if self.stored.len() > 4 * ROWS_AT_ONCE
            && let Some(horizon) = self.stored.keys().nth(ROWS_AT_ONCE).copied()
        {
            self.stored.split_off(&horizon);
            self.horizon = horizon;
        }
    }

    /// Approximate memory use.
    pub(crate) fn memory_bytes(&self) -> usize {
        const RESIDENT_BYTES: usize = 2 * (size_of::<Position>() + size_of::<Slot>());
        const STORED_BYTES: usize = 2 * (size_of::<Position>() + size_of::<Box<str>>());
        let keys: usize = self.stored.values().map(|key| key.len()).sum();
        self.resident.len() * RESIDENT_BYTES + self.stored.len() * STORED_BYTES + keys
    }
}

impl Subscription {
    /// Called after a change of the document.
    pub(crate) fn decide_on_ages(&mut self) {
        let drops = self.document.spec.backlog.on_full == OnFull::Drop && self.is_ordered();
        self.on_disk.lists_ages = drops && (self.on_disk.lists_ages || self.tally.waiting == 0);
        if !drops {
            (self.on_disk.by_age, self.on_disk.ages_from) = (None, Vec::new());
        }
    }

    /// True if all lanes are listed, or are being listed, when they are stored.
    fn keeps_ages(&self) -> bool {
        self.on_disk.lists_ages || !self.on_disk.ages_from.is_empty()
    }

    /// Called after a change of a lane in memory.
    pub(crate) fn list_by_age(&mut self, slot: Slot, resident: &mut Resident, now: Millis) {
        let Some(by_age) = &mut self.on_disk.by_age else { return };
        if now.since(by_age.used) > UNUSED_MS_MAX {
            self.on_disk.by_age = None;
        } else {
            by_age.list_resident(slot, resident);
        }
    }

    /// The lane has left memory and exists only on disk.
    pub(crate) fn evicted_from_ages(&mut self, resident: &Resident) {
        let Some(by_age) = &mut self.on_disk.by_age else { return };
        by_age.resident.remove(&resident.listed.by_age);
        if let Some(entry) = resident.lane.first_droppable_at_rest() {
            by_age.list_stored(entry.position, &resident.key);
        }
    }
}

impl Engine {
    /// Updates the row by age.
    pub(crate) fn store_age(&mut self, slot: Slot) {
        let Some(resident) = self.lanes.get_mut(slot) else { return };
        let id = resident.subscription;
        if !self.subscriptions.get(id).is_some_and(Subscription::keeps_ages) {
            return;
        }
        let first = resident.lane.first_droppable_at_rest().map_or(Position(0), |entry| entry.position);
        if first == resident.row.aged_at {
            return;
        }
        if resident.row.aged_at > Position(0) {
            self.store.rows.delete(&rows::at_position(rows::BY_AGE, id, resident.row.aged_at));
        }
        if first > Position(0) {
            self.store.rows.put(&rows::at_position(rows::BY_AGE, id, first), resident.key.as_bytes());
        }
        resident.row.aged_at = first;
    }

    pub(super) fn oldest_in_lanes(&mut self, id: SubscriptionId) -> Result<Option<Oldest>, Failure> {
        self.list_unlisted(id)?;
        self.list_residents(id);
        loop {
            self.read_ages(id)?;
            let by_age = self.subscriptions.get(id).and_then(|s| s.on_disk.by_age.as_ref());
            let found = match by_age.and_then(|by_age| by_age.first()) {
                Some(First::Resident(position, slot)) => self.oldest_resident(id, position, slot),
                Some(First::Stored(position)) => self.oldest_stored(id, position)?,
                None => return Ok(None),
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// The event of the lane if its listed position is right. Otherwise corrects the list and returns `None`.
    fn oldest_resident(&mut self, id: SubscriptionId, position: Position, slot: Slot) -> Option<Oldest> {
        let by_age = self.subscriptions.get_mut(id)?.on_disk.by_age.as_mut()?;
        let is_listed = |r: &&mut Resident| r.subscription == id && r.listed.by_age == position;
        let Some(resident) = self.lanes.get_mut(slot).filter(is_listed) else {
            by_age.resident.remove(&position);
            return None;
        };
        match resident.lane.first_droppable() {
            Some(entry) if entry.position == position => {
                Some(Oldest { key: Some(resident.key.clone()), entry: *entry })
            }
            _ => {
                by_age.list_resident(slot, resident);
                None
            }
        }
    }

    /// Like `oldest_resident`, for a lane on disk. A lane that was loaded is listed in memory.
    fn oldest_stored(&mut self, id: SubscriptionId, position: Position) -> Result<Option<Oldest>, Failure> {
        let by_age = self.subscriptions.get(id).and_then(|s| s.on_disk.by_age.as_ref());
        let Some(key) = by_age.and_then(|by_age| by_age.stored.get(&position)) else { return Ok(None) };
        let key = key.clone();
        if self.lanes.find(id, &key).is_none() {
            let entry = self.first_on_disk(id, &key)?;
            if let Some(entry) = entry.filter(|entry| entry.position == position) {
                return Ok(Some(Oldest { key: Some(key), entry }));
            }
            // The row is outdated: the lane was stored while it was not listed.
            self.store.rows.delete(&rows::at_position(rows::BY_AGE, id, position));
        }
        if let Some(by_age) = self.subscriptions.get_mut(id).and_then(|s| s.on_disk.by_age.as_mut()) {
            by_age.stored.remove(&position);
        }
        Ok(None)
    }

    fn first_on_disk(&self, id: SubscriptionId, key: &str) -> Result<Option<Entry>, Failure> {
        let lane = self.peek_lane(id, key)?;
        Ok(lane.and_then(|resident| resident.lane.first_droppable().copied()))
    }

    /// Lists the lanes in memory, unless the list exists.
    fn list_residents(&mut self, id: SubscriptionId) {
        let now = self.now;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        if let Some(by_age) = &mut subscription.on_disk.by_age {
            by_age.used = now;
            return;
        }
        let (resident, stored) = (BTreeMap::new(), BTreeMap::new());
        let mut by_age = ByAge { resident, stored, horizon: Position(0), used: now };
        for (slot, resident) in self.lanes.iter_mut().filter(|(_, resident)| resident.subscription == id) {
            resident.listed.by_age = Position(0);
            by_age.list_resident(slot, resident);
        }
        subscription.on_disk.by_age = Some(Box::new(by_age));
    }

    /// Reads the next rows, unless some are left.
    fn read_ages(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let Some(by_age) = &mut subscription.on_disk.by_age else { return Ok(()) };
        while by_age.stored.is_empty() && by_age.horizon < Position(u64::MAX) {
            let from = rows::at_position(rows::BY_AGE, id, by_age.horizon);
            let found =
                self.store.rows.scan(&rows::of_subscription(rows::BY_AGE, id), &from, ROWS_AT_ONCE)?;
            by_age.horizon = match found.last() {
                Some((row, _)) if found.len() == ROWS_AT_ONCE => Position(rows::number_of(row) + 1),
                _ => Position(u64::MAX),
            };
            for (row, key) in found {
                let key = String::from_utf8(key).unwrap_or_default();
                if self.lanes.find(id, &key).is_none() {
                    by_age.stored.insert(Position(rows::number_of(&row)), key.into());
                }
            }
        }
        Ok(())
    }

    /// Lists some of the unlisted lanes on disk: first lanes that continue without help, then the others.
    /// Lists a part of the lanes that are not listed yet. Returns true if all are: only then is the oldest listed event
    /// the oldest event.
    pub(super) fn lists_every_lane(&mut self, id: SubscriptionId) -> Result<bool, Failure> {
        self.list_unlisted(id)?;
        Ok(self.subscriptions.get(id).is_none_or(|s| !s.is_ordered() || s.on_disk.lists_ages))
    }

    fn list_unlisted(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        if subscription.on_disk.lists_ages {
            return Ok(());
        }
        if subscription.on_disk.ages_from.is_empty() {
            subscription.on_disk.ages_from = rows::of_subscription(rows::WAITING, id);
        }
        let from = subscription.on_disk.ages_from.clone();
        let letter = from.first().copied().unwrap_or(rows::PARKED);
        let found = self.store.rows.scan(&rows::of_subscription(letter, id), &from, LISTED_AT_ONCE)?;
        found.iter().try_for_each(|(row, _)| self.list_unlisted_lane(id, rows::lane_of(row)))?;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        subscription.on_disk.ages_from = match found.last() {
            Some((row, _)) if found.len() == LISTED_AT_ONCE => [row.as_slice(), &[0]].concat(),
            _ if letter == rows::WAITING => {
                subscription.on_disk.ages_from = rows::of_subscription(rows::PARKED, id);
                return self.list_unlisted(id);
            }
            _ => Vec::new(),
        };
        subscription.on_disk.lists_ages = subscription.on_disk.ages_from.is_empty();
        Ok(())
    }

    fn list_unlisted_lane(&mut self, id: SubscriptionId, key: &str) -> Result<(), Failure> {
        if let Some(resident) = self.lanes.find(id, key).and_then(|slot| self.lanes.get_mut(slot)) {
            // The lane is listed when it is stored.
            (resident.row.dirty, resident.row.aged_at) = (true, Position(0));
            return Ok(());
        }
        let Some(entry) = self.first_on_disk(id, key)? else { return Ok(()) };
        self.store.rows.put(&rows::at_position(rows::BY_AGE, id, entry.position), key.as_bytes());
        if let Some(by_age) = self.subscriptions.get_mut(id).and_then(|s| s.on_disk.by_age.as_mut()) {
            by_age.list_stored(entry.position, key);
        }
        Ok(())
    }
}
