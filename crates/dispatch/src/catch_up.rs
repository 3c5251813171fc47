//! Subscriptions that read the log: new ones that begin in the past, and those whose ordering rules changed.
//!
//! While it catches up, events that arrive for a subscription are noted as `Later` and read from the log like the rest,
//! so that there is one order. It goes live in the step in which nothing is left between the two.

use crate::accept::{Wanted, place};
use crate::engine::{Engine, Failure};
use crate::subscription::{Phase, Subscription};
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Address, LaneNumber, Position, SubscriptionId};
use klambda_core::lane::{Entry, Flag};
use klambda_core::planted::{self, Bug};
use klambda_core::subscription::{Document, From};
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::log;
use klambda_store::record::{Change, Record, Route, To};

/// History flows through the lanes: no more than this waits in them at a time.
const WAITING_MAX: u64 = 10_000;
const FRAMES_AT_ONCE: usize = 32;
/// How many of the newest events are remembered, to bridge from the log's durable part to the present.
const LATER_MAX: usize = 65_536;

impl Subscription {
    pub(crate) fn comes_later(&mut self, entry: Entry) {
        if !matches!(self.phase, Phase::CatchingUp { .. }) {
            return;
        }
        if self.later_trimmed == Position(u64::MAX) {
            self.later_trimmed = Position(entry.position.0 - 1);
        }
        if self.later.len() == LATER_MAX
            && let Some(oldest) = self.later.pop_front()
        {
            self.later_trimmed = oldest.position;
        }
        self.later.push_back(entry);
        self.tally.later += 1;
        self.tally.later_bytes += u64::from(entry.bytes);
    }

    /// It has come to this event.
    pub(crate) fn routed(&mut self, entry: &Entry) {
        if entry.position >= self.began {
            self.tally.later = self.tally.later.saturating_sub(1);
            self.tally.later_bytes = self.tally.later_bytes.saturating_sub(u64::from(entry.bytes));
        }
        self.is_done_up_to(entry.position);
    }

    fn is_done_up_to(&mut self, position: Position) {
        if let Phase::CatchingUp { done, .. } = &mut self.phase {
            *done = (*done).max(position);
        }
    }
}

impl Engine {
    /// Where a new subscription begins, and since when if that is later than asked.
    pub(crate) fn first_phase(
        &self,
        document: &Document,
        at: Address,
        next_position: Position,
    ) -> (Phase, Option<Millis>) {
        let segments = self.log.segments();
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
        let late = from > Millis::ZERO && from < oldest.created && oldest.base > Address(0);
        (Phase::CatchingUp { cursor: segment.start(), done }, late.then_some(oldest.created))
    }

    /// Where reading begins that is to come to the record at this address. A record stands within a frame, and frames
    /// are found from their segment's beginning on.
    pub(crate) fn first_frame(&self, at: Address) -> Address {
        let segments = self.log.segments();
        let after = segments.partition_point(|segment| segment.base <= at);
        segments.get(after.saturating_sub(1)).map_or(at, |segment| segment.start())
    }

    pub(crate) fn apply_caught(&mut self, id: SubscriptionId, up_to: Position, next: Position) {
        let Some(subscription) = self.subscriptions.get_mut(&id) else { return };
        if up_to.0 + 1 == next.0 && subscription.next_document.is_none() {
            subscription.phase = Phase::Live;
            subscription.later.clear();
            subscription.later_trimmed = Position(u64::MAX);
            (subscription.tally.later, subscription.tally.later_bytes) = (0, 0);
        } else {
            subscription.is_done_up_to(up_to);
        }
    }

    pub(crate) fn catch_up_all(&mut self) -> Result<(), Failure> {
        let behind: Vec<SubscriptionId> = self
            .subscriptions
            .values()
            .filter(|s| matches!(s.phase, Phase::CatchingUp { .. }))
            .map(|s| s.id)
            .collect();
        behind.into_iter().try_for_each(|id| self.catch_up(id))
    }

