//! Keeping house: memory, checkpoints, merges, retention, expiry. Everything here is bounded work per call.

use crate::engine::{Engine, Failure, Who};
use crate::lanes::Slot;
use crate::rows;
use crate::subscription::{PIN_SHIFT, Phase, Subscription};
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Address, Position, SubscriptionId};
use klambda_core::key::{self, Key};
use klambda_core::lane::Entry;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::chore::{Chore, Done, Work};
use klambda_store::disk::File;
use klambda_store::log;
use klambda_store::marks::{Mark, Recent, State as MarkState};
use klambda_store::record::{Change, Record, Route, To};
use klambda_store::rows::Changed;
use klambda_store::segment::Segment;
use klambda_store::table;
use std::sync::Arc;

#[derive(Default)]
pub struct Keeping {
    /// No attempt to prepare a segment before this.
    pub prepare_after: Millis,
    checkpoint: Option<Frozen>,
    running: Option<Kind>,
    retry_at: Millis,
    next_round: Millis,
    next_sweep: Millis,
    remove: Vec<String>,
    /// Given to a chore; given again if it fails.
    removing: Vec<String>,
    /// Marks older than this are in no one's window and those still needed are written anew.
    marks_refreshed: Option<Millis>,
    /// The segment that retention goes through, and how far it is.
    retiring: Option<(Address, Address)>,
    /// A segment with damage, of which not everything that waits can be copied: it stays, and so does all after it.
    irremovable: Option<Address>,
    /// The last copy made: it must be durable before what it was made of goes.
    copied: Address,
    /// What of the log nothing needs from here on.
    spent: Option<Spent>,
    /// Events that were routed from the past so far: each may need an old segment again.
    pub routed: u64,
    wants_checkpoint: bool,
}

/// A restart reads the log from the checkpoint on and does every step again, with the events it was about: until a
/// checkpoint is past the last step about an event of a segment, the segment must stay.
#[derive(Clone, Copy)]
struct Spent {
    /// Nothing before this is needed …
    below: Address,
    /// … since the log came to here.
    since: Address,
    routed: u64,
}

struct Frozen {
    changed: Arc<Changed>,
    recent: Arc<Recent>,
    address: Address,
    next_position: Position,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Checkpoint,
    Rows,
    Marks,
    Remove,
}

const ROUND_MS: u64 = 1000;
const SWEEP_MS: u64 = 3_600_000;
/// The log is never longer than this beyond the checkpoint: what a restart reads.
const REPLAY_BYTES_MAX: u64 = 256 << 20;
const FRAMES_AT_ONCE: usize = 64;

impl Keeping {
    pub fn wants_sync(&self) -> bool {
        self.checkpoint.is_some() && self.running.is_none()
    }
}

impl Engine {
    pub(crate) fn keep_house(&mut self) -> Result<(), Failure> {
        if self.failed.is_some() {
            return Ok(());
        }
        self.shed_lanes()?;
        self.catch_up_all()?;
        self.limit_overflowing()?;
        if self.is_checkpoint_due() {
            self.begin_checkpoint()?;
        }
        if self.keeping.next_round <= self.now {
            self.keeping.next_round = self.now + ROUND_MS;
            self.round()?;
            self.retire()?;
        } else if self.keeping.retiring.is_some() {
            self.retire()?;
        }
        Ok(())
    }

    fn round(&mut self) -> Result<(), Failure> {
        let ids: Vec<SubscriptionId> = self.subscriptions.keys().copied().collect();
        for id in ids {
            self.limit_dead_letters(id)?;
            self.finish_draining(id)?;
            self.finish_retiring(id)?;
        }
        self.limit_retired()?;
        self.refresh_marks()?;
        if self.keeping.next_sweep <= self.now {
            self.keeping.next_sweep = self.now + SWEEP_MS;
            self.sweep_copies()?;
        }
        Ok(())
    }

    /// Too many dead letters are not waited with.
    fn limit_overflowing(&mut self) -> Result<(), Failure> {
        let is_over = |s: &Subscription| s.tally.dead > s.document.spec.dead_letters.events_max;
        let over: Vec<SubscriptionId> =
            self.subscriptions.values().filter(|s| is_over(s)).map(|s| s.id).collect();
        over.into_iter().try_for_each(|id| self.limit_dead_letters(id))
    }

