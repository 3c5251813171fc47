//! Per-key queues: one event out at a time, keys in turn.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::commit::{Group, Synced};

/// Groups whose memory is kept for the next ones.
const SPARE_GROUPS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneId(pub u32);

/// An event in its place: its lane, and where its bytes are.
pub struct Place {
    pub lane: LaneId,
    slot: u32,
    range: Range<u32>,
}

#[derive(Default)]
pub struct Lanes {
    by_key: HashMap<Box<[u8]>, LaneId>,
    lanes: Vec<Lane>,
    ready: VecDeque<LaneId>,
    groups: Vec<Option<Kept>>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Place>,
    /// Ready, or out for delivery.
    active: bool,
}

/// A group that stays until its last event is delivered.
struct Kept {
    bytes: Arc<Vec<u8>>,
    undelivered: usize,
}

impl Lanes {
    pub fn of(&mut self, key: &[u8]) -> LaneId {
        if let Some(lane) = self.by_key.get(key) {
            return *lane;
        }
        let lane = LaneId(self.lanes.len() as u32);
        self.lanes.push(Lane::default());
        self.by_key.insert(key.into(), lane);
        lane
    }

    pub fn enqueue(&mut self, group: Synced) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() as u32 - 1
        });
        let undelivered = group.events.len();
        self.groups[slot as usize] = Some(Kept { bytes: group.bytes, undelivered });
        for (id, range) in group.events {
            let lane = &mut self.lanes[id.0 as usize];
            lane.queue.push_back(Place { lane: id, slot, range });
            if !lane.active {
                lane.active = true;
                self.ready.push_back(id);
            }
        }
    }

    pub fn pop_ready(&mut self) -> Option<Place> {
        let lane = self.ready.pop_front()?;
        self.lanes[lane.0 as usize].queue.pop_front()
    }

    pub fn bytes(&self, place: &Place) -> &[u8] {
        let kept = self.groups[place.slot as usize].as_ref();
        kept.map_or(&[], |kept| &kept.bytes[place.range.start as usize..place.range.end as usize])
    }

    pub fn acknowledged(&mut self, place: Place) {
        let lane = &mut self.lanes[place.lane.0 as usize];
        if lane.queue.is_empty() {
            lane.active = false;
        } else {
            self.ready.push_back(place.lane);
        }
        self.release(place.slot);
    }

    fn release(&mut self, slot: u32) {
        let Some(kept) = &mut self.groups[slot as usize] else { return };
        kept.undelivered -= 1;
        if kept.undelivered > 0 {
            return;
        }
        self.free.push(slot);
        let bytes = self.groups[slot as usize].take().and_then(|kept| Arc::into_inner(kept.bytes));
        if let Some(mut bytes) = bytes.filter(|_| self.spare.len() < SPARE_GROUPS) {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// An empty group, in memory that an earlier one used.
    pub fn spare_group(&mut self) -> Group {
        Group { bytes: self.spare.pop().unwrap_or_default(), ..Group::default() }
    }
}
