//! Loads and evicts lanes. A lane is loaded when something happens to it, and goes back to its row when it is idle.
//! The middle of a long queue is on disk even while its lane is in memory.

mod queues;

pub(crate) use queues::PART_EVENTS;

use crate::engine::{Engine, Failure};
use crate::lanes::{Earlier, Indexed, Previous, Resident, Slot};
use crate::rows;
use crate::subscription::{Row, Subscription};
use crate::subscriptions::Work;
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::lane::Lane;
use klambda_core::outcome::Reason;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_core::webhook::EventId;
use klambda_core::wire::{Malformed, Reader, put_bytes, put_option, put_varint};
use klambda_store::address::LogAddress;
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Global {
    next_subscription: SubscriptionId,
    next_replay: u64,
    removed: Vec<SubscriptionId>,
    #[serde(default)]
    parted: crate::accept::FormerSubscriptions,
    #[serde(default)]
    known: crate::known_ids::KnownIds,
    now: Millis,
}

impl Engine {
    /// Returns the lane in memory; loads it from its row or creates it.
    pub(crate) fn resident(&mut self, id: SubscriptionId, key: &str) -> Result<Slot, Failure> {
        if let Some(slot) = self.lanes.find(id, key) {
            return Ok(slot);
        }
        let resident = match self.store.rows.get(&rows::of_lane(rows::LANE, id, key))? {
            Some(row) => self.decode_lane(id, key, &row)?,
            None => {
                let mut resident = Resident::new(id, key, Lane::new(self.now));
                resident.epoch = self.epoch_of(id);
                resident
            }
        };
        if resident.row.indexed == Indexed::Waiting
            && let Some(subscription) = self.subscriptions.get_mut(id)
        {
            subscription.on_disk.waiting = subscription.on_disk.waiting.saturating_sub(1);
        }
        let is_idle = resident.lane.is_idle();
        let slot = self.lanes.insert(resident);
        if is_idle {
            self.lanes.list_idle(slot);
        }
        // The lane is no longer in the index on disk, so from here on its own timer wakes it.
        self.touch(slot);
        Ok(slot)
    }

    fn epoch_of(&self, id: SubscriptionId) -> u32 {
        self.subscriptions.get(id).map_or(0, |subscription| subscription.life.epochs)
    }

    /// Reads a lane without loading it.
    pub(crate) fn peek_lane(&self, id: SubscriptionId, key: &str) -> Result<Option<Resident>, Failure> {
        let row = self.store.rows.get(&rows::of_lane(rows::LANE, id, key))?;
        row.map(|row| self.decode_lane(id, key, &row)).transpose()
    }

    /// Reads a lane from its row.
    pub(crate) fn decode_lane(&self, id: SubscriptionId, key: &str, row: &[u8]) -> Result<Resident, Failure> {
        let mut resident = Resident::new(id, key, Lane::new(Millis::ZERO));
        let r = &mut Reader::new(row);
        resident.last_step = LogAddress(r.varint()?);
        resident.before.number = LaneNumber(r.varint()?);
        resident.before.event = match r.text()? {
            "" => Previous::None,
            id => Previous::Id(id.to_owned()),
        };
        resident.failure.reason = Reason::from_code(r.u8()?).ok_or(Malformed("reason"))?;
        resident.failure.error = r.text()?.to_owned();
        for _ in 0..r.varint()? {
            let (position, attempts) = (Position(r.varint()?), r.u32()?);
            resident.earlier.push(Earlier { position, attempts, previous_id: r.text()?.to_owned() });
        }
        let (number, id_behind) = (LaneNumber(r.varint()?), r.text()?.to_owned());
        resident.before.behind = (number.0 > 0).then_some((number, Previous::Id(id_behind)));
        resident.epoch = r.u32()?;
        resident.before.placed = r.bytes()?.try_into().ok().map(EventId);
        resident.lane = Lane::decode(r)?;
        resident.row.dirty = false;
        resident.enter(self.epoch_of(id));
        resident.row.indexed = resident.index_kind();
        resident.listed.counted = resident.count_kind();
        let first = resident.lane.first_droppable_at_rest();
        if let Some(entry) =
            first.filter(|_| self.subscriptions.get(id).is_some_and(|s| s.on_disk.lists_ages))
        {
            resident.row.aged_at = entry.position;
        }
        if self.condition.live
            && let Some(subscription) = self.subscriptions.get(id)
        {
            let backoff =
                subscription.document.spec.retry.max_backoff_ms.max(klambda_core::retry::RETRY_AFTER_MS_MAX);
            resident.lane.clamp_timers(&subscription.policy, backoff, self.now);
        }
        Ok(resident)
    }

