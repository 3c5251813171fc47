//! Long queues: what is on disk of them, and what of that is in memory.

use super::missing;
use crate::dead_letters::Attempts;
use crate::engine::{Engine, Failure};
use crate::lanes::{Resident, Slot};
use crate::operate::Refused;
use crate::rows;
use klambda_core::ids::{Address, Position, Sequence, SubscriptionId};
use klambda_core::lane::{Action, CHUNK, Entry, Input};
use klambda_core::lane_row::{put_entries, put_entry, take_entries, take_entry};
use klambda_core::time::Millis;
use klambda_core::wire::Reader;
use klambda_store::record::Step;

/// The most events that leave a lane in one step: others are not to wait for longer than that takes.
pub(crate) const PART_EVENTS: usize = 2048;

impl Engine {
    /// A full back goes to disk, an empty front comes from there.
    pub(crate) fn settle_queue(&mut self, slot: Slot) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        if let Some((chunk, entries)) = resident.lane.take_chunk() {
            let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
            let mut row = Vec::new();
            put_entries(&mut row, entries.iter());
            self.store.rows.put(&rows::chunk(resident.subscription, &resident.key, chunk), &row);
            self.lanes.recount(slot);
        }
        self.load_chunk(slot)?;
        self.load_early(slot)
    }

    fn load_chunk(&mut self, slot: Slot) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let Some(chunk) = resident.lane.wanted_chunk() else { return Ok(()) };
        let (id, key) = (resident.subscription, resident.key.clone());
        let entries = self.chunk(id, &key, chunk)?;
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        resident.lane.load_chunk(entries.into_iter());
        self.lanes.recount(slot);
        self.store.rows.delete(&rows::chunk(id, &key, chunk));
        Ok(())
    }

    pub(crate) fn chunk(&self, id: SubscriptionId, key: &str, chunk: u64) -> Result<Vec<Entry>, Failure> {
        let row = self.store.rows.get(&rows::chunk(id, key, chunk))?;
        let row = row.ok_or_else(|| missing("a chunk of a lane's queue", key))?;
        Ok(take_entries(&mut Reader::new(&row))?)
    }

    /// The chunk on disk that holds the event if the queue is in order of arrival. Empty if none can.
    pub(crate) fn chunk_around(&self, resident: &Resident, at: Address) -> Result<Vec<Entry>, Failure> {
        let spilled = resident.lane.spilled();
        let (mut low, mut high) = (spilled.first_chunk, spilled.next_chunk);
        while low < high {
            let middle = low + (high - low) / 2;
            let entries = self.chunk(resident.subscription, &resident.key, middle)?;
            match (entries.first(), entries.last()) {
                (Some(first), _) if at < first.at => high = middle,
                (_, Some(last)) if at <= last.at => return Ok(entries),
                _ => low = middle + 1,
            }
        }
        Ok(Vec::new())
    }

    /// Whether the event is in the part of the lane's queue that is on disk. Where the queue is not in order of arrival
    /// (by a producer's sequence, or with dead letters that were taken back or moved here) the event may be in any of its
    /// chunks. It is not searched then, and counts as being there.
    pub(crate) fn is_in_chunks(&self, resident: &Resident, at: Address) -> Result<bool, Failure> {
        if resident.lane.spilled().entries == 0 {
            return Ok(false);
        }
        let is_sequenced = self.subscriptions.get(resident.subscription).is_some_and(|s| s.policy.sequenced);
        if is_sequenced || !resident.earlier.is_empty() {
            return Ok(true);
        }
        Ok(self.chunk_around(resident, at)?.iter().any(|entry| entry.at == at))
    }

    pub(crate) fn spill_early(&mut self, row: &[u8], entry: &Entry) {
        let mut value = Vec::new();
        put_entry(&mut value, entry);
        self.store.rows.put(row, &value);
    }

    pub(crate) fn is_sequence_spilled(
        &self,
        slot: Slot,
        sequence: Option<Sequence>,
    ) -> Result<bool, Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(false) };
        match sequence {
            Some(sequence) if resident.lane.has_spilled_early() => {
                let row = rows::early(resident.subscription, &resident.key, sequence);
                Ok(self.store.rows.get(&row)?.is_some())
            }
            _ => Ok(false),
        }
    }

    fn load_early(&mut self, slot: Slot) -> Result<(), Failure> {
        while let Some(resident) = self.lanes.get(slot)
            && resident.lane.wants_early()
        {
            let Some(subscription) = self.subscriptions.get(resident.subscription) else { return Ok(()) };
            let policy = subscription.policy;
            let limit = usize::try_from(policy.buffer_events_max).unwrap_or(usize::MAX).clamp(1, 10_000);
            let found = self.early_on_disk(slot, limit)?;
            let Some((last, _)) = found.last() else { return Err(missing("early events", &resident.key)) };
            let from = Sequence(rows::number_of(last).saturating_add(1));
            found.iter().for_each(|(row, _)| self.store.rows.delete(row));
            let entries = found.iter().map(|(row, entry)| (Sequence(rows::number_of(row)), *entry)).collect();
            let now = self.now;
            let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
            resident.early_from = from;
            let actions = resident.lane.load_early(entries, &policy, now);
            let at = resident.last_step;
            self.lanes.recount(slot);
            actions
                .into_iter()
                .try_for_each(|action| self.act(slot, action, Attempts::default(), now, at))?;
        }
        Ok(())
    }

    // ---- going --------------------------------------------------------------------------------------------

    /// Before a purge: what the lane has on disk goes too, and its ids are released. A chunk at a time is in memory.
    pub(crate) fn drop_spilled(&mut self, slot: Slot, time: Millis, at: Address) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let (id, key, spilled) = (resident.subscription, resident.key.clone(), resident.lane.spilled());
        if spilled.entries > 0 {
            for chunk in spilled.first_chunk..spilled.next_chunk {
                let row = rows::chunk(id, &key, chunk);
                if let Some(stored) = self.store.rows.get(&row)? {
                    self.store.rows.delete(&row);
                    let entries = take_entries(&mut Reader::new(&stored))?;
                    entries.iter().try_for_each(|entry| self.drop_entry(slot, entry, time, at))?;
                }
            }
        }
        loop {
            let found = self.early_on_disk(slot, CHUNK)?;
            if found.is_empty() {
                return Ok(());
            }
            found.iter().try_for_each(|early| self.drop_early(slot, early, time, at))?;
        }
    }

    /// The first of the early events on disk, with their rows.
    fn early_on_disk(&self, slot: Slot, limit: usize) -> Result<Vec<(Vec<u8>, Entry)>, Failure> {
        let Some(resident) = self.lanes.get(slot).filter(|resident| resident.lane.has_spilled_early()) else {
            return Ok(Vec::new());
        };
        let prefix = rows::early_prefix(resident.subscription, &resident.key);
        let from = rows::early(resident.subscription, &resident.key, resident.early_from);
        let found = self.store.rows.scan(&prefix, &from, limit)?;
        found.into_iter().map(|(row, value)| Ok((row, take_entry(&mut Reader::new(&value))?))).collect()
    }

    fn drop_early(
        &mut self,
        slot: Slot,
        (row, entry): &(Vec<u8>, Entry),
        time: Millis,
        at: Address,
    ) -> Result<(), Failure> {
        self.store.rows.delete(row);
        if let Some(resident) = self.lanes.get_mut(slot) {
            // Those that are gone are not looked through again.
            resident.early_from = Sequence(rows::number_of(row).saturating_add(1));
        }
        self.drop_entry(slot, entry, time, at)
    }

    /// An event that was on disk leaves its lane without success.
    fn drop_entry(&mut self, slot: Slot, entry: &Entry, time: Millis, at: Address) -> Result<(), Failure> {
        self.act(slot, Action::Dropped(*entry), Attempts::default(), time, at)
    }

    /// If more is on disk of a lane than may go in one step, a part of it goes; what is in flight and what holds the
    /// lane stays. Answers whether there was such a part: then there may be another. All of an unordered queue are parts.
    pub(crate) fn purge_part(&mut self, id: SubscriptionId, key: &str) -> Result<bool, Refused> {
        let slot = self.resident(id, key)?;
        let (early, positions) = self.next_part(slot)?;
        if positions.is_empty() {
            return Ok(false);
        }
        self.must_write()?;
        self.step_lane(id, key, Step::PurgePart { early, positions })?;
        Ok(true)
    }

    fn next_part(&self, slot: Slot) -> Result<(bool, Vec<Position>), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok((false, Vec::new())) };
        let (lane, spilled) = (&resident.lane, resident.lane.spilled());
        // What waits of an unordered subscription goes by name alone: a restart finds it in one queue with what was on its
        // way, and the two are told apart by nothing else.
        let is_long =
            if resident.key.is_empty() { lane.depth() > 0 } else { spilled.entries > PART_EVENTS as u64 };
        if is_long {
            let mut positions: Vec<Position> = lane.droppable_front().map(|entry| entry.position).collect();
            let mut chunks = spilled.first_chunk..spilled.next_chunk;
            while positions.len() < PART_EVENTS
                && let Some(chunk) = chunks.next()
            {
                let entries = self.chunk(resident.subscription, &resident.key, chunk)?;
                positions.extend(entries.iter().map(|entry| entry.position));
            }
            positions.truncate(PART_EVENTS);
            return Ok((false, positions));
        }
        if lane.early_on_disk() > PART_EVENTS as u64 {
            let found = self.early_on_disk(slot, PART_EVENTS)?;
            return Ok((true, found.iter().map(|(_, entry)| entry.position).collect()));
        }
        Ok((false, Vec::new()))
    }

    pub(crate) fn apply_purge_part(
        &mut self,
        at: Address,
        time: Millis,
        slot: Slot,
        early: bool,
        positions: &[Position],
    ) -> Result<(), Failure> {
        if !early {
            return positions.iter().try_for_each(|position| {
                self.must_be_droppable(slot, *position)?;
                self.step(slot, Input::DropOldest, time, at)
            });
        }
        for (early, position) in self.early_on_disk(slot, positions.len())?.iter().zip(positions) {
            if early.1.position != *position {
                return Err(Failure::State(format!("event {position} was purged out of its turn")));
            }
            self.drop_early(slot, early, time, at)?;
            if let Some(resident) = self.lanes.get_mut(slot) {
                resident.lane.drop_early_on_disk(&early.1);
            }
        }
        if let Some(resident) = self.lanes.get_mut(slot) {
            resident.dirty = true;
            resident.last_step = at;
        }
        Ok(())
    }
}
