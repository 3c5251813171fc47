//! The world of a run: the engine on its simulated disk; producers, receivers and operators around it; and the
//! history of their observations. Every entry is checked when it is added.

use crate::checkers::{self, Verdict};
use crate::editing::Editing;
use crate::endpoints::Endpoints;
use crate::event::{EventNo, OTHER};
use crate::faults::{Fault, Faults};
use crate::history::{Entry, History, Said, SubNo};
use crate::mix::{Knobs, Mix, Trouble};
use crate::network::Network;
use crate::outside::Outside;
use crate::producer::Producer;
use crate::rng::Rng;
use crate::rules::Rules;
use klambda_core::breaker;
use klambda_core::ids::SubscriptionId;
use klambda_core::namespace::{Document, Limits};
use klambda_core::time::Millis;
use klambda_dispatch::dead_letters::DeadLetter;
use klambda_dispatch::{Completion, Config, Engine, EventResult, Rejection, Sender, Status, Ticket, Token};
use klambda_store::chore::Chore;
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::log::{self, PrepareJob, SyncJob};
use std::collections::BTreeMap;

/// The outcome of a call that the engine holds for lack of space, with the replies that came with it.
pub struct Stalled {
    pub sub: SubNo,
    pub event: EventNo,
    pub ticket: Ticket,
    pub replies: Vec<EventNo>,
}

pub struct World {
    pub mix: Mix,
    pub rng: Rng,
    pub host: Host,
    pub round: u64,
    pub clock: Clock,
    pub outside: Outside,
    pub history: History,
    pub network: Network,
    pub producer: Producer,
    pub faults: Faults,
    pub known: Known,
    pub requests: Requests,
    pub stalled: Vec<Stalled>,
    pub watched: Watched,
    pub counts: Counts,
    pub endpoints: Endpoints,
    pub editing: Editing,
}

/// The process under test and its disk.
pub struct Host {
    pub config: Config,
    pub disk: MemoryDisk,
    pub engine: Engine,
    pub jobs: Jobs,
    /// Number of starts of the process.
    pub life: u64,
}

pub struct Clock {
    /// Real time. It never goes back.
    pub time: u64,
    /// The difference of the wall clock from real time.
    pub error: i64,
    /// The change of the wall clock since the last start. The process reads the clock only when it starts.
    pub jump: i64,
}

/// The existing subscriptions.
#[derive(Default)]
pub struct Known {
    pub names: BTreeMap<String, SubNo>,
    /// By their id in the engine.
    pub ids: BTreeMap<SubscriptionId, SubNo>,
    /// All rules that a subscription was ever given. A restart may find any of them.
    pub rules_given: BTreeMap<SubNo, Vec<Rules>>,
}

/// Requests without a response.
pub struct Requests {
    pub unanswered: BTreeMap<u64, Vec<EventNo>>,
    /// The number of events that were dropped to make space for each request.
    made_room: BTreeMap<u64, u64>,
    next_token: u64,
}

/// Observations that are tracked from round to round.
#[derive(Default)]
pub struct Watched {
    /// Drops according to the metrics, by name. The metrics start at zero in each life of the process.
    pub drops_told: BTreeMap<String, u64>,
    /// Expired dead letters that still exist, and since when this is observed.
    pub overdue: BTreeMap<(SubNo, u64), u64>,
    pub replays_made: u64,
    /// A planned deletion of a dead letter: the round, the subscription and the dead letter.
    pub deletion: Option<(u64, String, DeadLetter)>,
}

#[derive(Default)]
pub struct Counts {
    pub crashes: u64,
    pub accepted: u64,
    /// Requests and responses so far, to detect progress.
    pub steps: u64,
}

/// Unfinished work that the engine handed out.
#[derive(Default)]
pub struct Jobs {
    pub sync: Option<(SyncJob, u64)>,
    pub prepare: Option<PrepareJob>,
    pub chore: Option<Chore>,
}

pub const START: u64 = 1_700_000_000_000;

