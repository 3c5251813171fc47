//! Backlogs at their limits: which limit is reached, and what goes where the oldest makes room.
//!
//! What goes first in its lane goes first: `Lane::first_droppable`. The oldest over all lanes is the one of these with
//! the lowest position, wherever its lane is. To find it, a subscription lists its lanes by age once it has to drop.

use crate::engine::{Engine, Failure};
use crate::lanes::Resident;
use crate::rows;
use crate::subscription::Subscription;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::subscription::OnFull;
use klambda_core::time::Millis;
use klambda_store::record::Step;
use std::collections::BTreeMap;

/// The most that the record of a drop takes in the log: a key of 1024 bytes and a few numbers.
pub(crate) const DROP_BYTES_MAX: usize = 1200;

/// The limit that no drop makes room at.
pub(crate) const LETTERS_FULL: &str = "deadLetters.maxEvents";
pub(crate) const EVENTS_FULL: &str = "maxEvents";
const AGE_FULL: &str = "maxAge";

/// Where a limit was lowered more than one event has to go for each that comes, and not all at once.
const DROPS_AT_ONCE: usize = 64;

/// Of the engine's memory, one listed lane for so many bytes: a thirtieth of it at the very most.
const BYTES_PER_LISTED: usize = 4096;

/// A list that was not asked for so long is not kept any longer.
const UNUSED_MS_MAX: u64 = 60_000;

/// A subscription that has to drop its oldest event for one that comes.
pub(crate) struct Crowded {
    pub subscription: SubscriptionId,
    pub limit: &'static str,
}

/// What to drop; in a lane unless it is one of an unordered subscription.
struct Oldest {
    key: Option<Box<str>>,
    entry: Entry,
}

/// Lanes by what they would drop first, as far as memory is for: every lane that would drop something from before the
/// horizon is listed at that, or at something older that has left it since.
pub(crate) struct ByAge {
    lanes: BTreeMap<Position, Box<str>>,
    horizon: Position,
    /// As many lanes are listed at least, if there are.
    window: usize,
    used: Millis,
}

impl ByAge {
    fn new(window: usize, now: Millis) -> ByAge {
        ByAge { lanes: BTreeMap::new(), horizon: Position(u64::MAX), window, used: now }
    }

    fn list(&mut self, position: Position, key: &str) {
        if position >= self.horizon || self.lanes.get(&position).is_some_and(|listed| **listed == *key) {
            return;
        }
        self.lanes.insert(position, key.into());
        if self.lanes.len() > 2 * self.window
            && let Some(horizon) = self.lanes.keys().nth(self.window).copied()
        {
            self.lanes.split_off(&horizon);
            self.horizon = horizon;
        }
    }

    /// There may be more than what was listed, and nothing of that is left.
    fn is_used_up(&self) -> bool {
        self.lanes.is_empty() && self.horizon < Position(u64::MAX)
    }
}

impl Subscription {
    /// Whether so many events could make room where this limit is reached: all but those in flight and those that hold
    /// their lanes.
    pub(crate) fn drops_at(&self, limit: &str, events: u64) -> bool {
        let kept = u64::from(self.in_flight) + self.tally.held;
        self.document.spec.backlog.on_full == OnFull::Drop
            && limit != LETTERS_FULL
            && self.tally.waiting >= kept + events
    }

    /// After something happened to a lane.
    pub(crate) fn list_by_age(&mut self, resident: &Resident, now: Millis) {
        let Some(by_age) = &mut self.by_age else { return };
        if now.since(by_age.used) > UNUSED_MS_MAX {
            self.by_age = None;
        } else if let Some(entry) = resident.lane.first_droppable() {
            by_age.list(entry.position, &resident.key);
        }
    }
}

