//! What the resources share.

use crate::auth::{Access, Opener};
use crate::connection::INTERNAL;
use crate::functions::limits::Limiter;
use crate::functions::watch::Requests;
use crate::listener::Stats;
use crate::problem::Problem;
use crate::shutdown::Shutdown;
use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::request::Parts;
use klambda_control::Control;
use klambda_core::binding;
use klambda_crash::{Place, contain, contain_future};
use klambda_dispatch::Engine;
use klambda_dispatch::held::Account;
use klambda_dispatch::history::History;
use klambda_dispatch::runner::{Clock, Handle};
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::Semaphore;

/// The running engine and what else the resources need. Clones share it.
#[derive(Clone)]
pub struct Api(Arc<Inner>);

pub struct Inner {
    pub handle: Handle,
    pub clock: Clock,
    pub control: Control,
    pub limiter: Limiter,
    pub requests: Requests,
    /// Functions with labels of their own.
    pub metric_functions: usize,
    pub history: History,
    pub limits: binding::Limits,
    /// Events received without a `specversion`.
    pub unversioned: AtomicU64,
    pub shutdown: Shutdown,
    pub access: Arc<Access>,
    pub stats: Arc<Stats>,
    pub held: Account,
    pub about: About,
    pub turns: Turns,
}

/// What only so many may do at once.
pub struct Turns {
    /// Open tails of the log.
    pub tails: Arc<Semaphore>,
    pub backups: Arc<Semaphore>,
    /// Reads of the log: each of them may have a whole frame in memory.
    pub readers: Arc<Semaphore>,
    /// Answers with one whole event in the making. As JSON it can be six times as long as it was sent.
    pub shows: Semaphore,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            tails: Arc::new(Semaphore::new(TAILS_MAX)),
            backups: Arc::new(Semaphore::new(1)),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            shows: Semaphore::new(SHOWS_MAX),
        }
    }
}

/// What the server says of itself.
#[derive(Clone, Debug)]
pub struct About {
    pub started: Instant,
    pub data_folder: String,
    pub url: String,
}

pub const TAILS_MAX: usize = 100;
const READERS_MAX: usize = 4;
const SHOWS_MAX: usize = 4;

/// The way to the API, which is there once the engine has recovered. Requests that come before are told so.
#[derive(Clone, Default)]
pub struct Gate(Arc<OnceLock<Api>>);

impl Gate {
    pub fn open(&self, api: Api) {
        // A second opening changes nothing: the first engine is the one that runs.
        let _ = self.0.set(api);
    }

    pub fn api(&self) -> Result<&Api, Problem> {
        self.0.get().ok_or_else(|| {
            Problem::not_ready("the server reads its log to recover; it answers when that is done")
                .retry_after(std::time::Duration::from_secs(1))
        })
    }
}

impl Api {
    pub fn new(inner: Inner) -> Api {
        Api(Arc::new(inner))
    }

    /// Looks at the engine.
    pub async fn query<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        self.handle.query(look).await.map_err(|_| self.stopped())
    }

    /// Changes the engine; answers when the change is durable.
    pub async fn command<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        self.handle.command(change).await.map_err(|_| self.stopped())
    }

    /// Reads from the disk without holding up anybody else.
    pub async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&History) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let _turn = self.turns.readers.acquire().await;
        let history = self.history.clone();
        blocking(move || read(&history)).await
    }

    /// For a stream, which must end when the token of the request that opened it is revoked.
    pub fn opener(&self, headers: &HeaderMap) -> Opener {
        Opener::new(Arc::clone(&self.access), headers)
    }

    /// Why the engine did not answer.
    pub fn stopped(&self) -> Problem {
        if self.shutdown.is_requested() {
            return Problem::shutting_down("the server is stopping; what it accepted is safe");
        }
        Problem::storage_failed("the store failed, and what was asked is not durable; restart the server")
    }
}

/// Runs a part of one request on a thread of its own.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(move || contain(Place::Request, work)).await;
    let done = done.map_err(|_| Problem::shutting_down("the server is stopping"))?;
    done.map_err(|panic| {
        tracing::error!(%panic, "A request panicked.");
        Problem::internal(INTERNAL)
    })
}

/// Runs a part of one request that goes on after its answer has begun.
pub fn go_on(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(async move {
        if let Err(panic) = contain_future(Place::Request, pin!(work)).await {
            tracing::error!(%panic, "A request panicked.");
        }
    });
}

impl std::ops::Deref for Api {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl FromRequestParts<Gate> for Api {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, gate: &Gate) -> Result<Api, Problem> {
        gate.api().cloned()
    }
}
