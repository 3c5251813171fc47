//! One HTTP/1.1 connection, and one call over it.
//!
//! This code does not use an HTTP library, because deliveries spend most of their time here: a call costs one write,
//! one read and no allocation. Buffers belong to the thread, not to the connection, so a thousand connections share a
//! few kilobytes that stay in the CPU cache. Only data that does not fit into one write or one read is kept per call.

use super::reply::Reply;
use super::response_parser::{Progress, ResponseParser, Wanted};
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
    /// Reset only when it fires or must fire earlier, so most calls do not touch the timer wheel.
    timer: Pin<Box<Sleep>>,
    /// The generation of the pool's certificates when the connection was opened.
    pub generation: u64,
    used: bool,
    /// The connection was idle for so long before this call that the peer may have closed it.
    pub has_waited: bool,
    /// True if the socket accepted any bytes of the call.
    has_sent: bool,
}

/// The message to send.
pub trait Message: Sync {
    /// Appends the whole head of an HTTP/1.1 request.
    fn write_head(&self, out: &mut Vec<u8>);
    fn body(&self) -> &[u8];
    /// The body without copying, for a call that outlives the borrow.
    fn body_bytes(&self) -> Bytes;
}

/// Why a call has no reply.
#[derive(Debug, PartialEq, Eq)]
pub enum CallError {
    /// Closed or reset before the first byte of the response.
    Closed(String),
    Broken(String),
    Timeout,
}

pub struct Replied {
    pub reply: Reply,
    /// The connection may carry another call.
    pub reusable: bool,
}

/// Bodies up to this size are copied behind the head, which is cheaper than a vectored write.
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

    /// True if the connection has carried a call before.
    pub fn is_used(&self) -> bool {
        self.used
    }

    /// True if the peer may have seen any part of the last call.
    pub fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// True if a closed connection says nothing about the last call.
    pub fn is_stale(&self) -> bool {
        self.used && (self.has_waited || !self.has_sent)
    }

    /// True if nothing has arrived since the last response: no byte, no end of stream, no error.
    pub fn is_quiet(&mut self) -> bool {
        let nothing = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.stream.peek().is_err_and(nothing)
            && (!self.stream.is_encrypted() || self.has_nothing_decrypted())
    }

    /// True if the peer sent data before it received a request. Encrypted bytes may belong to the handshake.
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

    /// Sends as much as the socket accepts at once. The message is not needed afterwards.
    pub fn begin(&mut self, context: &mut Context<'_>, message: &dyn Message, begun: &mut Begun) {
        self.has_sent = false;
        // The reading side reports a failure.
        begun.sending = self.send_first(context, message).unwrap_or(Sending::Failed);
    }

    /// Sends the rest and reads the response.
    pub async fn finish(&mut self, begun: &mut Begun, deadline: Instant) -> Result<Replied, CallError> {
        self.read(begun, deadline, usize::MAX).await?;
        let reusable = begun.is_reusable();
        Ok(Replied { reply: begun.answer.take_reply(), reusable })
    }

    /// Sends the rest and reads until the response is complete or `body_bytes` of its body have arrived.
    pub async fn read(
        &mut self,
        begun: &mut Begun,
        deadline: Instant,
        body_bytes: usize,
    ) -> Result<(), CallError> {
        let Begun { sending, answer } = begun;
        let mut exchange = Exchange { connection: self, deadline, sending, answer, body_bytes };
        poll_fn(|context| exchange.poll(context)).await?;
        // An error response may come early, but a success cannot belong to a request that was not sent completely.
        if !matches!(begun.sending, Sending::Done) && matches!(begun.answer.reply().code, 200..=299) {
            return Err(CallError::Broken("success response before the request was sent".into()));
        }
        self.used = true;
        Ok(())
    }

    /// Sends head and body in one write, directly from the thread's buffer.
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
    answer: &'a mut ResponseParser,
    /// Reading stops when the body has this many bytes.
    body_bytes: usize,
}

/// A call whose first part was sent.
pub struct Begun {
    sending: Sending,
    pub answer: ResponseParser,
}

impl Begun {
    /// A call of which nothing was sent yet. The struct is large and is never moved.
    pub fn new(answer_bytes_max: usize, wanted: Wanted) -> Begun {
        Begun { sending: Sending::Failed, answer: ResponseParser::new(answer_bytes_max, wanted) }
    }

    /// True if the connection may carry another call.
    pub fn is_reusable(&self) -> bool {
        self.answer.keeps_alive() && matches!(self.sending, Sending::Done)
    }
}

enum Sending {
    /// The part that the first write left over.
    Rest {
        head: Bytes,
        body: Bytes,
    },
    /// Everything was written, but TLS may still buffer some of it.
    Flush,
    Done,
    /// The request cannot be sent, but there may still be a response.
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
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.send(context);
        if let Poll::Ready(done) = self.receive(context) {
            return Poll::Ready(done);
        }
        self.connection.poll_timer(context, self.deadline).map(|()| Err(CallError::Timeout))
    }

    // ---- sending ------------------------------------------------------------------------------------------

    /// Sends as much as possible and leaves failures to the reading side. A target may answer before it closes, and
    /// that answer (for example a 413) tells more than the closed connection.
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

    fn receive(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let mut buffer = IN.take();
        buffer.resize(READ_BYTES, 0);
        let received = self.receive_into(context, &mut buffer);
        IN.set(buffer);
        received
    }

    fn receive_into(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Result<(), CallError>> {
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
                    Err(malformed) => return Poll::Ready(Err(CallError::Broken(malformed.0.into()))),
                },
            }
        }
    }

    fn closed(&mut self) -> Result<(), CallError> {
        let whole = self.answer.end();
        whole.map_err(|malformed| self.trouble(malformed.0.into()))
    }

    fn lost(&self, error: &io::Error) -> CallError {
        self.trouble(match error.kind() {
            io::ErrorKind::ConnectionReset => "connection reset by the target".into(),
            _ => error.to_string(),
        })
    }

    fn trouble(&self, why: String) -> CallError {
        if self.answer.has_begun() { CallError::Broken(why) } else { CallError::Closed(why) }
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