impl Engine {
    /// The limit that is reached once `more` events wait beside those that do.
    pub(crate) fn limit_reached(&self, subscription: &Subscription, more: u64) -> Option<&'static str> {
        let (limits, tally) = (&subscription.document.spec.backlog, &subscription.tally);
        if subscription.letters_are_full() {
            Some(LETTERS_FULL)
        } else if tally.owed() + more >= limits.events_max {
            Some(EVENTS_FULL)
        } else if tally.owed_bytes() >= limits.bytes_max {
            Some("maxBytes")
        } else if !subscription.lags()
            && tally.oldest().is_some_and(|oldest| self.is_too_old(subscription, oldest))
        {
            Some(AGE_FULL)
        } else {
            None
        }
    }

    fn is_too_old(&self, subscription: &Subscription, accepted: Millis) -> bool {
        let age_max_ms = subscription.document.spec.backlog.age_max_ms;
        age_max_ms > 0 && self.now.since(accepted) >= age_max_ms
    }

    /// Drops the oldest events until an event has its place, and `length` in the log beside them.
    pub(crate) fn make_room(&mut self, id: SubscriptionId, length: usize) -> Result<(), Failure> {
        for n in 0..DROPS_AT_ONCE {
            let Some(subscription) = self.subscriptions.get(&id) else { return Ok(()) };
            let Some(limit) = self.limit_reached(subscription, 0) else { return Ok(()) };
            let Some(oldest) = self.oldest_droppable(id)? else { return Ok(()) };
            if n > 0 && !self.helps(id, limit, &oldest, length) {
                return Ok(());
            }
            self.drop_event(id, &oldest)?;
        }
        Ok(())
    }

    /// Whether one more drop gets the backlog nearer to its limit. One that is too old for what cannot go does not get
    /// younger by it.
    fn helps(&self, id: SubscriptionId, limit: &str, oldest: &Oldest, length: usize) -> bool {
        let subscription = self.subscriptions.get(&id);
        let is_too_old = subscription.is_some_and(|s| self.is_too_old(s, oldest.entry.accepted));
        (limit != AGE_FULL || is_too_old) && self.log.has_room_for_events(length + DROP_BYTES_MAX)
    }

    /// Drops one event for one that comes in a group, unless others have made room enough for it.
    pub(crate) fn drop_for(&mut self, crowded: Crowded) -> Result<(), Failure> {
        let Crowded { subscription: id, limit } = crowded;
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(()) };
        if limit != EVENTS_FULL && self.limit_reached(subscription, 0).is_none() {
            return Ok(());
        }
        match self.oldest_droppable(id)? {
            Some(oldest) => self.drop_event(id, &oldest),
            None => Ok(()),
        }
    }

    fn drop_event(&mut self, id: SubscriptionId, oldest: &Oldest) -> Result<(), Failure> {
        let position = oldest.entry.position;
        let step = Step::DropOldest { position };
        match &oldest.key {
            Some(key) => self.step_lane(id, key, step)?,
            None => self.step_single(id, position, step)?,
        };
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(()) };
        self.metrics.dead_letter_dropped(subscription.name(), "overflow");
        tracing::warn!(subscription = %subscription.name(), "Backlog full: the oldest event is dropped.");
        Ok(())
    }

    fn oldest_droppable(&mut self, id: SubscriptionId) -> Result<Option<Oldest>, Failure> {
        match self.subscriptions.get(&id) {
            Some(subscription) if subscription.is_ordered() => self.oldest_in_lanes(id),
            Some(_) => self.oldest_single(id),
            None => Ok(None),
        }
    }

    /// The oldest event of an unordered subscription that is not in flight.
    fn oldest_single(&mut self, id: SubscriptionId) -> Result<Option<Oldest>, Failure> {
        let resting = |s: &Subscription| {
            let single = s.singles.values().find(|single| !single.in_flight)?;
            Some(Oldest { key: None, entry: single.entry })
        };
        let first = self.subscriptions.get(&id).and_then(resting);
        if first.is_some() {
            return Ok(first);
        }
        self.take_next_single(id, None)?;
        Ok(self.subscriptions.get(&id).and_then(resting))
    }

    fn oldest_in_lanes(&mut self, id: SubscriptionId) -> Result<Option<Oldest>, Failure> {
        loop {
            self.list_lanes(id)?;
            let by_age = self.subscriptions.get(&id).and_then(|s| s.by_age.as_ref());
            let Some((position, key)) = by_age.and_then(|by_age| by_age.lanes.first_key_value()) else {
                return Ok(None);
            };
            let (position, key) = (*position, key.clone());
            let first = self.first_droppable(id, &key)?;
            if let Some(entry) = first.filter(|entry| entry.position == position) {
                return Ok(Some(Oldest { key: Some(key), entry }));
            }
            // That one has left its lane by another way.
            let by_age = self.subscriptions.get_mut(&id).and_then(|s| s.by_age.as_mut());
            let Some(by_age) = by_age else { return Ok(None) };
            by_age.lanes.remove(&position);
            if let Some(entry) = first {
                by_age.list(entry.position, &key);
            }
        }
    }

    fn first_droppable(&self, id: SubscriptionId, key: &str) -> Result<Option<Entry>, Failure> {
        if let Some(slot) = self.lanes.find(id, key) {
            let resident = self.lanes.get(slot);
            return Ok(resident.and_then(|resident| resident.lane.first_droppable().copied()));
        }
        let resident = self.peek_lane(id, key)?;
        Ok(resident.and_then(|resident| resident.lane.first_droppable().copied()))
    }

    /// Makes sure that the oldest lanes are listed. All are looked through when there is no list, or when all that was
    /// in it went.
    fn list_lanes(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let now = self.now;
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return Ok(()) };
        if let Some(by_age) = subscription.by_age.as_mut().filter(|by_age| !by_age.is_used_up()) {
            by_age.used = now;
            return Ok(());
        }
        let window = (self.config.memory_bytes / BYTES_PER_LISTED).max(64);
        let mut by_age = ByAge::new(window, now);
        for (_, resident) in self.lanes.iter().filter(|(_, resident)| resident.subscription == id) {
            if let Some(entry) = resident.lane.first_droppable() {
                by_age.list(entry.position, &resident.key);
            }
        }
        self.list_lanes_on_disk(id, rows::WAITING, &mut by_age)?;
        self.list_lanes_on_disk(id, rows::PARKED, &mut by_age)?;
        if let Some(subscription) = self.subscriptions.get_mut(&id) {
            subscription.by_age = Some(Box::new(by_age));
        }
        Ok(())
    }

    fn list_lanes_on_disk(&self, id: SubscriptionId, letter: u8, by_age: &mut ByAge) -> Result<(), Failure> {
        const AT_ONCE: usize = 1024;
        let prefix = rows::of_subscription(letter, id);
        let mut from = prefix.clone();
        loop {
            let found = self.rows.scan(&prefix, &from, AT_ONCE)?;
            for (row, _) in &found {
                let key = rows::lane_of(row);
                if self.lanes.find(id, key).is_none()
                    && let Some(entry) = self.first_droppable(id, key)?
                {
                    by_age.list(entry.position, key);
                }
            }
            match found.last() {
                Some((row, _)) if found.len() == AT_ONCE => from = [row.as_slice(), &[0]].concat(),
                _ => return Ok(()),
            }
        }
    }
}
