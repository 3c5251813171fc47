//! Accepts connections and serves HTTP/1.1, with limits that clients cannot exceed: connections, header size, and time for
//! every part of a request.

use crate::body::Body;
use crate::connection::{self, Connection, End, Phase, Timeouts, Watch};
use crate::fast_path::{self, Ended};
use crate::inlet::Inlet;
use crate::post_handler::PostHandler;
use crate::problem::Problem;
use crate::router::App;
use crate::shutdown::Shutdown;
use crate::socket::Socket;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use klambda_crash::{Place, Point, contain_future};
use klambda_dispatch::held_memory::Part;
use socket2::{Domain, Protocol, Type};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Handles requests. Every request passes through it first, so it is called without a box and without a spawn.
pub trait Service: Send + Sync + 'static {
    fn call(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> impl Future<Output = Response<Body>> + Send;
}

#[derive(Clone)]
pub struct Options {
    pub timeouts: Timeouts,
    pub connections: usize,
    pub header_bytes: usize,
    /// With an access log, all requests take one path.
    pub logs_requests: bool,
    /// How long open requests may continue after a shutdown request.
    pub shutdown_timeout: Duration,
    pub tls: Option<TlsAcceptor>,
    pub stats: Arc<Stats>,
    /// Memory for requests without a response.
    pub held: Arc<Part>,
}

/// Connection counters for the metrics.
#[derive(Debug, Default)]
pub struct Stats {
    pub accepted: AtomicU64,
    pub open: AtomicU64,
    /// Rejected because `limits.connections` were open.
    pub refused: AtomicU64,
    pub header_timeouts: AtomicU64,
    pub body_timeouts: AtomicU64,
    pub idle_timeouts: AtomicU64,
    /// Clients that did not read their response.
    pub stalled: AtomicU64,
    pub tls_failures: AtomicU64,
    /// Aborted at the shutdown deadline.
    pub cut: AtomicU64,
}

/// Maximum number of connections that receive a 503 at the same time. Others are closed without a response.
const REFUSALS: usize = 64;
const REFUSAL_TIME: Duration = Duration::from_secs(1);
const BACKLOG: i32 = 4096;

/// Binds the address so that a restart need not wait for old connections to expire.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves until shutdown is requested, then finishes open requests within the deadline.
pub async fn serve<P: PostHandler>(listener: TcpListener, app: App<P>, options: Options, shutdown: Shutdown) {
    let server = Arc::new(Server::new(app, options, shutdown));
    server.accept(&listener).await;
    // From here on new connections are refused, so clients can try another server immediately.
    drop(listener);
    server.drain().await;
}

struct Server<P> {
    app: Arc<App<P>>,
    options: Options,
    shutdown: Shutdown,
    http: http1::Builder,
    open: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    refusal: Bytes,
}

impl<P: PostHandler> Server<P> {
    fn new(app: App<P>, options: Options, shutdown: Shutdown) -> Server<P> {
        Server {
            app: Arc::new(app),
            http: http(&options),
            open: Arc::new(Semaphore::new(options.connections)),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            refusal: refusal(options.connections),
            options,
            shutdown,
        }
    }

    async fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut stop = std::pin::pin!(self.shutdown.requested());
        loop {
            let accepted = tokio::select! {
                () = &mut stop => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    Point::Listener.pass();
                    self.admit(stream, peer);
                }
                Err(error) => pause_after(&error).await,
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        self.stats().accepted.fetch_add(1, Relaxed);
        match Arc::clone(&self.open).try_acquire_owned() {
            Ok(permit) => {
                let server = Arc::clone(self);
                tokio::spawn(async move { server.contained(stream, peer, permit).await });
            }
            Err(_) => self.refuse(stream),
        }
    }

    /// A panic outside of a request, for example in a handshake, closes only the connection.
    async fn contained(&self, stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
        let conversation = pin!(self.converse(stream, peer, permit));
        if let Err(panic) = contain_future(Place::Request, conversation).await {
            tracing::error!(%panic, %peer, "Connection handler panicked");
        }
    }

    async fn converse(&self, stream: TcpStream, peer: SocketAddr, _permit: OwnedSemaphorePermit) {
        let Ok(local) = stream.local_addr() else { return };
        // Responses are small and clients wait for them: Nagle's algorithm would only delay them.
        let _ = stream.set_nodelay(true);
        let held = self.options.held.holder();
        let connection = Arc::new(Connection::new(peer, local.ip(), self.options.timeouts, held));
        let stream = Inlet::new(stream, connection.clone());
        let _open = Open::new(self.stats());
        let end = match &self.options.tls {
            None => self.serve_plain(stream, connection).await,
            Some(tls) => match self.handshake(tls, stream).await {
                Some(stream) => {
                    let watch = Watch::new(&connection);
                    Box::pin(self.serve(stream, connection, watch)).await
                }
                None => return,
            },
        };
        self.stats().count(end);
    }

