//! The engine: everything that happens to events, as one synchronous machine.
//!
//! It owns the log and all state, and is told of requests, outcomes and time. It reads no clock, opens no socket and
//! starts no thread: what is to be done outside comes out as deliveries, answers and jobs. The runner does them with
//! tokio and threads; a simulator does them as it pleases.
//!
//! One rule carries everything: **state changes only by applying a record that was appended to the log.** Recovery
//! applies the same records with the same code. What is not in the log (open requests, ready queues, breakers, timers)
//! is rebuilt from state.
//!
//! A round is: inputs, `tick`, `flush`. Deliveries come out of `flush` only, after the write that holds the
//! acknowledgements before them.

mod config;
mod failure;
mod jobs;
mod reading;

pub use config::Config;
pub use failure::Failure;
pub(crate) use failure::if_readable;

use crate::accept::Judged;
use crate::delivery::COUNTED_BYTES_MIN;
use crate::endpoint::{EndpointId, Endpoints};
use crate::lanes::{Lanes, Slot};
use crate::metrics::{Metrics, TypeId};
use crate::replay::Replays;
use crate::subscriptions::{Subscriptions, Work};
use bytes::Bytes;
use hashbrown::HashMap;
use klambda_core::ids::{Address, LaneNumber, Position, SubscriptionId};
use klambda_core::lane::{Action, Flag};
use klambda_core::planted::{self, Bug};
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_store::disk::Disk;
use klambda_store::log::{self, Log, LogReader};
use klambda_store::manifest::Manifest;
use klambda_store::marks::{Identity, Marks};
use klambda_store::record::Record;
use klambda_store::rows::Rows;
use klambda_store::tables::TableSet;
use klambda_store::{recovery, witness};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// One call of a target, to be made now.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub ticket: Ticket,
    pub document: Arc<Document>,
    /// The log record that holds the event, and the event's bytes within it.
    pub record: Bytes,
    pub event: Range<usize>,
    /// Its place in its lane; none for unordered events.
    pub place: Option<Place>,
    pub attempt: u32,
}

impl Delivery {
    /// The event as bytes of its own: as a part of the log it would keep all that was written with it in memory.
    pub(crate) fn detach(&mut self) {
        if self.record.len() < COUNTED_BYTES_MIN {
            self.record = Bytes::copy_from_slice(&self.record);
        }
    }

    /// It has been sent: who needs the event again reads it from the log.
    pub(crate) fn let_go(&mut self) {
        self.record = Bytes::new();
    }

    /// Whether this system emitted the event itself. What the event says has no part in it.
    pub fn is_emitted(&self) -> bool {
        klambda_store::record::is_emitted(&self.record)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub number: LaneNumber,
    pub previous_id: Option<String>,
    pub flag: Flag,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Names a request of the caller's; answered when what it did is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

#[derive(Debug)]
pub enum Answer {
    Events(Token, Vec<Judged>),
    /// All that was done before it was asked is durable.
    Durable(Token),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Lane(Slot),
    Alone(Position),
}

#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    pub subscription: SubscriptionId,
    pub who: Who,
    /// As the target was when the call began.
    pub endpoint: EndpointId,
    pub started: Millis,
    /// It was answered, and the events of the answer wait for room.
    pub put_off: bool,
    /// What its event is counted as.
    pub kind: TypeId,
    /// Bytes that count until they are sent.
    pub unsent: usize,
}

pub struct Engine {
    pub(crate) config: Config,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) log: Log,
    pub(crate) rows: Rows,
    pub(crate) marks: Marks,
    pub(crate) known: crate::known::Known,
    pub(crate) manifest: Manifest,
    pub(crate) key: [u8; 16],
    pub(crate) subscriptions: Subscriptions,
    pub(crate) parted: crate::accept::Parted,
    pub(crate) lanes: Lanes,
    pub(crate) replays: Replays,
    pub(crate) metrics: Metrics,
    pub(crate) now: Millis,

