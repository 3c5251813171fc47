//! Connections to replicas, kept for the next call.

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::net::TcpStream;

pub type Connection = SendRequest<Full<Bytes>>;

/// Of one replica.
const IDLE_MAX: usize = 64;

#[derive(Default)]
pub struct Pool {
    idle: Mutex<HashMap<SocketAddr, Vec<Connection>, foldhash::fast::RandomState>>,
}

impl Pool {
    /// One that is open and has nothing to do.
    pub fn take(&self, address: SocketAddr) -> Option<Connection> {
        let mut idle = self.lock();
        let connections = idle.get_mut(&address)?;
        while let Some(connection) = connections.pop() {
            if connection.is_ready() {
                return Some(connection);
            }
        }
        idle.remove(&address);
        None
    }

    pub async fn connect(&self, address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (connection, driver) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(driver);
        Ok(connection)
    }

    pub fn give_back(&self, address: SocketAddr, connection: Connection) {
        if connection.is_closed() {
            return;
        }
        let mut idle = self.lock();
        let connections = idle.entry(address).or_default();
        if connections.len() < IDLE_MAX {
            connections.push(connection);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Vec<Connection>, foldhash::fast::RandomState>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of replicas that ended are let go of.
    pub fn sweep(&self) {
        self.lock().retain(|_, connections| {
            connections.retain(|connection| !connection.is_closed());
            !connections.is_empty()
        });
    }
}
