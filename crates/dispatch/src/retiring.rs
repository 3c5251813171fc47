//! Deleted subscriptions that leave dead letters behind, for example the undelivered events of a deleted function.

use crate::accept::place;
use crate::apply::event_of;
use crate::engine::{Engine, Failure, Ticket, if_readable};
use crate::lanes::{Earlier, Slot};
use crate::operate::Refused;
use crate::residency::PART_EVENTS;
use crate::subscription::{Phase, Reading, Suspension};
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::{Entry, Hold, Input};
use klambda_core::outcome::Reason;
use klambda_core::time::Millis;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::record::{Change, Gone, Record, Route, Step, To};

/// Maximum number of deleted subscriptions with dead letters. Beyond it, the oldest are removed with their dead
/// letters.
const RETIRED_MAX: usize = 1000;
const AT_ONCE: usize = 4096;
const STEP_BYTES: usize = 16 << 10;
const WHY: &str = "the subscription was deleted before the event could be delivered";

impl Engine {
    /// Stops accepting events. Events still pending after the grace period become dead letters that outlive the
    /// subscription.
    pub fn retire_subscription(&mut self, name: &str, grace_ms: u64) -> Result<(), Refused> {
        let id = self.subscription_id(name)?;
        self.must_write()?;
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        if subscription.is_reading() && !subscription.is_behind() {
            return Err(Refused::Conflict(format!(
                "subscription {name:?} is still reading older events from the log; delete it when it has caught up"
            )));
        }
        self.commit_change(id, Change::Retire { until: self.now + grace_ms })
    }

    /// Fails unless a subscription has this name, or had it and left dead letters.
    pub fn knows_subscription(&self, name: &str) -> Result<(), Refused> {
        match self.subscriptions_named(name).is_empty() {
            true => Err(Refused::NotFound(format!("subscription {name:?} not found"))),
            false => Ok(()),
        }
    }

    /// The subscriptions with this name: the current one first, then deleted ones.
    pub(crate) fn subscriptions_named(&self, name: &str) -> Vec<SubscriptionId> {
        let current = self.subscriptions.named(name);
        let retired = self.subscriptions.values().filter(|s| s.is_retired() && s.name() == name);
        current.into_iter().chain(retired.map(|s| s.id)).collect()
    }

    /// All subscriptions of a namespace, or of all namespaces.
    pub(crate) fn subscriptions_in(&self, namespace: Option<&str>) -> Vec<SubscriptionId> {
        let Some(namespace) = namespace else { return self.subscriptions.ids() };
        let inside = self.subscriptions.values().filter(|s| s.document.namespace == namespace);
        inside.map(|s| s.id).collect()
    }

