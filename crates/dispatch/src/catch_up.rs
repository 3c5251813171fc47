//! Subscriptions that read the log: new ones that begin in the past, ones that reached a limit, and ones whose
//! ordering rules changed.
//!
//! While a subscription reads, new events for it are logged with the route `Later` and read from the log like the
//! rest, which keeps a single order. The subscription goes live in the step in which nothing is left to read. The
//! newest unread events are also listed in memory. While the list is complete, the log is not searched.

use crate::accept::{Wanted, place};
use crate::engine::{Engine, Failure, if_readable};
use crate::subscription::{Phase, Reading, Subscription};
use crate::subscriptions::Work;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{LaneNumber, NamespaceId, Position, SubscriptionId};
use klambda_core::lane::{Entry, Flag};
use klambda_core::planted::{self, Bug};
use klambda_core::subscription::{Document, From};
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::log;
use klambda_store::record::{Change, EventHead, Missed, Record, Route, To};

/// How many events all subscriptions together read in one round. Searching a frame of the log counts as reading
/// `FRAME_EVENTS`, even if it has fewer.
const EVENTS_AT_ONCE: usize = 8192;
const FRAME_EVENTS: usize = EVENTS_AT_ONCE / 32;

/// How many unread events are listed in memory per subscription, and the share of memory for all lists.
const LISTED_MAX: usize = 65_536;
const LISTED_MIN: usize = 64;
const LISTED_SHARE: usize = 32;

/// Whether events that are read get their places or are missed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Routed,
    Missed(Missed),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// Something was read, and there may be more.
    Some,
    /// The next event cannot be read now.
    Nothing,
    /// No event is unread.
    All,
}

impl Subscription {
    /// True if the subscription reads the log. Events that it accepts are read later.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.phase, Phase::CatchingUp { .. })
    }

    fn list_later(&mut self, entry: Entry, listed_max: usize) {
        if self.tally.later == 0 {
            self.tally.later_since = entry.accepted;
        }
        self.tally.later += 1;
        self.tally.later_bytes += u64::from(entry.bytes);
        self.unread.listed.push_back(entry);
        self.shorten_list(listed_max);
    }

    fn shorten_list(&mut self, listed_max: usize) {
        while self.unread.listed.len() > listed_max
            && let Some(oldest) = self.unread.listed.pop_front()
        {
            self.unread.from = oldest.position;
        }
    }

    /// The subscription has reached this event.
    pub(crate) fn routed(&mut self, entry: &Entry) {
        if entry.position >= self.life.began {
            self.tally.later = self.tally.later.saturating_sub(1);
            self.tally.later_bytes = self.tally.later_bytes.saturating_sub(u64::from(entry.bytes));
            self.tally.later_since = entry.accepted;
            if self.next_rules.document.is_some() && entry.position < self.next_rules.from {
                self.tally.later_old = self.tally.later_old.saturating_sub(1);
            }
        }
        while self.unread.listed.pop_front_if(|listed| listed.position <= entry.position).is_some() {}
        self.is_done_up_to(entry.position);
    }

    fn is_done_up_to(&mut self, position: Position) {
        if let Phase::CatchingUp { done, .. } = &mut self.phase {
            *done = (*done).max(position);
        }
    }

    fn done(&self) -> Position {
        match self.phase {
            Phase::CatchingUp { done, .. } => done,
            _ => Position(u64::MAX),
        }
    }

    /// True if all unread events are listed in memory.
    fn is_all_listed(&self) -> bool {
        self.unread.from <= self.done()
    }

    /// True if the current rules apply to the event at this position, and not the rules that take effect later.
    fn is_under_rules(&self, position: Position) -> bool {
        self.next_rules.document.is_none() || position < self.next_rules.from
    }

    /// The number of unread events under the current rules. A new subscription reads its past under whatever rules it
    /// has.
    pub(crate) fn unread_under_rules(&self) -> u64 {
        match (&self.next_rules.document, self.phase) {
            (Some(_), _) => self.tally.later_old,
            (None, Phase::CatchingUp { why: Reading::Past, .. }) => 0,
            (None, _) => self.tally.later,
        }
    }

    /// True if nothing is pending under the current rules, so that new rules can take effect.
    pub(crate) fn is_drained(&self) -> bool {
        self.tally.waiting == 0 && self.unread_under_rules() == 0
    }

    /// True if no unread event that retention may delete is before this position.
    pub(crate) fn has_read_up_to(&self, position: Position) -> bool {
        match self.phase {
            Phase::CatchingUp { why: Reading::Past, .. } => true,
            Phase::CatchingUp { .. } if self.tally.later == 0 => true,
            Phase::CatchingUp { .. } if self.is_all_listed() => {
                self.unread.listed.front().is_none_or(|first| first.position >= position)
            }
            Phase::CatchingUp { done, .. } => done.0 + 1 >= position.0,
            _ => true,
        }
    }
}

