//! One connection of HTTP/1.1, and one call over it.
//!
//! This is written out by hand because it is where a delivery spends its time: a call costs one write, one read and no
//! allocation. The buffers belong to the thread, not to the connection, so that a thousand connections share a few
//! kilobytes that are always in the cache; only what does not fit into one write or one read is kept per call.

use super::answer::{Answer, Progress, Wanted};
use super::reply::Reply;
use super::stream::Stream;
use bytes::{Buf, Bytes};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

pub struct Connection {
    stream: Stream,
    /// Set once and moved only when it fires or must fire earlier: most calls do not touch the timer wheel.
    timer: Pin<Box<Sleep>>,
    /// Of the pool's certificates when it was made.
    pub generation: u64,
    used: bool,
    /// It had waited so long for this call that the other side may have given it up.
    pub has_waited: bool,
    /// Whether anything of the call was taken by the socket.
    has_sent: bool,
}

/// What is sent.
pub trait Message: Sync {
    /// Appends the whole head of an HTTP/1.1 request.
    fn write_head(&self, out: &mut Vec<u8>);
    fn body(&self) -> &[u8];
    /// The body without a copy, for a call that outlives a borrow.
    fn body_bytes(&self) -> Bytes;
}

/// Why a call has no reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Closed or reset before a single byte of the answer.
    Closed(String),
    Broken(String),
    Timeout,
}

pub struct Replied {
    pub reply: Reply,
    /// The connection may carry another call.
    pub reusable: bool,
}

/// Bodies up to this size are copied behind the head: cheaper than gathering two pieces.
const COPIED_BYTES_MAX: usize = 8 << 10;
const READ_BYTES: usize = 16 << 10;
const HEAD_BYTES_KEPT_MAX: usize = 64 << 10;

thread_local! {
    static OUT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static IN: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Connection {
    pub fn new(stream: Stream, generation: u64, deadline: Instant) -> Connection {
        Connection {
            stream,
            timer: Box::pin(sleep_until(deadline)),
            generation,
            used: false,
            has_waited: false,
            has_sent: false,
        }
    }

    /// Whether it has carried a call before.
    pub fn is_used(&self) -> bool {
        self.used
    }

    /// Whether the other side can have seen anything of the last call.
    pub fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Whether its end says nothing about the last call.
    pub fn is_stale(&self) -> bool {
        self.used && (self.has_waited || !self.has_sent)
    }

    /// Whether nothing has come in since its last answer: no byte, no end, no error.
    pub fn is_quiet(&mut self) -> bool {
        let nothing = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.stream.peek().is_err_and(nothing)
            && (!self.stream.is_encrypted() || self.has_nothing_decrypted())
    }

    /// Whether the other side spoke before it was called. Encrypted bytes may belong to the handshake.
    pub fn has_spoken(&mut self) -> bool {
        if self.stream.is_encrypted() {
            return !self.has_nothing_decrypted();
        }
        self.stream.peek().is_ok_and(|held| held > 0)
    }

    fn has_nothing_decrypted(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Sends what the socket takes at once. The message is not needed after that.
    pub fn begin(&mut self, context: &mut Context<'_>, message: &dyn Message, begun: &mut Begun) {
        self.has_sent = false;
        // A failure is left to the reading side.
        begun.sending = self.send_first(context, message).unwrap_or(Sending::Failed);
    }

    /// Sends the rest, and reads the answer.
    pub async fn finish(&mut self, begun: &mut Begun, deadline: Instant) -> Result<Replied, Trouble> {
        self.read(begun, deadline, usize::MAX).await?;
        let reusable = begun.is_reusable();
        Ok(Replied { reply: begun.answer.take_reply(), reusable })
    }

    /// Sends the rest, and reads until the answer is whole or so many bytes of its body are there.
    pub async fn read(
        &mut self,
        begun: &mut Begun,
        deadline: Instant,
        body_bytes: usize,
    ) -> Result<(), Trouble> {
        let Begun { sending, answer } = begun;
        let mut exchange = Exchange { connection: self, deadline, sending, answer, body_bytes };
        poll_fn(|context| exchange.poll(context)).await?;
        // A refusal may come early. A success cannot be about a request that has not been sent.
        if !matches!(begun.sending, Sending::Done) && matches!(begun.answer.reply().code, 200..=299) {
            return Err(Trouble::Broken("a success before the request was sent".into()));
        }
        self.used = true;
        Ok(())
    }

    /// Head and body in one write, straight from the thread's buffer.
    fn send_first(&mut self, context: &mut Context<'_>, message: &dyn Message) -> io::Result<Sending> {
        let mut out = OUT.take();
        out.clear();
        message.write_head(&mut out);
        let body = message.body();
        let copied = body.len() <= COPIED_BYTES_MAX;
        let stream = Pin::new(&mut self.stream);
        let sent = if copied {
            out.extend_from_slice(body);
            stream.poll_write(context, &out)
        } else {
            stream.poll_write_vectored(context, &[IoSlice::new(&out), IoSlice::new(body)])
        };
        let body = || if copied { Bytes::new() } else { message.body_bytes() };
        let sending = match sent {
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(length)) => {
                self.has_sent = length > 0;
                Ok(Sending::rest(&out, body(), length))
            }
            Poll::Pending => Ok(Sending::rest(&out, body(), 0)),
        };
        if out.capacity() <= HEAD_BYTES_KEPT_MAX {
            OUT.set(out);
        }
        sending
    }

    fn poll_timer(&mut self, context: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        if self.timer.deadline() > deadline {
            self.timer.as_mut().reset(deadline);
        }
        loop {
            ready!(self.timer.as_mut().poll(context));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(deadline);
        }
    }
}

struct Exchange<'a> {
    connection: &'a mut Connection,
    deadline: Instant,
    sending: &'a mut Sending,
    answer: &'a mut Answer,
    /// When so many bytes of the body are there, that is enough for now.
    body_bytes: usize,
}

