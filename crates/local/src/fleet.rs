//! The fleet: functions, their versions, the replicas of each, and who gets which.
//!
//! A caller [acquires](Fleet::acquire) a replica for one request and lets go of it at the request's end. What is open and
//! what waits decides how many replicas there are: from none to the most allowed, and back after a time of quiet. A
//! replica that is just starting is given out at once; its socket listens already, and requests wait in it.
//!
//! A new version takes over when a replica of it has answered; the one before serves until then, and ends when its
//! requests have. That an artifact has once answered is remembered on disk, so that a version of it is good with no
//! replica running.
//!
//! All state is behind one lock that is held for short and never while waiting; tasks exist only for replicas that run,
//! and one keeps the time for all.
//!
//! **Invariant:** requests are counted by leases alone; a replica is asked to end only when it has none, or when its time
//! to drain is over.
//!
//! **Invariant:** who waits is served in the order of coming; nobody who comes later is given a replica before.

use crate::container::Image;
use crate::process::logs::{Bounds, Logs};
use crate::process::{Command, Spawner};
use klambda_crash::{Guard, Lock};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;

mod desk;
mod doubt;
mod failure;
mod function;
mod good;
mod keeper;
mod lease;
mod life;
mod observe;
mod probe;
mod proofs;
mod replica;

pub use failure::{Failure, Reason};
pub use klambda_functions::platform::Endpoint;
pub use lease::{Begun, Lease, Waiting};
pub use observe::{Changes, Observation, Phase, VersionView};

use desk::Desk;
use function::Function;

/// One state of a function that can be run.
#[derive(Clone, Debug)]
pub struct Version {
    /// Whoever deploys names it; the same name again changes nothing but the scaling.
    pub id: Arc<str>,
    /// The hash of what is run. That it has once answered is remembered under this.
    pub artifact: Arc<str>,
    pub run: Run,
    pub scaling: Scaling,
}

