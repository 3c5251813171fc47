//! Applies a step of a lane: turns its record into an input of the lane, and carries out the resulting actions.

use crate::dead_letters::Attempts;
use crate::engine::{Engine, Failure};
use crate::lanes::{Earlier, Previous, Slot};
use crate::rows;
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::lane::{Action, Entry, Hold, Input, Why};
use klambda_core::outcome::Reason;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::marks::{Identity, Mark, State as MarkState};
use klambda_store::record::Step;

impl Engine {
    pub(super) fn apply_step(
        &mut self,
        at: LogAddress,
        time: Millis,
        id: SubscriptionId,
        key: &str,
        step: &Step<'_>,
    ) -> Result<(), Failure> {
        let slot = self.resident(id, key)?;
        if let Step::Purge { .. } = step {
            self.drop_spilled(slot, time, at)?;
        }
        if let Step::Failed { reason, error, .. } = step
            && let Some(resident) = self.lanes.get_mut(slot)
        {
            resident.failure.reason = *reason;
            resident.failure.error.clear();
            resident.failure.error.push_str(error);
            let subscription = self.subscriptions.get_mut(id);
            subscription.into_iter().for_each(|subscription| subscription.life.health.failed(time));
        }
        if step.attempt().is_some() && self.has_feed(id) {
            self.note_lane_call(at, time, slot, step)?;
        }
        if let Step::Skip = step
            && let Some(resident) = self.lanes.get_mut(slot)
            && resident.lane.hold() != Some(Hold::Failed)
        {
            // An event that already failed keeps its failure as the reason of its dead letter.
            resident.failure.reason = Reason::Skipped;
        }
        let input = match step {
            Step::Delivered { position, .. } if self.is_in_batch(slot, *position) => Input::Acknowledge,
            Step::Delivered { position, .. } => {
                self.must_be_head(slot, *position)?;
                Input::Delivered
            }
            Step::Failed { fatal, retry_at, .. } => Input::Failed { fatal: *fatal, retry_at: *retry_at },
            Step::GapExpired => Input::GapExpired,
            Step::Resume => Input::Resume,
            Step::Skip => Input::Skip,
            Step::Purge { .. } => Input::Purge,
            Step::Pause => Input::Pause,
            Step::Reset { expected } => Input::Reset { expected: *expected },
            Step::Replay { position, job } => return self.apply_replay(at, time, slot, *position, *job),
            Step::DropOldest { position } => {
                self.must_be_droppable(slot, *position)?;
                return self.apply_drop_oldest(at, time, id, slot);
            }
            Step::Discard { position } => {
                self.must_hold(slot, *position)?;
                Input::Discard
            }
            Step::Acknowledged { position } => {
                self.must_be_first(slot, *position)?;
                Input::Acknowledge
            }
            Step::Resent { .. } => return self.apply_resent(at, time, slot, step),
            Step::GiveUp => return self.apply_give_up(at, time, slot),
            Step::PurgePart { early, positions } => {
                return self.apply_purge_part(at, time, slot, *early, positions);
            }
            Step::GiveUpPart { events } => return self.apply_give_up_part(at, time, slot, *events),
        };
        self.step(slot, input, time, at)
    }

    /// What a disabled webhook endpoint skips stays in its feed. What a person purges does not.
    fn apply_drop_oldest(
        &mut self,
        at: LogAddress,
        time: Millis,
        id: SubscriptionId,
        slot: Slot,
    ) -> Result<(), Failure> {
        self.scratch.stays_in_feed = self.is_disabled(id) && !planted::is_on(Bug::SkippedLeavesFeed);
        let done = self.step(slot, Input::DropOldest, time, at);
        self.scratch.stays_in_feed = false;
        done
    }