    /// Updates the lane's row and index.
    pub(crate) fn store_lane(&mut self, slot: Slot) -> Result<(), Failure> {
        self.resolve_previous(slot)?;
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        if !resident.row.dirty {
            return Ok(());
        }
        resident.row.dirty = false;
        let row = resident.row();
        let (id, key) = (resident.subscription, resident.key.clone());
        self.store.rows.put(&rows::of_lane(rows::LANE, id, &key), &row);
        self.store_index(slot);
        self.store_age(slot);
        Ok(())
    }

    fn store_index(&mut self, slot: Slot) {
        let Some(resident) = self.lanes.get_mut(slot) else { return };
        let (before, after) = (resident.row.indexed, resident.index_kind());
        let (id, key) = (resident.subscription, &resident.key);
        let row = |letter| rows::of_lane(letter, id, key);
        if before != after {
            match before {
                Indexed::Waiting => self.store.rows.delete(&row(rows::WAITING)),
                Indexed::Parked => self.store.rows.delete(&row(rows::PARKED)),
                Indexed::No => {}
            }
        }
        let mut due = Vec::new();
        put_option(&mut due, resident.lane.wake_at().map(|at| at.0));
        match after {
            Indexed::Waiting => self.store.rows.put(&row(rows::WAITING), &due),
            Indexed::Parked if before != after => self.store.rows.put(&row(rows::PARKED), &[]),
            _ => {}
        }
        resident.row.indexed = after;
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            let lanes = &mut subscription.tally.waiting_lanes;
            *lanes = *lanes + u64::from(after == Indexed::Waiting) - u64::from(before == Indexed::Waiting);
        }
    }

    /// Moves a lane from memory to its row.
    pub(crate) fn evict(&mut self, slot: Slot) -> Result<(), Failure> {
        self.store_lane(slot)?;
        let Some(resident) = self.lanes.remove(slot) else { return Ok(()) };
        let due = self.due(&resident);
        if let Some(subscription) = self.subscriptions.get_mut(resident.subscription) {
            subscription.evicted_from_ages(&resident);
        }
        if resident.row.indexed == Indexed::Waiting
            && let Some(subscription) = self.subscriptions.get_mut(resident.subscription)
        {
            subscription.on_disk.waiting += 1;
            if planted::is_on(Bug::ColdNeverWoken) {
                return Ok(());
            }
            subscription.on_disk.due = subscription.on_disk.due.min(due);
            // A scan of the index that is under way may have passed its key.
            subscription.on_disk.seen_due = subscription.on_disk.seen_due.min(due);
        }
        Ok(())
    }

    /// Looks up the ids of the lane's previous events, so that the events themselves may be deleted.
    pub(crate) fn resolve_previous(&mut self, slot: Slot) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let id = resident.subscription;
        let before = match resident.before.event {
            Previous::At(at) => Some(self.id_at(id, at)?),
            _ => None,
        };
        if let (Some(resident), Some(previous)) = (self.lanes.get_mut(slot), before) {
            resident.before.event = previous;
        }
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let behind = match resident.before.behind {
            Some((number, Previous::At(at))) => Some((number, self.id_at(id, at)?)),
            _ => return Ok(()),
        };
        if let Some(resident) = self.lanes.get_mut(slot) {
            resident.before.behind = behind;
        }
        Ok(())
    }

    /// `None` if the event cannot be read: the following event then names no previous event rather than a wrong one.
    fn id_at(&mut self, subscription: SubscriptionId, at: LogAddress) -> Result<Previous, Failure> {
        let id = match self.has_feed(subscription) {
            true => self.event_id_of(subscription, at)?.map(|id| id.to_string()),
            false => self.read_back(at, |_, event| event.id().to_owned())?,
        };
        Ok(id.map_or(Previous::None, Previous::Id))
    }

    // ---- all lanes ----------------------------------------------------------------------------------------

    /// Loads the state of the last checkpoint.
    pub(crate) fn load_rows(&mut self) -> Result<(), Failure> {
        if let Some(row) = self.store.rows.get(rows::GLOBAL)? {
            let global: Global = from_json(&row)?;
            self.subscriptions.set_next(global.next_subscription);
            self.maintenance.set_removed_stored(global.removed.clone());
            self.subscriptions.set_removed(global.removed);
            self.subscriptions.parted = global.parted;
            self.known_ids = global.known;
            self.replays.next_id = global.next_replay.max(1);
            self.now = self.now.max(global.now);
        }
        self.load_namespaces()?;
        for (key, row) in self.store.rows.scan(&[rows::SUBSCRIPTION], &[], usize::MAX)? {
            let id = rows::subscription_of(&key);
            let row: Row = from_json(&row)?;
            let mut subscription =
                Subscription::from_row(id, row).ok_or(Malformed("subscription document"))?;
            // Events that were unread at the checkpoint are only in the log.
            subscription.unread.from =
                Position(self.store.manifest.checkpoint().next_position.0.saturating_sub(1));
            subscription.flow.endpoint =
                self.calls.endpoints.join(subscription.namespace, &subscription.document);
            self.subscriptions.add(subscription);
        }
        self.load_unordered()?;
        self.load_edits()?;
        for (key, row) in self.store.rows.scan(&[rows::REPLAY], &[], usize::MAX)? {
            let text = String::from_utf8(row).map_err(|_| Malformed("replay"))?;
            self.replays.put(rows::number_of(&key), &text);
        }
        Ok(())
    }

    /// Converts everything that is only in memory to rows: the first step of a checkpoint.
    pub(crate) fn store_all(&mut self) -> Result<(), Failure> {
        let is_left_out = |r: &Resident| planted::is_on(Bug::CheckpointSkipsBusy) && r.lane.in_flight();
        let is_due = |resident: &Resident| resident.row.dirty && !is_left_out(resident);
        let dirty: Vec<Slot> =
            self.lanes.iter().filter(|(_, resident)| is_due(resident)).map(|(slot, _)| slot).collect();
        dirty.into_iter().try_for_each(|slot| self.store_lane(slot))?;
        // The progress of subscriptions that read moves with the log, even if nothing else happens to them.
        let mut ids = self.subscriptions.with(Work::Reading);
        ids.extend(self.subscriptions.unstored());
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            self.store_subscription(id)?;
        }
        self.subscriptions.all_stored();
        let global = Global {
            next_subscription: self.subscriptions.next(),
            next_replay: self.replays.next_id,
            removed: self.subscriptions.removed().to_vec(),
            parted: self.subscriptions.parted.clone(),
            known: self.known_ids.clone(),
            now: self.now,
        };
        self.store.rows.put(rows::GLOBAL, &to_json(&global)?);
        for (id, job) in self.replays.changed() {
            self.store.rows.put(&rows::replay(id), job.as_bytes());
        }
        Ok(())
    }

    fn store_subscription(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        self.set_cursor(id);
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let mut row = subscription.row();
        // An open request ends with the process, so its lane is counted as it will be after a restart.
        for flight in self.calls.iter().map(|(_, flight)| flight).filter(|flight| flight.subscription == id) {
            if let crate::engine::Who::Lane(slot) = flight.who
                && let Some(resident) = self.lanes.get(slot)
            {
                row.tally.recount(resident.listed.counted, resident.count_kind_at_rest());
            }
        }
        subscription.unordered.store(id, &mut self.store.rows);
        self.store.rows.put(&rows::of_subscription(rows::SUBSCRIPTION, id), &to_json(&row)?);
        self.store_feed(id);
        Ok(())
    }

    /// After recovery, builds timers, queues and counters from state.
    pub(crate) fn go_live(&mut self) -> Result<(), Failure> {
        self.condition.live = true;
        let slots: Vec<Slot> = self.lanes.iter().map(|(slot, _)| slot).collect();
        let now = self.now;
        for slot in slots {
            if let Some(resident) = self.lanes.get_mut(slot)
                && resident.lane.in_flight()
            {
                resident.lane.abandoned(now);
            }
            self.clamp(slot);
            self.touch(slot);
        }
        for subscription in self.subscriptions.values() {
            for (position, single) in &subscription.unordered.under_way {
                let at = single.retry_at.unwrap_or(Millis::ZERO).min(self.now + 3_600_000);
                self.wakeups.single_until(at, subscription.id, *position);
            }
        }
        Ok(())
    }

    fn clamp(&mut self, slot: Slot) {
        let now = self.now;
        let Some(resident) = self.lanes.get_mut(slot) else { return };
        let Some(subscription) = self.subscriptions.get(resident.subscription) else { return };
        resident.lane.clamp_timers(&subscription.policy, klambda_core::retry::RETRY_AFTER_MS_MAX, now);
    }

    // ---- due lanes on disk --------------------------------------------------------------------------------

    pub(crate) fn cold_due(&self) -> Option<Millis> {
        let ready_max = self.ready_max();
        let waits = |s: &&Subscription| s.flow.ready.len() < ready_max && !s.is_paused();
        let cold = self.subscriptions.each_with(Work::Cold).filter(waits);
        cold.map(|subscription| subscription.on_disk.due).min()
    }

    /// Loads due lanes in portions, while their subscription has little other work.
    pub(crate) fn warm_up(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let batch = self.ready_max();
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        if subscription.on_disk.waiting == 0
            || subscription.flow.ready.len() >= batch
            || subscription.on_disk.due > self.now
            || subscription.is_paused()
        {
            return Ok(());
        }
        let prefix = rows::of_subscription(rows::WAITING, id);
        let from = subscription.on_disk.cursor.clone();
        let found = self.store.rows.scan(&prefix, &from, batch)?;
        let wrapped = found.len() < batch;
        let mut next_due = Millis::NEVER;
        for (row, due) in &found {
            let key = rows::lane_of(row);
            let due = Millis(Reader::new(due).option()?.unwrap_or(0));
            if self.lanes.find(id, key).is_some() {
                continue;
            }
            if due > self.now {
                next_due = next_due.min(due);
                continue;
            }
            self.resident(id, key)?;
        }
        let now = self.now;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        subscription.on_disk.seen_due = subscription.on_disk.seen_due.min(next_due);
        if wrapped {
            subscription.on_disk.cursor.clear();
            subscription.on_disk.due =
                std::mem::replace(&mut subscription.on_disk.seen_due, Millis::NEVER).max(now + 1);
        } else {
            subscription.on_disk.cursor =
                found.last().map(|(row, _)| [row.as_slice(), &[0]].concat()).unwrap_or_default();
        }
        Ok(())
    }
}

