//! Lagging subscriptions: they reached a backlog limit, and the events accepted since then are unread.
//!
//! An unread event takes no place in a lane. The subscription reads it when less than nine tenths of its limits are
//! used. If no pending event can be delivered, the missing events may be among the unread ones, so the subscription
//! then reads up to twice its limits.

use crate::accept::{ACKNOWLEDGEMENT_BYTES, Wanted, place_under};
use crate::engine::{Engine, Failure};
use crate::lanes::Resident;
use crate::subscription::{Phase, Reading, Subscription};
use crate::views::counted;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::{Entry, State};
use klambda_core::planted::{self, Bug};
use klambda_core::quantity::shown_bytes;
use klambda_core::subscription::{OnFull, Overflow};
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::address::LogAddress;
use klambda_store::record::{Missed, Record, Route, To};

/// Maximum number of events from a new subscription's past that are in its lanes at a time.
const PAST_WAITING_MAX: u64 = 10_000;

/// Maximum size of the record that is logged when an event is read.
const ROUTED_BYTES_MAX: usize = 1200;

/// Maximum number of lanes named in a message.
const NAMED_MAX: usize = 5;

impl Subscription {
    /// True if the subscription falls behind when it reaches a limit.
    pub(crate) fn lags(&self) -> bool {
        self.document.spec.backlog.on_full == OnFull::Lag
    }

    /// True if the subscription is being deleted and accepts no new events.
    pub(crate) fn is_leaving(&self) -> bool {
        match self.phase {
            Phase::Live | Phase::CatchingUp { why: Reading::Past | Reading::Behind, .. } => false,
            Phase::CatchingUp { why: Reading::Draining | Reading::Retiring { .. }, .. } => true,
            Phase::Draining | Phase::Retiring { .. } | Phase::Retired => true,
        }
    }

    /// True if the subscription is reading events that it accepted, rather than its past.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_reading() && !matches!(self.phase, Phase::CatchingUp { why: Reading::Past, .. })
    }

    /// How many events and bytes may be in lanes while the subscription reads.
    fn reads_up_to(&self) -> (u64, u64) {
        let limits = &self.document.spec.backlog;
        match self.is_behind() {
            true => (limits.events_max, limits.bytes_max),
            false => (PAST_WAITING_MAX, u64::MAX),
        }
    }

    /// True if the lanes hold less than `tenths` tenths of their limit.
    fn is_below_tenths(&self, tenths: u128) -> bool {
        let (events, bytes) = self.reads_up_to();
        let is_below = |used: u64, limit: u64| u128::from(used) * 10 < u128::from(limit) * tenths;
        is_below(self.tally.waiting, events) && is_below(self.tally.waiting_bytes, bytes)
    }

    fn look_for_room(&mut self) {
        let enough = if planted::is_on(Bug::ReadsWhenFull) { 1000 } else { 9 };
        if self.is_below_tenths(enough) {
            self.unread.has_room = true;
        } else if !self.is_below_tenths(10) {
            self.unread.has_room = false;
        }
        if self.is_below_tenths(9) {
            self.unread.gaps_expire = false;
        } else if self.is_held_up() && !self.is_below_tenths(20) {
            self.unread.gaps_expire = true;
        }
    }

    /// True if the dead letters are at a limit that must not be exceeded.
    pub(crate) fn letters_are_full(&self) -> bool {
        let letters = &self.document.spec.dead_letters;
        letters.overflow == Overflow::Reject
            && self.document.spec.backlog.on_full != OnFull::Drop
            && self.tally.dead >= letters.events_max
    }

    /// True if no pending event can be delivered before an operator acts or a gap times out.
    fn is_held_up(&self) -> bool {
        let count = |state: State| self.tally.lanes[state as usize];
        let moving = count(State::Open) + count(State::Running) + count(State::Retrying);
        self.is_ordered() && !self.is_paused() && self.tally.waiting > 0 && moving == 0
    }

    /// True if an unread event may belong to a lane under the current rules. Which events of its past a new
    /// subscription takes is unknown until it reads them.
    fn may_have_unread(&self) -> bool {
        let reads_past = matches!(self.phase, Phase::CatchingUp { why: Reading::Past, .. });
        (reads_past && self.next_rules.document.is_none()) || self.unread_under_rules() > 0
    }

    /// Gap timers stop while the missing event may be among the unread ones. They run again when no lane moves and
    /// nothing more is read.
    pub(crate) fn stops_gap_timers(&self) -> bool {
        self.is_reading() && self.may_have_unread() && !self.unread.gaps_expire
    }
}