    // What follows ends with the process.
    pub(crate) live: bool,
    pub(crate) failed: Option<String>,
    pub(crate) disk_full: bool,
    pub(crate) stopping: bool,
    pub(crate) endpoints: Endpoints,
    pub(crate) in_flight: HashMap<Ticket, InFlight>,
    pub(crate) unsent_bytes: usize,
    pub(crate) next_ticket: u64,
    pub(crate) timers: BinaryHeap<Reverse<(Millis, Slot)>>,
    pub(crate) single_timers: BinaryHeap<Reverse<(Millis, SubscriptionId, Position)>>,
    pub(crate) idle: VecDeque<Slot>,
    /// Lanes whose head is not durable yet.
    pub(crate) unsynced_lanes: VecDeque<(Address, Slot)>,
    pub(crate) unflushed_answers: Vec<Answer>,
    pub(crate) unsynced_answers: VecDeque<(Address, Answer)>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) stalled: Vec<(Ticket, klambda_core::outcome::Outcome)>,
    /// Answers whose events find no room yet.
    pub(crate) put_off: crate::replies::PutOff,
    /// The earliest time at which a subscription that is held goes on.
    pub(crate) held_until: Millis,
    /// While everything in a lane is given up: the event at its head, and how often that was tried.
    pub(crate) giving_up: Option<(Position, u32)>,
    pub(crate) dirty_since: Option<Millis>,
    /// Events before this position are covered by a sync that has ended or is under way.
    pub(crate) committing: Position,
    pub(crate) keeping: crate::keeping::Keeping,
    pub(crate) random: u64,
    pub(crate) rotation: SubscriptionId,
    // Reused so that a step allocates nothing.
    pub(crate) takers: Vec<SubscriptionId>,
    pub(crate) actions: Vec<Action>,
    pub(crate) body: Vec<u8>,
}

/// Acknowledgements alone wait this long for company before they are synced.
pub const SYNC_DELAY_MS: u64 = 50;

/// What a checkpoint may write, as a part of memory: a full disk must have room for one, or no segment could ever go.
const CHECKPOINT_SHARE: u64 = 4;

impl Engine {
    /// Opens the folder and recovers. `seed` drives jitter, and the folder's key if the folder is new.
    pub fn open(
        disk: Arc<dyn Disk>,
        config: Config,
        now: Millis,
        seed: [u8; 16],
    ) -> Result<(Engine, recovery::Report), Failure> {
        let manifest = match Manifest::load(&*disk)? {
            Some(manifest) => manifest,
            None => {
                let manifest = Manifest::new(seed);
                witness::forget(&*disk)?;
                manifest.save(&*disk)?;
                manifest
            }
        };
        manifest.sweep(&*disk)?;
        let rows = Rows::new(TableSet::open(&*disk, &manifest.rows)?);
        let marks = Marks::new(TableSet::open(&*disk, &manifest.marks)?);
        // Twice over the log: first to find its end and make it clean, then to apply it, frame by frame.
        let from = manifest.checkpoint();
        let (mut log, report) = recovery::open(disk.clone(), config.log, from, now, &mut |_, _, _| Ok(()))?;
        log.set_keep_free(config.memory_bytes as u64 / CHECKPOINT_SHARE);
        let random = u64::from_le_bytes(seed[..8].try_into().unwrap_or_default());
        let mut engine = Engine::new(disk, config, log, rows, marks, manifest, now, random);
        engine.load_rows()?;
        engine.replay_log(from.address)?;
        engine.now = engine.now.max(now);
        engine.committing = engine.log.next_position();
        engine.metrics.tail_cut = report.cut.map_or(0, |(_, bytes)| bytes);
        engine.go_live()?;
        Ok((engine, report))
    }

