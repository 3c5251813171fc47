//! The engine: everything that happens to events, as one synchronous state machine.
//!
//! The engine owns the log and all state. Callers pass in requests, outcomes and the time. The engine reads no clock,
//! opens no socket and starts no thread: it returns deliveries, replies and jobs for others to carry out. The runner
//! does that with tokio and threads, and a simulator in its own way.
//!
//! The central rule: **state changes only by applying a record that was appended to the log.** Recovery applies the
//! same records with the same code. Everything that is not in the log (open requests, ready queues, breakers, timers)
//! is rebuilt from state.
//!
//! A round consists of inputs, `tick` and `flush`. Only `flush` produces deliveries, after it has written the
//! acknowledgements that precede them.

mod commit;
mod config;
mod failure;
mod jobs;
mod reading;

pub(crate) use commit::NewEvent;
pub use config::Config;
pub use failure::Failure;
pub(crate) use failure::if_readable;

pub use crate::calls::{Delivery, Following, InFlight, Place, Ticket, Who};
pub use crate::commits::{Completion, SYNC_DELAY_MS, Token};

use crate::accept::ACKNOWLEDGEMENT_BYTES;
use crate::audit::Entry;
use crate::calls::Calls;
use crate::commits::Commits;
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::namespaces::Namespaces;
use crate::replay::Replays;
use crate::subscriptions::{Subscriptions, Work};
use crate::wakeups::Wakeups;
use klambda_core::ids::{NamespaceId, Position, SubscriptionId};
use klambda_core::lane::Action;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::disk::Disk;
use klambda_store::log::{self, Log, LogReader};
use klambda_store::manifest::Manifest;
use klambda_store::marks::{Identity, Marks};
use klambda_store::record::Record;
use klambda_store::rows::Rows;
use klambda_store::tables::TableSet;
use klambda_store::{recovery, witness};
use std::sync::Arc;

/// The current condition of the engine, kept in memory only.
#[derive(Default)]
pub(crate) struct Condition {
    /// Recovery is complete.
    pub live: bool,
    /// Why the store failed. After a failure nothing is acknowledged.
    pub failed: Option<String>,
    /// The disk has no space for another segment of events.
    pub disk_full: bool,
    /// The disk does not even have space for a segment of acknowledgements.
    pub disk_exhausted: bool,
    pub stopping: bool,
}

/// The data on disk: the log, and the tables that hold the state derived from it.
pub(crate) struct Store {
    pub disk: Arc<dyn Disk>,
    pub log: Log,
    pub rows: Rows,
    pub marks: Marks,
    pub manifest: Manifest,
    /// The secret of the data folder, used to hash event ids.
    pub key: [u8; 16],
}

/// Buffers that are reused to avoid allocations, and values that are set for one step.
#[derive(Default)]
pub(crate) struct Scratch {
    pub takers: Vec<SubscriptionId>,
    pub actions: Vec<Action>,
    pub body: Vec<u8>,
    /// Set while a lane is being discarded as dead letters: the event at its head, and its attempts.
    pub giving_up: Option<(Position, u32)>,
    /// Set while a disabled webhook endpoint skips its oldest event: the receiver can still fetch it.
    pub stays_in_feed: bool,
    /// Who makes the next change. Logged with the first record of the change.
    pub audit: Option<Box<Entry>>,
}

pub struct Engine {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) known_ids: crate::known_ids::KnownIds,
    pub(crate) namespaces: Namespaces,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) lanes: Lanes,
    pub(crate) replays: Replays,
    pub(crate) metrics: Metrics,
    pub(crate) now: Millis,
    pub(crate) condition: Condition,
    pub(crate) calls: Calls,
    pub(crate) wakeups: Wakeups,
    pub(crate) commits: Commits,
    pub(crate) maintenance: crate::maintenance::Maintenance,
    pub(crate) scratch: Scratch,
}