impl Engine {
    pub(crate) fn may_read(&mut self, id: SubscriptionId) -> bool {
        let has_log_room = self.store.log.has_room_for_many() || self.may_read_from_reserve();
        let waits = self.awaits_checkpoint() || self.lacks_checkpoint();
        let Some(subscription) = self.subscriptions.get_mut(id) else { return false };
        subscription.look_for_room();
        let has_place =
            subscription.unread.has_room || (subscription.is_held_up() && subscription.is_below_tenths(20));
        let letters_wait =
            subscription.lags() && subscription.letters_are_full() && !subscription.is_leaving();
        has_log_room && has_place && !letters_wait && !waits
    }

    /// On a full disk, reading continues as long as every pending event can still be acknowledged.
    fn may_read_from_reserve(&self) -> bool {
        let room = || ROUTED_BYTES_MAX + ACKNOWLEDGEMENT_BYTES + self.owed_bytes();
        self.condition.disk_full && self.store.log.has_room_for_steps(room())
    }

    /// The time before which the gap of this lane must not expire, even if its timer is due.
    pub(crate) fn gap_is_held_until(&self, resident: &Resident) -> Option<Millis> {
        const LOOK_MS: u64 = 1000;
        let subscription = self.subscriptions.get(resident.subscription)?;
        let timeout_ms = subscription.policy.gap_timeout_ms;
        if subscription.stops_gap_timers() {
            return Some(self.now + timeout_ms.max(LOOK_MS));
        }
        // The timeout counts from the time when everything was read.
        let until = subscription.life.caught_at + timeout_ms;
        (subscription.life.caught_at > Millis::ZERO && until > self.now).then_some(until)
    }

    /// When to check a lane again that is leaving memory.
    pub(crate) fn due(&self, resident: &Resident) -> Millis {
        let at = resident.lane.wake_at().unwrap_or(Millis::ZERO);
        let is_gap = resident.lane.state() == State::Gap;
        let held = if is_gap { self.gap_is_held_until(resident) } else { None };
        held.map_or(at, |held| at.max(held))
    }

    // ---- events that are never read -----------------------------------------------------------------------

    /// Called before a segment is deleted: records the event as missed for subscriptions that have not read it.
    pub(crate) fn miss_unread(
        &mut self,
        at: LogAddress,
        body: &[u8],
        position: Position,
    ) -> Result<(), Failure> {
        let Record::Event { time, routes, event, .. } = Record::decode(body)? else { return Ok(()) };
        for route in routes.iter().filter(|route| route.to == To::Later) {
            let id = route.subscription;
            let is_unread = |s: &Subscription| !s.has_read_up_to(Position(position.0 + 1));
            if self.subscriptions.get(id).is_some_and(is_unread) && !planted::is_on(Bug::MissedUncounted) {
                let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
                let entry = crate::catch_up::entry(position, at, time, event.len() as u32);
                self.miss(id, entry, &view, Missed::Retention)?;
            }
        }
        Ok(())
    }