#[derive(Clone, Debug)]
pub enum Run {
    Process(Arc<Command>),
    Image(Arc<Image>),
    /// It runs elsewhere; nothing is started.
    Remote(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaling {
    pub min_replicas: u32,
    pub max_replicas: u32,
    /// Requests that one replica should have open.
    pub target_concurrency: u32,
    /// Requests that one replica may have open.
    pub hard_concurrency: u32,
    /// How long a replica without requests is kept.
    pub grace: Duration,
    /// How long a replica may take to its first answer.
    pub start_timeout: Duration,
    /// How long a replica's requests may take to end when it is no longer wanted.
    pub drain: Duration,
    /// How many callers may wait for a replica, and for how long.
    pub waiting_max: usize,
    pub wait: Duration,
}

impl Default for Scaling {
    fn default() -> Scaling {
        Scaling {
            min_replicas: 0,
            max_replicas: 10,
            target_concurrency: 10,
            hard_concurrency: u32::MAX,
            grace: Duration::from_secs(30),
            start_timeout: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            waiting_max: 1000,
            wait: Duration::from_secs(60),
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no function {0}")]
    Unknown(Arc<str>),
    #[error("the function is being deleted")]
    Deleting,
    #[error("{0} callers wait for a replica already; raise maxReplicas or send less")]
    TooManyWaiting(usize),
    #[error("no replica had room within {0:?}")]
    NoRoom(Duration),
    #[error(transparent)]
    Failed(Arc<Failure>),
    #[error("the fleet has ended")]
    Ended,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is remembered which artifacts have answered.
    pub folder: PathBuf,
    /// Of all functions together.
    pub replicas_max: usize,
    pub logs: Bounds,
    pub restarts: Restarts,
    pub doubts: Doubts,
}

/// When a replica that owes an answer is given up.
#[derive(Clone, Copy, Debug)]
pub struct Doubts {
    /// One that does not say within this that it is up has others started in its place.
    pub at_once: Duration,
    /// It is ended when it was silent for as long as a call may take, and at least for this.
    pub at_least: Duration,
}

impl Default for Doubts {
    fn default() -> Doubts {
        Doubts { at_once: Duration::from_secs(1), at_least: Duration::from_secs(5) }
    }
}

/// When something that ended is started again.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    /// Doubles with each end in a row.
    pub backoff: Duration,
    pub backoff_max: Duration,
    /// So many ends within so long without one answer are a crash loop.
    pub loop_ends: u32,
    pub loop_within: Duration,
    /// What failed is tried again after this, if it is wanted.
    pub retry: Duration,
}

impl Default for Restarts {
    fn default() -> Restarts {
        Restarts {
            backoff: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
            loop_ends: 5,
            loop_within: Duration::from_secs(60),
            retry: Duration::from_secs(30),
        }
    }
}

impl Options {
    pub fn new(folder: PathBuf) -> Options {
        let (logs, restarts, doubts) = (Bounds::default(), Restarts::default(), Doubts::default());
        Options { folder, replicas_max: 500, logs, restarts, doubts }
    }
}

/// A clone is the same fleet.
#[derive(Clone)]
pub struct Fleet {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    spawner: Spawner,
    runtime: Handle,
    state: Lock<State>,
    /// For the one that keeps the time: there is an earlier deadline now.
    wake: Arc<Notify>,
    /// For those who wait for functions to be gone: a replica is.
    gone: Notify,
    /// For the one that reads changes.
    changed: Notify,
}

struct State {
    functions: HashMap<Arc<str>, Function, foldhash::fast::RandomState>,
    desk: Desk,
    /// Nothing is deployed any more.
    ended: bool,
}

impl Fleet {
    /// Must be called within a runtime, which runs what belongs to replicas.
    pub fn start(options: Options, spawner: Spawner) -> io::Result<Fleet> {
        let desk = Desk::open(&options)?;
        let shared = Arc::new(Shared {
            options,
            spawner,
            runtime: Handle::current(),
            state: Lock::new(State { functions: HashMap::default(), desk, ended: false }),
            wake: Arc::new(Notify::new()),
            gone: Notify::new(),
            changed: Notify::new(),
        });
        shared.runtime.spawn(keeper::run(Arc::downgrade(&shared), shared.wake.clone()));
        Ok(Fleet { shared })
    }

    /// Makes this the version to run. It takes over when it has answered.
    pub fn deploy(&self, function: &str, version: Version) -> Result<(), Error> {
        let mut state = self.shared.lock();
        let State { functions, desk, ended } = &mut *state;
        if *ended {
            return Err(Error::Ended);
        }
        let name = match functions.get_key_value(function) {
            Some((name, _)) => name.clone(),
            None => Arc::from(function),
        };
        let function = functions.entry(name.clone()).or_insert_with(|| Function::new(name));
        if function.deleting() {
            return Err(Error::Deleting);
        }
        function.deploy(version, &self.shared, desk, Instant::now());
        Ok(())
    }

    /// No more requests; those that are open have this long. Returns when nothing of it runs.
    pub async fn remove(&self, function: &str, drain: Duration) {
        self.shared.begin_removal(function, drain);
        self.shared.gone(|name| name == function).await;
    }

    /// Removes all functions, for good.
    pub async fn shutdown(&self, drain: Duration) {
        let names: Vec<Arc<str>> = {
            let mut state = self.shared.lock();
            state.ended = true;
            state.functions.keys().cloned().collect()
        };
        names.iter().for_each(|name| self.shared.begin_removal(name, drain));
        self.shared.gone(|_| true).await;
    }

    /// What the function printed. From here on there is a place for it, also if nothing was printed yet.
    pub fn logs(&self, function: &str) -> Option<Arc<Logs>> {
        Some(self.shared.lock().functions.get_mut(function)?.logs(self.shared.options.logs))
    }

    /// Whether this artifact has once started and answered.
    pub fn is_good(&self, artifact: &str) -> bool {
        self.shared.lock().desk.good.contains(artifact)
    }

    /// The artifact is gone; should it come again, it has to prove itself.
    pub fn forget(&self, artifact: &str) {
        self.shared.lock().desk.good.forget(artifact);
    }
}

impl Shared {
    fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// Runs `change` on a function that is there.
    fn with(self: &Arc<Self>, name: &str, change: impl FnOnce(&mut Function, &mut Desk, Instant)) {
        let mut state = self.lock();
        let State { functions, desk, .. } = &mut *state;
        if let Some(function) = functions.get_mut(name) {
            change(function, desk, Instant::now());
        }
    }

    fn begin_removal(self: &Arc<Self>, name: &str, drain: Duration) {
        self.with(name, |function, desk, _| function.begin_removal(drain, self, desk));
    }

    /// Waits until the chosen functions have nothing that runs, and takes them out.
    async fn gone(&self, chosen: impl Fn(&str) -> bool) {
        loop {
            let notice = self.gone.notified();
            tokio::pin!(notice);
            notice.as_mut().enable();
            {
                let functions = &mut self.lock().functions;
                functions.retain(|name, function| !(chosen(name) && function.is_gone()));
                if !functions.keys().any(|name| chosen(name)) {
                    return;
                }
            }
            notice.await;
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}
