//! Deletes old segments after copying their pending events forward.

use super::STEPS_BYTES;
use crate::engine::{Engine, Failure, if_readable};
use crate::rows;
use crate::subscription::{Phase, Reading, Subscription};
use crate::subscriptions::Work;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::key::{self, Key};
use klambda_core::planted::{self, Bug};
use klambda_core::wire::Malformed;
use klambda_store::address::LogAddress;
use klambda_store::disk::File;
use klambda_store::log;
use klambda_store::marks::{Mark, State};
use klambda_store::record::{Record, Route, To};
use klambda_store::segment::Segment;
use std::sync::Arc;

const FRAMES_AT_ONCE: usize = 64;

/// Progress of deleting the oldest segment.
#[derive(Default)]
pub(super) struct Retention {
    /// The segment being processed, and the address reached in it.
    retiring: Option<(LogAddress, LogAddress)>,
    /// A damaged segment whose pending events cannot all be copied. It is kept, and so are all segments after it.
    irremovable: Option<LogAddress>,
    /// The last copy. It must be durable before the original is deleted.
    copied: LogAddress,
    /// The part of the log that is no longer needed.
    spent: Option<Spent>,
    /// Where the next sweep of copies continues.
    sweep_from: Vec<u8>,
    /// The feed that is trimmed next.
    trim_from: SubscriptionId,
    keepers: Keepers,
}

/// The subscriptions that may keep events in one block of the log. Events are looked at one after the other, so a
/// block is searched once for all of its events.
#[derive(Default)]
struct Keepers {
    block: Option<u64>,
    ids: Vec<SubscriptionId>,
}

/// The length of a block is two to the power of this number, in bytes.
const BLOCK_SHIFT: u32 = 16;

/// The stretches of the log that contain pinned events of any subscription: first and last address, sorted.
pub(super) struct Pinned(Vec<(LogAddress, LogAddress)>);

impl Pinned {
    fn new(mut stretches: Vec<(LogAddress, LogAddress)>) -> Pinned {
        stretches.sort_unstable();
        stretches.dedup_by(|next, before| {
            let overlaps = next.0 <= before.1;
            if overlaps {
                before.1 = before.1.max(next.1);
            }
            overlaps
        });
        Pinned(stretches)
    }

    pub fn contains(&self, at: LogAddress) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= at);
        after > 0 && at <= self.0[after - 1].1
    }
}

/// A restart reads the log from the checkpoint on and repeats every step with its event. So a segment must stay until
/// a checkpoint is past the last step that concerns one of its events.
#[derive(Clone, Copy)]
struct Spent {
    /// Nothing before this address is needed …
    below: LogAddress,
    /// … since the log reached this address.
    since: LogAddress,
}

impl Retention {
    pub fn is_under_way(&self) -> bool {
        self.retiring.is_some()
    }

    /// An event from the past is needed again, so earlier results may be outdated.
    pub fn takes_up(&mut self, at: LogAddress) {
        self.retiring.take_if(|(_, looked_up_to)| at < *looked_up_to);
        self.spent.take_if(|spent| at < spent.below);
    }
}

impl Engine {
    /// The oldest segment, if it exceeds the age or size limit and nothing needs all of it.
    pub(super) fn retirable(&mut self) -> Option<Segment> {
        let segments = self.store.log.segments();
        let (oldest, next) = (segments.first()?.clone(), segments.get(1)?);
        let reading = self.subscriptions.each_with(Work::Reading).filter_map(|s| match s.phase {
            // History is kept only for subscriptions that read their past. Unread events of a lagging subscription
            // are counted as missed.
            Phase::CatchingUp { cursor, why: Reading::Past, .. } => Some(cursor),
            _ => None,
        });
        let needed = reading.min().unwrap_or(LogAddress(u64::MAX)).min(self.store.manifest.checkpoint);
        let too_old = self.now.since(next.created) >= self.config.retention_age_ms;
        let limit = self.config.retention_bytes;
        let too_much = limit > 0 && self.store.log.bytes() > limit;
        let wanted = too_old || too_much || self.is_stuck(&oldest);
        if wanted && self.store.manifest.checkpoint < oldest.end() {
            // Only segments before the checkpoint can be deleted.
            self.maintenance.chores.wants_checkpoint = true;
        }
        (wanted && needed >= oldest.end()).then_some(oldest)
    }

