//! Applies records of unordered events.

use super::Single;
use crate::engine::{Engine, Failure};
use crate::rows;
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::record::Step;

impl Engine {
    pub(crate) fn apply_single(
        &mut self,
        at: LogAddress,
        time: Millis,
        id: SubscriptionId,
        position: Position,
        step: &Step<'_>,
    ) -> Result<(), Failure> {
        if let Step::Replay { job, .. } = step {
            return self.apply_single_replay(id, position, *job, at);
        }
        if let Step::Resent { .. } = step {
            return self.note_resent_call(at, time, id, "", step);
        }
        if let Step::Acknowledged { .. } = step {
            return self.apply_single_acknowledged(id, position, time, at);
        }
        self.take_single(id, position)?;
        if let Step::DropOldest { .. } = step {
            return self.drop_single(id, position, time, at, self.is_disabled(id));
        }
        if let Step::GiveUp = step {
            return self.give_up_single(id, position, time, at);
        }
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let Some(single) = subscription.unordered.under_way.get_mut(&position) else {
            return Err(Failure::State(format!("event {position} got an outcome but was not in flight")));
        };
        single.in_flight = false;
        single.last_step = at;
        let entry = single.entry;
        self.note_single_call(at, time, id, &entry, step)?;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let Some(single) = subscription.unordered.under_way.get_mut(&position) else { return Ok(()) };
        match step {
            Step::Delivered { .. } => {
                let is_retried = single.attempts_total > 0;
                subscription.tally.left(&entry);
                self.forget_single(id, position);
                self.single_delivered(id, &entry, is_retried, time, at)?;
            }
            Step::Failed { fatal, retry_at, reason, error, .. } => {
                single.attempts += 1;
                single.attempts_total += 1;
                subscription.life.health.failed(time);
                single.error.clear();
                single.error.push_str(error);
                single.reason = *reason;
                let max = subscription.policy.attempts_max;
                if !fatal && max.is_none_or(|max| single.attempts < max) {
                    single.retry_at = Some(*retry_at);
                    if self.condition.live {
                        self.wakeups.single_until(*retry_at, id, position);
                    }
                    return Ok(());
                }
                let (entry, attempts) = (single.entry, single.attempts_total);
                subscription.tally.left(&entry);
                self.forget_single(id, position);
                self.replays.failed(id, position);
                self.add_dead_letter(id, None, entry, *reason, error, attempts, time, at, None)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The receiver has the event. It waits, is between attempts, or is a dead letter.
    fn apply_single_acknowledged(
        &mut self,
        id: SubscriptionId,
        position: Position,
        time: Millis,
        at: LogAddress,
    ) -> Result<(), Failure> {
        if let Some(letter) = self.dead_letter(rows::DEAD, id, position)? {
            self.store.rows.delete(&rows::at_position(rows::DEAD, id, position));
            let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
            subscription.tally.dead -= 1;
            return self.single_delivered(id, &letter.entry, true, time, at);
        }
        self.take_single(id, position)?;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let Some(single) = subscription.unordered.under_way.get(&position) else {
            return Err(Failure::State(format!(
                "event {position} was acknowledged by its receiver, but is not pending"
            )));
        };
        let (entry, is_retried) = (single.entry, single.attempts_total > 0);
        subscription.tally.left(&entry);
        self.forget_single(id, position);
        self.single_delivered(id, &entry, is_retried, time, at)
    }

    /// An event leaves as delivered.
    fn single_delivered(
        &mut self,
        id: SubscriptionId,
        entry: &Entry,
        is_retried: bool,
        time: Millis,
        at: LogAddress,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        subscription.tally.unpin(entry.address());
        subscription.on_disk.edits.forget(id, entry.position, &mut self.store.rows);
        subscription.tally.delivered += 1;
        subscription.life.health.succeeded(time);
        self.replays.delivered(id, entry.position, LaneNumber(0));
        self.known_from_now_on(id, entry, is_retried, time, at)
    }

    fn apply_single_replay(
        &mut self,
        id: SubscriptionId,
        position: Position,
        job: u64,
        at: LogAddress,
    ) -> Result<(), Failure> {
        let Some(letter) = self.dead_letter(rows::DEAD, id, position)? else { return Ok(()) };
        self.store.rows.delete(&rows::at_position(rows::DEAD, id, position));
        self.replays.started(job, id, position, "");
        let now = self.now;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        subscription.tally.dead -= 1;
        subscription.tally.unpin(letter.entry.address());
        subscription.tally.arrived(&letter.entry);
        let mut single = Single::new(letter.entry);
        single.attempts_total = letter.attempts.total;
        single.retry_at = Some(now);
        single.last_step = at;
        subscription.unordered.under_way.insert(position, single);
        if self.condition.live {
            // A decision takes effect only when it is durable.
            self.wakeups.single_until_synced(at.after(), id, position);
        }
        Ok(())
    }

    fn drop_single(
        &mut self,
        id: SubscriptionId,
        position: Position,
        time: Millis,
        at: LogAddress,
        stays_in_feed: bool,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let Some(entry) = subscription.unordered.under_way.get(&position).map(|single| single.entry) else {
            return Ok(());
        };
        subscription.tally.left(&entry);
        subscription.tally.unpin(entry.address());
        subscription.on_disk.edits.forget(id, position, &mut self.store.rows);
        self.forget_single(id, position);
        self.replays.dropped(id, position);
        if !stays_in_feed {
            self.leave_feed(id, entry.address())?;
        }
        self.release(id, &entry, time, at)
    }

    /// Makes sure that the event is under way. After a restart, all events taken from the queue before it are under
    /// way too, including younger ones that came before a moved dead letter.
    fn take_single(&mut self, id: SubscriptionId, position: Position) -> Result<(), Failure> {
        let is_there = |engine: &Engine| {
            engine.subscriptions.get(id).is_none_or(|s| s.unordered.under_way.contains_key(&position))
        };
        while !is_there(self) && self.take_next_single(id)?.is_some() {}
        Ok(())
    }

    /// Appends an event to the queue.
    pub(crate) fn queue_up(
        &mut self,
        id: SubscriptionId,
        entry: Entry,
        at: LogAddress,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let unordered = &mut subscription.unordered;
        unordered.queue.place(entry);
        unordered.dirty = true;
        if entry.at != at.into() {
            // The record that queued the event is not the record of the event itself, and must be durable first.
            unordered.barrier = at.after();
            if self.condition.live {
                self.wakeups.queue_until_synced(at.after());
            }
        }
        self.settle_unordered(id)
    }

    pub(crate) fn apply_unordered(
        &mut self,
        at: LogAddress,
        time: Millis,
        id: SubscriptionId,
        step: &Step<'_>,
    ) -> Result<(), Failure> {
        let Step::PurgePart { positions, .. } = step else {
            return Err(Failure::State(format!("step {:?} does not apply to unordered events", step.name())));
        };
        for position in positions {
            self.take_single(id, *position)?;
            self.drop_single(id, *position, time, at, false)?;
        }
        Ok(())
    }

    pub(crate) fn forget_single(&mut self, id: SubscriptionId, position: Position) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        let is_stored =
            subscription.unordered.under_way.remove(&position).is_some_and(|single| single.stored);
        if is_stored && !planted::is_on(Bug::SingleRowKept) {
            self.store.rows.delete(&rows::at_position(rows::SINGLE, id, position));
        }
    }
}