impl Resident {
    /// The row of the lane. The ids of the previous events must be resolved first.
    pub(crate) fn row(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(128);
        put_varint(&mut row, self.last_step.0);
        put_varint(&mut row, self.before.number.0);
        let previous = match &self.before.event {
            Previous::Id(id) => id.as_str(),
            _ => "",
        };
        put_bytes(&mut row, previous.as_bytes());
        row.push(self.failure.reason.code());
        put_bytes(&mut row, self.failure.error.as_bytes());
        put_varint(&mut row, self.earlier.len() as u64);
        for earlier in &self.earlier {
            put_varint(&mut row, earlier.position.0);
            put_varint(&mut row, u64::from(earlier.attempts));
            put_bytes(&mut row, earlier.previous_id.as_bytes());
        }
        let behind = match &self.before.behind {
            Some((number, Previous::Id(id))) => (number.0, id.as_str()),
            _ => (0, ""),
        };
        put_varint(&mut row, behind.0);
        put_bytes(&mut row, behind.1.as_bytes());
        put_varint(&mut row, u64::from(self.epoch));
        put_bytes(&mut row, self.before.placed.as_ref().map_or(&[], |id| id.0.as_slice()));
        self.lane.encode(&mut row);
        row
    }
}

fn missing(what: &str, key: &str) -> Failure {
    Failure::State(format!("{what} of key {key:?} not found in the tables"))
}

pub(crate) fn from_json<T: serde::de::DeserializeOwned>(row: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(row).map_err(|error| Failure::State(format!("could not decode a row: {error}")))
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(value).map_err(|error| Failure::State(error.to_string()))
}
