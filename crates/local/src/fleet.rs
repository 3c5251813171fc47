//! The fleet: functions, their versions, the replicas of each, and which request goes to which replica.
//!
//! A caller [acquires](Fleet::acquire) a replica for one request and releases it when the request ends. Open and waiting
//! requests determine the number of replicas: from zero up to the maximum, and back after an idle period. A starting
//! replica receives requests immediately: its socket already listens, and requests wait in it.
//!
//! A new version takes over when one of its replicas has responded. The previous version serves until then, and stops when
//! its requests have ended. The fleet records on disk that an artifact has responded once, so a version of it counts as good
//! even with no replica running.
//!
//! One lock protects all state. It is held briefly and never while waiting. Tasks exist only for running replicas, plus one
//! that waits for all deadlines.
//!
//! **Invariant:** only leases count requests. A replica is stopped only when it has none, or when its drain time is over.
//!
//! **Invariant:** waiting callers are served in order of arrival.

use crate::container::Image;
use crate::logs::{Bounds, LogStore, Logs};
use crate::process::{Command, Spawner};
use klambda_crash::{Guard, Lock};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;

mod failure;
pub mod files;
mod function;
mod good;
mod health_check;
mod keeper;
mod lease;
mod life;
mod numbers;
mod observe;
mod probe;
mod proofs;
mod replica;
mod scheduler;

pub use failure::{Failure, Reason};
pub use klambda_functions::platform::Endpoint;
pub use lease::{Begun, Lease, Waiting};
pub use observe::{Changes, Observation, Phase, VersionView};

use function::Function;
use scheduler::Scheduler;

/// A version of a function that can run.
#[derive(Clone, Debug)]
pub struct Version {
    /// Chosen by the caller. Deploying the same id again changes only the scaling.
    pub id: Arc<str>,
    /// The hash of the artifact. The fleet records under this hash that the artifact has responded once.
    pub artifact: Arc<str>,
    /// The generation of the spec, for log lines.
    pub generation: u64,
    pub run: Run,
    pub scaling: Scaling,
}

#[derive(Clone, Debug)]
pub enum Run {
    Process(Arc<Command>),
    Image(Arc<Image>),
    /// Runs at a URL; nothing is started.
    Remote(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaling {
    pub min_replicas: u32,
    pub max_replicas: u32,
    /// Number of open requests that one replica should handle.
    pub target_concurrency: u32,
    /// Maximum number of open requests of one replica.
    pub hard_concurrency: u32,
    /// How long an idle replica is kept.
    pub grace: Duration,
    /// Time limit for the first response of a replica.
    pub start_timeout: Duration,
    /// Time limit for the open requests of a replica that is being stopped.
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
    #[error("function {0} not found")]
    Unknown(Arc<str>),
    #[error("the function is being deleted")]
    Deleting,
    #[error("{0} callers are already waiting for a replica; raise maxReplicas or send fewer requests")]
    TooManyWaiting(usize),
    #[error("no replica was free within {0:?}")]
    NoRoom(Duration),
    #[error(transparent)]
    Failed(Arc<Failure>),
    #[error("the server is shutting down")]
    Ended,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// The folder that records which artifacts have responded.
    pub folder: PathBuf,
    /// Limit for all functions together.
    pub replicas_max: usize,
    pub logs: LogStore,
    pub restarts: Restarts,
    pub health_checks: HealthChecks,
}

/// When the fleet gives up on a replica that does not respond.
#[derive(Clone, Copy, Debug)]
pub struct HealthChecks {
    /// If the replica does not confirm within this time that it is up, others are started in its place.
    pub at_once: Duration,
    /// The replica is killed after it was silent for the call timeout, and at least for this time.
    pub at_least: Duration,
}

impl Default for HealthChecks {
    fn default() -> HealthChecks {
        HealthChecks { at_once: Duration::from_secs(1), at_least: Duration::from_secs(5) }
    }
}

/// When a process that exited is restarted.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    /// Doubles with each exit in a row.
    pub backoff: Duration,
    pub backoff_max: Duration,
    /// A crash loop is this many exits within this time without a response in between.
    pub loop_ends: u32,
    pub loop_within: Duration,
    /// A failed version is tried again after this time, if it is needed.
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
        let logs = LogStore::in_memory(Bounds::default());
        let (restarts, health_checks) = (Restarts::default(), HealthChecks::default());
        Options { folder, replicas_max: 500, logs, restarts, health_checks }
    }

