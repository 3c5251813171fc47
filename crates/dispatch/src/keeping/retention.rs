//! Old segments go; what waits in them is copied forward first.

use crate::engine::{Engine, Failure, if_readable};
use crate::rows;
use crate::subscription::{Phase, Reading};
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Address, Position, SubscriptionId};
use klambda_core::key::{self, Key};
use klambda_core::planted::{self, Bug};
use klambda_core::wire::Malformed;
use klambda_store::disk::File;
use klambda_store::log;
use klambda_store::marks::{Mark, State};
use klambda_store::record::{Record, Route, To};
use klambda_store::segment::Segment;
use std::sync::Arc;

const FRAMES_AT_ONCE: usize = 64;

/// How far the oldest segment is on its way out.
#[derive(Default)]
pub(super) struct Retention {
    /// The segment that retention goes through, and how far it is.
    retiring: Option<(Address, Address)>,
    /// A segment with damage, of which not everything that waits can be copied: it stays, and so does all after it.
    irremovable: Option<Address>,
    /// The last copy made: it must be durable before what it was made of goes.
    copied: Address,
    /// What of the log nothing needs from here on.
    spent: Option<Spent>,
    /// The copy that a sweep goes on from.
    sweep_from: Vec<u8>,
}

/// A restart reads the log from the checkpoint on and does every step again, with the events it was about: until a
/// checkpoint is past the last step about an event of a segment, the segment must stay.
#[derive(Clone, Copy)]
struct Spent {
    /// Nothing before this is needed …
    below: Address,
    /// … since the log came to here.
    since: Address,
}

impl Retention {
    pub fn is_under_way(&self) -> bool {
        self.retiring.is_some()
    }

    /// An event from the past is wanted again: what was looked through before that did not know it.
    pub fn takes_up(&mut self, at: Address) {
        self.retiring.take_if(|(_, looked_up_to)| at < *looked_up_to);
        self.spent.take_if(|spent| at < spent.below);
    }
}

impl Engine {
    /// The oldest segment, if it is past its time or the log past its size, and nothing needs it whole.
    pub(super) fn retirable(&mut self) -> Option<Segment> {
        let segments = self.store.log.segments();
        let (oldest, next) = (segments.first()?.clone(), segments.get(1)?);
        let reading = self.subscriptions.values().filter_map(|s| match s.phase {
            // Only history is kept for those who read it: what is unread of a full subscription is counted as missed.
            Phase::CatchingUp { cursor, why: Reading::Past, .. } => Some(cursor),
            _ => None,
        });
        let needed = reading.min().unwrap_or(Address(u64::MAX)).min(self.store.manifest.checkpoint);
        let too_old = self.now.since(next.created) >= self.config.retention_age_ms;
        let limit = self.config.retention_bytes;
        let too_much = limit > 0 && self.store.log.bytes() > limit;
        let wanted = too_old || too_much || self.is_stuck(&oldest);
        if wanted && self.store.manifest.checkpoint < oldest.end() {
            // Only what a checkpoint has left behind can go.
            self.keeping.chores.wants_checkpoint = true;
        }
        (wanted && needed >= oldest.end()).then_some(oldest)
    }

    /// The disk is so full that not even acknowledgements find room. Then history goes before its time: what is in
    /// this segment is done with, and a server that cannot acknowledge would stand still for good.
    pub(super) fn is_stuck(&self, oldest: &Segment) -> bool {
        self.condition.disk_full
            && !self.store.log.has_room_for_steps(16 << 10)
            && self.first_pin() >= oldest.end()
            && self.is_all_read(oldest)
    }

    /// No subscription has accepted an event of this segment and not read it.
    fn is_all_read(&self, segment: &Segment) -> bool {
        let segments = self.store.log.segments();
        let next = segments.iter().find(|other| other.base > segment.base);
        let end = next.map_or(self.store.log.next_position(), |next| next.first_position);
        self.subscriptions.values().all(|s| s.has_read_up_to(end))
    }

