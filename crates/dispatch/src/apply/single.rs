//! Events of unordered subscriptions: each on its own.

use crate::engine::{Engine, Failure};
use crate::rows;
use crate::subscription::Single;
use klambda_core::ids::{Address, LaneNumber, Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::outcome::Reason;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_store::record::Step;

impl Engine {
    pub(super) fn apply_single(
        &mut self,
        at: Address,
        time: Millis,
        id: SubscriptionId,
        position: Position,
        step: &Step<'_>,
    ) -> Result<(), Failure> {
        if let Step::Replay { job, .. } = step {
            return self.apply_single_replay(id, position, *job, at);
        }
        self.take_single(id, position)?;
        if let Step::Purge { .. } | Step::DropOldest { .. } = step {
            return self.drop_single(id, position, time, at);
        }
        if let Step::GiveUp = step {
            return self.give_up_single(id, position, time);
        }
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let Some(single) = subscription.flow.singles.get_mut(&position) else {
            return Err(Failure::State(format!("event {position} had an outcome and was not on its way")));
        };
        single.in_flight = false;
        match step {
            Step::Delivered { .. } => {
                let entry = single.entry;
                subscription.tally.left(&entry);
                subscription.tally.unpin(entry.at);
                subscription.tally.delivered += 1;
                self.forget_single(id, position);
                self.replays.delivered(id, position, LaneNumber(0));
                self.known_from_now_on(id, &entry, time, at)?;
            }
            Step::Failed { fatal, retry_at, reason, error, .. } => {
                single.attempts += 1;
                single.attempts_total += 1;
                single.error.clear();
                single.error.push_str(error);
                single.reason = *reason;
                let max = subscription.policy.attempts_max;
                if !fatal && max.is_none_or(|max| single.attempts < max) {
                    single.retry_at = Some(*retry_at);
                    if self.condition.live {
                        self.waits.single_until(*retry_at, id, position);
                    }
                    return Ok(());
                }
                let (entry, attempts) = (single.entry, single.attempts_total);
                subscription.tally.left(&entry);
                self.forget_single(id, position);
                self.replays.failed(id, position);
                self.add_dead_letter(id, None, entry, *reason, error, attempts, time, None)?;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn apply_single_replay(
        &mut self,
        id: SubscriptionId,
        position: Position,
        job: u64,
        at: Address,
    ) -> Result<(), Failure> {
        let Some(letter) = self.dead_letter(rows::DEAD, id, position)? else { return Ok(()) };
        self.store.rows.delete(&rows::at_position(rows::DEAD, id, position));
        self.replays.started(job, id, position, "");
        let now = self.now;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        subscription.tally.dead -= 1;
        subscription.tally.unpin(letter.entry.at);
        subscription.tally.arrived(&letter.entry);
        let mut single = Single::new(letter.entry);
        single.attempts_total = letter.attempts.total;
        single.retry_at = Some(now);
        subscription.flow.singles.insert(position, single);
        if self.condition.live {
            // A decision takes effect when it is durable.
            self.waits.single_until_synced(Address(at.0 + 1), id, position);
        }
        Ok(())
    }

    pub(super) fn drop_single(
        &mut self,
        id: SubscriptionId,
        position: Position,
        time: Millis,
        at: Address,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let Some(entry) = subscription.flow.singles.get(&position).map(|single| single.entry) else {
            return Ok(());
        };
        subscription.tally.left(&entry);
        subscription.tally.unpin(entry.at);
        self.forget_single(id, position);
        self.replays.dropped(id, position);
        self.release(id, &entry, time, at)
    }

    /// Makes sure that the event is among those on their way: all before it in the queue are too, also younger ones, which
    /// came before a dead letter that moved here.
    pub(crate) fn take_single(&mut self, id: SubscriptionId, position: Position) -> Result<(), Failure> {
        loop {
            let known = self.subscriptions.get(id).is_none_or(|s| s.flow.singles.contains_key(&position));
            if known || !self.take_next_single(id, None)? {
                return Ok(());
            }
        }
    }

    /// All that was on its way before this event, the first that is not, is again.
    pub(super) fn take_singles_before(
        &mut self,
        id: SubscriptionId,
        first: Option<Position>,
    ) -> Result<(), Failure> {
        loop {
            let slot = self.resident(id, "")?;
            let head = self.lanes.get(slot).and_then(|resident| resident.lane.front());
            if head.map(|entry| entry.position) == first || !self.take_next_single(id, None)? {
                return Ok(());
            }
        }
    }

    /// Moves the first of the queue out to be called. Answers whether there was one (not beyond `up_to`).
    pub(crate) fn take_next_single(
        &mut self,
        id: SubscriptionId,
        up_to: Option<Position>,
    ) -> Result<bool, Failure> {
        let slot = self.resident(id, "")?;
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(false) };
        let beyond = |entry: &Entry| up_to.is_some_and(|up_to| entry.position > up_to);
        if resident.lane.head().is_none_or(|(_, entry)| beyond(entry)) {
            return Ok(false);
        }
        let Some(entry) = resident.lane.take_front() else { return Ok(false) };
        resident.take_earlier(entry.position);
        resident.dirty = true;
        self.settle_queue(slot)?;
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.flow.singles.insert(entry.position, Single::new(entry));
        }
        Ok(true)
    }

    pub(crate) fn forget_single(&mut self, id: SubscriptionId, position: Position) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        let is_stored = subscription.flow.singles.remove(&position).is_some_and(|single| single.stored);
        if is_stored && !planted::is_on(Bug::SingleRowKept) {
            self.store.rows.delete(&rows::at_position(rows::SINGLE, id, position));
        }
    }
}

impl Single {
    pub(crate) fn new(entry: Entry) -> Single {
        Single {
            entry,
            attempts: 0,
            attempts_total: 0,
            retry_at: None,
            in_flight: false,
            error: String::new(),
            reason: Reason::RetriesExhausted,
            stored: false,
        }
    }
}
