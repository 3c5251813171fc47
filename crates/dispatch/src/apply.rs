//! What a record does to state. The same code for a record that was just appended and for one read back after a crash.

use crate::engine::{Engine, Failure};
use crate::lanes::{Previous, Slot};
use crate::rows;
use crate::subscription::{Phase, Single, Subscription};
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Address, LaneNumber, Position, SubscriptionId};
use klambda_core::lane::{Action, Count, Entry, Flag, Input, Turn, Why};
use klambda_core::outcome::Reason;
use klambda_core::planted::{self, Bug};
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::log;
use klambda_store::marks::{Identity, Mark, State as MarkState};
use klambda_store::record::{Change, Gone, LaneRef, Record, ReplayChange, Route, Step, To};

impl Engine {
    pub(crate) fn apply_record(
        &mut self,
        at: Address,
        record: &Record<'_>,
        position: Position,
    ) -> Result<(), Failure> {
        match record {
            Record::Event { time, routes, event, emitted } => {
                self.apply_event(at, position, *time, routes, event, *emitted)
            }
            Record::Routed { time, position, at: event_at, accepted, bytes, route } => {
                self.keeping.routed += 1;
                let entry = entry(*position, *event_at, *accepted, *bytes as usize);
                self.apply_routed(at, *time, entry, route)
            }
            Record::Step { time, subscription, lane, running, step, .. } => {
                if !self.subscriptions.contains_key(subscription) {
                    return Ok(());
                }
                match lane {
                    LaneRef::Key(key) => {
                        self.restore_running(*subscription, key, *running)?;
                        self.apply_step(at, *time, *subscription, key, step)
                    }
                    LaneRef::Alone(position) => self.apply_single(*time, *subscription, *position, step),
                }
            }
            Record::Subscription { time, subscription, change } => {
                self.apply_change(at, *time, *subscription, change, position)
            }
            Record::DeadLetterGone { subscription, position, why, .. } => {
                self.apply_gone(*subscription, *position, *why)
            }
            Record::Replay { id, change, .. } => {
                let (ReplayChange::Created { job } | ReplayChange::Ended { job }) = change;
                self.replays.put(*id, job);
                self.rows.put(&rows::replay(*id), job.as_bytes());
                Ok(())
            }
            Record::Kept { from, .. } => {
                self.rows.put(&rows::kept(*from), &at.0.to_be_bytes());
                Ok(())
            }
            Record::Documents { changes, .. } => {
                self.apply_documents(at, changes);
                Ok(())
            }
            Record::Moved { time, from, position, at: event_at, accepted, bytes, route } => {
                let entry = entry(*position, *event_at, *accepted, *bytes as usize);
                self.apply_moved(at, *time, *from, entry, route)
            }
        }
    }

    /// After a crash: what a step met in flight when it was made first.
    fn restore_running(
        &mut self,
        id: SubscriptionId,
        key: &str,
        running: Option<Turn>,
    ) -> Result<(), Failure> {
        if self.live {
            return Ok(());
        }
        let slot = self.resident(id, key)?;
        if let Some(resident) = self.lanes.get_mut(slot) {
            resident.lane.set_running(running);
        }
        Ok(())
    }

