//! Runs the engine: one tokio task, and a thread each for syncs, segment preparation and chores.
//!
//! Inputs are collected in a shared inbox, and the task takes all of them at once. So under load one write and one
//! sync serve many requests, and a single request waits for no other.

use crate::accept::EventResult;
use crate::audit;
use crate::client::{self, Providers};
use crate::documents::{self, DocumentEvent, Stored, Write};
use crate::engine::{Completion, Engine, Failure, Ticket, Token};
use crate::namespaces::Sender;
use crate::workers::Workers;
use hashbrown::HashMap;
use klambda_core::binding::Rejected;
use klambda_core::event::Event;
use klambda_core::outcome::CallOutcome;
use klambda_core::time::Millis;
use klambda_crash::{Guard, Lock, Point};
use klambda_store::address::LogAddress;
use klambda_store::chore::{Chore, Done};
use klambda_store::disk::File;
use klambda_store::log::{PrepareJob, SyncJob};
use klambda_store::table;
use std::io;
use std::sync::Arc;
use std::sync::mpsc as threads;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, oneshot};

/// Sends the answer to the caller.
type Answering = Box<dyn FnOnce() + Send>;

/// An input for the engine.
enum Input {
    Accept {
        sender: Sender,
        events: Vec<Result<Event, Rejected>>,
        answer: oneshot::Sender<Vec<EventResult>>,
        since: Instant,
    },
    CallOutcome {
        ticket: Ticket,
        outcome: CallOutcome,
    },
    /// The bytes of a call are no longer in memory.
    Sent(Ticket),
    Synced {
        up_to: LogAddress,
        result: io::Result<()>,
        took: Duration,
    },
    Prepared(io::Result<Arc<dyn File>>),
    ChoreDone(Result<Done, table::Error>),
    /// Changes state and is answered when the change is durable.
    Command(Box<dyn FnOnce(&mut Engine) -> Answering + Send>),
    /// Only reads.
    Query(Box<dyn FnOnce(&mut Engine) + Send>),
    Stop {
        deadline: Instant,
    },
}

#[derive(Default)]
struct Inbox {
    waiting: Lock<Waiting>,
    notify: Notify,
}

#[derive(Default)]
struct Waiting {
    inputs: Vec<Input>,
    /// The runner has ended and accepts no inputs.
    closed: bool,
}

impl Inbox {
    /// If the runner has ended, drops the input. That closes its channel, which informs the caller.
    fn push(&self, input: Input) {
        let mut waiting = self.lock();
        if waiting.closed {
            drop(waiting);
            return drop(input);
        }
        waiting.inputs.push(input);
        if waiting.inputs.len() == 1 {
            drop(waiting);
            self.notify.notify_one();
        }
    }

    fn take(&self, into: &mut Vec<Input>) {
        std::mem::swap(&mut self.lock().inputs, into);
    }

    fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        let inputs = std::mem::take(&mut waiting.inputs);
        drop(waiting);
        drop(inputs);
    }

    fn lock(&self) -> Guard<'_, Waiting> {
        self.waiting.lock()
    }
}

/// A handle to the running engine. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    inbox: Arc<Inbox>,
}

/// The engine has stopped. It is unknown whether the request took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server is shutting down")]
pub struct Stopped;

/// The store failed. Anything not acknowledged by then never will be. A restart recovers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store failed: {0}")]
pub struct StoreFailed(pub String);

impl Handle {
    /// Returns when all events are durable.
    pub async fn accept(
        &self,
        sender: Sender,
        events: Vec<Result<Event, Rejected>>,
    ) -> Result<Vec<EventResult>, Stopped> {
        let (answer, result) = oneshot::channel();
        self.inbox.push(Input::Accept { sender, events, answer, since: Instant::now() });
        result.await.map_err(|_| Stopped)
    }