    /// Holds the secret files of each replica.
    fn secrets(&self) -> PathBuf {
        self.folder.join("secrets")
    }
}

/// Clones share the same fleet.
#[derive(Clone)]
pub struct Fleet {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    spawner: Spawner,
    runtime: Handle,
    state: Lock<State>,
    /// Wakes the task that waits for deadlines: there is an earlier one.
    wake: Arc<Notify>,
    /// Wakes callers that wait for functions to be removed: a replica has stopped.
    gone: Notify,
    /// Wakes the reader of changes.
    changed: Notify,
}

struct State {
    functions: HashMap<Arc<str>, Function, foldhash::fast::RandomState>,
    scheduler: Scheduler,
    /// No more deployments are accepted.
    ended: bool,
}

impl Fleet {
    /// Must be called within a runtime, which runs the tasks of replicas.
    pub fn start(options: Options, spawner: Spawner) -> io::Result<Fleet> {
        // Left by a run that was killed.
        match std::fs::remove_dir_all(options.secrets()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let scheduler = Scheduler::open(&options)?;
        let shared = Arc::new(Shared {
            options,
            spawner,
            runtime: Handle::current(),
            state: Lock::new(State { functions: HashMap::default(), scheduler, ended: false }),
            wake: Arc::new(Notify::new()),
            gone: Notify::new(),
            changed: Notify::new(),
        });
        shared.runtime.spawn(keeper::run(Arc::downgrade(&shared), shared.wake.clone()));
        Ok(Fleet { shared })
    }

    /// Sets the version to run. It takes over after its first response.
    pub fn deploy(&self, function: &str, version: Version) -> Result<(), Error> {
        let mut state = self.shared.lock();
        let State { functions, scheduler, ended } = &mut *state;
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
        function.deploy(version, &self.shared, scheduler, Instant::now());
        Ok(())
    }

    /// Accepts no new requests, and gives the open ones this long. Returns when nothing of the function runs.
    pub async fn remove(&self, function: &str, drain: Duration) {
        self.shared.begin_removal(function, drain);
        self.shared.gone(|name| name == function).await;
    }

    /// Removes all functions permanently.
    pub async fn shutdown(&self, drain: Duration) {
        let names: Vec<Arc<str>> = {
            let mut state = self.shared.lock();
            state.ended = true;
            state.functions.keys().cloned().collect()
        };
        names.iter().for_each(|name| self.shared.begin_removal(name, drain));
        self.shared.gone(|_| true).await;
    }

    /// The log of the function. Created if the function has not printed anything yet.
    pub fn logs(&self, function: &str) -> Option<Arc<Logs>> {
        Some(self.shared.lock().functions.get_mut(function)?.logs(&self.shared.options.logs))
    }

    /// The replicas that run.
    pub fn replicas(&self, function: &str) -> Vec<u64> {
        let state = self.shared.lock();
        let replicas = state.functions.get(function).map(|function| &function.replicas);
        replicas.into_iter().flatten().map(|replica| replica.id).collect()
    }

    /// Whether this artifact has responded once.
    pub fn is_good(&self, artifact: &str) -> bool {
        self.shared.lock().scheduler.good.contains(artifact)
    }

    /// Forgets a removed artifact. If it is built again, it must respond again.
    pub fn forget(&self, artifact: &str) {
        self.shared.lock().scheduler.good.forget(artifact);
    }
}

impl Shared {
    fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// Runs `change` on a function, if it exists.
    fn with(self: &Arc<Self>, name: &str, change: impl FnOnce(&mut Function, &mut Scheduler, Instant)) {
        let mut state = self.lock();
        let State { functions, scheduler, .. } = &mut *state;
        if let Some(function) = functions.get_mut(name) {
            change(function, scheduler, Instant::now());
        }
    }

    fn begin_removal(self: &Arc<Self>, name: &str, drain: Duration) {
        self.with(name, |function, scheduler, _| function.begin_removal(drain, self, scheduler));
    }

    /// Waits until nothing of the selected functions runs, then removes them.
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
