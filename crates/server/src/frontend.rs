//! The front end of the server, created from the configuration: listener, guard, authentication, TLS and limits.

use crate::auth::oidc::Oidc;
use crate::auth::{self, Access, Jwt};
use crate::config::{Config, Exposure, Limits};
use crate::connection::Timeouts;
use crate::guard::Guard;
use crate::listener::{self, Options, Stats};
use crate::post_handler::PostHandler;
use crate::response_memory::ResponseMemory;
use crate::router::{App, routes};
use crate::shutdown::Shutdown;
use crate::stream::EVENTS_BYTES;
use crate::tls;
use axum::Router;
use klambda_core::os_error::in_words;
use klambda_dispatch::held_memory::{Account, Part};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// A bound address with its limits, host names, tokens and certificate.
pub struct Frontend {
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
    Oidc(#[from] auth::oidc::OpenError),
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error("invalid host: {}", .0.join(", "))]
    AllowHosts(Vec<String>),
    #[error("could not listen on {address}: {}", in_words(source))]
    Bind { address: SocketAddr, source: io::Error },
}

/// File descriptors besides client connections. Files of the store, connections to targets and others have their own
/// limits on top of this.
const OTHER_FILES: u64 = 512;

impl Frontend {
    /// Binds the address and reads tokens and certificate. Needs a tokio runtime.
    pub fn open(config: &Config) -> Result<Frontend, Error> {
        if let Some(warning) = config.exposure()? {
            tracing::warn!("{warning}");
        }
        let jwt = Jwt::open(&config.auth.jwt)?;
        let jwt = jwt.map(|jwt| jwt.with_client(config.auth.oidc.client_id.clone()));
        let access = Access::open(config.token_file.as_deref(), jwt)?;
        let access = Arc::new(access.with_sign_in(Oidc::open(&config.auth)?));
        let tls = match (&config.tls.cert, &config.tls.key) {
            (Some(cert), Some(key)) => Some(tls::acceptor(cert, key)?),
            _ => None,
        };
        let bind_error = |source| Error::Bind { address: config.listen, source };
        let listener = listener::bind(config.listen).map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        let held = account(&config.limits);
        raise_open_files((config.limits.connections + config.limits.concurrency) as u64 + OTHER_FILES);
        Ok(Frontend {
            listener,
            address,
            guard: Guard::new(address, &config.own_hosts()).map_err(Error::AllowHosts)?,
            access,
            body_bytes: config.limits.body_bytes,
            options: options(config, tls, held.requests.clone()),
            held,
        })
    }

    /// The bound address. If the configured port is 0, this has the assigned port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the server, such as `http://127.0.0.1:8080`.
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

    /// Serves until shutdown is requested and open requests are finished or aborted.
    pub async fn serve(self, posts: impl PostHandler, resources: Router, shutdown: Shutdown) {
        let app = App {
            guard: self.guard,
            access: self.access,
            body_bytes: self.body_bytes,
            response_memory: ResponseMemory::new(self.held.answers, self.options.timeouts.body),
            posts,
            router: routes(resources),
            logs_requests: self.options.logs_requests,
        };
        listener::serve(self.listener, app, self.options, shutdown).await;
    }
}

/// Handles signals while the process lives. SIGINT and SIGTERM request a shutdown; a second one aborts open requests.
/// SIGHUP reloads the tokens.
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
        logs_requests: config.log.access,
        shutdown_timeout: config.delivery.shutdown_timeout,
        tls,
        stats: Arc::default(),
        held,
    }
}

/// The soft limit on open files is often 1024, which is less than the default limit on connections.
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
            "The limit on open files is too low for limits.connections and limits.concurrency"
        );
    }
}
