//! The short way of posts over plain TCP: bytes in, events to the engine or a call to a function, one write out.
//!
//! Only what is beyond doubt is taken here: a whole, plain, admitted post. Whatever else comes (another resource, odd
//! framing, a refusal, a body that is late) is handed over to the HTTP library with every byte that was not answered
//! yet, and the connection stays there. So there is one place for every rare case, and it is not this one.
//!
//! The buffers belong to the thread: a connection between two requests holds none.

mod head;

pub(crate) use head::Post;

use crate::answer::{Answer, LAST_CHUNK, write_chunk};
use crate::auth::{Unknown, Who};
use crate::connection::{Connection, End, INTERNAL, Phase, Watch, watched};
use crate::inlet::Inlet;
use crate::pieces::Pieces;
use crate::posts::Posts;
use crate::problem::Problem;
use crate::router::App;
use crate::shutdown::Shutdown;
use crate::stream::ByteStream;
use crate::unsent::Unsent;
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

/// How a connection left the short way.
pub(crate) enum Ended {
    Closed,
    /// These bytes were read and not answered.
    HandOver(VecDeque<Bytes>),
}

/// How long a client has to take the answer to a request that panicked.
const FAREWELL: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 16 << 10;
const WRITE_BYTES_KEPT_MAX: usize = 64 << 10;

thread_local! {
    static IN: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static OUT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Serves posts until the connection ends or brings something else.
pub(crate) async fn serve<P: Posts>(
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
        // Nothing to tell it when the server stops: it looks by itself.
        watched(run, connection, watch, shutdown, |_| {}).await?
    };
    match ended {
        Ok(ended) => Ok(ended),
        Err(panic) => {
            tracing::error!(%panic, peer = %connection.peer, "A request panicked.");
            let _ = timeout(FAREWELL, conversation.apologize()).await;
            Ok(Ended::Closed)
        }
    }
}

struct Conversation<'a, P: Posts> {
    stream: &'a mut Inlet,
    connection: &'a Connection,
    app: &'a App<P>,
    shutdown: &'a Shutdown,
    head_bytes_max: usize,
    /// What was read and is not taken yet. While a body comes in: its head, and nothing else.
    held: BytesMut,
    body: Option<Body>,
}

/// A body of which more is to come.
struct Body {
    arrived: Pieces,
    length: usize,
}

impl Body {
    /// Straight into its place, and never a byte of the request after it.
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

/// A post that was read whole, or the answer to one that cannot be read.
type Taken<R> = Result<R, Answer>;

/// What bytes turn out to be.
enum Found<R> {
    /// The beginning of a head.
    Part,
    Other,
    /// A head of so many bytes that waits for its body.
    Head {
        bytes: usize,
        length: usize,
    },
    /// A whole post of so many bytes.
    Whole(Taken<R>, usize),
}

impl<P: Posts> Conversation<'_, P> {
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
            // Boxed, since the future of a connection should be no larger than posting events needs.
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

    /// After a panic: a 500, unless an answer has begun.
    async fn apologize(&mut self) -> io::Result<()> {
        if !self.connection.is_answering() {
            self.write(&mut Problem::internal(INTERNAL).into_answer(), true).await?;
        }
        self.stream.shutdown().await
    }

    fn unanswered(&mut self) -> VecDeque<Bytes> {
        let body = self.body.take().map(|body| body.arrived.into_pieces());
        let head = std::mem::take(&mut self.held).freeze();
        [head].into_iter().chain(body.into_iter().flatten()).filter(|bytes| !bytes.is_empty()).collect()
    }

    // ---- reading ------------------------------------------------------------------------------------------

    async fn next(&mut self) -> Next<P::Read> {
        if !self.held.is_empty() {
            // The client did not wait for its answer: the next request has begun already.
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

    /// Nothing has come: is it worth waiting for more?
    fn poll_waiting(&self) -> Poll<Next<P::Read>> {
        if self.is_between() && self.shutdown.is_requested() {
            return Poll::Ready(Next::Closed);
        }
        if self.body.is_some() && self.connection.is_body_late() {
            return Poll::Ready(Next::HandOver);
        }
        Poll::Pending
    }

    /// Between two requests.
    fn is_between(&self) -> bool {
        self.held.is_empty() && self.body.is_none()
    }

    /// Takes the next piece; none if more must come.
    fn take(&mut self, bytes: &[u8]) -> Option<Next<P::Read>> {
        if self.held.is_empty() {
            let found = self.find(bytes);
            self.held.extend_from_slice(&bytes[found.used()..]);
            return self.go_on(found);
        }
        self.held.extend_from_slice(bytes);
        // Nothing new can be told of a head before its next line ends; parsing at every byte would be quadratic.
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
        // The time that a request may take to come in begins with its first bytes. One that is whole needs no clock.
        if !matches!(found, Found::Whole(..)) {
            self.connection.read_some();
        }
        match found {
            Found::Part => None,
            Found::Other => Some(Next::HandOver),
            Found::Whole(taken, _) => Some(Next::Post(taken)),
            Found::Head { bytes, length } => {
                self.connection.go_on(Phase::Body);
                let mut arrived = Pieces::default();
                arrived.extend(&self.held[bytes..]);
                self.body = Some(Body { arrived, length });
                self.held.truncate(bytes);
                None
            }
        }
    }

    /// The body is whole.
    fn take_body(&mut self) -> Next<P::Read> {
        let head = std::mem::take(&mut self.held);
        let Some(body) = self.body.take() else { return Next::Closed };
        let mut slots = Slots::new();
        match slots.read(&head, self.head_bytes_max) {
            // Since its head came, its token may have been revoked.
            Verdict::Post(post) => match self.app.admits(&post, self.connection.local) {
                Some(who) => Next::Post(self.taken(&post, &who, body.arrived.into_whole().into())),
                None => Next::Post(Err(Problem::from(Unknown::WrongToken).into_answer())),
            },
            // It was a post before, and is the same bytes still.
            Verdict::Part | Verdict::Other => Next::Closed,
        }
    }

    fn taken(&self, post: &Post<'_, '_>, who: &Who, body: Bytes) -> Taken<P::Read> {
        self.connection.go_on(Phase::Busy);
        let headers = post.headers.iter().map(|header| (header.name, header.value));
        self.app.posts.read(post.place, who, post.content_type, headers, body)
    }

    // ---- writing ------------------------------------------------------------------------------------------

    async fn write(&mut self, answer: &mut Answer, last: bool) -> io::Result<()> {
        self.connection.answering();
        let mut rest = poll_fn(|cx| Poll::Ready(self.write_first(cx, answer, last))).await?;
        answer.body = Vec::new();
        if Unsent::is_long(rest.len()) {
            // Its beginning is out: without room for the rest, only the end of the connection can say so.
            rest = Box::pin(self.app.unsent.hold(rest)).await.ok_or(io::ErrorKind::OutOfMemory)?;
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

    /// What follows the beginning of a long answer. One that breaks off takes the connection with it.
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

    /// Head and body in one write, straight from the thread's buffer; answers with what the socket did not take.
    fn write_first(&mut self, cx: &mut Context<'_>, answer: &Answer, last: bool) -> io::Result<Bytes> {
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
    /// How many bytes need not be kept.
    fn used(&self) -> usize {
        match self {
            Found::Whole(_, bytes) => *bytes,
            Found::Part | Found::Other | Found::Head { .. } => 0,
        }
    }
}