impl Engine {
    /// Where a new subscription begins. The time is set if that is later than requested.
    pub(crate) fn first_phase(
        &self,
        document: &Document,
        at: LogAddress,
        next_position: Position,
    ) -> (Phase, Option<Millis>) {
        let segments = self.store.log.segments();
        let Some(oldest) = segments.first() else { return (Phase::Live, None) };
        let from = match document.spec.from {
            From::Latest => return (Phase::Live, None),
            From::Earliest => Millis::ZERO,
            From::Time(time) => time,
        };
        if next_position == Position(1) || at <= oldest.start() {
            return (Phase::Live, None);
        }
        let after = segments.partition_point(|segment| segment.created <= from);
        let segment = &segments[after.saturating_sub(1)];
        let done = Position(segment.first_position.0.saturating_sub(1));
        let late = from > Millis::ZERO && from < oldest.created && oldest.base > LogAddress(0);
        let phase = Phase::CatchingUp { cursor: segment.start(), done, why: Reading::Past };
        (phase, late.then_some(oldest.created))
    }

    /// Where to start reading to reach the record at this address. A record is inside a frame, and frames can only be
    /// located from the beginning of their segment.
    pub(crate) fn first_frame(&self, at: LogAddress) -> LogAddress {
        let segments = self.store.log.segments();
        let after = segments.partition_point(|segment| segment.base <= at);
        segments.get(after.saturating_sub(1)).map_or(at, |segment| segment.start())
    }

