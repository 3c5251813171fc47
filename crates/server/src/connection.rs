//! One connection: its current activity, its start time, and its timeouts.
//!
//! A connection has one timer for its whole life instead of one per request. Reads, writes and requests only record what
//! they do, and the timer checks this when it fires (or is moved closer by a shorter deadline).

use crate::body;
use crate::listener::Service;
use crate::problem::Problem;
use crate::shutdown::Shutdown;
use crate::socket::Socket;
use bytes::Bytes;
use http::Request;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use klambda_crash::{Place, Point, contain_future};
use klambda_dispatch::held_memory::Holder;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep_until};

/// Timeouts of the parts of a request.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From the first byte of a request to the end of its headers; and from the start of the connection to that byte.
    pub header: Duration,
    /// From the first byte of a request to the end of its body; and for a client that does not read its response.
    pub body: Duration,
    /// Between two requests.
    pub idle: Duration,
}

/// The properties of a connection that the service sees.
#[derive(Debug)]
pub struct Connection {
    pub peer: SocketAddr,
    pub local: IpAddr,
    timeouts: Timeouts,
    born: Instant,
    /// A [`Phase`] in the low bits, and above them the time it began, in milliseconds since `born`.
    phase: AtomicU64,
    /// Since when no byte could be written, in milliseconds since `born` plus one. Zero if writing is possible.
    stalled: AtomicU64,
    body_late: AtomicBool,
    unread: AtomicBool,
    /// Whether the bytes being written are the response of the service.
    answering: AtomicBool,
    /// Bytes read for requests without a response.
    pub(crate) held: Holder,
    /// How many of them belong to the current request, as far as known.
    taken: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connected, no byte received.
    New = 0,
    /// Receiving the headers of a request.
    Head = 1,
    Body = 2,
    /// The service handles the request; we set no deadline.
    Busy = 3,
    /// Between two requests.
    Idle = 4,
    /// The response was sent before the request was read. Further bytes of the client are discarded for a moment, because
    /// closing immediately would reset the connection and lose the response.
    Linger = 5,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Closed,
    TimedOut(Phase),
    /// The client did not read its response.
    Stalled,
    /// The shutdown deadline passed.
    Cut,
}

/// The message to the client after a panic. The log has the details.
pub(crate) const INTERNAL: &str = "the request failed inside the server; see the log of the server";

const PHASE_BITS: u32 = 3;
const LINGER: Duration = Duration::from_secs(2);
/// How much whitespace, line ends and chunk headers may add to a request.
const FRAMING_BYTES: usize = 1 << 10;

impl Connection {
    pub fn new(peer: SocketAddr, local: IpAddr, timeouts: Timeouts, held: Holder) -> Connection {
        Connection {
            peer,
            local,
            timeouts,
            born: Instant::now(),
            phase: AtomicU64::new(Phase::New as u64),
            stalled: AtomicU64::new(0),
            body_late: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            answering: AtomicBool::new(false),
            held,
            taken: AtomicUsize::new(0),
        }
    }

    /// The response is sent without reading the whole request.
    pub fn leave_unread(&self) {
        self.unread.store(true, Relaxed);
    }

    /// Discards incoming bytes from now on, for a while. Returns false if nothing more can come.
    pub(crate) fn linger(&self) -> bool {
        self.enter(Phase::Linger);
        self.held.leave();
        self.held.keep(0);
        self.unread.load(Relaxed)
    }

    /// Whether incoming bytes are discarded.
    pub(crate) fn is_lingering(&self) -> bool {
        self.phase().0 == Phase::Linger
    }