    /// Goes on with the segment that retires: what still waits in it is copied forward, then it goes.
    pub(super) fn retire(&mut self) -> Result<(), Failure> {
        let Some(segment) = self.retirable() else { return Ok(()) };
        let at = match self.keeping.retention.retiring {
            Some((base, at)) if base == segment.base => at,
            _ => segment.start(),
        };
        if self.first_pin() >= segment.end() && self.is_all_read(&segment) {
            return self.drop_segment(segment.end());
        }
        if self.keeping.retention.irremovable == Some(segment.base) {
            return Ok(());
        }
        let reader = self.store.log.reader();
        let mut at = at;
        for _ in 0..FRAMES_AT_ONCE {
            if at >= segment.end() || !self.store.log.has_room_for_many() {
                break;
            }
            match reader.frame(at) {
                Ok(Some(frame)) if frame.next <= segment.end() => {
                    let mut position = frame.first_position;
                    for (record_at, range) in &frame.records {
                        let body = &frame.bytes[range.clone()];
                        self.miss_unread(*record_at, body, position)?;
                        self.keep_copy(*record_at, body, position)?;
                        position.0 += u64::from(klambda_store::record::is_event(body));
                    }
                    at = frame.next;
                }
                Ok(_) => at = segment.end(),
                Err(error @ log::Error::Damaged { .. }) => {
                    tracing::error!(%error, "A damaged segment is kept: what it holds cannot be copied.");
                    self.metrics.damaged += 1;
                    self.keeping.retention.irremovable = Some(segment.base);
                    self.keeping.retention.retiring = None;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.keeping.retention.retiring = Some((segment.base, at));
        if at >= segment.end() {
            return self.drop_segment(segment.end());
        }
        Ok(())
    }

    /// The lowest address that any waiting event or dead letter stands at.
    pub(super) fn first_pin(&self) -> Address {
        let pins = self.subscriptions.values().filter_map(|s| s.tally.first_pin());
        pins.min().unwrap_or(Address(u64::MAX))
    }

    /// The newest of the full segments in which nothing waits any more: history, that is seldom read.
    pub(crate) fn spent_segments(&self) -> Vec<Arc<dyn File>> {
        const LOOKED_AT: usize = 4;
        let full = self.store.log.segments().into_iter().rev().skip(1).take(LOOKED_AT);
        full.filter(|segment| !self.has_pins(segment)).map(|segment| segment.file).collect()
    }

    pub(super) fn has_pins(&self, segment: &Segment) -> bool {
        self.subscriptions.values().any(|s| s.tally.pins_between(segment.base, segment.end()))
    }

    pub(super) fn drop_segment(&mut self, end: Address) -> Result<(), Failure> {
        if self.keeping.retention.copied >= self.store.log.synced() && self.store.log.needs_sync() {
            return Ok(());
        }
        if !self.is_spent(end)? {
            return Ok(());
        }
        self.keeping.retention.retiring = None;
        if let Some(name) = self.store.log.drop_oldest() {
            tracing::info!(segment = %name, "Segment retired.");
            self.keeping.chores.remove.push(name);
        }
        Ok(())
    }

    /// Whether a checkpoint is past all that was ever done with events before `end`, which nothing needs now.
    pub(super) fn is_spent(&mut self, end: Address) -> Result<bool, Failure> {
        let spent = match self.keeping.retention.spent.filter(|spent| end <= spent.below) {
            Some(spent) => spent,
            None => {
                self.store.log.flush()?;
                let since = self.store.log.written();
                // Whoever reads the log takes up events of the next segments all the time.
                let pinned = if self.is_catching_up() { end } else { self.first_pin() };
                Spent { below: end.max(pinned.min(since)), since }
            }
        };
        self.keeping.retention.spent = Some(spent);
        let is_past = self.store.manifest.checkpoint >= spent.since;
        self.keeping.chores.wants_checkpoint |= !is_past && self.keeping.chores.checkpoint.is_none();
        Ok(is_past)
    }

    pub(super) fn keep_copy(&mut self, at: Address, body: &[u8], next: Position) -> Result<(), Failure> {
        let (namespace, from, time, routes, event, position, emitted) = match Record::decode(body)? {
            Record::Event { namespace, time, routes, event, emitted } => {
                (namespace, at, time, routes, event, next, emitted)
            }
            // A crash may have left several copies: only the newest goes on.
            Record::Kept { from, .. } if self.copy_of(from)?.is_some_and(|copy| copy > at) => return Ok(()),
            Record::Kept { namespace, from, time, routes, event, position, emitted } => {
                (namespace, from, time, routes, event, position, emitted)
            }
            _ => return Ok(()),
        };
        let needed = self.routes_of_waiting(from, position, routes, body)?;
        if needed.is_empty() || planted::is_on(Bug::RetentionForgets) {
            return Ok(());
        }
        let kept = Record::Kept { namespace, from, time, position, routes: needed, event, emitted };
        self.keeping.retention.copied = self.commit(&kept)?;
        Ok(())
    }

    /// Where the event still waits or is a dead letter, also of those that took it up later, from the past.
    pub(super) fn routes_of_waiting<'a>(
        &self,
        from: Address,
        position: Position,
        routes: Vec<Route<'a>>,
        body: &[u8],
    ) -> Result<Vec<Route<'a>>, Failure> {
        let mut needed = Vec::new();
        for id in self.subscriptions.values().filter(|s| s.tally.pins(from)).map(|s| s.id) {
            let is_waiting = self.is_single_or_letter(id, position)?
                || match self.lane_by_rules(id, body)? {
                    Some(key) => self.is_in_lane(id, &key, from)?,
                    None => false,
                };
            if is_waiting {
                let known = routes.iter().find(|route| route.subscription == id).cloned();
                let later = Route { subscription: id, previous: Address(0), to: To::Later };
                needed.push(known.unwrap_or(later));
            }
        }
        Ok(needed)
    }

    pub(super) fn is_pinned_by(&self, id: SubscriptionId, at: Address) -> bool {
        self.subscriptions.get(id).is_some_and(|s| s.tally.pins(at))
    }

    /// Whether the event of a mark still waits for the subscription or is a dead letter of it. One that cannot be read back
    /// is not looked for in the lanes: it is never delivered from there, and whoever sends it again makes good the loss.
    pub(crate) fn is_waiting(&self, id: SubscriptionId, mark: &Mark) -> Result<bool, Failure> {
        if self.is_gone(mark.at)? {
            return Ok(false);
        }
        if self.is_outside_lanes(id, mark)? {
            return Ok(true);
        }
        match if_readable(self.lane_at(id, mark.at))?.flatten() {
            Some(key) => self.is_in_lane(id, &key, mark.at),
            None => Ok(false),
        }
    }

    /// Whether the event went with its segment, and its copy with that, because nothing waited for it. That is no damage.
    pub(super) fn is_gone(&self, at: Address) -> Result<bool, Failure> {
        let oldest = self.store.log.oldest();
        Ok(at < oldest && self.copy_of(at)?.is_none_or(|copy| copy < oldest))
    }

    /// As far as the mark alone can tell, without the event.
    pub(super) fn is_outside_lanes(&self, id: SubscriptionId, mark: &Mark) -> Result<bool, Failure> {
        let position = match mark.state {
            State::Taken(Position(0)) | State::Later(Position(0)) => {
                if_readable(self.find_position(mark.at))?.flatten()
            }
            State::Taken(position) | State::Later(position) => Some(position),
            State::Delivered(_) | State::Released(_) => None,
        };
        position.map_or(Ok(false), |position| self.is_single_or_letter(id, position))
    }

    /// The position of an event whose mark does not say it.
    fn find_position(&self, at: Address) -> Result<Option<Position>, Failure> {
        if at >= self.store.log.oldest() {
            return Ok(self.store.log.reader().positions(&[at])?.into_iter().next().flatten());
        }
        Ok(match Record::decode(&self.read_event(at)?)? {
            Record::Kept { position, .. } => Some(position),
            _ => None,
        })
    }

    fn is_single_or_letter(&self, id: SubscriptionId, position: Position) -> Result<bool, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(false) };
        let has =
            |letter| self.store.rows.get(&rows::at_position(letter, id, position)).map(|row| row.is_some());
        Ok(subscription.flow.singles.contains_key(&position) || has(rows::DEAD)? || has(rows::HELD)?)
    }

    fn is_in_lane(&self, id: SubscriptionId, key: &str, at: Address) -> Result<bool, Failure> {
        let stored;
        let resident = match self.lanes.find(id, key).and_then(|slot| self.lanes.get(slot)) {
            Some(resident) => resident,
            None => match self.peek_lane(id, key)? {
                Some(resident) => {
                    stored = resident;
                    &stored
                }
                None => return Ok(false),
            },
        };
        // Early events on disk are not searched, so such a lane keeps a few marks longer than it must.
        Ok(resident.lane.has_spilled_early()
            || resident.lane.entries().any(|entry| entry.at == at)
            || self.is_in_chunks(resident, at)?)
    }

    /// What waits, waits in the lane that the rules in force give it.
    fn lane_at(&self, id: SubscriptionId, at: Address) -> Result<Option<String>, Failure> {
        match self.subscriptions.get(id) {
            Some(subscription) if subscription.is_ordered() => self.lane_by_rules(id, &self.read_event(at)?),
            Some(_) => Ok(Some(String::new())),
            None => Ok(None),
        }
    }

    /// The lane that the rules in force give the event of a record, whatever they say of its sequence.
    pub(crate) fn lane_by_rules(&self, id: SubscriptionId, record: &[u8]) -> Result<Option<String>, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(None) };
        if !subscription.is_ordered() {
            return Ok(Some(String::new()));
        }
        let (_, event) = crate::apply::event_of(record)?;
        let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
        Ok(match key::key(&subscription.document.spec.policy.key, &view) {
            Key::Found(key) | Key::FromSource(key) => Some(key.into_owned()),
            Key::Missing | Key::TooLong => None,
        })
    }

    /// Forgets where copies are of which nothing waits any more, some at a time.
    pub(super) fn sweep_copies(&mut self) -> Result<(), Failure> {
        const AT_ONCE: usize = 10_000;
        let from = std::mem::take(&mut self.keeping.retention.sweep_from);
        let copies = self.store.rows.scan(&[rows::KEPT], &from, AT_ONCE)?;
        for (row, _) in &copies {
            let at = Address(rows::number_of(row));
            if !self.subscriptions.values().any(|subscription| subscription.tally.pins(at)) {
                self.store.rows.delete(row);
            }
        }
        if let Some((row, _)) = copies.last()
            && copies.len() == AT_ONCE
        {
            self.keeping.retention.sweep_from = [row.as_slice(), &[0]].concat();
        }
        Ok(())
    }
}