    fn apply_event(
        &mut self,
        at: Address,
        position: Position,
        time: Millis,
        routes: &[Route<'_>],
        event: &[u8],
        emitted: bool,
    ) -> Result<(), Failure> {
        let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
        let identity = self.identity(view.source(), view.id());
        if emitted {
            self.mark_emitted(identity, at, time);
        }
        self.place_event(at, position, time, routes, identity, event.len())
    }

    /// What an accepted event does, once it is in the log.
    pub(crate) fn place_event(
        &mut self,
        at: Address,
        position: Position,
        time: Millis,
        routes: &[Route<'_>],
        identity: Identity,
        length: usize,
    ) -> Result<(), Failure> {
        if routes.is_empty() {
            let mark = Mark { at, time, state: MarkState::Taken };
            self.marks.put(identity, SubscriptionId(0), mark);
        }
        let entry = entry(position, at, time, length);
        for route in routes {
            let state = if route.to == To::Later { MarkState::Later } else { MarkState::Taken };
            if self.live || !planted::is_on(Bug::MarkNotRecovered) {
                self.marks.put(identity, route.subscription, Mark { at, time, state });
            }
            self.apply_route(at, time, entry, route)?;
        }
        Ok(())
    }

    fn apply_routed(
        &mut self,
        at: Address,
        time: Millis,
        entry: Entry,
        route: &Route<'_>,
    ) -> Result<(), Failure> {
        if let Some(identity) = self.identity_at(entry.at)? {
            let mark = Mark { at: entry.at, time, state: MarkState::Taken };
            self.marks.put(identity, route.subscription, mark);
        }
        if let Some(subscription) = self.subscriptions.get_mut(&route.subscription) {
            subscription.routed(entry.position);
        }
        self.apply_route(at, time, entry, route)
    }

    pub(crate) fn apply_route(
        &mut self,
        at: Address,
        time: Millis,
        entry: Entry,
        route: &Route<'_>,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get_mut(&route.subscription) else { return Ok(()) };
        let id = route.subscription;
        match &route.to {
            To::Lane { key, sequence } => {
                subscription.tally.arrived(&entry);
                let slot = self.resident(id, key)?;
                let taken = self.is_sequence_spilled(slot, *sequence)?;
                self.step(slot, Input::Arrived { entry, sequence: *sequence, taken }, time, at)?;
                if self.live
                    && let Some(resident) = self.lanes.get_mut(slot)
                {
                    resident.rate.count(time);
                }
                Ok(())
            }
            To::Alone => {
                subscription.tally.arrived(&entry);
                let slot = self.resident(id, "")?;
                self.step(slot, Input::Arrived { entry, sequence: None, taken: false }, time, at)
            }
            To::Invalid { what } => {
                subscription.tally.pin(entry.at);
                self.add_dead_letter(id, None, entry, Reason::Validation, what, 0, time, Previous::None)
            }
            To::Later => {
                subscription.comes_later(entry);
                Ok(())
            }
        }
    }

    fn apply_step(
        &mut self,
        at: Address,
        time: Millis,
        id: SubscriptionId,
        key: &str,
        step: &Step<'_>,
    ) -> Result<(), Failure> {
        if let (Step::Purge { after, .. }, "") = (step, key) {
            while self.take_next_single(id, Some(*after))? {}
        }
        let slot = self.resident(id, key)?;
        if let Step::Purge { .. } = step {
            self.drop_spilled(slot)?;
        }
        if let Step::Failed { reason, error, .. } = step
            && let Some(resident) = self.lanes.get_mut(slot)
        {
            resident.last_reason = *reason;
            resident.last_error.clear();
            resident.last_error.push_str(error);
        }
        let input = match step {
            Step::Delivered { position } => {
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
                Input::DropOldest
            }
            Step::GiveUp => return self.apply_give_up(at, time, slot),
        };
        self.step(slot, input, time, at)
    }

    /// The log and the lane must agree on whose turn it was: anything else would be a lost or doubled event.
    fn must_be_head(&self, slot: Slot, position: Position) -> Result<(), Failure> {
        let head = self.lanes.get(slot).and_then(|resident| resident.lane.head());
        match head {
            Some((_, entry)) if entry.position == position => Ok(()),
            _ => Err(Failure::State(format!("event {position} was acknowledged out of its turn"))),
        }
    }

    fn must_be_droppable(&self, slot: Slot, position: Position) -> Result<(), Failure> {
        let first = self.lanes.get(slot).and_then(|resident| resident.lane.first_droppable());
        match first {
            Some(entry) if entry.position == position => Ok(()),
            _ => Err(Failure::State(format!("event {position} was dropped out of its turn"))),
        }
    }

    /// A dead letter goes back to its lane: in place if it holds it, else from outside.
    fn apply_replay(
        &mut self,
        at: Address,
        time: Millis,
        slot: Slot,
        position: Position,
        job: u64,
    ) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        let (id, key) = (resident.subscription, resident.key.clone());
        self.replays.started(job, id, position, &key);
        if self.rows.get(&rows::at_position(rows::HELD, id, position))?.is_some() {
            return self.step(slot, Input::Replay, time, at);
        }
        let Some(letter) = self.dead_letter(rows::DEAD, id, position)? else { return Ok(()) };
        self.rows.delete(&rows::at_position(rows::DEAD, id, position));
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(()) };
        subscription.tally.dead -= 1;
        // It is pinned already as a dead letter.
        subscription.tally.unpin(letter.entry.at);
        subscription.tally.arrived(&letter.entry);
        if let Some(resident) = self.lanes.get_mut(slot) {
            resident.earlier.push((position, letter.attempts));
        }
        // A number counts in its own lane alone: in another one, under rules that came later, it never had a place.
        let number = if letter.key.as_deref() == Some(&*key) { letter.entry.number } else { LaneNumber(0) };
        self.step(slot, Input::Requeue { entry: Entry { number, ..letter.entry } }, time, at)
    }

