//! The fast path of POST requests over plain TCP: read bytes, pass events to the engine or call a function, write once.
//!
//! It handles only unambiguous requests: complete, plain, authorized POST requests. Everything else (another resource,
//! unusual framing, a rejection, a late body) is handed over to the HTTP library together with all bytes without a response,
//! and the connection stays there. So every rare case is handled in one place, and not here.
//!
//! Each thread owns the buffers: a connection between two requests holds none.

mod head;

pub(crate) use head::Post;

use crate::auth::{Unknown, Who};
use crate::body_buffer::BodyBuffer;
use crate::connection::{Connection, End, INTERNAL, Phase, Watch, watched};
use crate::inlet::Inlet;
use crate::post_handler::PostHandler;
use crate::problem::Problem;
use crate::raw_response::{LAST_CHUNK, RawResponse, write_chunk};
use crate::response_memory::ResponseMemory;
use crate::router::App;
use crate::shutdown::Shutdown;
use crate::stream::ByteStream;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use head::{Slots, Verdict};
use klambda_crash::{Place, Point, contain_future};
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

/// How a connection left the fast path.
pub(crate) enum Ended {
    Closed,
    /// These bytes were read and have no response yet.
    HandOver(VecDeque<Bytes>),
}

/// How long a client may take to read the response after a panic.
const FAREWELL: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 16 << 10;
const WRITE_BYTES_KEPT_MAX: usize = 64 << 10;

thread_local! {
    static IN: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static OUT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Serves POST requests until the connection ends or sends something else.
pub(crate) async fn serve<P: PostHandler>(
    stream: &mut Inlet,
    connection: &Connection,
    app: &App<P>,
    header_bytes: usize,
    watch: &mut Watch,
    shutdown: &Shutdown,
) -> Result<Ended, End> {
    let head_bytes_max = header_bytes.min(READ_BYTES);
    let held = BytesMut::new();
    let mut conversation =
        Conversation { stream, connection, app, shutdown, head_bytes_max, held, body: None };
    let ended = {
        let run = pin!(conversation.run());
        let run = pin!(contain_future(Place::Request, run));
        // It checks for shutdown itself, so it needs no notification.
        watched(run, connection, watch, shutdown, |_| {}).await?
    };
    match ended {
        Ok(ended) => Ok(ended),
        Err(panic) => {
            tracing::error!(%panic, peer = %connection.peer, "Request handler panicked");
            let _ = timeout(FAREWELL, conversation.apologize()).await;
            Ok(Ended::Closed)
        }
    }
}

struct Conversation<'a, P: PostHandler> {
    stream: &'a mut Inlet,
    connection: &'a Connection,
    app: &'a App<P>,
    shutdown: &'a Shutdown,
    head_bytes_max: usize,
    /// Bytes that were read and not used yet. While a body arrives, only its head.
    held: BytesMut,
    body: Option<Body>,
}

/// An incomplete body.
struct Body {
    arrived: BodyBuffer,
    length: usize,
}

impl Body {
    /// Reads directly into the buffer, and never a byte of the next request.
    fn poll_read(&mut self, stream: &mut Inlet, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let (piece, room) = self.arrived.spare(self.length - self.arrived.len());
        let mut place = piece.limit(room);
        pin!(stream.read_buf(&mut place)).poll(cx)
    }

    fn is_whole(&self) -> bool {
        self.arrived.len() == self.length
    }
}

enum Next<R> {
    Post(Taken<R>),
    HandOver,
    Closed,
}

/// A complete POST request, or the response to an invalid one.
type Taken<R> = Result<R, RawResponse>;

/// The classification of received bytes.
enum Found<R> {
    /// The beginning of a head.
    Part,
    Other,
    /// A head of this many bytes that waits for its body.
    Head {
        bytes: usize,
        length: usize,
    },
    /// A complete POST request of this many bytes.
    Whole(Taken<R>, usize),
}