    fn catch_up(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(()) };
        if let Some(document) = &subscription.next_document {
            if subscription.tally.waiting > 0 || subscription.in_flight > 0 || !self.log.has_room_for_many() {
                return Ok(());
            }
            let document = document.to_stored_json().to_string();
            let change = Change::Put { document: &document };
            self.commit(&Record::Subscription { time: self.now, subscription: id, change })?;
            return Ok(());
        }
        for _ in 0..FRAMES_AT_ONCE {
            if !self.may_route(id) {
                return Ok(());
            }
            if !self.route_frame(id)? {
                return self.go_live_if_caught(id);
            }
        }
        Ok(())
    }

    fn may_route(&self, id: SubscriptionId) -> bool {
        let waiting = self.subscriptions.get(&id).map_or(0, |s| s.tally.waiting);
        waiting < WAITING_MAX && self.log.has_room_for_many()
    }

    /// Routes the events of the next durable frame. Answers whether there was one.
    fn route_frame(&mut self, id: SubscriptionId) -> Result<bool, Failure> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(false) };
        let Phase::CatchingUp { cursor, done } = subscription.phase else { return Ok(false) };
        let frame = match self.log.reader().frame(cursor.max(self.log.oldest())) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(false),
            Err(error @ log::Error::Damaged { .. }) => {
                tracing::error!(%error, "History cannot be read any further.");
                self.metrics.damaged += 1;
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        let mut position = frame.first_position;
        for (at, range) in &frame.records {
            let body = frame.bytes.slice(range.clone());
            if let Record::Event { time, routes, event, .. } = Record::decode(&body)? {
                if position > done {
                    let bytes = event.len() as u32;
                    let entry = entry(position, *at, time, bytes);
                    self.route_past(id, entry, &routes, event)?;
                }
                position.0 += 1;
            }
        }
        if let Some(subscription) = self.subscriptions.get_mut(&id)
            && let Phase::CatchingUp { cursor, done } = &mut subscription.phase
        {
            *cursor = frame.next;
            *done = (*done).max(Position(position.0 - 1));
        }
        Ok(true)
    }

    fn route_past(
        &mut self,
        id: SubscriptionId,
        entry: Entry,
        routes: &[Route<'_>],
        event: &[u8],
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(()) };
        let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
        // Since it is there, it was asked when the event was accepted.
        let takes = match entry.position < subscription.began {
            true => self.takes_history(subscription, entry.accepted, &view)?,
            false => routes.iter().any(|route| route.subscription == id && route.to == To::Later),
        };
        if !takes {
            return Ok(());
        }
        let wanted = place(subscription, &view);
        if let Wanted::Lane { key, .. } = &wanted {
            self.resident(id, key)?;
        }
        let route = self.route(id, &wanted);
        let record = Record::Routed {
            time: self.now,
            position: entry.position,
            at: entry.at,
            accepted: entry.accepted,
            bytes: entry.bytes,
            route,
        };
        self.commit(&record).map(|_| ())
    }

    fn takes_history(
        &self,
        subscription: &Subscription,
        accepted: Millis,
        event: &EventView<'_>,
    ) -> Result<bool, Failure> {
        let early = matches!(subscription.document.spec.from, From::Time(from) if accepted < from);
        if early || !subscription.wants(event) {
            return Ok(false);
        }
        let identity = self.identity(event.source(), event.id());
        Ok(!self.is_known(subscription, identity)?)
    }

    /// The durable part is read: what arrived since then is routed at once, and the subscription is live.
    fn go_live_if_caught(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(()) };
        let Phase::CatchingUp { done, .. } = subscription.phase else { return Ok(()) };
        let remembered =
            subscription.later_trimmed == Position(u64::MAX) || subscription.later_trimmed <= done;
        if !remembered {
            return Ok(());
        }
        let left: Vec<Entry> =
            subscription.later.iter().filter(|entry| entry.position > done).copied().collect();
        let missed = usize::from(planted::is_on(Bug::CatchUpEndsEarly));
        for entry in left.into_iter().rev().skip(missed).rev() {
            let record = self.read_event(entry.at)?;
            let (Record::Event { routes, event, .. } | Record::Kept { routes, event, .. }) =
                Record::decode(&record)?
            else {
                return Err(Malformed("event record").into());
            };
            self.route_past(id, entry, &routes, event)?;
        }
        let up_to = Position(self.log.next_position().0 - 1);
        let change = Change::Caught { up_to };
        self.commit(&Record::Subscription { time: self.now, subscription: id, change })?;
        Ok(())
    }
}

fn entry(position: Position, at: Address, accepted: Millis, bytes: u32) -> Entry {
    Entry { position, at, number: LaneNumber(0), accepted, bytes, flag: Flag::None }
}
