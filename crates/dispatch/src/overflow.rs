//! Backlogs at their limits: which limit is reached, and what goes where the oldest makes room.
//!
//! What goes first in its lane goes first: `Lane::first_droppable`. The oldest over all lanes is the one of these with
//! the lowest position, wherever its lane is (see `by_age`).

mod by_age;

pub(crate) use by_age::ByAge;

use crate::engine::{Engine, Failure};
use crate::subscription::Subscription;
use klambda_core::ids::SubscriptionId;
use klambda_core::lane::Entry;
use klambda_core::subscription::OnFull;
use klambda_core::time::Millis;
use klambda_store::record::Step;

/// The most that the record of a drop takes in the log: a key of 1024 bytes and a few numbers.
pub(crate) const DROP_BYTES_MAX: usize = 1200;

/// The limit that no drop makes room at.
pub(crate) const LETTERS_FULL: &str = "deadLetters.maxEvents";
pub(crate) const EVENTS_FULL: &str = "maxEvents";
const AGE_FULL: &str = "maxAge";

/// Where a limit was lowered more than one event has to go for each that comes, and not all at once.
const DROPS_AT_ONCE: usize = 64;

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

impl Subscription {
    /// Whether so many events could make room where this limit is reached: all but those in flight and those that hold
    /// their lanes.
    pub(crate) fn drops_at(&self, limit: &str, events: u64) -> bool {
        let kept = u64::from(self.flow.in_flight) + self.tally.held;
        self.document.spec.backlog.on_full == OnFull::Drop
            && limit != LETTERS_FULL
            && self.tally.waiting >= kept + events
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
            let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
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
        let subscription = self.subscriptions.get(id);
        let is_too_old = subscription.is_some_and(|s| self.is_too_old(s, oldest.entry.accepted));
        (limit != AGE_FULL || is_too_old) && self.store.log.has_room_for_events(length + DROP_BYTES_MAX)
    }

    /// Drops one event for one that comes in a group, unless others have made room enough for it.
    pub(crate) fn drop_for(&mut self, crowded: Crowded) -> Result<(), Failure> {
        let Crowded { subscription: id, limit } = crowded;
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
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
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        self.metrics.dead_letter_dropped(subscription.name(), "overflow");
        tracing::warn!(subscription = %subscription.name(), "Backlog full: the oldest event is dropped.");
        Ok(())
    }

    fn oldest_droppable(&mut self, id: SubscriptionId) -> Result<Option<Oldest>, Failure> {
        match self.subscriptions.get(id) {
            Some(subscription) if subscription.is_ordered() => self.oldest_in_lanes(id),
            Some(_) => self.oldest_single(id),
            None => Ok(None),
        }
    }

    /// The oldest event of an unordered subscription that is not in flight.
    fn oldest_single(&mut self, id: SubscriptionId) -> Result<Option<Oldest>, Failure> {
        let resting = |s: &Subscription| {
            let single = s.flow.singles.values().find(|single| !single.in_flight)?;
            Some(Oldest { key: None, entry: single.entry })
        };
        let first = self.subscriptions.get(id).and_then(resting);
        if first.is_some() {
            return Ok(first);
        }
        self.take_next_single(id, None)?;
        Ok(self.subscriptions.get(id).and_then(resting))
    }
}