    pub(crate) fn miss(
        &mut self,
        id: SubscriptionId,
        entry: Entry,
        event: &EventView<'_>,
        why: Missed,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let new_rules = subscription
            .next_rules
            .document
            .as_ref()
            .filter(|_| entry.position >= subscription.next_rules.from);
        let rules = new_rules.unwrap_or(&subscription.document);
        let wanted = place_under(&rules.spec, event);
        let key = match &wanted {
            Wanted::Lane { key, .. } => key.as_ref(),
            _ => "",
        };
        if !key.is_empty() {
            self.resident(id, key)?;
        }
        let previous = self.last_step(id, key);
        self.commit_routed(entry, Route { subscription: id, previous, to: To::Missed { key, why } })
    }

    /// Releases the id of the event and flags the next event of its lane.
    pub(crate) fn apply_missed(
        &mut self,
        at: LogAddress,
        time: Millis,
        id: SubscriptionId,
        entry: Entry,
        key: &str,
        why: Missed,
    ) -> Result<(), Failure> {
        self.release(id, &entry, time, at)?;
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        if why == Missed::Retention {
            subscription.notes.missed += 1;
            subscription.notes.missed_last = entry.position;
            if self.condition.live {
                let name = subscription.name().to_owned();
                tracing::warn!(
                    subscription = %name, key, position = entry.position.0,
                    "Retention deleted an event before the subscription read it"
                );
                self.metrics.dead_letter_dropped(&name, "retention");
            }
        }
        if key.is_empty() {
            return Ok(());
        }
        let slot = self.resident(id, key)?;
        if let Some(resident) = self.lanes.get_mut(slot) {
            resident.lane.missed();
            resident.row.dirty = true;
            resident.last_step = at;
            // A decision takes effect only when it is durable.
            resident.barrier = at.after();
        }
        Ok(())
    }

    // ---- messages -----------------------------------------------------------------------------------------

    /// Status messages about a backlog at its limits.
    pub(crate) fn backlog_messages(&self, subscription: &Subscription) -> Vec<String> {
        let mut messages = Vec::new();
        if let Some(position) = subscription.unread.unreadable.filter(|_| subscription.is_reading()) {
            messages.push(format!("event {position} cannot be read from the log; reading stops before it"));
        }
        let tally = &subscription.tally;
        if subscription.is_behind() {
            messages.push(format!(
                "behind: {} accepted but unread ({}), the oldest accepted at {}",
                counted(tally.later, "event"),
                shown_bytes(tally.later_bytes),
                tally.later_since.rfc3339()
            ));
        }
        if subscription.is_reading() {
            messages.extend(self.blocking_reason(subscription));
        }
        let limit_ms = subscription.document.spec.backlog.age_max_ms;
        if let Some(oldest) = tally.oldest()
            && limit_ms > 0
            && self.now.since(oldest) >= limit_ms
        {
            messages.push(format!(
                "the oldest pending event was accepted at {} and exceeds maxAge",
                oldest.rfc3339()
            ));
        }
        let missed = subscription.notes.missed;
        if missed > 0 {
            messages.push(format!(
                "retention deleted {} before reading, the last at position {}; the next event of each affected key is \
                 flagged gap",
                counted(missed, "event"),
                subscription.notes.missed_last
            ));
        }
        messages
    }

    fn blocking_reason(&self, subscription: &Subscription) -> Option<String> {
        if subscription.letters_are_full() {
            return Some(
                "the limit of dead letters is reached (deadLetters.maxEvents); replay or purge some of them"
                    .into(),
            );
        }
        if !subscription.is_held_up() || subscription.is_below_tenths(20) {
            return None;
        }
        let mut keys = self.parked_lanes(subscription.id, NAMED_MAX).unwrap_or_default();
        let is_gap = |r: &&Resident| r.subscription == subscription.id && r.lane.state() == State::Gap;
        let gaps = self.lanes.iter().map(|(_, resident)| resident).filter(is_gap);
        keys.extend(gaps.map(|resident| resident.key.to_string()).take(NAMED_MAX - keys.len()));
        Some(format!(
            "no pending event can be delivered, and twice the limit is pending; blocked lanes: {}",
            keys.iter().map(|key| format!("{key:?}")).collect::<Vec<String>>().join(", ")
        ))
    }
}