impl<P: PostHandler> Conversation<'_, P> {
    async fn run(&mut self) -> Ended {
        loop {
            let taken = match self.next().await {
                Next::Post(taken) => taken,
                Next::HandOver => return Ended::HandOver(self.unanswered()),
                Next::Closed => return Ended::Closed,
            };
            Point::FastRequest.pass();
            let mut answer = match taken {
                Ok(read) => self.app.posts.answer(read).await,
                Err(answer) => answer,
            };
            self.connection.held.keep(self.held.len());
            let last = self.shutdown.is_requested();
            if self.write(&mut answer, last).await.is_err() {
                return Ended::Closed;
            }
            // Boxed to keep the future of a connection as small as the hot path needs.
            if let Some(rest) = answer.rest.take()
                && Box::pin(self.write_rest(rest)).await.is_err()
            {
                return Ended::Closed;
            }
            if last {
                let _ = self.stream.shutdown().await;
                return Ended::Closed;
            }
            self.connection.answered();
            self.connection.flushed();
        }
    }

    /// After a panic: sends a 500, unless a response has started.
    async fn apologize(&mut self) -> io::Result<()> {
        if !self.connection.is_answering() {
            self.write(&mut Problem::internal(INTERNAL).into_raw_response(), true).await?;
        }
        self.stream.shutdown().await
    }

    fn unanswered(&mut self) -> VecDeque<Bytes> {
        let body = self.body.take().map(|body| body.arrived.into_chunks());
        let head = std::mem::take(&mut self.held).freeze();
        [head].into_iter().chain(body.into_iter().flatten()).filter(|bytes| !bytes.is_empty()).collect()
    }

    // ---- reading ------------------------------------------------------------------------------------------

    async fn next(&mut self) -> Next<P::Read> {
        if !self.held.is_empty() {
            // The client sent the next request before it had the response.
            if let Some(next) = self.take_held() {
                return next;
            }
        }
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next<P::Read>> {
        let mut buffer = IN.take();
        buffer.resize(READ_BYTES, 0);
        let next = self.poll_read(cx, &mut buffer);
        IN.set(buffer);
        match next {
            Poll::Pending => self.poll_waiting(),
            ready => ready,
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Next<P::Read>> {
        loop {
            if let Some(body) = &mut self.body {
                let read = ready!(body.poll_read(self.stream, cx));
                self.connection.read_some();
                match read {
                    Err(_) => return Poll::Ready(Next::Closed),
                    Ok(0) => return Poll::Ready(Next::HandOver),
                    Ok(_) if body.is_whole() => return Poll::Ready(self.take_body()),
                    Ok(_) => continue,
                }
            }
            let mut piece = ReadBuf::new(buffer);
            let read = ready!(Pin::new(&mut *self.stream).poll_read(cx, &mut piece));
            match (read, piece.filled()) {
                (Err(_), _) => return Poll::Ready(Next::Closed),
                (Ok(()), []) if self.is_between() => return Poll::Ready(Next::Closed),
                (Ok(()), []) => return Poll::Ready(Next::HandOver),
                (Ok(()), bytes) => {
                    if let Some(next) = self.take(bytes) {
                        return Poll::Ready(next);
                    }
                }
            }
        }
    }

    /// Nothing has arrived: decides whether to wait for more.
    fn poll_waiting(&self) -> Poll<Next<P::Read>> {
        if self.is_between() && self.shutdown.is_requested() {
            return Poll::Ready(Next::Closed);
        }
        if self.body.is_some() && self.connection.is_body_late() {
            return Poll::Ready(Next::HandOver);
        }
        Poll::Pending
    }

    /// Whether the connection is between two requests.
    fn is_between(&self) -> bool {
        self.held.is_empty() && self.body.is_none()
    }

    /// Takes the next bytes. Returns `None` if more are needed.
    fn take(&mut self, bytes: &[u8]) -> Option<Next<P::Read>> {
        if self.held.is_empty() {
            let found = self.find(bytes);
            self.held.extend_from_slice(&bytes[found.used()..]);
            return self.go_on(found);
        }
        self.held.extend_from_slice(bytes);
        // A head must end with a line, so parse only at line ends. Parsing at every byte would be quadratic.
        if !bytes.contains(&b'\n') && self.held.len() <= self.head_bytes_max {
            return None;
        }
        self.take_held()
    }

    fn take_held(&mut self) -> Option<Next<P::Read>> {
        let found = self.find(&self.held);
        self.held.advance(found.used());
        if self.held.is_empty() {
            self.held = BytesMut::new();
        }
        self.go_on(found)
    }

    fn find(&self, bytes: &[u8]) -> Found<P::Read> {
        let mut slots = Slots::new();
        let post = match slots.read(bytes, self.head_bytes_max) {
            Verdict::Part => return Found::Part,
            Verdict::Other => return Found::Other,
            Verdict::Post(post) => post,
        };
        if post.length > self.app.body_bytes {
            return Found::Other;
        }
        let Some(who) = self.app.admits(&post, self.connection.local) else { return Found::Other };
        let (end, length) = (post.bytes + post.length, post.length);
        let Some(body) = bytes.get(post.bytes..end) else {
            return Found::Head { bytes: post.bytes, length };
        };
        Found::Whole(self.taken(&post, &who, Bytes::copy_from_slice(body)), end)
    }

    fn go_on(&mut self, found: Found<P::Read>) -> Option<Next<P::Read>> {
        // The time limit of a request begins with its first bytes. A complete request needs no clock.
        if !matches!(found, Found::Whole(..)) {
            self.connection.read_some();
        }
        match found {
            Found::Part => None,
            Found::Other => Some(Next::HandOver),
            Found::Whole(taken, _) => Some(Next::Post(taken)),
            Found::Head { bytes, length } => {
                self.connection.go_on(Phase::Body);
                let mut arrived = BodyBuffer::default();
                arrived.extend(&self.held[bytes..]);
                self.body = Some(Body { arrived, length });
                self.held.truncate(bytes);
                None
            }
        }
    }

    /// The body is complete.
    fn take_body(&mut self) -> Next<P::Read> {
        let head = std::mem::take(&mut self.held);
        let Some(body) = self.body.take() else { return Next::Closed };
        let mut slots = Slots::new();
        match slots.read(&head, self.head_bytes_max) {
            // The token may have been revoked since the head arrived.
            Verdict::Post(post) => match self.app.admits(&post, self.connection.local) {
                Some(who) => Next::Post(self.taken(&post, &who, body.arrived.into_whole().into())),
                None => Next::Post(Err(Problem::from(Unknown::WrongToken).into_raw_response())),
            },
            // The same bytes were a POST request before.
            Verdict::Part | Verdict::Other => Next::Closed,
        }
    }

    fn taken(&self, post: &Post<'_, '_>, who: &Who, body: Bytes) -> Taken<P::Read> {
        self.connection.go_on(Phase::Busy);
        let headers = post.headers.iter().map(|header| (header.name, header.value));
        self.app.posts.read(post.place, who, post.content_type, headers, body)
    }

    // ---- writing ------------------------------------------------------------------------------------------

    async fn write(&mut self, answer: &mut RawResponse, last: bool) -> io::Result<()> {
        self.connection.answering();
        let mut rest = poll_fn(|cx| Poll::Ready(self.write_first(cx, answer, last))).await?;
        answer.body = Vec::new();
        if ResponseMemory::is_long(rest.len()) {
            // The response has started. If there is no memory for the rest, the connection must be closed.
            rest = Box::pin(self.app.response_memory.hold(rest)).await.ok_or(io::ErrorKind::OutOfMemory)?;
        }
        self.write_all(rest).await
    }

    async fn write_all(&mut self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            match poll_fn(|cx| self.poll_write(cx, &bytes)).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => bytes.advance(written),
            }
        }
        Ok(())
    }

    /// Writes the rest of a long response. If that fails, the connection is closed.
    async fn write_rest(&mut self, mut rest: Box<ByteStream>) -> io::Result<()> {
        let is_chunked = rest.length().is_none();
        while let Some(piece) = rest.next().await {
            let mut piece = piece?;
            if is_chunked {
                let mut chunk = Vec::with_capacity(piece.len() + 16);
                write_chunk(&piece, &mut chunk);
                piece = chunk.into();
            }
            self.write_all(piece).await?;
        }
        if is_chunked { self.write_all(Bytes::from_static(LAST_CHUNK)).await } else { Ok(()) }
    }

    /// Writes head and body at once from the buffer of the thread. Returns the bytes that the socket did not take.
    fn write_first(&mut self, cx: &mut Context<'_>, answer: &RawResponse, last: bool) -> io::Result<Bytes> {
        let mut out = OUT.take();
        out.clear();
        answer.write(last, &mut out);
        let rest = match self.poll_write(cx, &out) {
            Poll::Ready(Ok(written)) => Ok(Bytes::copy_from_slice(&out[written..])),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(Bytes::copy_from_slice(&out)),
        };
        if out.capacity() <= WRITE_BYTES_KEPT_MAX {
            OUT.set(out);
        }
        rest
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut *self.stream).poll_write(cx, bytes);
        self.connection.wrote(&polled);
        polled
    }
}

impl<R> Found<R> {
    /// Number of bytes that need not be kept.
    fn used(&self) -> usize {
        match self {
            Found::Whole(_, bytes) => *bytes,
            Found::Part | Found::Other | Found::Head { .. } => 0,
        }
    }
}