    /// Applies one input to a resident lane and does what follows from it.
    pub(crate) fn step(
        &mut self,
        slot: Slot,
        input: Input,
        time: Millis,
        at: Address,
    ) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        let Some(subscription) = self.subscriptions.get(&resident.subscription) else { return Ok(()) };
        let before = resident.lane.resident();
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        let attempts = match &input {
            Input::Failed { .. } => resident.lane.attempts_total() + 1,
            Input::Skip => resident.lane.attempts_total(),
            _ => 0,
        };
        let is_decision = !matches!(input, Input::Arrived { .. } | Input::Delivered | Input::Failed { .. });
        let is_unstored = planted::is_on(Bug::AckNotStored) && input == Input::Delivered;
        // Operators' inputs are checked before they are logged; a refusal here changes nothing.
        let _ = resident.lane.apply(input, &subscription.policy, time, &mut actions);
        resident.dirty |= !is_unstored;
        resident.last_step = at;
        if is_decision {
            // A decision takes effect when it is durable.
            resident.barrier = Address(at.0 + 1);
        }
        let after = resident.lane.resident();
        self.lanes.entries = self.lanes.entries + after - before;
        for action in &actions {
            self.act(slot, *action, attempts, time, at)?;
        }
        self.actions = actions;
        self.settle_queue(slot)?;
        self.touch(slot);
        Ok(())
    }

    pub(crate) fn act(
        &mut self,
        slot: Slot,
        action: Action,
        attempts: u32,
        time: Millis,
        at: Address,
    ) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get_mut(slot) else { return Ok(()) };
        let id = resident.subscription;
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(()) };
        match action {
            Action::Count(count) => {
                if self.live {
                    let name = &subscription.document.name;
                    match count {
                        Count::Early => self.metrics.early(name),
                        Count::Late => self.metrics.order_violation(name),
                        Count::Gap => self.metrics.gap(name),
                    }
                    tracing::info!(subscription = %name, key = %resident.key, kind = ?count, "Order disturbed.");
                }
                Ok(())
            }
            Action::Delivered(entry) => {
                subscription.tally.left(&entry);
                subscription.tally.unpin(entry.at);
                subscription.tally.delivered += 1;
                resident.passed(&entry);
                resident.take_earlier(entry.position);
                self.forget_copy(&entry);
                self.replays.delivered(id, entry.position, entry.number);
                Ok(())
            }
            Action::Dropped(entry) if self.giving_up.is_some() => {
                resident.passed(&entry);
                let key = resident.key.clone();
                self.give_up_entry(id, Some(&key), entry, time)
            }
            Action::Dropped(entry) => {
                subscription.tally.left(&entry);
                subscription.tally.unpin(entry.at);
                resident.passed(&entry);
                self.replays.dropped(id, entry.position);
                self.release(id, &entry, time)
            }
            Action::Hold(entry) => {
                subscription.tally.held += 1;
                let (key, reason) = (resident.key.clone(), resident.last_reason);
                let error = resident.last_error.clone();
                let previous = resident.previous.clone();
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
                    previous,
                )
            }
            Action::Unhold(entry) => {
                subscription.tally.held -= 1;
                self.rows.delete(&rows::at_position(rows::HELD, id, entry.position));
                Ok(())
            }
            Action::DeadLetter { entry, why } => {
                resident.barrier = Address(at.0 + 1);
                subscription.tally.left(&entry);
                let key = resident.key.clone();
                let attempts = attempts + resident.take_earlier(entry.position);
                let (reason, error) = match why {
                    Why::Late => (Reason::Late, String::from("its sequence was passed already")),
                    Why::Failed => (resident.last_reason, resident.last_error.clone()),
                };
                let previous = resident.previous.clone();
                if !planted::is_on(Bug::PreviousIdStale) {
                    resident.passed(&entry);
                }
                self.replays.failed(id, entry.position);
                self.add_dead_letter(id, Some(&key), entry, reason, &error, attempts, time, previous)
            }
            Action::SpillEarly { sequence, entry } => {
                let row = rows::early(id, &resident.key, sequence);
                self.spill_early(&row, &entry);
                Ok(())
            }
            Action::GapRecorded { .. } => {
                resident.barrier = Address(at.0 + 1);
                Ok(())
            }
        }
    }

    /// An event that left without success may be sent again.
    pub(crate) fn release(&mut self, id: SubscriptionId, entry: &Entry, time: Millis) -> Result<(), Failure> {
        if planted::is_on(Bug::PurgeKeepsIds) {
            return Ok(());
        }
        if let Some(identity) = self.identity_at(entry.at)? {
            self.marks.put(identity, id, Mark { at: entry.at, time, state: MarkState::Released });
        }
        self.forget_copy(entry);
        Ok(())
    }

    /// The identity of an event in the log; none of one that cannot be read back any more.
    fn identity_at(&mut self, at: Address) -> Result<Option<Identity>, Failure> {
        let record = match self.read_event(at) {
            Ok(record) => record,
            Err(failure @ Failure::Log(log::Error::Damaged { .. } | log::Error::Gone(_))) => {
                tracing::error!(%failure, "An event cannot be read back: its id is not known.");
                self.metrics.damaged += 1;
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        let (_, event) = event_of(&record)?;
        let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
        Ok(Some(self.identity(view.source(), view.id())))
    }

    /// A copy that was made for this event alone is needed no more. Copies shared with others are found again by them.
    fn forget_copy(&mut self, entry: &Entry) {
        if entry.at < self.log.oldest() && !self.is_pinned(entry.at) {
            self.rows.delete(&rows::kept(entry.at));
        }
    }

    fn is_pinned(&self, at: Address) -> bool {
        let bucket = at.0 >> crate::subscription::PIN_SHIFT;
        self.subscriptions.values().any(|subscription| subscription.tally.pins.contains_key(&bucket))
    }

    // ---- unordered ----------------------------------------------------------------------------------------

    fn apply_single(
        &mut self,
        time: Millis,
        id: SubscriptionId,
        position: Position,
        step: &Step<'_>,
    ) -> Result<(), Failure> {
        if let Step::Replay { job, .. } = step {
            return self.apply_single_replay(id, position, *job);
        }
        self.take_single(id, position)?;
        if let Step::Purge { .. } | Step::DropOldest { .. } = step {
            return self.drop_single(id, position, time);
        }
        if let Step::GiveUp = step {
            return self.give_up_single(id, position, time);
        }
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(()) };
        let Some(single) = subscription.singles.get_mut(&position) else {
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
                self.forget_copy(&entry);
                self.replays.delivered(id, position, LaneNumber(0));
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
                    if self.live {
                        self.single_timers.push(std::cmp::Reverse((*retry_at, id, position)));
                    }
                    return Ok(());
                }
                let (entry, attempts) = (single.entry, single.attempts_total);
                subscription.tally.left(&entry);
                self.forget_single(id, position);
                self.replays.failed(id, position);
                self.add_dead_letter(id, None, entry, *reason, error, attempts, time, Previous::None)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn apply_single_replay(
        &mut self,
        id: SubscriptionId,
        position: Position,
        job: u64,
    ) -> Result<(), Failure> {
        let Some(letter) = self.dead_letter(rows::DEAD, id, position)? else { return Ok(()) };
        self.rows.delete(&rows::at_position(rows::DEAD, id, position));
        self.replays.started(job, id, position, "");
        let now = self.now;
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(()) };
        subscription.tally.dead -= 1;
        subscription.tally.unpin(letter.entry.at);
        subscription.tally.arrived(&letter.entry);
        let mut single = Single::new(letter.entry);
        single.attempts_total = letter.attempts;
        single.retry_at = Some(now);
        subscription.singles.insert(position, single);
        if self.live {
            self.single_timers.push(std::cmp::Reverse((now, id, position)));
        }
        Ok(())
    }

    fn drop_single(&mut self, id: SubscriptionId, position: Position, time: Millis) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(()) };
        let Some(entry) = subscription.singles.get(&position).map(|single| single.entry) else {
            return Ok(());
        };
        subscription.tally.left(&entry);
        subscription.tally.unpin(entry.at);
        self.forget_single(id, position);
        self.replays.dropped(id, position);
        self.release(id, &entry, time)
    }

    /// Makes sure that the event is among those on their way: all before it in the queue are too.
    pub(crate) fn take_single(&mut self, id: SubscriptionId, position: Position) -> Result<(), Failure> {
        loop {
            let known = self.subscriptions.get(&id).is_none_or(|s| s.singles.contains_key(&position));
            if known || !self.take_next_single(id, Some(position))? {
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
        resident.dirty = true;
        self.lanes.entries -= 1;
        self.settle_queue(slot)?;
        if let Some(subscription) = self.subscriptions.get_mut(&id) {
            subscription.singles.insert(entry.position, Single::new(entry));
        }
        Ok(true)
    }

    pub(crate) fn forget_single(&mut self, id: SubscriptionId, position: Position) {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        let is_stored = subscription.singles.remove(&position).is_some_and(|single| single.stored);
        if is_stored && !planted::is_on(Bug::SingleRowKept) {
            self.rows.delete(&rows::at_position(rows::SINGLE, id, position));
        }
    }

    // ---- subscriptions ------------------------------------------------------------------------------------

    fn apply_change(
        &mut self,
        at: Address,
        time: Millis,
        id: SubscriptionId,
        change: &Change<'_>,
        position: Position,
    ) -> Result<(), Failure> {
        match change {
            Change::Put { document } => {
                let parsed = serde_json::from_str(document).ok().and_then(|json| Document::parse(&json).ok());
                let document = parsed.ok_or(Malformed("subscription document"))?;
                self.apply_put(at, time, id, document, position)
            }
            Change::Pause | Change::Resume => {
                let paused = *change == Change::Pause;
                self.change_document(id, |document| document.spec.paused = paused);
                let next = self.subscriptions.get_mut(&id).and_then(|s| s.next_document.as_mut());
                if let Some(next) = next {
                    next.spec.paused = paused;
                }
                Ok(())
            }
            Change::Drain => {
                if let Some(subscription) = self.subscriptions.get_mut(&id) {
                    subscription.phase = Phase::Draining;
                }
                Ok(())
            }
            Change::Retire { until } => {
                if let Some(subscription) = self.subscriptions.get_mut(&id) {
                    subscription.phase = Phase::Retiring { until: *until };
                }
                Ok(())
            }
            Change::Retired => {
                self.apply_retired(id);
                Ok(())
            }
            Change::Remove => {
                self.remove_subscription(id);
                Ok(())
            }
            Change::Caught { up_to } => {
                self.apply_caught(id, *up_to, position);
                Ok(())
            }
        }
    }

    fn apply_put(
        &mut self,
        at: Address,
        time: Millis,
        id: SubscriptionId,
        document: Document,
        next_position: Position,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(&id) else {
            let (phase, began_late) = self.first_phase(&document, at, next_position);
            let mut subscription = Subscription::new(id, document, time, phase);
            subscription.began = next_position;
            subscription.notes.began_late = began_late;
            subscription.endpoint = self.endpoints.of(&subscription.document.spec.target);
            self.names.insert(subscription.name().to_owned(), id);
            self.subscriptions.insert(id, subscription);
            self.next_subscription = self.next_subscription.max(SubscriptionId(id.0 + 1));
            return Ok(());
        };
        let cursor = self.first_frame(at);
        let differs = subscription.document.epoch_differs(&document);
        let at_once = !differs || subscription.tally.waiting == 0;
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(()) };
        if at_once {
            if differs {
                subscription.epochs += 1;
                self.replays.plan_again();
            }
            // Also of rules that still waited: what was asked for last holds.
            subscription.next_document = None;
            self.change_document(id, |old| *old = document);
        } else {
            // What waits drains under the old rules; what arrives from here on is read from the log afterwards.
            if subscription.phase == Phase::Live {
                let done = Position(next_position.0 - 1);
                subscription.phase = Phase::CatchingUp { cursor, done };
            }
            let meanwhile = document.ordered_as(&subscription.document);
            subscription.next_document = Some(document);
            self.change_document(id, |old| *old = meanwhile);
        }
        Ok(())
    }

    pub(crate) fn change_document(&mut self, id: SubscriptionId, change: impl FnOnce(&mut Document)) {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        let mut document = (*subscription.document).clone();
        change(&mut document);
        subscription.endpoint = self.endpoints.of(&document.spec.target);
        subscription.set_document(document);
        self.rouse(id);
    }

    pub(crate) fn remove_subscription(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.subscriptions.remove(&id) else { return };
        // Another may have its name by now.
        if self.names.get(subscription.name()).is_none_or(|named| *named == id) {
            self.names.remove(subscription.name());
            self.metrics.forget(subscription.name());
        }
        self.replays.forget(id);
        let slots: Vec<Slot> = self
            .lanes
            .iter()
            .filter(|(_, resident)| resident.subscription == id)
            .map(|(slot, _)| slot)
            .collect();
        slots.into_iter().for_each(|slot| {
            self.lanes.remove(slot);
        });
        self.rows.delete(&rows::of_subscription(rows::SUBSCRIPTION, id));
        self.removed.push(id);
        if planted::is_on(Bug::SubscriptionReused) {
            self.next_subscription = id;
        }
    }

    // ---- dead letters -------------------------------------------------------------------------------------

    fn apply_gone(&mut self, id: SubscriptionId, position: Position, why: Gone) -> Result<(), Failure> {
        let Some(letter) = self.dead_letter(rows::DEAD, id, position)? else { return Ok(()) };
        self.rows.delete(&rows::at_position(rows::DEAD, id, position));
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(()) };
        subscription.tally.dead -= 1;
        subscription.tally.unpin(letter.entry.at);
        if self.live && why != Gone::Deleted {
            let name = &subscription.document.name;
            tracing::warn!(subscription = %name, position = position.0, why = ?why, "Dead letter dropped.");
            self.metrics.dead_letter_dropped(name, if why == Gone::Expired { "expired" } else { "overflow" });
        }
        let now = self.now;
        self.release(id, &letter.entry, now)
    }
}

