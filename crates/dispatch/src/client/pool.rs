//! Idle connections to one endpoint. Last in, first out: the most recently used connection goes first, and unneeded
//! ones grow old together.

use super::Options;
use super::connection::Connection;
use super::dial::{dial, dial_local};
use super::h2c::Lines;
use super::stream::Stream;
use super::tls::{Credentials, Tls};
use klambda_core::address::ReplicaAddress;
use klambda_core::outcome::CallOutcome;
use klambda_core::webhook;
use klambda_crash::{Guard, Lock};
use klambda_outbound::Reach;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Connections with the same key can replace each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub host: String,
    pub port: u16,
    /// `None` for plain HTTP.
    pub tls: Option<Certificates>,
    /// HTTP/2: many calls share a connection.
    pub shared: bool,
    /// The name of a local socket, instead of host and port.
    pub socket: Option<Arc<str>>,
    /// The webhook endpoint that has connections of its own.
    pub owner: Option<String>,
    /// What a new connection may reach. A namespace must not use a connection that it may not open.
    pub reach: Reach,
}

impl Key {
    pub fn of_replica(address: &ReplicaAddress) -> Key {
        let (host, port, socket) = match address {
            ReplicaAddress::Tcp(address) => (address.ip().to_string(), address.port(), None),
            ReplicaAddress::Local(name) => (String::new(), 0, Some(name.clone())),
        };
        Key { host, port, tls: None, shared: false, socket, owner: None, reach: Reach::ANYWHERE }
    }
}

/// Where the certificates of a connection come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Certificates {
    Files(Files),
    /// From secrets of the namespace of the webhook endpoint that owns the connections.
    Secrets(webhook::Tls),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Files {
    pub ca: Option<String>,
    pub certificate: Option<String>,
    pub key: Option<String>,
}

pub struct Pool {
    key: Key,
    options: Options,
    tls: Option<Tls>,
    idle: Lock<Vec<Idle>>,
    pub lines: Lines,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

const IDLE_MAX: usize = 1024;

impl Files {
    pub fn paths(&self) -> Vec<String> {
        [&self.ca, &self.certificate, &self.key].into_iter().flatten().cloned().collect()
    }
}

impl Pool {
    pub fn new(key: Key, options: Options) -> Result<Pool, String> {
        let tls = key.tls.clone().map(|certificates| Tls::new(&key.host, certificates)).transpose()?;
        Ok(Pool { key, options, tls, idle: Lock::default(), lines: Lines::default() })
    }

    /// Uses these credentials from now on. Connections with other ones are closed, or are not used again.
    pub fn adopt(&self, credentials: &Arc<Credentials>) {
        if self.tls.as_ref().is_some_and(|tls| tls.adopt(credentials)) {
            // The connections are closed after the lock is released.
            let outdated = std::mem::take(&mut *self.idle());
            drop(outdated);
        }
    }

    /// Returns a connection that was used before and still appears to be open.
    pub fn take(&self, now: Instant) -> Option<Connection> {
        loop {
            let Idle { mut connection, since } = self.idle().pop()?;
            if connection.is_quiet() {
                connection.has_waited = now.saturating_duration_since(since) >= self.stale_after();
                return Some(connection);
            }
        }
    }

    pub fn give_back(&self, connection: Connection) {
        if connection.generation != self.generation() {
            return;
        }
        let idle = Idle { connection, since: Instant::now() };
        let mut waiting = self.idle();
        if waiting.len() < IDLE_MAX {
            waiting.push(idle);
        }
    }

    pub async fn connect(&self, deadline: Instant) -> Result<Connection, CallOutcome> {
        let connecting = async {
            if let Some(name) = &self.key.socket {
                let stream = dial_local(name, self.connect_timeout()).await?;
                return Ok(Connection::new(Stream::Local(stream), 0, deadline));
            }
            let stream = self.dial().await?;
            let Some(tls) = &self.tls else { return Ok(Connection::new(Stream::Plain(stream), 0, deadline)) };
            let (connector, generation) = tls.connector().map_err(CallOutcome::Unusable)?;
            let stream = connector.connect(tls.server(), stream).await;
            let stream = stream.map_err(|error| CallOutcome::Broken(format!("TLS: {error}")))?;
            Ok(Connection::new(Stream::Tls(Box::new(stream)), generation, deadline))
        };
        // Connecting is rare and its state is large. On the heap it does not enlarge every call.
        let mut connection =
            timeout_at(deadline, Box::pin(connecting)).await.unwrap_or(Err(CallOutcome::Timeout))?;
        if connection.has_spoken() {
            return Err(CallOutcome::Broken("response before the request".into()));
        }
        Ok(connection)
    }

    pub async fn dial(&self) -> Result<tokio::net::TcpStream, CallOutcome> {
        dial(&self.key.reach, &self.key.host, self.key.port, self.connect_timeout()).await
    }

    /// Closes connections that are too old, closed by the peer, or opened with outdated certificates.
    pub fn sweep(&self, look_every: Duration) {
        let idle_max = Duration::from_millis(self.options.pool_idle_ms);
        self.tls.iter().for_each(|tls| tls.look(look_every));
        let generation = self.generation();
        let now = Instant::now();
        let stale = |idle: &mut Idle| {
            let age = now.saturating_duration_since(idle.since);
            age >= idle_max || idle.connection.generation != generation || !idle.connection.is_quiet()
        };
        // The connections are closed after the lock is released.
        let swept: Vec<Idle> = self.idle().extract_if(.., stale).collect();
        drop(swept);
        self.lines.sweep(now, idle_max);
    }

    fn generation(&self) -> u64 {
        self.tls.as_ref().map_or(0, Tls::generation)
    }

    /// After this idle time, a closed connection says nothing about the call on it.
    pub fn stale_after(&self) -> Duration {
        Duration::from_millis(self.options.stale_ms)
    }

    fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.options.connect_timeout_ms)
    }

    fn idle(&self) -> Guard<'_, Vec<Idle>> {
        self.idle.lock()
    }

    pub fn is_empty(&self) -> bool {
        self.idle().is_empty()
    }

    #[cfg(test)]
    pub fn idle_count(&self) -> usize {
        self.idle().len()
    }
}