    /// A call beside the lane. Only the chain of steps continues.
    fn apply_resent(
        &mut self,
        at: LogAddress,
        time: Millis,
        slot: Slot,
        step: &Step<'_>,
    ) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        resident.last_step = at;
        resident.row.dirty = true;
        let (id, key) = (resident.subscription, resident.key.clone());
        self.note_resent_call(at, time, id, &key, step)?;
        self.touch(slot);
        Ok(())
    }

    /// True if the event was in a call with the event before it, and a replayed event has the turn by now.
    fn is_in_batch(&self, slot: Slot, position: Position) -> bool {
        let Some(resident) = self.lanes.get(slot) else { return false };
        let is = |entry: &Entry| entry.position == position;
        let has_turn = resident.lane.head().is_some_and(|(_, entry)| is(entry));
        !has_turn
            && resident.lane.running().is_none()
            && resident.lane.queue().first().is_some_and(is)
            && self.has_feed(resident.subscription)
    }

    /// The log and the lane must agree on which event was at the head. Otherwise an event would be lost or delivered
    /// twice.
    pub(super) fn must_be_head(&self, slot: Slot, position: Position) -> Result<(), Failure> {
        let head = self.lanes.get(slot).and_then(|resident| resident.lane.head());
        match head {
            Some((_, entry)) if entry.position == position => Ok(()),
            _ => Err(Failure::State(format!(
                "event {position} was acknowledged but is not at the head of its lane"
            ))),
        }
    }

    fn must_hold(&self, slot: Slot, position: Position) -> Result<(), Failure> {
        let resident = self.lanes.get(slot).filter(|resident| resident.lane.hold() == Some(Hold::Failed));
        match resident.and_then(|resident| resident.lane.queue().first()) {
            Some(entry) if entry.position == position => Ok(()),
            _ => Err(Failure::State(format!(
                "event {position} was deleted as the failed head of its lane, but is not its head"
            ))),
        }
    }

    fn must_be_first(&self, slot: Slot, position: Position) -> Result<(), Failure> {
        let first = self.lanes.get(slot).and_then(|resident| resident.lane.queue().first());
        match first {
            Some(entry) if entry.position == position => Ok(()),
            _ => Err(Failure::State(format!(
                "event {position} was acknowledged by its receiver, but is not the first of its lane"
            ))),
        }
    }

    pub(crate) fn must_be_droppable(&self, slot: Slot, position: Position) -> Result<(), Failure> {
        let first = self.lanes.get(slot).and_then(|resident| resident.lane.first_droppable());
        match first {
            Some(entry) if entry.position == position => Ok(()),
            _ => Err(Failure::State(format!("event {position} was dropped but is not the next one to drop"))),
        }
    }

    /// Returns a dead letter to its lane: in place if it parks the lane, otherwise as a late event.
    pub(super) fn apply_replay(
        &mut self,
        at: LogAddress,
        time: Millis,
        slot: Slot,
        position: Position,
        job: u64,
    ) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let (id, key) = (resident.subscription, resident.key.clone());
        let is_parked = resident.lane.hold() == Some(Hold::Failed);
        if self.store.rows.get(&rows::at_position(rows::HELD, id, position))?.is_some() {
            self.replays.started(job, id, position, &key);
            return self.step(slot, Input::Replay, time, at);
        }
        let Some(letter) = self.dead_letter(rows::DEAD, id, position)? else { return Ok(()) };
        self.store.rows.delete(&rows::at_position(rows::DEAD, id, position));
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        subscription.tally.dead -= 1;
        // The dead letter was pinned already.
        subscription.tally.unpin(letter.entry.address());
        subscription.tally.arrived(&letter.entry);
        let number = letter.number_in(&key);
        let is_its = letter.key.as_deref() == Some(&*key);
        // An event without a place in the lane queues behind the dead letter that parks it.
        match is_parked && number == LaneNumber(0) {
            true => self.replays.waits(job),
            false => self.replays.started(job, id, position, &key),
        }
        if let Some(resident) = self.lanes.get_mut(slot) {
            let previous_id = letter.previous_id.filter(|_| is_its).unwrap_or_default();
            resident.earlier.push(Earlier { position, attempts: letter.attempts.total, previous_id });
        }
        self.step(slot, Input::Requeue { entry: Entry { number, ..letter.entry } }, time, at)
    }

    /// Applies one input to a lane in memory and carries out the resulting actions.
    pub(crate) fn step(
        &mut self,
        slot: Slot,
        input: Input,
        time: Millis,
        at: LogAddress,
    ) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        let Some(subscription) = self.subscriptions.get(resident.subscription) else { return Ok(()) };
        let mut actions = std::mem::take(&mut self.scratch.actions);
        actions.clear();
        let attempts = match &input {
            Input::Failed { .. } => {
                Attempts { fresh: resident.lane.attempts() + 1, total: resident.lane.attempts_total() + 1 }
            }
            Input::Skip => Attempts::all(resident.lane.attempts_total()),
            Input::Delivered => Attempts::all(resident.lane.head_attempts_total()),
            _ => Attempts::default(),
        };
        // For an event that was routed from the past, the event and the record of its route have different addresses.
        let is_decision = match &input {
            Input::Arrived { entry, .. } => entry.at != at.into(),
            Input::Delivered | Input::Failed { .. } => false,
            _ => true,
        };
        let is_unopened = resident.lane.expected().is_none();
        let next_number = resident.lane.queue().next_number();
        let has_feed = subscription.on_disk.feed.is_some();
        let is_unstored = (planted::is_on(Bug::AckNotStored) && input == Input::Delivered)
            || (planted::is_on(Bug::ReceiverAckNotStored) && input == Input::Acknowledge);
        // Operator inputs are checked before they are logged, so a refusal here changes nothing.
        let _ = resident.lane.apply(input, &subscription.policy, time, &mut actions);
        resident.row.dirty |= !is_unstored;
        resident.last_step = at;
        // An event that fills the buffer opens the lane for buffered events, and those are durable already.
        let opens = is_unopened && resident.lane.expected().is_some();
        if is_decision || opens {
            // A decision takes effect only when it is durable.
            resident.barrier = at.after();
        }
        if has_feed && resident.lane.queue().next_number() != next_number {
            self.feed_lane(slot, next_number)?;
        }
        for action in &actions {
            self.act(slot, *action, attempts, time, at)?;
        }
        self.scratch.actions = actions;
        self.settle_queue(slot)?;
        self.touch(slot);
        Ok(())
    }

    pub(crate) fn act(
        &mut self,
        slot: Slot,
        action: Action,
        attempts: Attempts,
        time: Millis,
        at: LogAddress,
    ) -> Result<(), Failure> {
        if let Action::Count { .. } | Action::GapRecorded { .. } = action {
            self.order_disturbed(slot, &action, at);
            return Ok(());
        }
        if let Action::Hold(_) | Action::DeadLetter { .. } = action {
            // The dead letter stores the id of the previous event, because that event may be gone later.
            self.resolve_previous(slot)?;
        }
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        let id = resident.subscription;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        match action {
            Action::Count { .. } | Action::GapRecorded { .. } => Ok(()),
            Action::Delivered(entry) => {
                subscription.tally.left(&entry);
                subscription.tally.unpin(entry.address());
                subscription.on_disk.edits.forget(id, entry.position, &mut self.store.rows);
                subscription.tally.delivered += 1;
                subscription.life.health.succeeded(time);
                resident.passed(&entry);
                let tried = attempts.total + resident.take_earlier(entry.position);
                self.replays.delivered(id, entry.position, entry.number);
                self.known_from_now_on(id, &entry, tried > 0, time, at)
            }
            Action::Dropped(entry) if self.scratch.giving_up.is_some() => {
                resident.passed(&entry);
                resident.take_earlier(entry.position);
                let key = resident.key.clone();
                self.give_up_entry(id, Some(&key), entry, time, at)
            }
            Action::Dropped(entry) => {
                subscription.tally.left(&entry);
                subscription.tally.unpin(entry.address());
                subscription.on_disk.edits.forget(id, entry.position, &mut self.store.rows);
                resident.passed(&entry);
                resident.take_earlier(entry.position);
                resident.lane.released();
                self.replays.dropped(id, entry.position);
                if !self.scratch.stays_in_feed {
                    self.leave_feed(id, entry.address())?;
                }
                self.release(id, &entry, time, at)
            }
            Action::Hold(entry) => {
                subscription.tally.held += 1;
                let (key, reason) = (resident.key.clone(), resident.failure.reason);
                let error = resident.failure.error.clone();
                let previous_id = resident.previous_id_of(&entry);
                self.replays.failed(id, entry.position);
                self.put_dead_letter(
                    rows::HELD,
                    id,
                    Some(&key),
                    entry,
                    reason,
                    &error,
                    attempts,
                    time,
                    at,
                    previous_id,
                )
            }
            Action::Unhold(entry) => {
                subscription.tally.held -= 1;
                self.store.rows.delete(&rows::at_position(rows::HELD, id, entry.position));
                Ok(())
            }
            Action::DeadLetter { entry, why } => {
                resident.barrier = at.after();
                subscription.tally.left(&entry);
                let key = resident.key.clone();
                let previous_id = resident.previous_id_of(&entry);
                let attempts = attempts.total + resident.take_earlier(entry.position);
                let (reason, error) = match why {
                    Why::Late => (Reason::Late, String::from("the lane has already passed its sequence")),
                    Why::Failed => (resident.failure.reason, resident.failure.error.clone()),
                };
                if !planted::is_on(Bug::PreviousIdStale) {
                    resident.passed(&entry);
                }
                self.replays.failed(id, entry.position);
                self.add_dead_letter(id, Some(&key), entry, reason, &error, attempts, time, at, previous_id)
            }
            Action::SpillEarly { sequence, entry } => {
                resident.early_from = resident.early_from.min(sequence);
                let row = rows::early(id, &resident.key, sequence);
                self.spill_early(&row, &entry);
                Ok(())
            }
        }
    }

    /// Releases the id of an event that left without success, so that the event can be sent again.
    pub(crate) fn release(
        &mut self,
        id: SubscriptionId,
        entry: &Entry,
        time: Millis,
        at: LogAddress,
    ) -> Result<(), Failure> {
        if planted::is_on(Bug::PurgeKeepsIds) {
            return Ok(());
        }
        if let Some(identity) = self.identity_at(entry.address())? {
            let mark = Mark { at: entry.address(), time, state: MarkState::Released(at) };
            self.store.marks.put(identity, id, mark);
            self.count_mark(time, at);
        }
        Ok(())
    }

    /// Marks an event that was already in the log as known to a subscription.
    pub(crate) fn mark_taken(
        &mut self,
        entry: &Entry,
        time: Millis,
        subscription: SubscriptionId,
    ) -> Result<(), Failure> {
        let (at, state) = (entry.address(), MarkState::Taken(entry.position));
        if let Some(identity) = self.identity_at(at)? {
            self.store.marks.put(identity, subscription, Mark { at, time, state });
        }
        Ok(())
    }

    /// The identity of an event in the log; `None` if the event can no longer be read.
    pub(crate) fn identity_at(&mut self, at: LogAddress) -> Result<Option<Identity>, Failure> {
        let key = self.store.key;
        self.read_back(at, |namespace, event| Identity::new(&key, namespace, event.source(), event.id()))
    }
}

impl crate::lanes::Resident {
    /// The event has left its place, so the next event names it as its previous event. An event that leaves from
    /// behind the head is named by the event that follows the head.
    pub(crate) fn passed(&mut self, entry: &Entry) {
        if entry.number <= self.before.number {
            return;
        }
        if self.lane.queue().first().is_some_and(|front| front.number < entry.number) {
            self.before.behind = Some((entry.number, Previous::At(entry.address())));
            return;
        }
        self.before.number = entry.number;
        self.before.event = if self.before.current_at == entry.address() && !self.before.current_id.is_empty()
        {
            Previous::Id(std::mem::take(&mut self.before.current_id))
        } else {
            Previous::At(entry.address())
        };
        if let Some((number, previous)) = self.before.behind.take_if(|behind| behind.0 > entry.number) {
            (self.before.number, self.before.event) = (number, previous);
        }
    }
}