    /// Tries the fast path first. The HTTP library continues from the first byte without a response.
    async fn serve_plain(&self, mut stream: Inlet, connection: Arc<Connection>) -> End {
        let mut watch = Watch::new(&connection);
        if self.options.logs_requests {
            return Box::pin(self.serve(stream, connection, watch)).await;
        }
        let header_bytes = self.options.header_bytes;
        match fast_path::serve(&mut stream, &connection, &self.app, header_bytes, &mut watch, &self.shutdown)
            .await
        {
            Ok(Ended::HandOver(read)) => {
                // Boxed, so that a connection on the fast path needs no memory for it.
                stream.put_back(read);
                Box::pin(self.serve(stream, connection, watch)).await
            }
            Ok(Ended::Closed) => End::Closed,
            Err(end) => end,
        }
    }

    async fn serve<T>(&self, io: T, connection: Arc<Connection>, mut watch: Watch) -> End
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let socket = Socket::new(io, Arc::clone(&connection), self.options.header_bytes);
        connection::serve(socket, connection, Arc::clone(&self.app), &self.http, &mut watch, &self.shutdown)
            .await
    }

    async fn handshake(
        &self,
        tls: &TlsAcceptor,
        stream: Inlet,
    ) -> Option<tokio_rustls::server::TlsStream<Inlet>> {
        match timeout(self.options.timeouts.header, tls.accept(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake timed out"),
        }
        self.stats().tls_failures.fetch_add(1, Relaxed);
        None
    }

    /// Tells the client that the limit is reached. Uses a bounded number of tasks for a bounded time.
    fn refuse(&self, mut stream: TcpStream) {
        self.stats().refused.fetch_add(1, Relaxed);
        let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        if self.options.tls.is_some() {
            return;
        }
        let refusal = self.refusal.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let said = async {
                stream.write_all(&refusal).await?;
                stream.shutdown().await?;
                // Closing with unread data would reset the connection and lose the response.
                let mut scratch = [0; 1024];
                while stream.read(&mut scratch).await? > 0 {}
                io::Result::Ok(())
            };
            let _ = timeout(REFUSAL_TIME, said).await;
        });
    }

    async fn drain(&self) {
        let all = u32::try_from(self.options.connections).unwrap_or(u32::MAX);
        if timeout(self.options.shutdown_timeout, self.open.acquire_many(all)).await.is_err() {
            self.shutdown.cut();
            // Ends as soon as the task of each connection has run once more.
            let _ = self.open.acquire_many(all).await;
        }
    }

    fn stats(&self) -> &Stats {
        &self.options.stats
    }
}

impl Stats {
    fn count(&self, end: End) {
        let counter = match end {
            End::Closed | End::TimedOut(Phase::Linger | Phase::Busy) => return,
            End::TimedOut(Phase::New | Phase::Head) => &self.header_timeouts,
            End::TimedOut(Phase::Idle) => &self.idle_timeouts,
            End::TimedOut(Phase::Body) => &self.body_timeouts,
            End::Stalled => &self.stalled,
            End::Cut => &self.cut,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// Counts a connection while it is open.
struct Open<'a>(&'a Stats);

impl<'a> Open<'a> {
    fn new(stats: &'a Stats) -> Open<'a> {
        stats.open.fetch_add(1, Relaxed);
        Open(stats)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

fn http(options: &Options) -> http1::Builder {
    let mut http = http1::Builder::new();
    // No timer: the connection has its own deadlines, which cost one timer per connection instead of one per request.
    http.header_read_timeout(None)
        .keep_alive(true)
        // A client may close its side after the last request and still wait for the response.
        .half_close(true)
        .max_header_size(options.header_bytes)
        .max_buf_size(options.header_bytes);
    http
}

fn refusal(connections: usize) -> Bytes {
    let problem = Problem::too_many_connections(format!(
        "the limit of {connections} connections is reached (limits.connections)"
    ));
    let body = problem.to_json();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat().into()
}

/// A connection that failed before it was accepted does not matter. Running out of file descriptors does, and retrying
/// immediately would only waste CPU.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        return;
    }
    tracing::warn!(%error, "Could not accept a connection; retrying");
    sleep(Duration::from_millis(100)).await;
}