impl World {
    pub fn new(knobs: Knobs) -> World {
        let mut rng = Rng::new(knobs.seed);
        let mix = Mix::new(knobs, &mut rng);
        let config = config(&mix);
        let disk = MemoryDisk::new();
        let mut engine =
            crate::recovery::open(&disk, &config, Millis(START), &mut rng).expect("a new folder opens").0;
        if mix.has(Trouble::Namespaces) {
            create_namespace(&mut engine);
        }
        let (endpoints, known_endpoints) = Endpoints::create(&mix, knobs.seed, &mut engine);
        World {
            mix,
            rng,
            host: Host { config, disk, engine, jobs: Jobs::default(), life: 1 },
            round: 0,
            clock: Clock { time: START, error: 0, jump: 0 },
            outside: Outside::new(START, known_endpoints),
            history: History::default(),
            network: Network::default(),
            producer: Producer::default(),
            faults: Faults::default(),
            known: Known::default(),
            requests: Requests { unanswered: BTreeMap::new(), made_room: BTreeMap::new(), next_token: 1 },
            stalled: Vec::new(),
            watched: Watched::default(),
            counts: Counts::default(),
            endpoints,
            editing: Editing::new(knobs.seed),
        }
    }

    /// Checks an entry against the knowledge so far, then adds it to the knowledge and the history.
    pub fn note(&mut self, entry: Entry) -> Verdict {
        let verdict = checkers::look(&self.outside, &entry);
        self.counts.steps += u64::from(entry.is_progress());
        self.outside.take(&entry);
        self.history.push(entry);
        verdict
    }

    pub fn clock(&self) -> Millis {
        Millis(self.clock.time.saturating_add_signed(self.clock.error))
    }

    /// Runs one round, in which all participants act. A crash can happen between any two steps.
    pub fn go_on(&mut self) -> Verdict {
        self.round += 1;
        self.clock.time += self.rng.between(1, self.mix.round_ms);
        self.trouble_below()?;
        if self.mix.has(Trouble::Stops) && self.rng.one_in(self.mix.crash_every * 2) {
            return self.stop_in_order();
        }
        let crash_at = self.crash_point();
        for step in 0..8 {
            if crash_at == Some(step) {
                return self.crash();
            }
            self.step(step)?;
            if self.host.engine.failure().is_some() {
                return self.store_failed();
            }
        }
        checkers::no_loss::readable(&self.host.engine)?;
        let bounds = self.bounds();
        checkers::bounded::round(&self.outside, &self.host.engine, &bounds)?;
        if self.round.is_multiple_of(4) {
            self.look_at_gaps()?;
        }
        if self.round.is_multiple_of(64) {
            let disk_fails = self.mix.has(Trouble::FullDisk) || self.mix.has(Trouble::DiskError);
            checkers::bounded::now_and_then(&self.outside, &self.host.engine, disk_fails)?;
            self.look_at_overdue()?;
        }
        Ok(())
    }

    /// A list of lanes reads much of the disk. With disk errors it stays as frequent as it was, because each read may be
    /// the one that fails.
    fn look_at_gaps(&self) -> Verdict {
        let reads_fail = self.mix.has(Trouble::DiskError) || self.mix.has(Trouble::CrashInRecovery);
        match reads_fail || self.round.is_multiple_of(64) {
            true => checkers::gap_policy::at_limit(&self.outside, &self.host.engine),
            false => checkers::gap_policy::near_limit(&self.outside, &self.host.engine),
        }
    }

    /// The steps of the process itself, without producers and operators.
    pub const OWN_STEPS: std::ops::Range<u64> = 2..8;

    pub fn step(&mut self, step: u64) -> Verdict {
        match step {
            0 => self.produce(),
            1 => self.operate().and_then(|()| self.operate_endpoints()),
            2 => self.end_calls().and_then(|()| self.end_endpoint_calls()),
            3 => self.tick(),
            4 => self.flush(),
            5 => self.sync(),
            6 => self.keep_house(),
            _ => self.collect(),
        }?;
        self.look_at_stalled()
    }

    fn bounds(&self) -> checkers::bounded::Bounds {
        // An estimate from outside: a lane with an event needs about 750 bytes, and lanes may use half of the memory.
        const LANE_BYTES_MIN: usize = 700;
        let of_lanes = self.host.config.memory_bytes / 2 / LANE_BYTES_MIN;
        let subscriptions = self.known.names.len() + self.endpoints.len();
        checkers::bounded::Bounds {
            concurrency: self.host.config.concurrency,
            // Lanes that are in flight, have just arrived or became ready since the last tick stay in memory.
            lanes_max: of_lanes
                + self.network.open(self.host.life)
                + self.endpoints.open(self.host.life)
                + 256 * (subscriptions + 1)
                + 1000,
            // Some lanes became idle since the last check.
            idle_lanes_max: of_lanes + 256 * (subscriptions + 1),
        }
    }