impl crate::lanes::Resident {
    /// The event has left its place: the next one names it as the one before. One that leaves from behind the head does
    /// not come before the head: it is named by what follows the head.
    pub(crate) fn passed(&mut self, entry: &Entry) {
        if entry.number <= self.previous_number {
            return;
        }
        if self.lane.front().is_some_and(|front| front.number < entry.number) {
            self.behind = Some((entry.number, Previous::At(entry.at)));
            return;
        }
        self.previous_number = entry.number;
        self.previous = if self.current_at == entry.at && !self.current_id.is_empty() {
            Previous::Id(std::mem::take(&mut self.current_id))
        } else {
            Previous::At(entry.at)
        };
        if let Some((number, previous)) = self.behind.take_if(|behind| behind.0 > entry.number) {
            (self.previous_number, self.previous) = (number, previous);
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

fn entry(position: Position, at: Address, accepted: Millis, bytes: usize) -> Entry {
    Entry { position, at, number: LaneNumber(0), accepted, bytes: bytes as u32, flag: Flag::None }
}

/// The event in an event's record, and where it begins.
pub(crate) fn event_of(record: &[u8]) -> Result<(usize, &[u8]), Malformed> {
    match Record::decode(record)? {
        Record::Event { event, .. } | Record::Kept { event, .. } => Ok((record.len() - event.len(), event)),
        _ => Err(Malformed("event record")),
    }
}
