//! The socket below HTTP: records activity for the timer of the connection, closes so that the last response arrives, and
//! writes problems for malformed requests.
//!
//! The HTTP library accepts more than we do: bare line feeds, a length together with a transfer coding. So requests are checked
//! here first, and the library receives only unambiguous ones.

use crate::connection::Connection;
use crate::problem::Problem;
use bytes::{Buf, Bytes, BytesMut};
use klambda_core::http1::{Refused, Requests};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The socket of a connection.
pub(crate) struct Socket<T> {
    io: T,
    connection: Arc<Connection>,
    requests: Requests,
    /// Bytes that were read and not passed on: the beginning of a head, or bytes after a rejected one.
    held: BytesMut,
    /// How many of these bytes may be passed on.
    passable: usize,
    refused: Option<Refused>,
    /// The unwritten rest of our own rejection.
    refusal: Bytes,
    shut: Shut,
}

enum Shut {
    No,
    /// Our side is closed; this many bytes from the other side were discarded.
    Lingering(usize),
    Yes,
}

const LINGER_BYTES: usize = 64 << 20;
/// The buffer of an unfinished head grows in steps of this size.
const HELD_STEP: usize = 4 << 10;
/// Replaces a rejected head. No parser accepts it as a request, so the library answers with an error.
const NO_REQUEST: &[u8] = b"\0\r\n\r\n";

impl<T> Socket<T> {
    pub(crate) fn new(io: T, connection: Arc<Connection>, header_bytes: usize) -> Socket<T> {
        Socket {
            io,
            connection,
            requests: Requests::new(header_bytes),
            held: BytesMut::new(),
            passable: 0,
            refused: None,
            refusal: Bytes::new(),
            shut: Shut::No,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Socket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        loop {
            if self.pass_held(buf) {
                return Poll::Ready(Ok(()));
            }
            match self.refused {
                None => {}
                Some(Refused::Head(_) | Refused::HeadTooLarge) => {
                    buf.put_slice(&NO_REQUEST[..NO_REQUEST.len().min(buf.remaining())]);
                    return Poll::Ready(Ok(()));
                }
                Some(Refused::Body(malformed)) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, malformed.0)));
                }
            }
            ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
            if buf.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            self.connection.read_some();
            if self.pass_fresh(buf, before) {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<T> Socket<T> {
    /// Passes on the valid part of the bytes just read, usually all. Returns whether there is any.
    fn pass_fresh(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> bool {
        let fresh = &buf.filled()[before..];
        let passed = if self.held.is_empty() { self.requests.pass(fresh) } else { Ok(0) };
        let passed = self.or_refuse(passed);
        hold_back(&mut self.held, &buf.filled()[before + passed..]);
        buf.set_filled(before + passed);
        passed > 0
    }

    /// The same for bytes that were held back.
    fn pass_held(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        if self.passable == 0 && !self.held.is_empty() {
            let passed = self.requests.pass(&self.held);
            self.passable = self.or_refuse(passed);
        }
        let count = self.passable.min(buf.remaining());
        buf.put_slice(&self.held[..count]);
        self.held.advance(count);
        self.passable -= count;
        if self.held.is_empty() || self.refused.is_some() {
            self.held = BytesMut::new();
        }
        count > 0
    }

    fn or_refuse(&mut self, passed: Result<usize, Refused>) -> usize {
        passed.unwrap_or_else(|refused| {
            self.refused = Some(refused);
            0
        })
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.refuse(buf) {
            return Poll::Ready(Ok(buf.len()));
        }
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        self.connection.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if bufs.first().is_some_and(|first| self.refuse(first)) {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.connection.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.poll_refusal(cx);
        self.connection.wrote(&polled);
        ready!(polled)?;
        let polled = Pin::new(&mut self.io).poll_flush(cx);
        self.connection.wrote(&polled);
        if polled.is_ready() {
            self.connection.flushed();
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.shut, Shut::No) {
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
            self.shut = if self.connection.linger() { Shut::Lingering(0) } else { Shut::Yes };
        }
        ready!(self.poll_discard(cx));
        Poll::Ready(Ok(()))
    }
}

impl<T> Socket<T> {
    /// The library responds to errors without a body. Returns true if our response replaces it.
    fn refuse(&mut self, head: &[u8]) -> bool {
        if self.connection.is_answering() {
            return false;
        }
        let Some(problem) = unreadable(head, self.refused) else { return false };
        self.connection.leave_unread();
        let mut refusal = Vec::new();
        problem.into_raw_response().write(true, &mut refusal);
        self.refusal = refusal.into();
        true
    }
}

/// Appends without doubling the buffer: thousands of unfinished heads would take twice the memory that the account knows of.
fn hold_back(held: &mut BytesMut, bytes: &[u8]) {
    let needed = held.len() + bytes.len();
    if needed > held.capacity() {
        let mut grown = BytesMut::with_capacity(needed.next_multiple_of(HELD_STEP));
        grown.extend_from_slice(held);
        *held = grown;
    }
    held.extend_from_slice(bytes);
}

/// The problem for a bare status of the library, with the reason if we rejected the request.
fn unreadable(head: &[u8], refused: Option<Refused>) -> Option<Problem> {
    let too_large = || {
        Problem::headers_too_large(
            "the request has more than 100 headers, or they are larger than limits.headerBytes",
        )
    };
    match (head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?, refused) {
        (b"400", Some(Refused::HeadTooLarge)) | (b"431", _) => Some(too_large()),
        (b"400", Some(Refused::Head(malformed) | Refused::Body(malformed))) => {
            Some(Problem::bad_request(format!("the request is malformed: {}", malformed.0)))
        }
        (b"400", None) => Some(Problem::bad_request(
            "the request is not valid HTTP: its first line or a header is malformed",
        )),
        (b"414", _) => Some(Problem::uri_too_long("the URL of the request is too long")),
        _ => None,
    }
}

impl<T: AsyncWrite + Unpin> Socket<T> {
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.refusal.is_empty() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.refusal))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.refusal.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> Socket<T> {
    /// Reads the rest of the data of the client, up to a limit.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; 8192];
        while let Shut::Lingering(discarded) = self.shut {
            let mut buf = ReadBuf::new(&mut scratch);
            let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf));
            let discarded = discarded + buf.filled().len();
            let over = read.is_err() || buf.filled().is_empty() || discarded > LINGER_BYTES;
            self.shut = if over { Shut::Yes } else { Shut::Lingering(discarded) };
        }
        Poll::Ready(())
    }
}