    /// True if the disk is so full that not even acknowledgements fit. History is then deleted early, because nothing
    /// in this segment is pending and a server that cannot acknowledge would never make progress.
    pub(super) fn is_stuck(&self, oldest: &Segment) -> bool {
        self.condition.disk_exhausted
            && !self.store.log.has_room_for_steps(STEPS_BYTES)
            && self.first_pin() >= oldest.end()
            && self.is_all_read(oldest)
    }

    /// True if every subscription has read the events of this segment that it accepted.
    fn is_all_read(&self, segment: &Segment) -> bool {
        let segments = self.store.log.segments();
        let next = segments.iter().find(|other| other.base > segment.base);
        let end = next.map_or(self.store.log.next_position(), |next| next.first_position);
        self.subscriptions.each_with(Work::Reading).all(|s| s.has_read_up_to(end))
    }

    /// Processes the oldest segment: copies its pending events forward, then deletes it.
    pub(super) fn retire(&mut self) -> Result<(), Failure> {
        let Some(segment) = self.retirable() else { return Ok(()) };
        let at = match self.maintenance.retention.retiring {
            Some((base, at)) if base == segment.base => at,
            _ => segment.start(),
        };
        if self.first_pin() >= segment.end() && self.is_all_read(&segment) {
            return self.drop_segment(segment.end());
        }
        if self.maintenance.retention.irremovable == Some(segment.base) {
            return Ok(());
        }
        self.maintenance.retention.keepers = Keepers::default();
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
                    tracing::error!(%error, "Damaged log segment is kept, because its events cannot be copied");
                    self.metrics.damaged += 1;
                    self.maintenance.retention.irremovable = Some(segment.base);
                    self.maintenance.retention.retiring = None;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.maintenance.retention.retiring = Some((segment.base, at));
        if at >= segment.end() {
            return self.drop_segment(segment.end());
        }
        Ok(())
    }

    /// The lowest address of any pending event or dead letter.
    pub(super) fn first_pin(&self) -> LogAddress {
        let pins = self.subscriptions.each_with(Work::Keeping);
        let pins = pins.flat_map(|s| s.tally.first_pin().into_iter().chain(s.on_disk.edits.first()));
        pins.min().unwrap_or(LogAddress(u64::MAX))
    }

    /// The newest full segments without pending events. They are rarely read.
    pub(crate) fn spent_segments(&self) -> Vec<Arc<dyn File>> {
        const LOOKED_AT: usize = 4;
        let full = self.store.log.segments().into_iter().rev().skip(1).take(LOOKED_AT);
        full.filter(|segment| !self.has_pins(segment)).map(|segment| segment.file).collect()
    }

    pub(super) fn has_pins(&self, segment: &Segment) -> bool {
        let (from, to) = (segment.base, segment.end());
        let pins = |s: &Subscription| s.tally.pins_between(from, to) || s.on_disk.edits.any_between(from, to);
        self.subscriptions.each_with(Work::Keeping).any(pins)
    }

    /// The pinned stretches around these addresses.
    pub(super) fn pinned_near(&self, addresses: impl Iterator<Item = LogAddress> + Clone) -> Pinned {
        let (Some(from), Some(to)) = (addresses.clone().min(), addresses.max()) else {
            return Pinned(Vec::new());
        };
        let keeping = self.subscriptions.each_with(Work::Keeping);
        Pinned::new(keeping.flat_map(|s| s.tally.pinned_between(from, to)).collect())
    }

    /// Finds the subscriptions that may keep events in the block of this address.
    fn find_keepers(&mut self, at: LogAddress) {
        let block = at.0 >> BLOCK_SHIFT;
        if self.maintenance.retention.keepers.block == Some(block) {
            return;
        }
        let (first, last) = (LogAddress(block << BLOCK_SHIFT), LogAddress(((block + 1) << BLOCK_SHIFT) - 1));
        let keeping = self.subscriptions.each_with(Work::Keeping);
        let near = keeping.filter(|s| s.tally.pins_between(first, last));
        let mut ids: Vec<SubscriptionId> = near.map(|s| s.id).collect();
        ids.sort_unstable();
        self.maintenance.retention.keepers = Keepers { block: Some(block), ids };
    }

