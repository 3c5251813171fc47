//! The socket under HTTP: notes for the connection's timer what happens on it, closes so that a last answer arrives,
//! and words the refusal of what was no request at all.
//!
//! The HTTP library accepts more than we do: line feeds alone, a length beside a transfer coding. So requests are looked
//! at here first, and the library is given only what can be read in one way.

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
    /// What was read and may not be passed on yet: the beginning of a head, or what comes after a refusal.
    held: BytesMut,
    /// So many bytes of it may be passed on after all.
    passable: usize,
    refused: Option<Refused>,
    /// What is left to write of a refusal of our own.
    refusal: Bytes,
    shut: Shut,
}

enum Shut {
    No,
    /// Our side is shut; so many bytes of the other side have been thrown away.
    Lingering(usize),
    Yes,
}

const LINGER_BYTES: usize = 64 << 20;
/// Stands in for a head that is refused. No reader takes it for a request, so the library answers that it is none.
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
    /// Lets through what may be of the bytes just read, which usually is all; true if there is any.
    fn pass_fresh(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> bool {
        let fresh = &buf.filled()[before..];
        let passed = if self.held.is_empty() { self.requests.pass(fresh) } else { Ok(0) };
        let passed = self.or_refuse(passed);
        self.held.extend_from_slice(&buf.filled()[before + passed..]);
        buf.set_filled(before + passed);
        passed > 0
    }

    /// The same of the bytes that were held back.
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
    /// Where the library answers by itself, it does so without a body. True if our words stand in for its own.
    fn refuse(&mut self, head: &[u8]) -> bool {
        if self.connection.is_answering() {
            return false;
        }
        let Some(problem) = unreadable(head, self.refused) else { return false };
        self.connection.leave_unread();
        let mut refusal = Vec::new();
        problem.into_answer().write(true, &mut refusal);
        self.refusal = refusal.into();
        true
    }
}

/// What the library says with a bare status, and why if it was not the library that refused.
fn unreadable(head: &[u8], refused: Option<Refused>) -> Option<Problem> {
    let too_large = || {
        Problem::headers_too_large(
            "the headers of the request are more than 100, or larger than limits.headerBytes",
        )
    };
    match (head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?, refused) {
        (b"400", Some(Refused::HeadTooLarge)) | (b"431", _) => Some(too_large()),
        (b"400", Some(Refused::Head(malformed) | Refused::Body(malformed))) => {
            Some(Problem::bad_request(format!("the request is malformed: {}", malformed.0)))
        }
        (b"400", None) => {
            Some(Problem::bad_request("this is no HTTP request: its first line or a header is malformed"))
        }
        (b"414", _) => Some(Problem::uri_too_long("the address of the request is too long")),
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
    /// Reads to the end of what the client sends, within reason.
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