    /// Runs a change on the engine and returns when it is durable. The change is audited if the task acts for a user.
    pub async fn command<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, result) = oneshot::channel();
        let noted = audit::noted();
        self.inbox.push(Input::Command(Box::new(move |engine| {
            let value = match noted {
                Some(noted) => noted.run(engine, change),
                None => change(engine),
            };
            Box::new(move || {
                let _ = answer.send(value);
            })
        })));
        result.await.map_err(|_| Stopped)
    }

    /// Reads from the engine between two rounds.
    pub async fn query<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, result) = oneshot::channel();
        self.inbox.push(Input::Query(Box::new(move |engine| {
            let _ = answer.send(look(engine));
        })));
        result.await.map_err(|_| Stopped)
    }

    /// Writes documents and accepts their events; returns when all of it is durable.
    pub async fn put_documents(
        &self,
        writes: Vec<Write>,
        events: Vec<DocumentEvent>,
    ) -> Result<Result<u64, documents::Error>, Stopped> {
        self.command(move |engine| engine.put_documents(&writes, &events)).await
    }

    pub async fn document(&self, kind: &str, key: &str) -> Result<Result<Option<Stored>, Failure>, Stopped> {
        let (kind, key) = (kind.to_owned(), key.to_owned());
        self.query(move |engine| engine.document(&kind, &key)).await
    }

    /// Documents of a kind by key, after `after`.
    pub async fn documents(
        &self,
        kind: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<Result<Vec<Stored>, Failure>, Stopped> {
        let kind = kind.to_owned();
        self.query(move |engine| engine.documents(&kind, after.as_deref(), limit)).await
    }

    /// A function has a replica again, so its pending events continue.
    pub fn function_ready(&self, namespace: &str, name: &str) {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.inbox.push(Input::Query(Box::new(move |engine| engine.function_ready(&namespace, &name))));
    }

    /// Starts no new deliveries. Open ones may finish until the deadline.
    pub fn stop(&self, within: Duration) {
        self.inbox.push(Input::Stop { deadline: Instant::now() + within });
    }
}

/// Wall time that never jumps: the clock is read once, then only elapsed time counts.
#[derive(Clone, Copy)]
pub struct Clock {
    wall_ms: u64,
    start: Instant,
}

