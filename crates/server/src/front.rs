//! Everything that stands between a client and the resources, opened from the configuration.

use crate::auth::{self, Access, Jwt};
use crate::config::{Config, Exposure, Limits};
use crate::connection::Timeouts;
use crate::guard::Guard;
use crate::listener::{self, Options, Stats};
use crate::posts::Posts;
use crate::router::{App, routes};
use crate::shutdown::Shutdown;
use crate::stream::EVENTS_BYTES;
use crate::tls;
use crate::unsent::Unsent;
use axum::Router;
use klambda_dispatch::held::{Account, Part};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// A bound address with its limits, names, tokens and certificate.
pub struct Front {
    listener: TcpListener,
    address: SocketAddr,
    guard: Guard,
    access: Arc<Access>,
    body_bytes: usize,
    held: Account,
    options: Options,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Exposed(#[from] Exposure),
    #[error(transparent)]
    Tokens(#[from] auth::Error),
    #[error(transparent)]
    Jwt(#[from] auth::JwtError),
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error("not a host: {}", .0.join(", "))]
    AllowHosts(Vec<String>),
    #[error("cannot listen on {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
}

/// Descriptors that are not connections of clients: files of the store, connections to targets and so on are
/// counted by their own limits on top of this.
const OTHER_FILES: u64 = 512;

impl Front {
    /// Binds, reads tokens and certificate. Needs a tokio runtime.
    pub fn open(config: &Config) -> Result<Front, Error> {
        if let Some(warning) = config.exposure()? {
            tracing::warn!("{warning}");
        }
        let jwt = Jwt::open(&config.auth.jwt)?;
        let access = Arc::new(Access::open(config.token_file.as_deref(), jwt)?);
        let tls = match (&config.tls.cert, &config.tls.key) {
            (Some(cert), Some(key)) => Some(tls::acceptor(cert, key)?),
            _ => None,
        };
        let bind_error = |source| Error::Bind { address: config.listen, source };
        let listener = listener::bind(config.listen).map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        let held = account(&config.limits);
        raise_open_files((config.limits.connections + config.limits.concurrency) as u64 + OTHER_FILES);
        Ok(Front {
            listener,
            address,
            guard: Guard::new(address, &config.allow_hosts).map_err(Error::AllowHosts)?,
            access,
            body_bytes: config.limits.body_bytes,
            options: options(config, tls, held.requests.clone()),
            held,
        })
    }

    /// The address as bound: with port 0 in the configuration, the port that was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For people and for links: `http://127.0.0.1:8080`.
    pub fn url(&self) -> String {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.options.stats)
    }

    pub fn held(&self) -> Account {
        self.held.clone()
    }

    pub fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access)
    }

    /// Serves until shutdown is requested and what was open is finished or cut.
    pub async fn serve(self, posts: impl Posts, resources: Router, shutdown: Shutdown) {
        let app = App {
            guard: self.guard,
            access: self.access,
            body_bytes: self.body_bytes,
            unsent: Unsent::new(self.held.answers, self.options.timeouts.body),
            posts,
            router: routes(resources),
        };
        listener::serve(self.listener, app, self.options, shutdown).await;
    }
}

/// Waits for the signals of an operator, for as long as the process lives: SIGINT and SIGTERM ask for shutdown, a
/// second one ends what is still open; SIGHUP reads the tokens again.
pub async fn signals(shutdown: Shutdown, access: Arc<Access>) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = interrupt.recv() => stop(&shutdown),
            _ = terminate.recv() => stop(&shutdown),
            _ = hangup.recv() => access.reload(),
        }
    }
}

fn stop(shutdown: &Shutdown) {
    if shutdown.is_requested() { shutdown.cut() } else { shutdown.request() }
}

fn account(limits: &Limits) -> Account {
    Account::new(limits.held_bytes, limits.body_bytes + limits.header_bytes, EVENTS_BYTES)
}

fn options(config: &Config, tls: Option<tokio_rustls::TlsAcceptor>, held: Arc<Part>) -> Options {
    let limits = &config.limits;
    Options {
        timeouts: Timeouts {
            header: limits.header_timeout,
            body: limits.body_timeout,
            idle: limits.idle_timeout,
        },
        connections: limits.connections,
        header_bytes: limits.header_bytes,
        shutdown_timeout: config.delivery.shutdown_timeout,
        tls,
        stats: Arc::default(),
        held,
    }
}

/// The soft limit of open files is often 1024, less than the connections that are allowed by default.
fn raise_open_files(wanted: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let possible = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(possible), maximum });
    if raised.is_err() || possible < wanted {
        tracing::warn!(
            wanted,
            possible,
            "Fewer files may be open than limits.connections and limits.concurrency need."
        );
    }
}
