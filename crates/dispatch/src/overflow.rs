//! Backlog limits: which limit is reached, and which event is dropped to make room.
//!
//! Each lane has an event that it would drop first (`Lane::first_droppable`). Among these, the event with the lowest
//! position is the oldest of all lanes, in memory or on disk (see `by_age`).

mod by_age;

pub(crate) use by_age::ByAge;

use crate::engine::{Engine, Failure};
use crate::operate::Refused;
use crate::subscription::Subscription;
use klambda_core::ids::SubscriptionId;
use klambda_core::lane::Entry;
use klambda_core::subscription::OnFull;
use klambda_core::time::Millis;
use klambda_store::record::Step;

/// Maximum size of the record of a drop: a key of 1,024 bytes and a few numbers.
pub(crate) const DROP_BYTES_MAX: usize = 1200;

/// Dropping events makes no room at this limit.
pub(crate) const LETTERS_FULL: &str = "deadLetters.maxEvents";
pub(crate) const EVENTS_FULL: &str = "maxEvents";
const AGE_FULL: &str = "maxAge";

/// After a limit was lowered, several events are dropped for each new one, but not all at once.
const DROPS_AT_ONCE: usize = 64;
/// Events of a disabled endpoint that expire in one round.
const EXPIRED_AT_ONCE: usize = 256;

/// A subscription that must drop its oldest event for a new one.
pub(crate) struct Crowded {
    pub subscription: SubscriptionId,
    pub limit: &'static str,
}

/// The event to drop. `key` is `None` in an unordered subscription.
struct Oldest {
    key: Option<Box<str>>,
    entry: Entry,
}

impl Subscription {
    /// True if this many events could be dropped at this limit: all events except those in flight and those that park
    /// their lanes.
    pub(crate) fn drops_at(&self, limit: &str, events: u64) -> bool {
        let kept = u64::from(self.flow.in_flight) + self.tally.held;
        self.document.spec.backlog.on_full == OnFull::Drop
            && limit != LETTERS_FULL
            && self.tally.waiting >= kept + events
    }
}

impl Engine {
    /// The limit that is reached with `more` additional pending events.
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

    /// Drops the oldest events until there is room for one event, and for `length` bytes in the log.
    pub(crate) fn make_room(&mut self, id: SubscriptionId, length: usize) -> Result<(), Failure> {
        for n in 0..DROPS_AT_ONCE {
            let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
            let Some(limit) = self.limit_reached(subscription, 0) else { return Ok(()) };
            let Some(oldest) = self.oldest_droppable(id)? else { return Ok(()) };
            if n > 0 && !self.helps(id, limit, &oldest, length) {
                return Ok(());
            }
            self.drop_event(id, &oldest)?;
            self.dropped_by_overflow(id);
        }
        Ok(())
    }

    /// Drops pending events of a disabled webhook endpoint that are older than the retention. Nobody fetches them from
    /// the feed any more, and they must not keep the log for an endpoint that may never return.
    pub(crate) fn expire_disabled(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let (age_ms, now) = (self.config.retention_age_ms, self.now);
        let is_old = |accepted: Millis| age_ms > 0 && now.since(accepted) >= age_ms;
        for _ in 0..EXPIRED_AT_ONCE {
            let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
            if subscription.life.health.disabled.is_none()
                || !subscription.tally.oldest().is_some_and(is_old)
                || !self.has_room_for_step()
            {
                return Ok(());
            }
            let Some(oldest) = self.oldest_droppable(id)?.filter(|oldest| is_old(oldest.entry.accepted))
            else {
                return Ok(());
            };
            self.drop_event(id, &oldest)?;
            let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
            self.metrics.dead_letter_dropped(subscription.name(), "expired");
        }
        Ok(())
    }