    fn crash_point(&mut self) -> Option<u64> {
        let some = self.mix.has(Trouble::PowerCut) || self.mix.has(Trouble::Kill);
        (some && self.rng.one_in(self.mix.crash_every)).then(|| self.rng.below(8))
    }

    fn trouble_below(&mut self) -> Verdict {
        self.network.weather(&self.mix, self.clock.time, &mut self.rng);
        let fault = self.faults.round(&self.mix, &self.host.disk, self.round, &mut self.rng);
        fault.map_or(Ok(()), |fault| self.happened(fault))
    }

    pub fn happened(&mut self, fault: Fault) -> Verdict {
        match fault {
            Fault::DiskFull(full) => self.note(Entry::DiskFull { full }),
            Fault::DiskError { op, n } => self.note(Entry::DiskError { op, n }),
            Fault::Clock(by) => {
                self.clock.jump += by;
                self.note(Entry::ClockSet { by })
            }
        }
    }

    // ---- producers ----------------------------------------------------------------------------------------

    fn produce(&mut self) -> Verdict {
        self.producer.make(&self.mix, self.round, &mut self.outside.events, &mut self.rng);
        if !self.host.engine.is_accepting() {
            return Ok(());
        }
        let due = self.producer.due(self.round);
        let mut rest = due.as_slice();
        while !rest.is_empty() {
            let n = if self.rng.one_in(3) { self.rng.between(1, 20) as usize } else { 1 };
            let (batch, left) = rest.split_at(n.min(rest.len()));
            self.send(batch)?;
            rest = left;
        }
        Ok(())
    }

    /// A request belongs to one namespace.
    fn send(&mut self, batch: &[EventNo]) -> Verdict {
        let (other, default): (Vec<EventNo>, Vec<EventNo>) =
            batch.iter().partition(|event| self.outside.made(**event).elsewhere);
        for (namespace, events) in [(None, default), (Some(OTHER.into()), other)] {
            if !events.is_empty() {
                self.request_of(&Sender { namespace, may_command: false }, &events)?;
            }
        }
        Ok(())
    }

    fn request_of(&mut self, sender: &Sender, batch: &[EventNo]) -> Verdict {
        let token = self.take_token();
        let mut events = Vec::new();
        for event in batch {
            self.note(Entry::Sent { token, event: *event })?;
            events.push(Ok(self.outside.made(*event).to_event()));
        }
        self.requests.unanswered.insert(token, batch.to_vec());
        let before = self.dropped_so_far();
        self.host.engine.accept(Token(token), sender, events);
        self.requests.made_room.insert(token, self.dropped_so_far() - before);
        Ok(())
    }

    pub fn take_token(&mut self) -> u64 {
        self.requests.next_token += 1;
        self.requests.next_token - 1
    }

    fn dropped_so_far(&self) -> u64 {
        self.host.engine.metrics().dead_letters_dropped.values().sum()
    }

    pub fn collect(&mut self) -> Verdict {
        self.look_at_stalled()?;
        for answer in self.host.engine.take_completions() {
            match answer {
                Completion::Events(Token(token), judged) => self.answered(token, &judged)?,
                Completion::Durable(Token(token)) => self.page_is_durable(token)?,
            }
        }
        self.look_at_drops()?;
        for delivery in self.host.engine.take_deliveries() {
            self.deliver(delivery)?;
        }
        self.look_at_subscriptions()
    }

    fn answered(&mut self, token: u64, judged: &[EventResult]) -> Verdict {
        let events = self.requests.unanswered.remove(&token).unwrap_or_default();
        let made_room = self.requests.made_room.remove(&token).unwrap_or(0);
        checkers::no_loss::made_room(made_room, judged)?;
        for (event, judged) in events.into_iter().zip(judged) {
            if let Status::Rejected(why) = &judged.status {
                checkers::no_loss::turned_away(self.known.rules_given.values().flatten(), why)?;
            }
            let answer = said(&judged.status);
            self.note(Entry::Answered { token, event, answer })?;
            match answer {
                Said::Accepted { .. } => self.counts.accepted += 1,
                Said::Skipped { .. } | Said::Taken => {}
                Said::Rejected if self.outside.calm => self.producer.gives_up(event),
                Said::Rejected => self.producer.later(event, self.round + self.rng.between(10, 150)),
                Said::Unavailable => self.producer.later(event, self.round + self.rng.between(1, 30)),
            }
            if self.mix.has(Trouble::Duplicates) && self.rng.one_in(20) {
                self.producer.later(event, self.round + self.rng.below(100));
            }
        }
        Ok(())
    }