    /// Notes an event that the subscription reads later. A live subscription falls behind.
    pub(crate) fn comes_later(&mut self, id: SubscriptionId, entry: Entry) {
        match self.subscriptions.get(id).map(|s| s.phase) {
            Some(Phase::Live) if !self.condition.live && planted::is_on(Bug::LagNotRecovered) => return,
            Some(Phase::Live) => self.fall_behind(id, entry.address(), entry.position),
            Some(Phase::CatchingUp { .. }) => {}
            _ => return,
        }
        let listed_max = self.maintenance.listed_max.max(LISTED_MIN);
        if self.subscriptions.get(id).is_some_and(|s| s.unread.listed.len() >= listed_max) {
            self.set_cursor(id);
        }
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.list_later(entry, listed_max);
        }
    }

    /// Makes the subscription read the log from this event on.
    pub(crate) fn fall_behind(&mut self, id: SubscriptionId, at: LogAddress, position: Position) {
        let (cursor, done) = (self.first_frame(at), Position(position.0 - 1));
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        subscription.phase = Phase::CatchingUp { cursor, done, why: Reading::Behind };
        subscription.unread.listed.clear();
        subscription.unread.from = done;
        subscription.unread.has_room = false;
    }

    /// The cursor does not move while the list in memory is used. This moves it to the first unread event.
    pub(crate) fn set_cursor(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.subscriptions.get(id) else { return };
        if !subscription.is_behind() || !subscription.is_all_listed() {
            return;
        }
        let first =
            subscription.unread.listed.front().map_or(self.store.log.written(), |first| first.address());
        let first = self.first_frame(first);
        if let Some(subscription) = self.subscriptions.get_mut(id)
            && let Phase::CatchingUp { cursor, .. } = &mut subscription.phase
        {
            *cursor = first.max(*cursor);
        }
    }

    pub(crate) fn apply_caught(&mut self, id: SubscriptionId, time: Millis, up_to: Position, next: Position) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        if up_to.0 + 1 == next.0 && subscription.next_rules.document.is_none() {
            subscription.phase = match subscription.phase {
                Phase::CatchingUp { why: Reading::Draining, .. } => Phase::Draining,
                Phase::CatchingUp { why: Reading::Retiring { until }, .. } => Phase::Retiring { until },
                _ => Phase::Live,
            };
            subscription.unread.listed = Default::default();
            subscription.life.caught_at = time;
            (subscription.tally.later, subscription.tally.later_bytes) = (0, 0);
        } else {
            subscription.is_done_up_to(up_to);
        }
    }

    pub(crate) fn catch_up_all(&mut self) -> Result<(), Failure> {
        let mut ids = self.subscriptions.with(Work::Reading);
        self.share_lists(ids.len());
        self.maintenance.reads_on = false;
        let first = ids.partition_point(|id| *id < self.maintenance.reads_next);
        ids.rotate_left(first);
        let mut left = EVENTS_AT_ONCE;
        for (n, id) in ids.iter().enumerate() {
            if left == 0 {
                // The next round begins with the subscriptions that this one did not reach.
                self.maintenance.reads_next = *id;
                self.maintenance.reads_on = true;
                break;
            }
            let share = (left / (ids.len() - n)).max(FRAME_EVENTS);
            self.maintenance.reads_on |= self.catch_up(*id, share, &mut left)?;
        }
        Ok(())
    }

    /// The more subscriptions read, the fewer unread events of each are listed in memory.
    fn share_lists(&mut self, readers: usize) {
        let all = self.config.memory_bytes / LISTED_SHARE / size_of::<Entry>();
        self.maintenance.listed_max = (all / readers.max(1)).clamp(LISTED_MIN, LISTED_MAX);
        if readers == 0 {
            return;
        }
        let listed_max = self.maintenance.listed_max;
        let reading = self.subscriptions.each_with(Work::Reading);
        let long: Vec<SubscriptionId> =
            reading.filter(|s| s.unread.listed.len() > listed_max).map(|s| s.id).collect();
        for id in long {
            self.set_cursor(id);
            if let Some(subscription) = self.subscriptions.get_mut(id) {
                subscription.shorten_list(listed_max);
                subscription.unread.listed.shrink_to(listed_max);
            }
        }
    }

    /// Memory used by the lists of unread events.
    pub(crate) fn listed_bytes(&self) -> usize {
        self.subscriptions
            .each_with(Work::Reading)
            .map(|s| s.unread.listed.capacity() * size_of::<Entry>())
            .sum()
    }

    /// Reads for one subscription, outside the budget of a round.
    pub(crate) fn catch_up_one(&mut self, id: SubscriptionId) -> Result<bool, Failure> {
        let mut left = EVENTS_AT_ONCE;
        self.catch_up(id, left, &mut left)
    }

    /// Reads about `share` of the `left` events. Returns true if there is more to read immediately.
    fn catch_up(&mut self, id: SubscriptionId, share: usize, left: &mut usize) -> Result<bool, Failure> {
        if self.begin_rules(id)? {
            return Ok(true);
        }
        let end = left.saturating_sub(share);
        while *left > end {
            if !self.may_read(id) {
                return Ok(false);
            }
            match self.read_on(id, Fate::Routed, left)? {
                Read::Some => {}
                Read::Nothing => return Ok(false),
                Read::All => {
                    let up_to = Position(self.store.log.next_position().0 - 1);
                    let change = Change::Caught { up_to };
                    self.commit(&Record::Subscription { time: self.now, subscription: id, change })?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Applies new ordering rules after everything accepted before them has drained.
    fn begin_rules(&mut self, id: SubscriptionId) -> Result<bool, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(false) };
        let Some(document) = &subscription.next_rules.document else { return Ok(false) };
        if !subscription.is_drained()
            || subscription.flow.in_flight > 0
            || !self.store.log.has_room_for_many()
        {
            return Ok(false);
        }
        let document = document.to_stored_json().to_string();
        let change = Change::Put { document: &document };
        self.commit(&Record::Subscription { time: self.now, subscription: id, change })?;
        Ok(true)
    }

    /// Discards unread events in steps. Returns true if more may be discarded now.
    pub(crate) fn discard_unread(&mut self, id: SubscriptionId, mut left: usize) -> Result<bool, Failure> {
        while left > 0 && self.store.log.has_room_for_many() {
            let is_unread = |s: &Subscription| s.is_behind() && s.tally.later > 0;
            if !self.subscriptions.get(id).is_some_and(is_unread) {
                return Ok(false);
            }
            if self.read_on(id, Fate::Missed(Missed::Discarded), &mut left)? != Read::Some {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the next listed event, or the next durable frame.
    fn read_on(&mut self, id: SubscriptionId, fate: Fate, left: &mut usize) -> Result<Read, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(Read::Nothing) };
        if !subscription.is_all_listed() {
            let mut events = 0;
            let read = self.read_frame(id, fate, &mut events)?;
            // Subscriptions that cannot read on use nothing up, so a round never ends early because of them.
            let least = if read == Read::Some { FRAME_EVENTS } else { 0 };
            *left = left.saturating_sub(events.max(least));
            return Ok(read);
        }
        let forgets = planted::is_on(Bug::CatchUpEndsEarly) && subscription.unread.listed.len() == 1;
        match subscription.unread.listed.front().filter(|_| !forgets).copied() {
            None if subscription.next_rules.document.is_some() => Ok(Read::Nothing),
            None => Ok(Read::All),
            Some(entry) if fate == Fate::Routed && !subscription.is_under_rules(entry.position) => {
                Ok(Read::Nothing)
            }
            Some(entry) => {
                *left -= 1;
                let Some(record) = if_readable(self.read_event(entry.address()))? else {
                    self.is_unreadable(id, entry.position, "the event is damaged");
                    return Ok(Read::Nothing);
                };
                let Record::Event { namespace, time, routes, event, emitted } = Record::decode(&record)?
                else {
                    return Err(Malformed("event record").into());
                };
                let head = EventHead { namespace, time, routes: &routes, emitted };
                self.read_event_of(id, entry, head, event, fate)?;
                Ok(Read::Some)
            }
        }
    }

    /// Counts the events that it reads.
    fn read_frame(&mut self, id: SubscriptionId, fate: Fate, events: &mut usize) -> Result<Read, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(Read::Nothing) };
        let Phase::CatchingUp { cursor, done, .. } = subscription.phase else { return Ok(Read::Nothing) };
        let frame = match self.store.log.reader().frame(cursor.max(self.store.log.oldest())) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(Read::Nothing),
            Err(error @ log::Error::Damaged { .. }) => {
                self.is_unreadable(id, Position(done.0 + 1), &error.to_string());
                return Ok(Read::Nothing);
            }
            Err(error) => return Err(error.into()),
        };
        let mut position = frame.first_position;
        for (at, range) in &frame.records {
            let body = frame.bytes.slice(range.clone());
            if let Record::Event { namespace, time, routes, event, emitted } = Record::decode(&body)? {
                if position > done {
                    if fate == Fate::Routed && !self.may_read_at(id, position) {
                        return Ok(Read::Nothing);
                    }
                    *events += 1;
                    let entry = entry(position, *at, time, event.len() as u32);
                    let head = EventHead { namespace, time, routes: &routes, emitted };
                    self.read_event_of(id, entry, head, event, fate)?;
                }
                position.0 += 1;
            }
        }
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.is_done_up_to(Position(position.0 - 1));
            if let Phase::CatchingUp { cursor, .. } = &mut subscription.phase {
                *cursor = frame.next;
            }
        }
        Ok(Read::Some)
    }

    /// Called when the subscription cannot read past this event. It retries in every round, so the error is logged
    /// and counted only once.
    fn is_unreadable(&mut self, id: SubscriptionId, position: Position, error: &str) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        if subscription.unread.unreadable.replace(position) == Some(position) {
            return;
        }
        let name = subscription.name();
        tracing::error!(subscription = name, position = position.0, error, "Could not read an unread event");
        self.metrics.damaged += 1;
    }

    fn may_read_at(&mut self, id: SubscriptionId, position: Position) -> bool {
        self.subscriptions.get(id).is_some_and(|s| s.is_under_rules(position)) && self.may_read(id)
    }

    fn read_event_of(
        &mut self,
        id: SubscriptionId,
        entry: Entry,
        head: EventHead<'_>,
        event: &[u8],
        fate: Fate,
    ) -> Result<(), Failure> {
        let EventHead { namespace, routes, .. } = head;
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
        // After its creation, the subscription was matched when the event was accepted.
        let takes = match entry.position < subscription.life.began {
            true => self.takes_history(subscription, namespace, entry.accepted, &view)?,
            false => routes.iter().any(|route| route.subscription == id && route.to == To::Later),
        };
        match fate {
            _ if !takes => {
                if let Some(subscription) = self.subscriptions.get_mut(id) {
                    subscription.is_done_up_to(entry.position);
                }
                Ok(())
            }
            Fate::Routed => self.route_past(id, entry, &view),
            Fate::Missed(why) => self.miss(id, entry, &view, why),
        }
    }

    fn route_past(&mut self, id: SubscriptionId, entry: Entry, event: &EventView<'_>) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let wanted = place(subscription, event);
        if let Wanted::Lane { key, .. } = &wanted {
            self.resident(id, key)?;
        }
        let route = self.route(id, &wanted);
        self.commit_routed(entry, route)
    }

    pub(crate) fn commit_routed(&mut self, entry: Entry, route: Route<'_>) -> Result<(), Failure> {
        let record = Record::Routed {
            time: self.now,
            position: entry.position,
            at: entry.address(),
            accepted: entry.accepted,
            bytes: entry.bytes,
            route,
        };
        self.commit(&record).map(|_| ())
    }

    fn takes_history(
        &self,
        subscription: &Subscription,
        namespace: NamespaceId,
        accepted: Millis,
        event: &EventView<'_>,
    ) -> Result<bool, Failure> {
        let namespace = if planted::is_on(Bug::PastShared) { subscription.namespace } else { namespace };
        let early = matches!(subscription.document.spec.from, From::Time(from) if accepted < from);
        if early || !subscription.wants(namespace, event) {
            return Ok(false);
        }
        let identity = self.identity(namespace, event.source(), event.id());
        Ok(!self.is_known_at(subscription, identity, accepted)?)
    }
}

pub(crate) fn entry(position: Position, at: LogAddress, accepted: Millis, bytes: u32) -> Entry {
    Entry { position, at: at.into(), number: LaneNumber(0), accepted, bytes, flag: Flag::None }
}
