//! Connections to replicas, kept for the next call.
//!
//! A connection is driven by the task that calls over it, not by one of its own: so a call is made without waking
//! another task, perhaps on another core, and being woken by it again.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::net::TcpStream;

pub type Sent = Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>>;

pub struct Connection {
    requests: SendRequest<Full<Bytes>>,
    driver: http1::Connection<TokioIo<TcpStream>, Full<Bytes>>,
    ended: bool,
}

/// Of one replica.
const IDLE_MAX: usize = 64;

#[derive(Default)]
pub struct Pool {
    idle: Mutex<HashMap<SocketAddr, Vec<Connection>, foldhash::fast::RandomState>>,
}

impl Connection {
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Sent {
        let sending = self.requests.try_send_request(request);
        drive(&mut self.driver, &mut self.ended, sending).await
    }

    /// Waits for something that comes over this connection.
    pub async fn until<F: Future>(&mut self, wanted: F) -> F::Output {
        drive(&mut self.driver, &mut self.ended, wanted).await
    }

    /// Whether it is open and has nothing to do, as far as is known without asking the kernel.
    fn is_idle(&mut self) -> bool {
        advance(&mut self.driver, &mut self.ended, &mut Context::from_waker(Waker::noop()));
        !self.ended && self.requests.is_ready()
    }
}

/// The other side first: what it needs may have come already, or must be asked for before anything comes.
async fn drive<F: Future>(
    driver: &mut http1::Connection<TokioIo<TcpStream>, Full<Bytes>>,
    ended: &mut bool,
    wanted: F,
) -> F::Output {
    let mut wanted = pin!(wanted);
    poll_fn(|context| {
        advance(driver, ended, context);
        if let Poll::Ready(found) = wanted.as_mut().poll(context) {
            return Poll::Ready(found);
        }
        // What was just asked of it goes out now.
        advance(driver, ended, context);
        wanted.as_mut().poll(context)
    })
    .await
}

fn advance(
    driver: &mut http1::Connection<TokioIo<TcpStream>, Full<Bytes>>,
    ended: &mut bool,
    context: &mut Context<'_>,
) {
    // Why it ended is told to the one who waits for its answer.
    *ended = *ended || Pin::new(driver).poll(context).is_ready();
}

impl Pool {
    /// One that is open and has nothing to do.
    pub fn take(&self, address: SocketAddr) -> Option<Connection> {
        let mut idle = self.lock();
        let connections = idle.get_mut(&address)?;
        while let Some(mut connection) = connections.pop() {
            if connection.is_idle() {
                return Some(connection);
            }
        }
        idle.remove(&address);
        None
    }

    pub async fn connect(&self, address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (requests, driver) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        Ok(Connection { requests, driver, ended: false })
    }

    pub fn give_back(&self, address: SocketAddr, mut connection: Connection) {
        if !connection.is_idle() {
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
            connections.retain_mut(Connection::is_idle);
            !connections.is_empty()
        });
    }
}