    /// This many of the bytes read belong to the current request.
    pub(crate) fn took(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Relaxed);
    }

    /// The response is known, so the request is no longer needed. Bytes beyond it may be the next request.
    fn release(&self) {
        let beyond = self.held.bytes().saturating_sub(self.taken.swap(0, Relaxed));
        self.held.keep(if beyond > FRAMING_BYTES { beyond } else { 0 });
    }

    pub(crate) fn answered(&self) {
        self.enter(Phase::Idle);
    }

    /// Everything is written, including the response of the service if it was complete.
    pub(crate) fn flushed(&self) {
        if matches!(self.phase().0, Phase::Idle | Phase::Head) {
            self.answering.store(false, Relaxed);
        }
    }

    /// The first byte of a response is about to be written.
    pub(crate) fn answering(&self) {
        self.answering.store(true, Relaxed);
    }

    pub(crate) fn is_answering(&self) -> bool {
        self.answering.load(Relaxed)
    }

    pub(crate) fn receiving(&self) -> Receiving<'_> {
        self.go_on(Phase::Body);
        Receiving(self)
    }

    fn now_ms(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(self.now_ms() << PHASE_BITS | phase as u64, Relaxed);
    }

    /// The next phase of the same request. Its time continues, so the clock is not read.
    pub(crate) fn go_on(&self, phase: Phase) {
        self.phase.store(self.phase().1 << PHASE_BITS | phase as u64, Relaxed);
    }

    fn phase(&self) -> (Phase, u64) {
        let packed = self.phase.load(Relaxed);
        let phase = match packed & ((1 << PHASE_BITS) - 1) {
            0 => Phase::New,
            1 => Phase::Head,
            2 => Phase::Body,
            3 => Phase::Busy,
            4 => Phase::Idle,
            _ => Phase::Linger,
        };
        (phase, packed >> PHASE_BITS)
    }

    pub(crate) fn read_some(&self) {
        if matches!(self.phase().0, Phase::New | Phase::Idle) {
            self.enter(Phase::Head);
        }
    }

    pub(crate) fn wrote<T>(&self, polled: &Poll<T>) {
        match polled {
            Poll::Ready(_) if self.stalled.load(Relaxed) != 0 => self.stalled.store(0, Relaxed),
            Poll::Pending if self.stalled.load(Relaxed) == 0 => {
                self.stalled.store(self.now_ms() + 1, Relaxed)
            }
            _ => {}
        }
    }

    /// The next timeout, if nothing changes until then.
    fn due(&self) -> Option<(Instant, End)> {
        let (phase, since) = self.phase();
        let allowed = match phase {
            Phase::New | Phase::Head => Some(self.timeouts.header),
            Phase::Idle => Some(self.timeouts.idle),
            Phase::Body if self.is_body_late() => None,
            Phase::Body => Some(self.timeouts.body),
            Phase::Linger => Some(LINGER),
            Phase::Busy => None,
        };
        let phase_due = allowed.map(|allowed| (self.at(since) + allowed, End::TimedOut(phase)));
        let stalled = self.stalled.load(Relaxed);
        let stalled_due = (stalled != 0).then(|| (self.at(stalled - 1) + self.timeouts.body, End::Stalled));
        phase_due.into_iter().chain(stalled_due).min_by_key(|(at, _)| *at)
    }

    pub(crate) fn is_body_late(&self) -> bool {
        self.body_late.load(Relaxed)
    }

    /// A late body ends its connection, even if the connection then closed normally.
    fn closed(&self) -> End {
        if self.is_body_late() { End::TimedOut(Phase::Body) } else { End::Closed }
    }

    fn at(&self, ms: u64) -> Instant {
        self.born + Duration::from_millis(ms)
    }
}

/// A body being received. The timer of the connection watches it while this exists.
pub(crate) struct Receiving<'a>(&'a Connection);

impl Receiving<'_> {
    /// The next data of the body, or `None` at its end.
    pub(crate) async fn data(&self, body: &mut Incoming) -> Result<Option<Bytes>, Problem> {
        poll_fn(|cx| self.poll_data(body, cx)).await
    }

    fn poll_data(&self, body: &mut Incoming, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Problem>> {
        // Even if more data is available: it would only be rejected.
        if self.0.is_body_late() {
            return Poll::Ready(Err(self.late()));
        }
        loop {
            let frame = match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(broken(&error))),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            // Trailers are not used.
            if let Ok(data) = frame.into_data() {
                return Poll::Ready(Ok(Some(data)));
            }
        }
    }

    fn late(&self) -> Problem {
        if self.0.held.is_waiting() {
            return body::overloaded();
        }
        let seconds = self.0.timeouts.body.as_secs_f64();
        Problem::request_timeout(format!(
            "the request did not arrive in full within limits.bodyTimeout ({seconds} s)"
        ))
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.0.go_on(Phase::Busy);
    }
}