/// A call of which the first part is sent.
pub struct Begun {
    sending: Sending,
    pub answer: Answer,
}

impl Begun {
    /// Of which nothing is sent yet. It is large, and stays where it is made.
    pub fn new(answer_bytes_max: usize, wanted: Wanted) -> Begun {
        Begun { sending: Sending::Failed, answer: Answer::new(answer_bytes_max, wanted) }
    }

    /// Whether its connection may carry another call.
    pub fn is_reusable(&self) -> bool {
        self.answer.keeps_alive() && matches!(self.sending, Sending::Done)
    }
}

enum Sending {
    /// What the first write left over.
    Rest {
        head: Bytes,
        body: Bytes,
    },
    /// All is handed over, but encryption may hold some of it back.
    Flush,
    Done,
    /// It cannot be sent; an answer may be there all the same.
    Failed,
}

impl Sending {
    fn rest(head: &[u8], mut body: Bytes, sent: usize) -> Sending {
        if sent == head.len() + body.len() {
            return Sending::Flush;
        }
        let of_head = sent.min(head.len());
        body.advance(sent - of_head);
        Sending::Rest { head: Bytes::copy_from_slice(&head[of_head..]), body }
    }
}

impl Exchange<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Trouble>> {
        self.send(context);
        if let Poll::Ready(done) = self.receive(context) {
            return Poll::Ready(done);
        }
        self.connection.poll_timer(context, self.deadline).map(|()| Err(Trouble::Timeout))
    }

    // ---- sending ------------------------------------------------------------------------------------------

    /// Goes as far as it can. A failure is left to the reading side: a target may answer before it closes, and that
    /// answer (a 413, say) is worth more than the news that it closed.
    fn send(&mut self, context: &mut Context<'_>) {
        while let Sending::Rest { head, body } = self.sending {
            match poll_rest(&mut self.connection.stream, context, head, body) {
                Poll::Pending => return,
                Poll::Ready(Ok(true)) => *self.sending = Sending::Flush,
                Poll::Ready(Ok(false)) => self.connection.has_sent = true,
                Poll::Ready(Err(_)) => *self.sending = Sending::Failed,
            }
        }
        if matches!(self.sending, Sending::Flush)
            && let Poll::Ready(flushed) = Pin::new(&mut self.connection.stream).poll_flush(context)
        {
            *self.sending = if flushed.is_ok() { Sending::Done } else { Sending::Failed };
        }
    }

    // ---- receiving ----------------------------------------------------------------------------------------

    fn receive(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Trouble>> {
        let mut buffer = IN.take();
        buffer.resize(READ_BYTES, 0);
        let received = self.receive_into(context, &mut buffer);
        IN.set(buffer);
        received
    }

    fn receive_into(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Result<(), Trouble>> {
        loop {
            ready!(self.answer.poll_room(context));
            let mut piece = ReadBuf::new(buffer);
            let read = ready!(Pin::new(&mut self.connection.stream).poll_read(context, &mut piece));
            match (read, piece.filled()) {
                (Err(error), _) => return Poll::Ready(Err(self.lost(&error))),
                (Ok(()), []) => return Poll::Ready(self.closed()),
                (Ok(()), bytes) => match self.answer.read(bytes) {
                    Ok(Progress::More) if self.answer.body().len() < self.body_bytes => {}
                    Ok(Progress::More) => return Poll::Ready(Ok(())),
                    Ok(Progress::Done) => return Poll::Ready(Ok(())),
                    Err(malformed) => return Poll::Ready(Err(Trouble::Broken(malformed.0.into()))),
                },
            }
        }
    }

    fn closed(&mut self) -> Result<(), Trouble> {
        let whole = self.answer.end();
        whole.map_err(|malformed| self.trouble(malformed.0.into()))
    }

    fn lost(&self, error: &io::Error) -> Trouble {
        self.trouble(match error.kind() {
            io::ErrorKind::ConnectionReset => "reset by the target".into(),
            _ => error.to_string(),
        })
    }

    fn trouble(&self, why: String) -> Trouble {
        if self.answer.has_begun() { Trouble::Broken(why) } else { Trouble::Closed(why) }
    }
}

/// True when both are sent.
fn poll_rest(
    stream: &mut Stream,
    context: &mut Context<'_>,
    head: &mut Bytes,
    body: &mut Bytes,
) -> Poll<io::Result<bool>> {
    let part = if head.is_empty() { body } else { head };
    if part.is_empty() {
        return Poll::Ready(Ok(true));
    }
    match ready!(Pin::new(stream).poll_write(context, part))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        sent => {
            part.advance(sent);
            Poll::Ready(Ok(false))
        }
    }
}
