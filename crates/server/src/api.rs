//! State that the resources of the API share.

use crate::auth::{Access, Opener};
use crate::connection::INTERNAL;
use crate::cost::Meter;
use crate::event_types::catalogue::Catalogue;
use crate::functions::limits::Limiter;
use crate::functions::watch::Requests;
use crate::listener::Stats;
use crate::problem::Problem;
use crate::secrets::vault::Vault;
use crate::shutdown::Shutdown;
use crate::webhooks::turns::Trials;
use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::request::Parts;
use klambda_control::Control;
use klambda_core::binding;
use klambda_crash::{Place, contain, contain_future};
use klambda_dispatch::Engine;
use klambda_dispatch::client::Client;
use klambda_dispatch::held_memory::Account;
use klambda_dispatch::history::History;
use klambda_dispatch::runner::{Clock, Handle};
use klambda_dispatch::traces::Tracer;
use klambda_traces::Export;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::Semaphore;

/// The running engine and everything else that the resources need. Clones share the same state.
#[derive(Clone)]
pub struct Api(Arc<ApiState>);

pub struct ApiState {
    pub handle: Handle,
    pub clock: Clock,
    pub control: Control,
    pub limiter: Limiter,
    pub requests: Requests,
    pub metering: Metering,
    pub history: History,
    pub intake: Intake,
    pub shutdown: Shutdown,
    pub access: Arc<Access>,
    pub connections: Connections,
    pub about: About,
    pub turns: Turns,
    /// The export of traces, if there is one.
    pub traces: Option<Export>,
    pub secrets: Secrets,
}

/// Limits, counters and event types for accepting events.
pub struct Intake {
    pub limits: binding::Limits,
    /// Events received without a `specversion`.
    pub unversioned: AtomicU64,
    /// Their types, and the checks of their data.
    pub types: Arc<Catalogue>,
}

/// Settings of the metrics, and the costs so far.
pub struct Metering {
    /// Number of functions with metrics of their own.
    pub functions: usize,
    pub meter: Meter,
}

/// The two places of secrets.
pub struct Secrets {
    /// A folder of files, with a folder for each namespace.
    pub folder: Option<PathBuf>,
    /// The encrypted secrets in the log.
    pub vault: Arc<Vault>,
}

/// The client connections: their counters and the memory that they hold. And the calls that requests make.
pub struct Connections {
    pub stats: Arc<Stats>,
    pub held: Account,
    /// For test calls of webhook endpoints.
    pub outgoing: Client,
}

/// Limits on concurrent work.
pub struct Turns {
    /// Open tails of the log.
    pub tails: Arc<Semaphore>,
    pub backups: Arc<Semaphore>,
    /// Reads of the log. Each may hold a whole frame in memory.
    pub readers: Arc<Semaphore>,
    /// Responses that contain one whole event. As JSON it can be six times as long as it was sent.
    pub shows: Semaphore,
    /// Test calls and resends of webhook endpoints.
    pub trials: Trials,
    /// Open streams of the overview.
    pub overviews: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            tails: Arc::new(Semaphore::new(TAILS_MAX)),
            backups: Arc::new(Semaphore::new(1)),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            shows: Semaphore::new(SHOWS_MAX),
            trials: Trials::default(),
            overviews: Arc::new(Semaphore::new(OVERVIEWS_MAX)),
        }
    }
}

/// Facts about the server.
#[derive(Clone, Debug)]
pub struct About {
    pub started: Instant,
    pub data_folder: String,
    pub url: String,
}

pub const TAILS_MAX: usize = 100;
const READERS_MAX: usize = 4;
const SHOWS_MAX: usize = 4;
pub const OVERVIEWS_MAX: usize = 100;

/// Access to the API, available once the engine has recovered. Earlier requests are rejected.
#[derive(Clone, Default)]
pub struct Gate(Arc<OnceLock<Api>>);

impl Gate {
    pub fn open(&self, api: Api) {
        // A second call has no effect: the first engine stays in use.
        let _ = self.0.set(api);
    }

    pub fn api(&self) -> Result<&Api, Problem> {
        self.0.get().ok_or_else(|| {
            Problem::not_ready("the server is recovering its log; try again soon")
                .retry_after(std::time::Duration::from_secs(1))
        })
    }
}

impl Api {
    pub fn new(state: ApiState) -> Api {
        Api(Arc::new(state))
    }

    /// Reads from the engine.
    pub async fn query<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        self.handle.query(look).await.map_err(|_| self.stopped())
    }

    /// Changes the engine and returns when the change is durable.
    pub async fn command<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        self.handle.command(change).await.map_err(|_| self.stopped())
    }

    /// Reads from the disk without blocking other requests.
    pub async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&History) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let _turn = self.turns.readers.acquire().await;
        let history = self.history.clone();
        blocking(move || read(&history)).await
    }

    /// For streams, which must end when the token that opened them is revoked.
    pub fn opener(&self, headers: &HeaderMap) -> Opener {
        Opener::new(Arc::clone(&self.access), headers)
    }

    pub fn tracer(&self) -> Option<&Tracer> {
        self.traces.as_ref().map(Export::tracer)
    }

    /// Why the engine did not respond.
    pub fn stopped(&self) -> Problem {
        if self.shutdown.is_requested() {
            return Problem::shutting_down("the server is shutting down; accepted events are safe");
        }
        Problem::storage_failed("the store failed and the change is not durable; restart the server")
    }
}

/// Runs part of a request on a thread that may block.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(move || contain(Place::Request, work)).await;
    let done = done.map_err(|_| Problem::shutting_down("the server is shutting down"))?;
    done.map_err(|panic| {
        tracing::error!(%panic, "Request handler panicked");
        Problem::internal(INTERNAL)
    })
}

/// Runs part of a request that continues after its response has started.
pub fn go_on(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(async move {
        if let Err(panic) = contain_future(Place::Request, pin!(work)).await {
            tracing::error!(%panic, "Request handler panicked");
        }
    });
}

impl std::ops::Deref for Api {
    type Target = ApiState;

    fn deref(&self) -> &ApiState {
        &self.0
    }
}

impl FromRequestParts<Gate> for Api {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, gate: &Gate) -> Result<Api, Problem> {
        gate.api().cloned()
    }
}