    pub(super) fn drop_segment(&mut self, end: LogAddress) -> Result<(), Failure> {
        if self.maintenance.retention.copied >= self.store.log.synced() && self.store.log.needs_sync() {
            return Ok(());
        }
        if !self.is_spent(end)? {
            return Ok(());
        }
        self.maintenance.retention.retiring = None;
        if let Some(name) = self.store.log.drop_oldest() {
            tracing::info!(segment = %name, "Log segment deleted");
            self.maintenance.chores.remove.push(name);
            // Checkpoints trim the feeds of webhook endpoints, which lose events with the segment.
            let has_feeds = self.subscriptions.each_with(Work::Feeding).next().is_some();
            self.maintenance.chores.wants_checkpoint |= has_feeds;
        }
        Ok(())
    }

    /// True if a checkpoint is past every step that concerns events before `end`, none of which is needed now.
    pub(super) fn is_spent(&mut self, end: LogAddress) -> Result<bool, Failure> {
        let spent = match self.maintenance.retention.spent.filter(|spent| end <= spent.below) {
            Some(spent) => spent,
            None => {
                self.store.log.flush()?;
                let since = self.store.log.written();
                // Subscriptions that read the log take up events of the next segments all the time.
                let pinned = if self.is_catching_up() { end } else { self.first_pin() };
                Spent { below: end.max(pinned.min(since)), since }
            }
        };
        self.maintenance.retention.spent = Some(spent);
        let is_past = self.store.manifest.checkpoint >= spent.since;
        self.maintenance.chores.wants_checkpoint |= !is_past && self.maintenance.chores.checkpoint.is_none();
        Ok(is_past)
    }

    pub(super) fn keep_copy(&mut self, at: LogAddress, body: &[u8], next: Position) -> Result<(), Failure> {
        let (namespace, from, time, routes, event, position, emitted) = match Record::decode(body)? {
            Record::Event { namespace, time, routes, event, emitted } => {
                (namespace, at, time, routes, event, next, emitted)
            }
            // A crash may have left several copies; only the newest is kept.
            Record::Kept { from, .. } if self.copy_of(from)?.is_some_and(|copy| copy > at) => return Ok(()),
            Record::Kept { namespace, from, time, routes, event, position, emitted } => {
                (namespace, from, time, routes, event, position, emitted)
            }
            edited @ Record::Edited { position, .. } => return self.keep_edit(at, position, edited),
            _ => return Ok(()),
        };
        self.find_keepers(from);
        let needed = self.routes_of_waiting(from, position, routes, body)?;
        if needed.is_empty() || planted::is_on(Bug::RetentionForgets) {
            return Ok(());
        }
        let kept = Record::Kept { namespace, from, time, position, routes: needed, event, emitted };
        self.maintenance.retention.copied = self.commit(&kept)?;
        Ok(())
    }

    /// Writes an edit again if its dead letter still needs it. The dead letter may have moved to another subscription.
    fn keep_edit(&mut self, at: LogAddress, position: Position, edited: Record<'_>) -> Result<(), Failure> {
        let holds = |s: &&Subscription| s.on_disk.edits.get(position).is_some_and(|edit| edit.at == at);
        let holder = self.subscriptions.each_with(Work::Keeping).find(holds).map(|s| s.id);
        let Some(holder) = holder else { return Ok(()) };
        if let Record::Edited { time, position, number, by, event, .. } = edited
            && !planted::is_on(Bug::EditForgotten)
        {
            let again = Record::Edited { time, subscription: holder, position, number, by, event };
            self.maintenance.retention.copied = self.commit(&again)?;
        }
        Ok(())
    }