    fn finish_draining(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(()) };
        if subscription.phase == Phase::Draining
            && subscription.tally.waiting == 0
            && subscription.in_flight == 0
        {
            self.commit(&Record::Subscription { time: self.now, subscription: id, change: Change::Remove })?;
        }
        Ok(())
    }

    // ---- memory -------------------------------------------------------------------------------------------

    fn lanes_budget(&self) -> usize {
        self.config.memory_bytes * 3 / 10
    }

    /// During recovery, which is as bounded as everything else.
    pub(crate) fn keep_memory(&mut self) -> Result<(), Failure> {
        if self.lanes.memory_bytes() > self.lanes_budget() * 5 / 4 {
            self.shed_waiting(self.lanes_budget())?;
        }
        Ok(())
    }

    /// Lanes that have nothing to do leave memory once it is short; if that is not enough, those that wait do too.
    fn shed_lanes(&mut self) -> Result<(), Failure> {
        let budget = if planted::is_on(Bug::MemoryUnbounded) { usize::MAX / 8 } else { self.lanes_budget() };
        while self.lanes.memory_bytes() > budget
            && let Some(slot) = self.idle.pop_front()
        {
            let Some(resident) = self.lanes.get_mut(slot) else { continue };
            if !resident.listed_idle {
                continue;
            }
            resident.listed_idle = false;
            if resident.lane.is_idle() && !resident.queued {
                self.evict(slot)?;
            }
        }
        if self.lanes.memory_bytes() > budget * 5 / 4 {
            self.shed_waiting(budget)?;
        }
        Ok(())
    }

    fn shed_waiting(&mut self, budget: usize) -> Result<(), Failure> {
        let ready: Vec<Slot> = self
            .subscriptions
            .values_mut()
            .flat_map(|s| {
                let keep = s.ready.len().min(256);
                s.ready.drain(keep..).collect::<Vec<Slot>>()
            })
            .collect();
        for slot in &ready {
            if let Some(resident) = self.lanes.get_mut(*slot) {
                resident.queued = false;
            }
        }
        let candidates: Vec<Slot> = self
            .lanes
            .iter()
            .filter(|(_, resident)| {
                !resident.queued && !resident.lane.in_flight() && !resident.key.is_empty()
            })
            .map(|(slot, _)| slot)
            .collect();
        for slot in candidates {
            if self.lanes.memory_bytes() <= budget {
                break;
            }
            self.evict(slot)?;
        }
        // Those that could stay queue up again.
        ready.into_iter().for_each(|slot| self.touch(slot));
        Ok(())
    }

    // ---- checkpoints --------------------------------------------------------------------------------------

    fn is_checkpoint_due(&self) -> bool {
        let memory = self.config.memory_bytes;
        self.keeping.checkpoint.is_none()
            && self.keeping.retry_at <= self.now
            && (self.keeping.wants_checkpoint
                || self.rows.changed_bytes() > memory / 10
                || self.marks.recent_len() * 56 > memory / 32
                || self.log.written().0 - self.manifest.checkpoint.0 > REPLAY_BYTES_MAX)
    }

    /// State becomes rows at one instant; a chore writes them while everything goes on.
    pub(crate) fn begin_checkpoint(&mut self) -> Result<(), Failure> {
        self.keeping.wants_checkpoint = false;
        self.log.flush()?;
        self.store_all()?;
        self.keeping.checkpoint = Some(Frozen {
            changed: self.rows.freeze(),
            recent: self.marks.freeze(),
            address: self.log.written(),
            next_position: self.log.next_position(),
        });
        Ok(())
    }

    /// Asks for a checkpoint at the next opportunity, as before a clean stop.
    pub fn request_checkpoint(&mut self) {
        self.keeping.wants_checkpoint = true;
    }

    pub fn is_checkpointing(&self) -> bool {
        self.keeping.wants_checkpoint || self.keeping.checkpoint.is_some()
    }

    pub(crate) fn next_chore(&mut self) -> Option<Chore> {
        if self.keeping.running.is_some() || self.keeping.retry_at > self.now {
            return None;
        }
        let (kind, work) = self.next_work()?;
        self.keeping.running = Some(kind);
        Some(Chore {
            disk: self.disk.clone(),
            manifest: self.manifest.clone(),
            rows: self.rows.tables().clone(),
            marks: self.marks.tables().clone(),
            work,
        })
    }

    fn next_work(&mut self) -> Option<(Kind, Work)> {
        // First: it needs no room, and may make what a checkpoint needs.
        if !self.keeping.remove.is_empty() {
            let names = std::mem::take(&mut self.keeping.remove);
            self.keeping.removing = names.clone();
            return Some((Kind::Remove, Work::RemoveFiles { names }));
        }
        if let Some(frozen) = &self.keeping.checkpoint {
            if self.log.synced() < frozen.address {
                return None;
            }
            let (changed, recent) = (frozen.changed.clone(), frozen.recent.clone());
            let (address, next_position) = (frozen.address, frozen.next_position);
            return Some((Kind::Checkpoint, Work::Checkpoint { changed, recent, address, next_position }));
        }
        if let Some(names) = self.marks_to_drop() {
            return Some((Kind::Marks, Work::DropMarks { names }));
        }
        if let Some(plan) = self.rows.tables().plan_merge() {
            return Some((Kind::Rows, Work::MergeRows { plan, removed: self.removed.clone() }));
        }
        let plan = self.marks.tables().plan_merge()?;
        Some((Kind::Marks, Work::MergeMarks { plan, before: Millis::ZERO }))
    }

    pub(crate) fn finish_chore(&mut self, result: Result<Done, table::Error>) {
        let kind = self.keeping.running.take();
        let done = match result {
            Ok(done) => done,
            Err(error) if error.are_names_lost() => return self.note(Err(error.into())),
            Err(error) => {
                tracing::warn!(%error, "A chore on the tables failed and will be tried again.");
                self.metrics.checkpoint_failures += 1;
                self.keeping.retry_at = self.now + 1000;
                if kind == Some(Kind::Remove) {
                    let later = std::mem::take(&mut self.keeping.remove);
                    self.keeping.remove = std::mem::take(&mut self.keeping.removing);
                    self.keeping.remove.extend(later);
                }
                if kind == Some(Kind::Checkpoint) {
                    self.keeping.checkpoint = None;
                    self.keeping.wants_checkpoint = true;
                    self.rows.thaw();
                    self.marks.thaw();
                }
                return;
            }
        };
        self.manifest = done.manifest;
        match kind {
            Some(Kind::Checkpoint) => {
                self.keeping.checkpoint = None;
                self.metrics.checkpoints += 1;
                self.rows.settle(done.rows);
                self.marks.settle(done.marks);
            }
            _ => {
                if kind == Some(Kind::Rows) && done.rows.tables().len() == 1 {
                    self.removed.clear();
                }
                self.rows.replace_tables(done.rows);
                self.marks.replace_tables(done.marks);
            }
        }
    }

    // ---- marks --------------------------------------------------------------------------------------------

    fn window_ms(&self) -> u64 {
        let windows = self.subscriptions.values().map(|s| s.document.spec.idempotency_ttl_ms);
        windows.max().unwrap_or(0).max(24 * 3_600_000)
    }

    /// Whole tables of marks that are past every window, or too many.
    fn marks_to_drop(&mut self) -> Option<Vec<String>> {
        if self.marks.len() > self.config.marks_max
            && let Some(oldest) = self.marks.tables().tables().last()
        {
            self.metrics.marks_expired_early += oldest.rows();
            return Some(vec![oldest.name().to_owned()]);
        }
        if self.is_checkpointing() {
            // What was written anew is in memory alone until then.
            return None;
        }
        let before = self.keeping.marks_refreshed.take()?;
        let names = self.marks.tables().expired(before);
        (!names.is_empty()).then_some(names)
    }

    /// Before old marks go, those of events that still wait are written anew, and a checkpoint makes that durable.
    fn refresh_marks(&mut self) -> Result<(), Failure> {
        let before = self.now - self.window_ms();
        if self.keeping.marks_refreshed.is_some() || self.is_checkpointing() {
            return Ok(());
        }
        // What was accepted and is not read from the log yet is known by its mark alone.
        if self.is_catching_up() {
            return Ok(());
        }
        if self.marks.tables().expired(before).is_empty() {
            return Ok(());
        }
        for (id, at) in self.waiting_before(before)? {
            let record = match self.read_event(at) {
                Ok(record) => record,
                Err(failure @ Failure::Log(log::Error::Damaged { .. })) => {
                    tracing::error!(%failure, "An event that waits cannot be read back: its id will be forgotten.");
                    self.metrics.damaged += 1;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let (_, event) = crate::apply::event_of(&record)?;
            let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
            let identity = self.identity(view.source(), view.id());
            self.marks.put(identity, id, Mark { at, time: self.now, state: MarkState::Taken });
        }
        self.keeping.marks_refreshed = Some(before);
        self.request_checkpoint();
        Ok(())
    }

    /// Events that were accepted before this and still wait or are dead letters.
    fn waiting_before(&self, before: Millis) -> Result<Vec<(SubscriptionId, Address)>, Failure> {
        let mut found = Vec::new();
        for (id, subscription) in &self.subscriptions {
            let tally = &subscription.tally;
            let mut add = |entry: &Entry| {
                if entry.accepted < before {
                    found.push((*id, entry.at));
                }
            };
            if tally.dead + tally.held > 0 {
                let all = crate::dead_letters::Selector::default();
                let letters = self.select_dead_letters(*id, &all, Position(0), usize::MAX)?;
                letters.iter().for_each(|letter| add(&letter.entry));
            }
            if tally.oldest().is_some_and(|oldest| oldest < before) {
                subscription.singles.values().for_each(|single| add(&single.entry));
                self.for_each_waiting(*id, &mut add)?;
            }
        }
        Ok(found)
    }

    /// Every event that waits in a lane of the subscription, in memory or not.
    pub(crate) fn for_each_waiting(
        &self,
        id: SubscriptionId,
        f: &mut dyn FnMut(&Entry),
    ) -> Result<(), Failure> {
        for (_, resident) in self.lanes.iter().filter(|(_, resident)| resident.subscription == id) {
            resident.lane.entries().for_each(&mut *f);
        }
        for letter in [rows::WAITING, rows::PARKED] {
            let prefix = rows::of_subscription(letter, id);
            for (row, _) in self.rows.scan(&prefix, &prefix, usize::MAX)? {
                let key = rows::lane_of(&row);
                if self.lanes.find(id, key).is_none()
                    && let Some(resident) = self.peek_lane(id, key)?
                {
                    resident.lane.entries().for_each(&mut *f);
                }
            }
        }
        for letter in [rows::CHUNK, rows::EARLY] {
            let prefix = rows::of_subscription(letter, id);
            for (_, row) in self.rows.scan(&prefix, &prefix, usize::MAX)? {
                let r = &mut klambda_core::wire::Reader::new(&row);
                if letter == rows::CHUNK {
                    klambda_core::lane_row::take_entries(r)?.iter().for_each(&mut *f);
                } else {
                    f(&klambda_core::lane_row::take_entry(r)?);
                }
            }
        }
        Ok(())
    }

    // ---- retention ----------------------------------------------------------------------------------------

    /// The oldest segment, if it is past its time or the log past its size, and nothing needs it whole.
    fn retirable(&mut self) -> Option<Segment> {
        let segments = self.log.segments();
        let (oldest, next) = (segments.first()?.clone(), segments.get(1)?);
        let reading = self.subscriptions.values().filter_map(|s| match s.phase {
            Phase::CatchingUp { cursor, .. } => Some(cursor),
            _ => None,
        });
        let needed = reading.min().unwrap_or(Address(u64::MAX)).min(self.manifest.checkpoint);
        let too_old = self.now.since(next.created) >= self.config.retention_age_ms;
        let limit = self.config.retention_bytes;
        let too_much = limit > 0 && self.log.bytes() > limit;
        let wanted = too_old || too_much || self.is_stuck(&oldest);
        if wanted && self.manifest.checkpoint < oldest.end() {
            // Only what a checkpoint has left behind can go.
            self.keeping.wants_checkpoint = true;
        }
        (wanted && needed >= oldest.end()).then_some(oldest)
    }

    /// The disk is so full that not even acknowledgements find room. Then history goes before its time: what is in
    /// this segment is done with, and a server that cannot acknowledge would stand still for good.
    fn is_stuck(&self, oldest: &Segment) -> bool {
        self.disk_full && !self.log.has_room_for_steps(16 << 10) && self.first_pin() >= oldest.end()
    }

    /// Goes on with the segment that retires: what still waits in it is copied forward, then it goes.
    fn retire(&mut self) -> Result<(), Failure> {
        let Some(segment) = self.retirable() else { return Ok(()) };
        let at = match self.keeping.retiring {
            Some((base, at)) if base == segment.base => at,
            _ => segment.start(),
        };
        if self.first_pin() >= segment.end() {
            return self.drop_segment(segment.end());
        }
        if self.keeping.irremovable == Some(segment.base) {
            return Ok(());
        }
        let reader = self.log.reader();
        let mut at = at;
        for _ in 0..FRAMES_AT_ONCE {
            if at >= segment.end() || !self.log.has_room_for_many() {
                break;
            }
            match reader.frame(at) {
                Ok(Some(frame)) if frame.next <= segment.end() => {
                    let mut position = frame.first_position;
                    for (record_at, range) in &frame.records {
                        let body = &frame.bytes[range.clone()];
                        self.keep_copy(*record_at, body, position)?;
                        position.0 += u64::from(klambda_store::record::is_event(body));
                    }
                    at = frame.next;
                }
                Ok(_) => at = segment.end(),
                Err(error @ log::Error::Damaged { .. }) => {
                    tracing::error!(%error, "A damaged segment is kept: what it holds cannot be copied.");
                    self.metrics.damaged += 1;
                    self.keeping.irremovable = Some(segment.base);
                    self.keeping.retiring = None;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.keeping.retiring = Some((segment.base, at));
        if at >= segment.end() {
            return self.drop_segment(segment.end());
        }
        Ok(())
    }

    /// The lowest address that any waiting event or dead letter stands at.
    fn first_pin(&self) -> Address {
        let pins = self.subscriptions.values().filter_map(|s| s.tally.pins.keys().next());
        Address(pins.min().map_or(u64::MAX, |bucket| bucket << PIN_SHIFT))
    }

    /// The newest of the full segments in which nothing waits any more: history, that is seldom read.
    pub(crate) fn spent_segments(&self) -> Vec<Arc<dyn File>> {
        const LOOKED_AT: usize = 4;
        let full = self.log.segments().into_iter().rev().skip(1).take(LOOKED_AT);
        full.filter(|segment| !self.has_pins(segment)).map(|segment| segment.file).collect()
    }

    fn has_pins(&self, segment: &Segment) -> bool {
        let buckets = segment.base.0 >> PIN_SHIFT..=segment.end().0 >> PIN_SHIFT;
        self.subscriptions.values().any(|s| s.tally.pins.range(buckets.clone()).next().is_some())
    }

    fn drop_segment(&mut self, end: Address) -> Result<(), Failure> {
        if self.keeping.copied >= self.log.synced() && self.log.needs_sync() {
            return Ok(());
        }
        if !self.is_spent(end)? {
            return Ok(());
        }
        self.keeping.retiring = None;
        if let Some(name) = self.log.drop_oldest() {
            tracing::info!(segment = %name, "Segment retired.");
            self.keeping.remove.push(name);
        }
        Ok(())
    }

    /// Whether a checkpoint is past all that was ever done with events before `end`, which nothing needs now.
    fn is_spent(&mut self, end: Address) -> Result<bool, Failure> {
        let routed = self.keeping.routed;
        let spent = match self.keeping.spent.filter(|spent| end <= spent.below) {
            Some(spent) if spent.routed != routed => {
                // Someone read the past meanwhile: what is needed of the segment is to be looked for again.
                self.keeping.spent = None;
                self.keeping.retiring = None;
                return Ok(false);
            }
            Some(spent) => spent,
            None => {
                self.log.flush()?;
                Spent { below: end.max(self.first_pin()), since: self.log.written(), routed }
            }
        };
        self.keeping.spent = Some(spent);
        let is_past = self.manifest.checkpoint >= spent.since;
        self.keeping.wants_checkpoint |= !is_past && self.keeping.checkpoint.is_none();
        Ok(is_past)
    }

    fn keep_copy(&mut self, at: Address, body: &[u8], next: Position) -> Result<(), Failure> {
        let (from, time, routes, event, position, emitted) = match Record::decode(body)? {
            Record::Event { time, routes, event, emitted } => (at, time, routes, event, next, emitted),
            Record::Kept { from, time, routes, event, position, emitted } => {
                (from, time, routes, event, position, emitted)
            }
            _ => return Ok(()),
        };
        let needed = self.routes_of_waiting(from, position, routes, body)?;
        if needed.is_empty() || planted::is_on(Bug::RetentionForgets) {
            return Ok(());
        }
        let kept = Record::Kept { from, time, position, routes: needed, event, emitted };
        self.keeping.copied = self.commit(&kept)?;
        Ok(())
    }

    /// Where the event still waits or is a dead letter, also of those that took it up later, from the past.
    fn routes_of_waiting<'a>(
        &self,
        from: Address,
        position: Position,
        routes: Vec<Route<'a>>,
        body: &[u8],
    ) -> Result<Vec<Route<'a>>, Failure> {
        let mut needed = Vec::new();
        for id in self.subscriptions.keys().copied().filter(|id| self.is_pinned_by(*id, from)) {
            if self.is_waiting_record(id, from, Some(position), body)? {
                let known = routes.iter().find(|route| route.subscription == id).cloned();
                let later = Route { subscription: id, previous: Address(0), to: To::Later };
                needed.push(known.unwrap_or(later));
            }
        }
        Ok(needed)
    }

    fn is_pinned_by(&self, id: SubscriptionId, at: Address) -> bool {
        let bucket = at.0 >> PIN_SHIFT;
        self.subscriptions.get(&id).is_some_and(|s| s.tally.pins.contains_key(&bucket))
    }

    /// Whether the event at this address still waits for the subscription or is a dead letter of it.
    pub(crate) fn is_waiting(
        &self,
        id: SubscriptionId,
        at: Address,
        position: Option<Position>,
    ) -> Result<bool, Failure> {
        match self.read_event(at) {
            Ok(record) => self.is_waiting_record(id, at, position, &record),
            Err(Failure::Log(log::Error::Gone(_))) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// As `is_waiting`, of the event in this record. What waits, waits in the lane that the rules in force give it.
    fn is_waiting_record(
        &self,
        id: SubscriptionId,
        at: Address,
        position: Option<Position>,
        record: &[u8],
    ) -> Result<bool, Failure> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(false) };
        let is_it = |entry: &Entry| entry.at == at;
        if subscription.singles.values().any(|single| is_it(&single.entry)) {
            return Ok(true);
        }
        if self.is_dead_letter(id, at, position)? {
            return Ok(true);
        }
        let Some(key) = self.lane_by_rules(id, record)? else { return Ok(false) };
        let stored;
        let resident = match self.lanes.find(id, &key).and_then(|slot| self.lanes.get(slot)) {
            Some(resident) => resident,
            None => match self.peek_lane(id, &key)? {
                Some(resident) => {
                    stored = resident;
                    &stored
                }
                None => return Ok(false),
            },
        };
        // What is in chunks on disk is not looked through: such a lane keeps a little more than it must.
        Ok(resident.lane.spilled().entries > 0
            || resident.lane.has_spilled_early()
            || resident.lane.entries().any(is_it))
    }

    /// The lane that the rules in force give the event of a record, whatever they say of its sequence.
    pub(crate) fn lane_by_rules(&self, id: SubscriptionId, record: &[u8]) -> Result<Option<String>, Failure> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(None) };
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

    fn is_dead_letter(
        &self,
        id: SubscriptionId,
        at: Address,
        position: Option<Position>,
    ) -> Result<bool, Failure> {
        if let Some(position) = position {
            return Ok(self.find_dead_letter(id, position)?.is_some());
        }
        let Some(subscription) = self.subscriptions.get(&id) else { return Ok(false) };
        if subscription.tally.dead + subscription.tally.held == 0 {
            return Ok(false);
        }
        let all = crate::dead_letters::Selector::default();
        let letters = self.select_dead_letters(id, &all, Position(0), usize::MAX)?;
        Ok(letters.iter().any(|letter| letter.entry.at == at))
    }

    /// Forgets where copies are of which nothing waits any more.
    fn sweep_copies(&mut self) -> Result<(), Failure> {
        for (row, _) in self.rows.scan(&[rows::KEPT], &[], 10_000)? {
            let bucket = rows::number_of(&row) >> PIN_SHIFT;
            let pinned = self.subscriptions.values().any(|s| s.tally.pins.contains_key(&bucket));
            if !pinned {
                self.rows.delete(&row);
            }
        }
        Ok(())
    }

    /// Requests that are open, for a stop that waits for them.
    pub fn open_requests(&self) -> usize {
        self.in_flight.values().filter(|flight| matches!(flight.who, Who::Lane(_) | Who::Alone(_))).count()
    }
}
