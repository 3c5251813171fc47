//! The socket under HTTP: notes for the connection's timer what happens on it, and closes so that a last answer
//! arrives.

use crate::connection::Connection;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The socket of a connection.
pub(crate) struct Socket<T> {
    io: T,
    connection: Arc<Connection>,
    shut: Shut,
}

enum Shut {
    No,
    /// Our side is shut; so many bytes of the other side have been thrown away.
    Lingering(usize),
    Yes,
}

const LINGER_BYTES: usize = 64 << 20;

impl<T> Socket<T> {
    pub(crate) fn new(io: T, connection: Arc<Connection>) -> Socket<T> {
        Socket { io, connection, shut: Shut::No }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Socket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.connection.read_some();
        }
        polled
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        self.connection.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.connection.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(cx);
        self.connection.wrote(&polled);
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
