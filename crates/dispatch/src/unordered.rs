//! Unordered subscriptions: each event is delivered independently.
//!
//! Events that were never called are in a queue like that of a lane, with its ends in memory and its middle on disk.
//! An event that leaves the queue is under way until it is delivered, dropped or becomes a dead letter.

mod apply;
mod rows;

pub(crate) use rows::read_chunk;

use crate::engine::{Engine, Failure};
use crate::operate::Refused;
use crate::residency::PART_EVENTS;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::{Entry, Queue};
use klambda_core::outcome::Reason;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::record::{LaneRef, Record, Step};
use std::collections::{BTreeMap, VecDeque};

#[derive(Default)]
pub struct Unordered {
    pub queue: Queue,
    /// Events that are in flight or between attempts.
    pub under_way: BTreeMap<Position, Single>,
    /// Those of them that may be called again.
    pub ready: VecDeque<Position>,
    /// Dead letters moved here from another subscription. They are older than the events before them in the queue.
    pub moved: VecDeque<Position>,
    /// No event of the queue is called before the log is durable up to this address.
    pub barrier: LogAddress,
    /// The queue differs from its row.
    pub dirty: bool,
}

/// An event under way.
#[derive(Clone, Debug)]
pub struct Single {
    pub entry: Entry,
    pub attempts: u32,
    pub attempts_total: u32,
    pub retry_at: Option<Millis>,
    pub in_flight: bool,
    /// The record of its last step, or 0. Each step names the one before it.
    pub last_step: LogAddress,
    pub error: String,
    pub reason: Reason,
    pub stored: bool,
}

impl Single {
    fn new(entry: Entry) -> Single {
        Single {
            entry,
            attempts: 0,
            attempts_total: 0,
            retry_at: None,
            in_flight: false,
            last_step: LogAddress(0),
            error: String::new(),
            reason: Reason::RetriesExhausted,
            stored: false,
        }
    }
}

impl Unordered {
    /// How far the log must be durable before the first event of the queue may be called.
    pub fn needs_synced(&self) -> Option<LogAddress> {
        self.queue.first().map(|entry| entry.address().after().max(self.barrier))
    }

    /// Moves the first event of the queue to `under_way`.
    fn take_next(&mut self) -> Option<Position> {
        let entry = self.queue.pop()?;
        self.dirty = true;
        // Moved dead letters are in the queue in the order of their arrival.
        if self.moved.front() == Some(&entry.position) {
            self.moved.pop_front();
        }
        self.under_way.insert(entry.position, Single::new(entry));
        Some(entry.position)
    }

    /// Events that are not in flight: those under way, and those at the front of the queue in memory.
    fn resting(&self) -> impl Iterator<Item = &Entry> {
        let under_way =
            self.under_way.values().filter(|single| !single.in_flight).map(|single| &single.entry);
        under_way.chain(self.queue.front())
    }

    pub fn first_under_way(&self) -> Option<Position> {
        self.under_way.keys().next().copied()
    }
}

impl Engine {
    /// Logs and applies one step of an event.
    pub(crate) fn step_single(
        &mut self,
        id: SubscriptionId,
        position: Position,
        step: Step<'_>,
    ) -> Result<LogAddress, Failure> {
        let previous = self.last_step_of_single(id, position)?;
        self.step_unordered(id, LaneRef::Alone(position), previous, step)
    }

    fn last_step_of_single(&self, id: SubscriptionId, position: Position) -> Result<LogAddress, Failure> {
        let subscription = self.subscriptions.get(id);
        if let Some(single) = subscription.and_then(|s| s.unordered.under_way.get(&position)) {
            let is_unlinked = planted::is_on(Bug::RetryUnlinked);
            return Ok(if is_unlinked { LogAddress(0) } else { single.last_step });
        }
        let letter = self.dead_letter(crate::rows::DEAD, id, position)?;
        Ok(letter.map_or(LogAddress(0), |letter| letter.last_step))
    }

    fn step_unordered(
        &mut self,
        subscription: SubscriptionId,
        lane: LaneRef<'_>,
        previous: LogAddress,
        step: Step<'_>,
    ) -> Result<LogAddress, Failure> {
        let time = self.now;
        self.commit(&Record::Step { time, subscription, lane, previous, running: None, step })
    }

    /// Marks an event as ready for another attempt, if it is still under way.
    pub(crate) fn ready_single(&mut self, id: SubscriptionId, position: Position) {
        if let Some(subscription) = self.subscriptions.get_mut(id)
            && let Some(single) = subscription.unordered.under_way.get(&position)
            && !single.in_flight
        {
            subscription.unordered.ready.push_back(position);
        }
    }

    /// Takes the first event of the queue to be called.
    pub(crate) fn take_next_single(&mut self, id: SubscriptionId) -> Result<Option<Position>, Failure> {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(None) };
        let taken = subscription.unordered.take_next();
        self.settle_unordered(id)?;
        Ok(taken)
    }

    /// The oldest event that is not in flight.
    pub(crate) fn oldest_resting(&self, id: SubscriptionId) -> Option<Entry> {
        self.subscriptions.get(id)?.unordered.resting().next().copied()
    }

    /// Purges a part of the events that are not in flight. Returns true if there was one; there may then be another.
    pub(crate) fn purge_unordered_part(&mut self, id: SubscriptionId) -> Result<bool, Refused> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(false) };
        let resting = subscription.unordered.resting().take(PART_EVENTS);
        let positions: Vec<Position> = resting.map(|entry| entry.position).collect();
        if positions.is_empty() {
            return Ok(false);
        }
        self.must_write()?;
        let step = Step::PurgePart { early: false, positions };
        self.step_unordered(id, LaneRef::Unordered, LogAddress(0), step)?;
        Ok(true)
    }
}