    /// Skips pending events of a disabled webhook endpoint that were accepted before a time, in parts. They stay in the
    /// feed, and the next event of each workflow is flagged. Returns the number of skipped events and whether there may
    /// be more.
    pub fn skip_before(&mut self, name: &str, from: Millis) -> Result<(u64, bool), Refused> {
        let id = self.subscription_id(name)?;
        if !self.lists_every_lane(id)? {
            return Ok((0, true));
        }
        for skipped in 0..EXPIRED_AT_ONCE as u64 {
            self.must_write()?;
            let oldest = self.oldest_droppable(id)?.filter(|oldest| oldest.entry.accepted < from);
            let Some(oldest) = oldest.filter(|_| self.is_disabled(id)) else {
                return Ok((skipped, self.read_before(id, from)?));
            };
            self.drop_event(id, &oldest)?;
            let Some(subscription) = self.subscriptions.get(id) else { return Ok((skipped, false)) };
            self.metrics.dead_letter_dropped(subscription.name(), "skipped");
        }
        Ok((EXPIRED_AT_ONCE as u64, true))
    }

    /// Reads unread events of a disabled endpoint that were accepted before a time. They take their places first, so that
    /// the feed has them. Returns true if there were some.
    fn read_before(&mut self, id: SubscriptionId, from: Millis) -> Result<bool, Failure> {
        let is_unread = |s: &Subscription| {
            let is_readable = s.unread.unreadable.is_none() && s.next_rules.document.is_none();
            s.is_behind() && is_readable && s.tally.later > 0 && s.tally.later_since < from
        };
        if !self.is_disabled(id) || !self.subscriptions.get(id).is_some_and(is_unread) {
            return Ok(false);
        }
        self.catch_up_one(id)?;
        Ok(true)
    }

    pub fn is_endpoint_disabled(&self, name: &str) -> Result<bool, Refused> {
        Ok(self.is_disabled(self.subscription_id(name)?))
    }

    pub(crate) fn is_disabled(&self, id: SubscriptionId) -> bool {
        self.subscriptions.get(id).is_some_and(|subscription| subscription.life.health.disabled.is_some())
    }

    /// True if another drop brings the backlog closer to its limit. At the age limit, dropping does not help if the
    /// oldest events cannot be dropped.
    fn helps(&self, id: SubscriptionId, limit: &str, oldest: &Oldest, length: usize) -> bool {
        let subscription = self.subscriptions.get(id);
        let is_too_old = subscription.is_some_and(|s| self.is_too_old(s, oldest.entry.accepted));
        (limit != AGE_FULL || is_too_old) && self.store.log.has_room_for_events(length + DROP_BYTES_MAX)
    }

    /// Drops one event for a new event of a group, unless other drops have made enough room.
    pub(crate) fn drop_for(&mut self, crowded: Crowded) -> Result<(), Failure> {
        let Crowded { subscription: id, limit } = crowded;
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        if limit != EVENTS_FULL && self.limit_reached(subscription, 0).is_none() {
            return Ok(());
        }
        if let Some(oldest) = self.oldest_droppable(id)? {
            self.drop_event(id, &oldest)?;
            self.dropped_by_overflow(id);
        }
        Ok(())
    }

    fn drop_event(&mut self, id: SubscriptionId, oldest: &Oldest) -> Result<(), Failure> {
        let position = oldest.entry.position;
        let step = Step::DropOldest { position };
        match &oldest.key {
            Some(key) => self.step_lane(id, key, step)?,
            None => self.step_single(id, position, step)?,
        };
        Ok(())
    }

    fn dropped_by_overflow(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.subscriptions.get(id) else { return };
        self.metrics.dead_letter_dropped(subscription.name(), "overflow");
        tracing::warn!(subscription = %subscription.name(), "Backlog full; oldest event dropped");
    }

    fn oldest_droppable(&mut self, id: SubscriptionId) -> Result<Option<Oldest>, Failure> {
        match self.subscriptions.get(id) {
            Some(subscription) if subscription.is_ordered() => self.oldest_in_lanes(id),
            _ => Ok(self.oldest_resting(id).map(|entry| Oldest { key: None, entry })),
        }
    }
}