    pub(crate) fn finish_retiring(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let tally = &subscription.tally;
        match subscription.phase {
            Phase::Retired if tally.dead == 0 => self.end(id, Change::Remove),
            Phase::Retiring { .. } if tally.waiting == 0 && tally.dead == 0 => self.end(id, Change::Remove),
            Phase::Retiring { .. } if tally.waiting == 0 => self.end(id, Change::Retired),
            Phase::Retiring { until } if until <= self.now => self.give_up_waiting(id),
            // The rest follows when it is read.
            Phase::CatchingUp { why: Reading::Retiring { until }, .. } if until <= self.now => {
                self.give_up_waiting(id)
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, id: SubscriptionId, change: Change<'_>) -> Result<(), Failure> {
        if !self.store.log.has_room_for_steps(STEP_BYTES) {
            return Ok(());
        }
        self.commit(&Record::Subscription { time: self.now, subscription: id, change }).map(|_| ())
    }

    /// Removes the oldest deleted subscription if there are too many.
    pub(crate) fn limit_retired(&mut self) -> Result<(), Failure> {
        if self.subscriptions.len() <= self.subscriptions.names_len() + RETIRED_MAX {
            return Ok(());
        }
        let oldest = self
            .subscriptions
            .values()
            .find(|s| s.is_retired())
            .map(|s| (s.id, s.name().to_owned(), s.tally.dead));
        let Some((id, name, letters)) = oldest else { return Ok(()) };
        if !self.store.log.has_room_for_steps(STEP_BYTES) {
            return Ok(());
        }
        tracing::warn!(subscription = %name, letters, "Too many deleted subscriptions with dead letters; dropping the oldest");
        self.metrics.dead_letters_dropped(&name, "overflow", letters);
        self.end(id, Change::Remove)
    }

    // ---- converting pending events to dead letters --------------------------------------------------------

    /// The grace period is over: pending events become dead letters, in portions.
    fn give_up_waiting(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        self.suspend(
            id,
            Suspension { why: "the subscription is being deleted".into(), until: Millis::NEVER },
        );
        let of_it = self.calls.iter().filter(|(_, flight)| flight.subscription == id);
        let open: Vec<Ticket> = of_it.map(|(ticket, _)| ticket).collect();
        open.into_iter().for_each(|ticket| self.abandon(ticket));
        let keys = self.waiting_keys(id)?;
        let mut left = AT_ONCE as u64;
        for key in &keys {
            left = self.give_up_lane(id, key, left)?;
            if left == 0 {
                return Ok(());
            }
        }
        for _ in 0..AT_ONCE {
            let Some(position) = self.first_single(id)? else { break };
            if !self.store.log.has_room_for_steps(STEP_BYTES) {
                return Ok(());
            }
            self.step_single(id, position, Step::GiveUp)?;
        }
        self.finish_given_up(id)
    }

    /// Converts up to `left` events of a lane. Returns how many more may be converted.
    fn give_up_lane(&mut self, id: SubscriptionId, key: &str, mut left: u64) -> Result<u64, Failure> {
        while left > 0 && self.store.log.has_room_for_steps(STEP_BYTES) {
            let slot = self.resident(id, key)?;
            let Some(resident) = self.lanes.get(slot) else { return Ok(left) };
            let (depth, part) = (resident.lane.depth(), left.min(PART_EVENTS as u64));
            if resident.lane.droppable() <= PART_EVENTS as u64 {
                self.step_lane(id, key, Step::GiveUp)?;
                return Ok(left.saturating_sub(depth));
            }
            self.step_lane(id, key, Step::GiveUpPart { events: part })?;
            left -= part;
        }
        Ok(0)
    }

    fn finish_given_up(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let is_done = self.subscriptions.get(id).is_some_and(|s| !s.is_reading() && s.tally.waiting == 0);
        if is_done { self.finish_retiring(id) } else { Ok(()) }
    }

    fn first_single(&mut self, id: SubscriptionId) -> Result<Option<Position>, Failure> {
        let under_way = self.subscriptions.get(id).and_then(|s| s.unordered.first_under_way());
        if under_way.is_some() { Ok(under_way) } else { self.take_next_single(id) }
    }

    /// All events of the lane become dead letters. An event that parked the lane keeps its dead letter.
    pub(crate) fn apply_give_up(&mut self, at: LogAddress, time: Millis, slot: Slot) -> Result<(), Failure> {
        let Some(resident) = self.lanes.get(slot) else { return Ok(()) };
        if resident.lane.hold() == Some(Hold::Failed) {
            self.step(slot, Input::Skip, time, at)?;
        }
        self.scratch.giving_up = self.given_up_head(slot);
        let spilled = self.drop_spilled(slot, time, at);
        let done = spilled.and_then(|()| self.step(slot, Input::Purge, time, at));
        self.scratch.giving_up = None;
        done
    }

    /// The oldest events of the lane become dead letters; an event that parks the lane comes last.
    pub(crate) fn apply_give_up_part(
        &mut self,
        at: LogAddress,
        time: Millis,
        slot: Slot,
        events: u64,
    ) -> Result<(), Failure> {
        self.scratch.giving_up = self.given_up_head(slot);
        let done = (0..events).try_for_each(|_| self.step(slot, Input::DropOldest, time, at));
        self.scratch.giving_up = None;
        done
    }

    fn given_up_head(&self, slot: Slot) -> Option<(Position, u32)> {
        let lane = &self.lanes.get(slot)?.lane;
        let head = lane.head().map_or(Position(0), |(_, entry)| entry.position);
        Some((head, lane.attempts_total()))
    }

    pub(crate) fn give_up_entry(
        &mut self,
        id: SubscriptionId,
        key: Option<&str>,
        entry: Entry,
        time: Millis,
        at: LogAddress,
    ) -> Result<(), Failure> {
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.tally.left(&entry);
        }
        let attempts =
            self.scratch.giving_up.filter(|(head, _)| *head == entry.position).map_or(0, |(_, tried)| tried);
        self.replays.failed(id, entry.position);
        self.add_dead_letter(id, key, entry, Reason::Unavailable, WHY, attempts, time, at, None)
    }

    pub(crate) fn give_up_single(
        &mut self,
        id: SubscriptionId,
        position: Position,
        time: Millis,
        at: LogAddress,
    ) -> Result<(), Failure> {
        let single = self.subscriptions.get(id).and_then(|s| s.unordered.under_way.get(&position));
        let Some((entry, attempts)) = single.map(|single| (single.entry, single.attempts_total)) else {
            return Ok(());
        };
        self.forget_single(id, position);
        self.scratch.giving_up = Some((position, attempts));
        let done = self.give_up_entry(id, None, entry, time, at);
        self.scratch.giving_up = None;
        done
    }

    pub(crate) fn apply_retired(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        subscription.phase = Phase::Retired;
        self.subscriptions.free_name(id);
    }

    // ---- replaying to a successor -------------------------------------------------------------------------

    /// The current subscription with the name of this deleted one.
    pub(crate) fn successor(&self, id: SubscriptionId) -> Option<SubscriptionId> {
        let retired = self.subscriptions.get(id).filter(|s| s.is_retired())?;
        self.subscriptions.named(retired.name())
    }

    /// Moves a dead letter of a deleted subscription to its successor, where it is a new event.
    pub(crate) fn move_letter(
        &mut self,
        from: SubscriptionId,
        position: Position,
        to: SubscriptionId,
        job: u64,
    ) -> Result<(), Failure> {
        let Some(letter) = self.find_dead_letter(from, position)? else { return Ok(()) };
        let Some(subscription) = self.subscriptions.get(to) else { return Ok(()) };
        let record = if_readable(self.read_event(letter.entry.address()))?;
        let view = record.as_deref().and_then(|record| EventView::decode(event_of(record).ok()?.1).ok());
        let Some(view) = view else {
            tracing::error!(
                position = position.0,
                "Could not read a dead letter from the log; it is not replayed"
            );
            self.replays.skip(job, "unreadable", 1);
            return Ok(());
        };
        let identity = self.identity(subscription.namespace, view.source(), view.id());
        if self.is_known(subscription, identity)? {
            // The event was sent again since, so there is nothing left to deliver.
            self.replays.skip(job, "known", 1);
            let (time, why) = (self.now, Gone::Deleted);
            return self
                .commit(&Record::DeadLetterGone { time, subscription: from, position, why })
                .map(|_| ());
        }
        let wanted = place(subscription, &view);
        let moved = Record::Moved {
            time: self.now,
            from,
            position,
            at: letter.entry.address(),
            accepted: letter.entry.accepted,
            bytes: letter.entry.bytes,
            route: self.route(to, &wanted),
            job,
        };
        self.commit(&moved).map(|_| ())
    }

    pub(crate) fn apply_moved(
        &mut self,
        at: LogAddress,
        time: Millis,
        from: SubscriptionId,
        entry: Entry,
        route: &Route<'_>,
        job: u64,
    ) -> Result<(), Failure> {
        let row = crate::rows::at_position(crate::rows::DEAD, from, entry.position);
        if self.store.rows.get(&row)?.is_some() {
            self.store.rows.delete(&row);
            if let Some(subscription) = self.subscriptions.get_mut(from) {
                subscription.tally.dead -= 1;
                subscription.tally.unpin(entry.address());
            }
        }
        let to = route.subscription;
        self.move_edit(from, to, entry.position)?;
        let key = if let To::Lane { key, .. } = route.to { key } else { "" };
        // Before the event takes its place, because it may become a dead letter again immediately.
        self.replays.started(job, to, entry.position, key);
        self.mark_taken(&entry, time, to)?;
        self.maintenance.takes_up(entry.address());
        self.stands_among_younger(to, &entry, &route.to)?;
        self.apply_route(at, time, entry, route)?;
        if let To::Invalid { .. } = route.to {
            self.replays.failed(to, entry.position);
        }
        Ok(())
    }

    /// Records that the queue is not in order of arrival while it contains this event.
    fn stands_among_younger(
        &mut self,
        id: SubscriptionId,
        entry: &Entry,
        to: &To<'_>,
    ) -> Result<(), Failure> {
        match to {
            To::Lane { key, .. } => {
                let slot = self.resident(id, key)?;
                let earlier = Earlier { position: entry.position, attempts: 0, previous_id: String::new() };
                if let Some(resident) = self.lanes.get_mut(slot) {
                    resident.earlier.push(earlier);
                }
            }
            To::Alone => {
                if let Some(subscription) = self.subscriptions.get_mut(id) {
                    subscription.unordered.moved.push_back(entry.position);
                }
            }
            To::Invalid { .. } | To::Later | To::Missed { .. } => {}
        }
        Ok(())
    }
}