    fn replay_log(&mut self, from: Address) -> Result<(), Failure> {
        let reader = self.log.reader();
        let mut at = from;
        while let Some(frame) = reader.frame(at)? {
            let mut position = frame.first_position;
            for (record_at, range) in &frame.records {
                let body = &frame.bytes[range.clone()];
                let record = Record::decode(body)?;
                self.now = self.now.max(record.time());
                self.apply_record(*record_at, &record, position)?;
                position.0 += u64::from(matches!(record, Record::Event { .. }));
            }
            at = frame.next;
            self.keep_memory()?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn new(
        disk: Arc<dyn Disk>,
        config: Config,
        log: Log,
        rows: Rows,
        marks: Marks,
        manifest: Manifest,
        now: Millis,
        random: u64,
    ) -> Engine {
        Engine {
            endpoints: Endpoints::new(config.breaker),
            metrics: Metrics::new(config.metric_types_max),
            config,
            disk,
            log,
            rows,
            marks,
            known: crate::known::Known::default(),
            key: manifest.key(),
            manifest,
            subscriptions: Subscriptions::default(),
            parted: crate::accept::Parted::default(),
            lanes: Lanes::default(),
            replays: Replays::default(),
            now: Millis(now.0.min(1)),
            live: false,
            failed: None,
            disk_full: false,
            stopping: false,
            in_flight: HashMap::new(),
            unsent_bytes: 0,
            next_ticket: 1,
            timers: BinaryHeap::new(),
            single_timers: BinaryHeap::new(),
            idle: VecDeque::new(),
            unsynced_lanes: VecDeque::new(),
            unflushed_answers: Vec::new(),
            unsynced_answers: VecDeque::new(),
            answers: Vec::new(),
            deliveries: Vec::new(),
            stalled: Vec::new(),
            put_off: crate::replies::PutOff::default(),
            held_until: Millis::NEVER,
            giving_up: None,
            dirty_since: None,
            committing: Position(0),
            keeping: crate::keeping::Keeping::default(),
            random,
            rotation: SubscriptionId(0),
            takers: Vec::new(),
            actions: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Time passes: timers that are due, catching up, keeping house. Time never goes backwards in here.
    pub fn tick(&mut self, now: Millis) {
        self.now = self.now.max(now);
        self.log.set_now(self.now);
        self.release_held();
        self.retry_put_off();
        let done = self.fire_timers().and_then(|()| self.keep_house()).and_then(|()| self.run_replays());
        self.note(done);
    }

    /// Ends a round: everything appended is written, and what may start now comes out as deliveries.
    pub fn flush(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let unwritten = planted::is_on(Bug::AckUnwritten) && self.unflushed_answers.is_empty();
        let appended = if unwritten { Ok(()) } else { self.log.flush() };
        if let Err(error) = appended {
            return self.note(Err(error.into()));
        }
        let written = if planted::is_on(Bug::AnswerBeforeSync) { Address(0) } else { self.log.written() };
        self.unsynced_answers.extend(self.unflushed_answers.drain(..).map(|answer| (written, answer)));
        if self.log.needs_sync() {
            self.dirty_since.get_or_insert(self.now);
        }
        self.release_synced();
        let scheduled = self.schedule();
        self.note(scheduled);
    }

    pub fn take_deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }

    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    /// Asks to be answered when all that was done so far is durable.
    pub fn when_durable(&mut self, token: Token) {
        self.unflushed_answers.push(Answer::Durable(token));
    }

    /// When `tick` should be called at the latest.
    pub fn wake_at(&self) -> Millis {
        let lane = self.timers.peek().map(|Reverse((at, _))| *at);
        let single = self.single_timers.peek().map(|Reverse((at, _, _))| *at);
        // The end of a sync that is under way is heard of anyway, and so is an event for a breaker that would let it pass.
        let sync = self.dirty_since.filter(|_| !self.log.is_syncing()).map(|since| since + SYNC_DELAY_MS);
        let probe = self.endpoints.next_probe().filter(|at| *at > self.now);
        // Without room in the log, or while the engine stops, none of these can be done. Whatever changes that is an input,
        // and has a round of its own.
        let letters = Some(self.keeping.letters_due()).filter(|_| self.has_room_for_step());
        let replay = self.replays.wake_at().filter(|_| self.can_start());
        let cold = self.cold_due().filter(|_| self.can_start());
        let reads = self.keeping.reads_on.then_some(self.now).filter(|_| self.has_room_for_step());
        let own = [Some(self.held_until), self.put_off.due(), replay, cold, letters, reads];
        let times = [lane, single, sync, probe].into_iter().chain(own);
        times.flatten().min().unwrap_or(Millis::NEVER).min(self.now + 1000)
    }

    /// How many rows of the tables were read so far.
    pub fn rows_read(&self) -> u64 {
        self.rows.read()
    }

    /// No more deliveries start; a checkpoint is made so that the next start is quick.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.request_checkpoint();
    }

    /// How long a sync took.
    pub fn committed(&mut self, took: std::time::Duration) {
        self.metrics.commit_micros.add(took.as_micros() as u64);
    }

    /// How long a request took from its arrival to its answer.
    pub fn accepted(&mut self, took: std::time::Duration) {
        self.metrics.accept_micros.add(took.as_micros() as u64);
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Events and changes may come in now. Not while the next segment or a checkpoint is on its way: that is soon, and no
    /// reason to refuse.
    pub fn is_accepting(&self) -> bool {
        let has_room = self.log.has_room_for_many() && !self.awaits_checkpoint();
        has_room || self.failed.is_some() || self.disk_full
    }

    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && !self.log.needs_sync() && self.unsynced_answers.is_empty()
    }

    /// Events that wait, over all subscriptions.
    pub fn waiting(&self) -> u64 {
        self.subscriptions.values().map(|subscription| subscription.tally.waiting).sum()
    }

    /// Events that were accepted and are unread, over all subscriptions.
    pub fn unread(&self) -> u64 {
        self.subscriptions.values().map(|subscription| subscription.tally.later).sum()
    }

    /// Some subscription reads the log.
    pub fn is_catching_up(&self) -> bool {
        self.subscriptions.each_with(Work::Reading).next().is_some()
    }

    pub fn dead_letters(&self) -> u64 {
        self.subscriptions.values().map(|s| s.tally.dead + s.tally.held).sum()
    }

    /// Those of them that have nothing to do.
    pub fn idle_lanes_in_memory(&self) -> usize {
        self.lanes.iter().filter(|(_, resident)| resident.lane.is_idle()).count()
    }

    pub fn lanes_in_memory(&self) -> usize {
        self.lanes.len()
    }

    pub fn log_bytes(&self) -> u64 {
        self.log.bytes()
    }

    pub fn replay(&self, id: u64) -> Option<&crate::replay::Job> {
        self.replays.get(id)
    }

    pub fn reader(&self) -> LogReader {
        self.log.reader()
    }

    pub fn now(&self) -> Millis {
        self.now
    }

    // ---- helpers of the other files -----------------------------------------------------------------------

    /// After a failure of the store nothing is acknowledged any more.
    pub(crate) fn note(&mut self, result: Result<(), Failure>) {
        if let Err(Failure::Log(log::Error::Full)) = result {
            // Nothing was appended, so nothing happened: it is tried again when the next segment is there.
            return;
        }
        if let Err(failure) = result
            && self.failed.is_none()
        {
            tracing::error!(%failure, "The store failed: nothing is acknowledged until a restart.");
            self.failed = Some(failure.to_string());
        }
    }

    /// Appends a record and applies it: the only way state changes.
    pub(crate) fn commit(&mut self, record: &Record<'_>) -> Result<Address, Failure> {
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        record.encode(&mut body);
        let position = self.log.next_position();
        let at = self.log.append(&body, matches!(record, Record::Event { .. }))?;
        self.dirty_since.get_or_insert(self.now);
        let applied = self.apply_record(at, record, position);
        self.body = body;
        if let Err(failure) = &applied
            && self.failed.is_none()
        {
            // The record is there and only part of what it does: a restart does it again, as a whole.
            tracing::error!(%failure, "A step could not be finished: nothing is acknowledged until a restart.");
            self.failed = Some(failure.to_string());
        }
        applied.map(|()| at)
    }

    pub(crate) fn identity(&self, source: &str, id: &str) -> Identity {
        Identity::new(&self.key, source, id)
    }

    /// Splitmix64: jitter needs no better.
    pub(crate) fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