impl Clock {
    pub fn new() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { wall_ms: wall.as_millis() as u64, start: Instant::now() }
    }

    /// Moves the clock forward to `at` if it is behind, so that the log's time continues after the system clock was
    /// set back.
    pub fn not_before(self, at: Millis) -> Clock {
        Clock { wall_ms: self.wall_ms + at.since(self.now()), ..self }
    }

    pub fn now(&self) -> Millis {
        Millis(self.wall_ms + self.start.elapsed().as_millis() as u64)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

pub struct Runner {
    engine: Engine,
    workers: Workers,
    clock: Clock,
    inbox: Arc<Inbox>,
    syncs: threads::Sender<SyncJob>,
    prepares: threads::Sender<PrepareJob>,
    chores: threads::Sender<Chore>,
    accepts: HashMap<Token, (oneshot::Sender<Vec<EventResult>>, Instant)>,
    commands: HashMap<Token, Answering>,
    held: Vec<Input>,
    next_token: u64,
    stopping: Option<Instant>,
}

impl Runner {
    /// Creates the runner and its handle. Nothing runs before `run`. Under load, deliveries run on their own threads.
    pub fn new(
        engine: Engine,
        client: client::Options,
        clock: Clock,
        delivery_threads: usize,
    ) -> io::Result<(Runner, Handle)> {
        Runner::with_providers(engine, client, clock, delivery_threads, Providers::default())
    }

    /// The same, with functions and webhook endpoints as targets.
    pub fn with_providers(
        engine: Engine,
        client: client::Options,
        clock: Clock,
        delivery_threads: usize,
        providers: Providers,
    ) -> io::Result<(Runner, Handle)> {
        let inbox = Arc::new(Inbox::default());
        let handle = Handle { inbox: inbox.clone() };
        let syncs = sync_thread(inbox.clone());
        let chores = chore_thread(inbox.clone());
        let prepares = prepare_thread(inbox.clone());
        let outcomes = inbox.clone();
        let done = move |ticket, outcome| outcomes.push(Input::CallOutcome { ticket, outcome });
        let sends = inbox.clone();
        let sent = move |ticket| sends.push(Input::Sent(ticket));
        let workers = Workers::start(delivery_threads, client, providers, Arc::new(done), Arc::new(sent))?;
        let clock = clock.not_before(engine.now());
        let runner = Runner {
            engine,
            workers,
            clock,
            inbox,
            syncs,
            prepares,
            chores,
            accepts: HashMap::new(),
            commands: HashMap::new(),
            held: Vec::new(),
            next_token: 1,
            stopping: None,
        };
        Ok((runner, handle))
    }

    /// Runs until stopped. When it ends, everything accepted is durable. Ends at once if the store fails. In every
    /// case, all calls on handles are answered.
    pub async fn run(mut self) -> Result<(), StoreFailed> {
        let mut inputs = Vec::new();
        loop {
            self.inbox.take(&mut inputs);
            let waiting = std::mem::take(&mut self.held);
            Point::Engine.pass();
            self.engine.tick(self.clock.now());
            for input in waiting.into_iter().chain(inputs.drain(..)) {
                self.handle(input);
            }
            self.engine.flush();
            self.act();
            if let Some(why) = self.engine.failure() {
                return Err(StoreFailed(why.to_owned()));
            }
            if self.is_done() {
                return Ok(());
            }
            self.wait().await;
        }
    }

    fn is_done(&self) -> bool {
        let Some(deadline) = self.stopping else { return false };
        let quiet = self.engine.is_idle() && !self.engine.is_checkpointing() && self.accepts.is_empty();
        quiet || Instant::now() >= deadline
    }

    async fn wait(&mut self) {
        let now = self.clock.now();
        let wake = self.engine.wake_at();
        let mut wait = Duration::from_millis(wake.since(now));
        if self.stopping.is_some() {
            wait = wait.min(Duration::from_millis(20));
        }
        if wait.is_zero() {
            return tokio::task::yield_now().await;
        }
        let _ = tokio::time::timeout(wait, self.inbox.notify.notified()).await;
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Accept { .. } if self.stopping.is_some() => {}
            Input::Accept { .. } | Input::Command(_) if !self.engine.is_accepting() => self.held.push(input),
            Input::Accept { sender, events, answer, since } => {
                let token = self.token();
                self.accepts.insert(token, (answer, since));
                self.engine.accept(token, &sender, events);
            }
            Input::CallOutcome { ticket, outcome } => self.engine.outcome(ticket, outcome),
            Input::Sent(ticket) => self.engine.sent(ticket),
            Input::Synced { up_to, result, took } => {
                self.engine.committed(took);
                self.engine.sync_done(up_to, result);
            }
            Input::Prepared(result) => self.engine.prepare_done(result),
            Input::ChoreDone(result) => self.engine.chore_done(result),
            Input::Command(change) => {
                Point::EngineClosure.pass();
                let answer = change(&mut self.engine);
                let token = self.token();
                self.commands.insert(token, answer);
                self.engine.when_durable(token);
            }
            Input::Query(look) => look(&mut self.engine),
            Input::Stop { deadline } => {
                self.stopping = Some(self.stopping.map_or(deadline, |old| old.min(deadline)));
                self.engine.stop();
            }
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// Starts the work that the engine requests.
    fn act(&mut self) {
        let now = Instant::now();
        for answer in self.engine.take_completions() {
            match answer {
                Completion::Events(token, judged) => {
                    if let Some((answer, since)) = self.accepts.remove(&token) {
                        self.engine.accepted(now.saturating_duration_since(since));
                        let _ = answer.send(judged);
                    }
                }
                Completion::Durable(token) => {
                    if let Some(answer) = self.commands.remove(&token) {
                        answer();
                    }
                }
            }
        }
        self.workers.deliver(self.engine.take_deliveries());
        if let Some(job) = self.engine.sync_job() {
            let _ = self.syncs.send(job);
        }
        if let Some(job) = self.engine.prepare_job() {
            let _ = self.prepares.send(job);
        }
        if let Some(chore) = self.engine.chore() {
            let _ = self.chores.send(chore);
        }
    }
}

/// Callers that still wait are informed by the closed channels.
impl Drop for Runner {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

fn sync_thread(inbox: Arc<Inbox>) -> threads::Sender<SyncJob> {
    let (sender, jobs) = threads::channel::<SyncJob>();
    spawn("klambda-sync", move || {
        for job in jobs {
            Point::Sync.pass();
            let start = Instant::now();
            let result = job.run();
            inbox.push(Input::Synced { up_to: job.up_to, result, took: start.elapsed() });
        }
    });
    sender
}

/// Separate from chores, because a long merge must not delay the next segment of the log.
fn prepare_thread(inbox: Arc<Inbox>) -> threads::Sender<PrepareJob> {
    let (sender, jobs) = threads::channel::<PrepareJob>();
    spawn("klambda-prepare", move || {
        for job in jobs {
            Point::Prepare.pass();
            inbox.push(Input::Prepared(job.run()));
        }
    });
    sender
}

fn chore_thread(inbox: Arc<Inbox>) -> threads::Sender<Chore> {
    let (sender, jobs) = threads::channel::<Chore>();
    spawn("klambda-chores", move || {
        for chore in jobs {
            Point::Chore.pass();
            inbox.push(Input::ChoreDone(chore.run()));
        }
    });
    sender
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().name(name.into()).spawn(work).expect("could not start a thread");
}
