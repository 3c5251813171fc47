//! Long queues: what is on disk of them, and what of that is in memory.

use super::missing;
use crate::dead_letters::Attempts;
use crate::engine::{Engine, Failure};
use crate::lanes::Slot;
use crate::rows;
use klambda_core::ids::Sequence;
use klambda_core::lane::Entry;
use klambda_core::lane_row::{put_entries, put_entry, take_entries, take_entry};
use klambda_core::wire::Reader;

impl Engine {
    /// A full back goes to disk, an empty front comes from there.
    pub(crate) fn settle_queue(&mut self, slot: Slot) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        if let Some((chunk, entries)) = resident.lane.take_chunk() {
            self.lanes.entries -= entries.len();
            let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
            let mut row = Vec::new();
            put_entries(&mut row, entries.iter());
            self.rows.put(&rows::chunk(resident.subscription, &resident.key, chunk), &row);
        }
        self.load_chunk(slot)?;
        self.load_early(slot)
    }

    fn load_chunk(&mut self, slot: Slot) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        let Some(chunk) = resident.lane.wanted_chunk() else { return Ok(()) };
        let row = rows::chunk(resident.subscription, &resident.key, chunk);
        let stored =
            self.rows.get(&row)?.ok_or_else(|| missing("a chunk of a lane's queue", &resident.key))?;
        let entries = take_entries(&mut Reader::new(&stored))?;
        self.lanes.entries += entries.len();
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        resident.lane.load_chunk(entries.into_iter());
        self.rows.delete(&row);
        Ok(())
    }

    pub(crate) fn spill_early(&mut self, row: &[u8], entry: &Entry) {
        let mut value = Vec::new();
        put_entry(&mut value, entry);
        self.rows.put(row, &value);
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
                Ok(self.rows.get(&row)?.is_some())
            }
            _ => Ok(false),
        }
    }

    fn load_early(&mut self, slot: Slot) -> Result<(), Failure> {
        while let Some(resident) = self.lanes.get(slot)
            && resident.lane.wants_early()
        {
            let Some(subscription) = self.subscriptions.get(&resident.subscription) else { return Ok(()) };
            let policy = subscription.policy;
            let prefix = rows::early_prefix(resident.subscription, &resident.key);
            let limit = usize::try_from(policy.buffer_events_max).unwrap_or(usize::MAX).clamp(1, 10_000);
            let found = self.rows.scan(&prefix, &prefix, limit)?;
            if found.is_empty() {
                return Err(missing("early events", &resident.key));
            }
            let mut entries = Vec::with_capacity(found.len());
            for (row, value) in &found {
                entries.push((Sequence(rows::number_of(row)), take_entry(&mut Reader::new(value))?));
                self.rows.delete(row);
            }
            let now = self.now;
            let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
            let before = resident.lane.resident();
            let actions = resident.lane.load_early(entries, &policy, now);
            let (after, at) = (resident.lane.resident(), resident.last_step);
            self.lanes.entries = self.lanes.entries + after - before;
            actions
                .into_iter()
                .try_for_each(|action| self.act(slot, action, Attempts::default(), now, at))?;
        }
        Ok(())
    }

    /// Before a purge: what the lane has on disk goes too, and its ids are released.
    pub(crate) fn drop_spilled(&mut self, slot: Slot) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let (id, key, spilled) = (resident.subscription, resident.key.clone(), resident.lane.spilled());
        let mut gone = Vec::new();
        if spilled.entries > 0 {
            for chunk in spilled.first_chunk..spilled.next_chunk {
                let row = rows::chunk(id, &key, chunk);
                if let Some(stored) = self.rows.get(&row)? {
                    gone.extend(take_entries(&mut Reader::new(&stored))?);
                    self.rows.delete(&row);
                }
            }
        }
        if resident.lane.has_spilled_early() {
            let prefix = rows::early_prefix(id, &key);
            for (row, value) in self.rows.scan(&prefix, &prefix, usize::MAX)? {
                gone.push(take_entry(&mut Reader::new(&value))?);
                self.rows.delete(&row);
            }
        }
        let now = self.now;
        for entry in gone {
            if self.giving_up.is_some() {
                if let Some(resident) = self.lanes.get_mut(slot) {
                    resident.passed(&entry);
                }
                self.give_up_entry(id, Some(&key), entry, now)?;
                continue;
            }
            if let Some(subscription) = self.subscriptions.get_mut(&id) {
                subscription.tally.left(&entry);
                subscription.tally.unpin(entry.at);
            }
            if let Some(resident) = self.lanes.get_mut(slot) {
                resident.passed(&entry);
            }
            self.replays.dropped(id, entry.position);
            self.release(id, &entry, now)?;
        }
        Ok(())
    }
}