    /// The routes under which the event is still pending or a dead letter, including subscriptions that took it from
    /// the past.
    pub(super) fn routes_of_waiting<'a>(
        &self,
        from: LogAddress,
        position: Position,
        routes: Vec<Route<'a>>,
        body: &[u8],
    ) -> Result<Vec<Route<'a>>, Failure> {
        let mut needed = Vec::new();
        for id in self.maintenance.retention.keepers.ids.iter().copied() {
            if !self.is_pinned_by(id, from) {
                continue;
            }
            let is_waiting = self.is_single_or_letter(id, position)?
                || self.is_queued(id, from)?
                || match self.key_by_rules(id, body)? {
                    Some(key) => self.is_in_lane(id, &key, from)?,
                    None => false,
                };
            if is_waiting {
                let known = routes.iter().find(|route| route.subscription == id).cloned();
                let later = Route { subscription: id, previous: LogAddress(0), to: To::Later };
                needed.push(known.unwrap_or(later));
            }
        }
        Ok(needed)
    }

    pub(super) fn is_pinned_by(&self, id: SubscriptionId, at: LogAddress) -> bool {
        self.subscriptions.get(id).is_some_and(|s| s.tally.pins(at))
    }

    /// True if the event of a mark is pending or a dead letter of the subscription. An unreadable event is not
    /// searched in the lanes: it is never delivered from there, and sending it again repairs the loss.
    pub(crate) fn is_waiting(&self, id: SubscriptionId, mark: &Mark) -> Result<bool, Failure> {
        if self.is_gone(mark.at)? {
            return Ok(false);
        }
        if self.is_outside_lanes(id, mark)? {
            return Ok(true);
        }
        if self.is_queued(id, mark.at)? {
            return Ok(true);
        }
        if !self.subscriptions.get(id).is_some_and(|s| s.is_ordered()) {
            return Ok(false);
        }
        let key = self.read_event(mark.at).and_then(|record| self.key_by_rules(id, &record));
        match if_readable(key)?.flatten() {
            Some(key) => self.is_in_lane(id, &key, mark.at),
            None => Ok(false),
        }
    }

    /// True if the event was deleted with its segment, and its copy too, because nothing needed it. That is not
    /// damage.
    pub(super) fn is_gone(&self, at: LogAddress) -> Result<bool, Failure> {
        let oldest = self.store.log.oldest();
        Ok(at < oldest && self.copy_of(at)?.is_none_or(|copy| copy < oldest))
    }

    /// Checks what the mark alone shows, without reading the event.
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

    /// The position of an event whose mark does not contain it.
    fn find_position(&self, at: LogAddress) -> Result<Option<Position>, Failure> {
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
        Ok(subscription.unordered.under_way.contains_key(&position) || has(rows::DEAD)? || has(rows::HELD)?)
    }

    fn is_in_lane(&self, id: SubscriptionId, key: &str, at: LogAddress) -> Result<bool, Failure> {
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
        // Early events on disk are not searched, so such a lane keeps some marks longer than necessary.
        Ok(resident.lane.has_spilled_early()
            || resident.lane.entries().any(|entry| entry.at == at.into())
            || self.is_in_chunks(resident, at)?)
    }

    /// The key that the current rules give to the event of a record, regardless of its sequence. A pending event is
    /// in the lane of this key.
    pub(crate) fn key_by_rules(&self, id: SubscriptionId, record: &[u8]) -> Result<Option<String>, Failure> {
        let Some(subscription) = self.subscriptions.get(id).filter(|s| s.is_ordered()) else {
            return Ok(None);
        };
        let (_, event) = crate::apply::event_of(record)?;
        let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
        Ok(match key::key(&subscription.document.spec.policy.key, &view) {
            Key::Found(key) | Key::FromSource(key) => Some(key.into_owned()),
            Key::Missing | Key::TooLong => None,
        })
    }

    /// Trims the feeds of webhook endpoints, a few at each checkpoint.
    pub(super) fn trim_feeds(&mut self) -> Result<(), Failure> {
        const AT_ONCE: usize = 64;
        let from = std::mem::take(&mut self.maintenance.retention.trim_from);
        let ids = self.subscriptions.first_with(Work::Feeding, from, AT_ONCE + 1);
        for id in ids.iter().take(AT_ONCE) {
            self.trim_calls(*id)?;
            if !self.trim_feed(*id)? {
                self.maintenance.retention.trim_from = *id;
                return Ok(());
            }
        }
        self.maintenance.retention.trim_from = ids.get(AT_ONCE).copied().unwrap_or_default();
        Ok(())
    }

    /// Deletes the addresses of copies that are no longer pending, in portions.
    pub(super) fn sweep_copies(&mut self) -> Result<(), Failure> {
        const AT_ONCE: usize = 10_000;
        let from = std::mem::take(&mut self.maintenance.retention.sweep_from);
        let copies = self.store.rows.scan(&[rows::KEPT], &from, AT_ONCE)?;
        let from = |row: &[u8]| LogAddress(rows::number_of(row));
        let pinned = self.pinned_near(copies.iter().map(|(row, _)| from(row)));
        for (row, _) in &copies {
            if !pinned.contains(from(row)) {
                self.store.rows.delete(row);
            }
        }
        if let Some((row, _)) = copies.last()
            && copies.len() == AT_ONCE
        {
            self.maintenance.retention.sweep_from = [row.as_slice(), &[0]].concat();
        }
        Ok(())
    }
}
