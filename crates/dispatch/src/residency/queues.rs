//! Long queues: which part is on disk, and which is in memory.

use super::missing;
use crate::dead_letters::Attempts;
use crate::engine::{Engine, Failure};
use crate::lanes::{Resident, Slot};
use crate::operate::Refused;
use crate::rows;
use klambda_core::ids::{Position, Sequence, SubscriptionId};
use klambda_core::lane::{Action, CHUNK, Entry, Input};
use klambda_core::lane_row::{put_entries, put_entry, take_entries, take_entry};
use klambda_core::time::Millis;
use klambda_core::wire::Reader;
use klambda_store::address::LogAddress;
use klambda_store::record::Step;

/// Maximum number of events that leave a lane in one step, so that other work does not wait long.
pub(crate) const PART_EVENTS: usize = 2048;

impl Engine {
    /// Moves a full back of the queue to disk, and loads an empty front from there.
    pub(crate) fn settle_queue(&mut self, slot: Slot) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        if let Some((chunk, entries)) = resident.lane.queue_mut().take_chunk() {
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
        let Some(chunk) = resident.lane.queue().wanted_chunk() else { return Ok(()) };
        let (id, key) = (resident.subscription, resident.key.clone());
        let entries = self.chunk(id, &key, chunk)?;
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        resident.lane.queue_mut().load_chunk(entries.into_iter());
        self.lanes.recount(slot);
        self.store.rows.delete(&rows::chunk(id, &key, chunk));
        Ok(())
    }

    pub(crate) fn chunk(&self, id: SubscriptionId, key: &str, chunk: u64) -> Result<Vec<Entry>, Failure> {
        let row = self.store.rows.get(&rows::chunk(id, key, chunk))?;
        let row = row.ok_or_else(|| missing("a chunk of a lane's queue", key))?;
        Ok(take_entries(&mut Reader::new(&row))?)
    }

    /// The chunk on disk that contains the event if the queue is in order of arrival. Empty if there is none.
    pub(crate) fn chunk_around(&self, resident: &Resident, at: LogAddress) -> Result<Vec<Entry>, Failure> {
        let read = |chunk| self.chunk(resident.subscription, &resident.key, chunk);
        resident.lane.queue().chunk_around(at.into(), read)
    }

    /// True if the event is in the part of the lane's queue that is on disk. If the queue is not in order of arrival
    /// (because of a producer's sequence, or of replayed or moved dead letters), the event may be in any chunk. In
    /// that case the queue is not searched, and the result is true.
    pub(crate) fn is_in_chunks(&self, resident: &Resident, at: LogAddress) -> Result<bool, Failure> {
        if resident.lane.queue().spilled().entries == 0 {
            return Ok(false);
        }
        let is_sequenced = self.subscriptions.get(resident.subscription).is_some_and(|s| s.policy.sequenced);
        if is_sequenced || !resident.earlier.is_empty() {
            return Ok(true);
        }
        Ok(self.chunk_around(resident, at)?.iter().any(|entry| entry.at == at.into()))
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

    // ---- dropping events ----------------------------------------------------------------------------------

    /// Before a purge: drops the events of the lane that are on disk and releases their ids, one chunk at a time.
    pub(crate) fn drop_spilled(&mut self, slot: Slot, time: Millis, at: LogAddress) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let (id, key, spilled) =
            (resident.subscription, resident.key.clone(), resident.lane.queue().spilled());
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

    /// The first early events on disk, with their rows.
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
        at: LogAddress,
    ) -> Result<(), Failure> {
        self.store.rows.delete(row);
        if let Some(resident) = self.lanes.get_mut(slot) {
            // Deleted rows are not scanned again.
            resident.early_from = Sequence(rows::number_of(row).saturating_add(1));
        }
        self.drop_entry(slot, entry, time, at)
    }

    /// An event on disk leaves its lane without success.
    fn drop_entry(&mut self, slot: Slot, entry: &Entry, time: Millis, at: LogAddress) -> Result<(), Failure> {
        self.act(slot, Action::Dropped(*entry), Attempts::default(), time, at)
    }

    /// If more events of a lane are on disk than may leave in one step, purges a part of them. The event in flight
    /// and the event that parks the lane stay. Returns true if there was such a part; there may then be another.
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
        let (lane, spilled) = (&resident.lane, resident.lane.queue().spilled());
        if spilled.entries > PART_EVENTS as u64 {
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
        at: LogAddress,
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
                return Err(Failure::State(format!(
                    "event {position} was purged but is not the next early event"
                )));
            }
            self.drop_early(slot, early, time, at)?;
            if let Some(resident) = self.lanes.get_mut(slot) {
                resident.lane.drop_early_on_disk(&early.1);
            }
        }
        if let Some(resident) = self.lanes.get_mut(slot) {
            resident.row.dirty = true;
            resident.last_step = at;
        }
        Ok(())
    }
}