    // ---- the engine's round -------------------------------------------------------------------------------

    fn tick(&mut self) -> Verdict {
        self.host.engine.tick(self.clock());
        self.outside.time_is(self.host.engine.now().0);
        self.look_at_subscriptions()
    }

    pub fn flush(&mut self) -> Verdict {
        self.host.engine.flush();
        if self.host.engine.failure().is_none() {
            self.note(Entry::Flushed)?;
        }
        self.collect()
    }

    /// Takes, runs and reports a sync, in one round or over several.
    fn sync(&mut self) -> Verdict {
        if self.host.jobs.sync.is_none() {
            self.host.jobs.sync = self.host.engine.sync_job().map(|job| (job, self.outside.flushed));
        }
        if self.is_slow(4) {
            return Ok(());
        }
        let Some((job, up_to)) = self.host.jobs.sync.take() else { return Ok(()) };
        let result = job.run();
        if result.is_ok() {
            self.note(Entry::Synced { up_to })?;
        }
        self.host.engine.sync_done(job.up_to, result);
        Ok(())
    }

    fn keep_house(&mut self) -> Verdict {
        self.host.jobs.prepare = self.host.jobs.prepare.take().or_else(|| self.host.engine.prepare_job());
        if !self.is_slow(3)
            && let Some(job) = self.host.jobs.prepare.take()
        {
            let result = job.run();
            self.host.engine.prepare_done(result);
        }
        self.host.jobs.chore = self.host.jobs.chore.take().or_else(|| self.host.engine.chore());
        if !self.is_slow(3)
            && let Some(chore) = self.host.jobs.chore.take()
        {
            let result = chore.run();
            self.host.engine.chore_done(result);
        }
        Ok(())
    }

    fn is_slow(&mut self, n: u64) -> bool {
        self.mix.has(Trouble::SlowJobs) && self.rng.below(n) > 0
    }

    fn look_at_stalled(&mut self) -> Verdict {
        self.look_at_stalled_webhooks()?;
        if self.stalled.is_empty() || self.host.engine.failure().is_some() {
            return Ok(());
        }
        let engine = &self.host.engine;
        let written: Vec<Stalled> =
            self.stalled.extract_if(.., |stalled| !engine.is_open(stalled.ticket)).collect();
        for Stalled { sub, event, replies, .. } in written {
            self.note(Entry::Unstalled { sub, event })?;
            let taken = self.outside.sub(sub).life.there;
            self.replied(&replies, taken)?;
        }
        Ok(())
    }

    pub fn forget_process(&mut self) {
        self.watched.overdue.clear();
        self.host.jobs = Jobs::default();
        self.requests.made_room.clear();
        self.stalled.clear();
        self.endpoints.forget_process();
        self.watched.drops_told.clear();
    }
}

/// Makes the namespace durable before the troubles begin.
fn create_namespace(engine: &mut Engine) {
    let document =
        Document { name: OTHER.into(), limits: Limits::default(), schema_check: Default::default() };
    engine.put_namespace(&document).expect("a namespace is created");
    engine.when_durable(Token(0));
    engine.flush();
    engine.run_sync();
}

fn config(mix: &Mix) -> Config {
    let retention = mix.has(Trouble::Retention);
    Config {
        memory_bytes: mix.memory_bytes,
        log: log::Options { segment_bytes: mix.segment_bytes, reserve_bytes: 8 << 10, tail_bytes: 16 << 10 },
        concurrency: mix.concurrency,
        marks_max: mix.marks_max.min(Config::default().marks_max),
        retention_age_ms: if retention { 60_000 } else { 100 * 365 * 86_400_000 },
        // A few segments, so that parked events outlive their segment.
        retention_bytes: if retention { mix.segment_bytes * 6 } else { 0 },
        breaker: breaker::Limits { half_open_after_ms: 150, window_ms: 2000, ..breaker::Limits::default() },
        ..Config::default()
    }
}

fn said(status: &Status) -> Said {
    match status {
        Status::Accepted { position } => Said::Accepted { position: position.0 },
        Status::Skipped { reason } => Said::Skipped { by_watermark: *reason == "watermark" },
        Status::Rejected(Rejection::Unavailable { .. }) => Said::Unavailable,
        Status::Rejected(_) => Said::Rejected,
    }
}