/// Minimum length of the head of a request.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let target = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    request.method().as_str().len() + authority + target + headers.sum::<usize>()
}

fn broken(error: &hyper::Error) -> Problem {
    Problem::bad_request(format!("the body could not be read: {error}"))
}

/// Serves a connection until a side closes it, a timeout passes, or the server shuts down.
pub(crate) async fn serve<T, S>(
    socket: Socket<T>,
    connection: Arc<Connection>,
    service: Arc<S>,
    http: &http1::Builder,
    watch: &mut Watch,
    shutdown: &Shutdown,
) -> End
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Service,
{
    // Each request touches one reference count that only this connection uses. The count of the service is shared by all
    // cores.
    let serving = Arc::new((service, Arc::clone(&connection)));
    let requests = service_fn(move |request| {
        let serving = Arc::clone(&serving);
        async move {
            let (service, connection) = &*serving;
            connection.go_on(Phase::Busy);
            connection.answering();
            connection.took(head_bytes(&request));
            let call = pin!(async {
                Point::Request.pass();
                service.call(request, connection).await
            });
            let answered = contain_future(Place::Request, call).await;
            let mut response = answered.unwrap_or_else(|panic| {
                tracing::error!(%panic, peer = %connection.peer, "Request handler panicked");
                connection.leave_unread();
                Problem::internal(INTERNAL).into_http()
            });
            connection.release();
            response.body_mut().watch(connection);
            Ok::<_, Infallible>(response)
        }
    });
    let http = pin!(http.serve_connection(TokioIo::new(socket), requests));
    match watched(http, &connection, watch, shutdown, |http| http.graceful_shutdown()).await {
        Ok(ended) => {
            if let Err(error) = ended {
                tracing::debug!(peer = %connection.peer, %error, "Connection failed");
            }
            connection.closed()
        }
        Err(end) => end,
    }
}

/// Polls a connection until it ends, times out or is aborted. `drain` tells it once that the server shuts down; then it is
/// polled again.
///
/// Must be the outermost future of its task, because it relies on the waker staying the same.
pub(crate) async fn watched<F: Future>(
    mut conversation: Pin<&mut F>,
    connection: &Connection,
    watch: &mut Watch,
    shutdown: &Shutdown,
    drain: impl Fn(Pin<&mut F>),
) -> Result<F::Output, End> {
    let mut stopping = pin!(shutdown.changed());
    let mut draining = false;
    let mut registered = false;
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(ended) = conversation.as_mut().poll(cx) {
                return Poll::Ready(Ok(ended));
            }
            if !registered {
                registered = stopping.as_mut().poll(cx).is_pending();
                if !registered {
                    stopping.set(shutdown.changed());
                    continue;
                }
            }
            if shutdown.is_cut() {
                return Poll::Ready(Err(End::Cut));
            }
            if shutdown.is_requested() && !draining {
                draining = true;
                registered = false;
                stopping.set(shutdown.changed());
                drain(conversation.as_mut());
                continue;
            }
            match ready!(watch.poll_due(connection, cx)) {
                // The service responds to this one itself, with a problem that explains it.
                End::TimedOut(Phase::Body) => connection.body_late.store(true, Relaxed),
                end => return Poll::Ready(Err(end)),
            }
        }
    })
    .await
}

/// The timer of a connection.
pub(crate) struct Watch {
    sleep: Pin<Box<Sleep>>,
}

impl Watch {
    pub(crate) fn new(connection: &Connection) -> Watch {
        let first = connection.due().map_or_else(Instant::now, |(at, _)| at);
        Watch { sleep: Box::pin(sleep_until(first)) }
    }

    /// Ready at a timeout. This only moves the timer closer. A deadline that moved away is noticed when the timer fires,
    /// which saves a timer operation per request.
    fn poll_due(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let due = connection.due();
            if let Some((at, _)) = due
                && at < self.sleep.deadline()
            {
                self.sleep.as_mut().reset(at);
            }
            ready!(self.sleep.as_mut().poll(cx));
            let now = Instant::now();
            match due {
                Some((at, end)) if at <= now => return Poll::Ready(end),
                Some((at, _)) => self.sleep.as_mut().reset(at),
                None => self.sleep.as_mut().reset(now + connection.timeouts.idle),
            }
        }
    }
}