impl Engine {
    /// Opens the folder and recovers. `seed` initializes the jitter, and the key of a new folder.
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
        // The log is read twice: first to find its end and cut an incomplete tail, then to apply it, frame by frame.
        let from = manifest.checkpoint();
        let (log, report) = recovery::open(disk.clone(), config.log, from, now, &mut |_, _, _| Ok(()))?;
        let random = u64::from_le_bytes(seed[..8].try_into().unwrap_or_default());
        let mut engine = Engine::new(disk, config, log, rows, marks, manifest, now, random);
        engine.load_rows()?;
        engine.replay_log(from.address)?;
        engine.now = engine.now.max(now);
        engine.commits.begin(engine.store.log.next_position());
        engine.metrics.tail_cut = report.cut.map_or(0, |(_, bytes)| bytes);
        engine.go_live()?;
        Ok((engine, report))
    }

    fn replay_log(&mut self, from: LogAddress) -> Result<(), Failure> {
        let reader = self.store.log.reader();
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
            calls: Calls::new(config.breaker, random),
            metrics: Metrics::new(config.metric_types_max),
            config,
            store: Store { disk, log, rows, marks, key: manifest.key(), manifest },
            known_ids: crate::known_ids::KnownIds::default(),
            namespaces: Namespaces::default(),
            subscriptions: Subscriptions::default(),
            lanes: Lanes::default(),
            replays: Replays::default(),
            now: Millis(now.0.min(1)),
            condition: Condition::default(),
            wakeups: Wakeups::default(),
            commits: Commits::default(),
            maintenance: crate::maintenance::Maintenance::default(),
            scratch: Scratch::default(),
        }
    }

    /// Advances time: fires due timers, reads unread events, runs maintenance. Time never goes backwards here.
    pub fn tick(&mut self, now: Millis) {
        self.now = self.now.max(now);
        self.store.log.set_now(self.now);
        self.release_suspended();
        self.retry_put_off();
        let done = self.fire_timers().and_then(|()| self.keep_house()).and_then(|()| self.run_replays());
        self.note(done);
    }

    /// Ends a round: writes everything appended, and starts the deliveries that may start now.
    pub fn flush(&mut self) {
        if self.condition.failed.is_some() {
            return;
        }
        let unwritten = planted::is_on(Bug::AckUnwritten) && !self.commits.has_unwritten();
        let appended = if unwritten { Ok(()) } else { self.store.log.flush() };
        if let Err(error) = appended {
            return self.note(Err(error.into()));
        }
        let written =
            if planted::is_on(Bug::AnswerBeforeSync) { LogAddress(0) } else { self.store.log.written() };
        self.commits.written(written);
        if self.store.log.needs_sync() {
            self.commits.appended(self.now);
        }
        self.release_synced();
        let scheduled = self.schedule();
        self.note(scheduled);
    }

    pub fn take_deliveries(&mut self) -> Vec<Delivery> {
        self.calls.take_begun()
    }

    pub fn take_completions(&mut self) -> Vec<Completion> {
        self.commits.take_ready()
    }

    /// Requests a reply when everything done so far is durable.
    pub fn when_durable(&mut self, token: Token) {
        self.commits.answer(Completion::Durable(token));
    }

    /// The latest time for the next call of `tick`.
    pub fn wake_at(&self) -> Millis {
        // The end of a running sync is an input anyway, and so is an event for a breaker that would allow it.
        let sync = self.commits.sync_due().filter(|_| !self.store.log.is_syncing());
        let probe = self.calls.endpoints.next_probe().filter(|at| *at > self.now);
        // Without room in the log, or while the engine stops, none of these can run. Whatever changes that is an
        // input with its own round.
        let letters = Some(self.maintenance.letters_due()).filter(|_| self.has_room_for_step());
        let replay = self.replays.wake_at().filter(|_| self.can_start());
        let cold = self.cold_due().filter(|_| self.can_start());
        let reads = self.maintenance.reads_on.then_some(self.now).filter(|_| self.has_room_for_step());
        let own = [self.suspended_until(), self.calls.held_back.due(), replay, cold, letters, reads];
        let times = [self.wakeups.next_due(), sync, probe].into_iter().chain(own);
        times.flatten().min().unwrap_or(Millis::NEVER).min(self.now + 1000)
    }

    /// How many subscriptions were visited so far by walks through all of them. Events and rounds make no such walk.
    pub fn subscriptions_walked(&self) -> u64 {
        self.subscriptions.walked()
    }

    /// How many table rows were read so far.
    pub fn rows_read(&self) -> u64 {
        self.store.rows.read()
    }

    /// Stops starting deliveries and requests a checkpoint, so that the next start is fast.
    pub fn stop(&mut self) {
        self.condition.stopping = true;
        self.request_checkpoint();
    }

    /// Records the duration of a sync.
    pub fn committed(&mut self, took: std::time::Duration) {
        self.metrics.commit_micros.add(took.as_micros() as u64);
    }

    /// Records the time from the arrival of a request to its answer.
    pub fn accepted(&mut self, took: std::time::Duration) {
        self.metrics.accept_micros.add(took.as_micros() as u64);
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// True if events and changes may come in now. False only while the next segment or a checkpoint is being
    /// prepared, which is short and no reason to reject.
    pub fn is_accepting(&self) -> bool {
        let has_room = self.store.log.has_room_for_many() && !self.awaits_checkpoint();
        has_room || self.condition.failed.is_some() || self.condition.disk_full
    }

    pub fn failure(&self) -> Option<&str> {
        self.condition.failed.as_deref()
    }

    pub fn is_idle(&self) -> bool {
        self.calls.len() == 0 && !self.store.log.needs_sync() && !self.commits.has_unsynced()
    }

    /// Pending events of all subscriptions.
    pub fn waiting(&self) -> u64 {
        self.subscriptions.each_with(Work::Keeping).map(|subscription| subscription.tally.waiting).sum()
    }

    /// Space in the log for the acknowledgements of all pending events.
    pub(crate) fn owed_bytes(&self) -> usize {
        self.waiting() as usize * ACKNOWLEDGEMENT_BYTES
    }

    /// Accepted but unread events of all subscriptions.
    pub fn unread(&self) -> u64 {
        self.subscriptions.each_with(Work::Reading).map(|subscription| subscription.tally.later).sum()
    }

    /// True if any subscription reads the log.
    pub fn is_catching_up(&self) -> bool {
        self.subscriptions.each_with(Work::Reading).next().is_some()
    }

    pub fn dead_letters(&self) -> u64 {
        self.subscriptions.each_with(Work::Keeping).map(|s| s.tally.dead + s.tally.held).sum()
    }

    /// Lanes in memory that have nothing to do.
    pub fn idle_lanes_in_memory(&self) -> usize {
        self.lanes.iter().filter(|(_, resident)| resident.lane.is_idle()).count()
    }

    pub fn lanes_in_memory(&self) -> usize {
        self.lanes.len()
    }

    pub fn log_bytes(&self) -> u64 {
        self.store.log.bytes()
    }

    pub fn replay(&self, id: u64) -> Option<&crate::replay::Job> {
        self.replays.get(id)
    }

    pub fn reader(&self) -> LogReader {
        self.store.log.reader()
    }

    pub fn now(&self) -> Millis {
        self.now
    }

    // ---- helpers for other files --------------------------------------------------------------------------

    /// After a store failure nothing is acknowledged.
    pub(crate) fn note(&mut self, result: Result<(), Failure>) {
        if let Err(Failure::Log(log::Error::Full)) = result {
            // Nothing was appended, so nothing changed. The work is retried when the next segment is ready.
            return;
        }
        if let Err(failure) = result
            && self.condition.failed.is_none()
        {
            tracing::error!(%failure, "Store failed; nothing is acknowledged until a restart");
            self.condition.failed = Some(failure.to_string());
        }
    }

    pub(crate) fn identity(&self, namespace: NamespaceId, source: &str, id: &str) -> Identity {
        let namespace = if planted::is_on(Bug::IdsShared) { NamespaceId(0) } else { namespace };
        Identity::new(&self.store.key, namespace, source, id)
    }
}
