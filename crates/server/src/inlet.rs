//! Receives bytes from clients, with or without TLS. Each byte counts from here until its request has a response.

use crate::connection::Connection;
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The socket of a client. It is read only while there is memory for the data. The rest waits at the client.
pub(crate) struct Inlet {
    stream: TcpStream,
    connection: Arc<Connection>,
    /// Bytes that were read and put back. The next reader gets them first.
    first: VecDeque<Bytes>,
}

impl Inlet {
    pub(crate) fn new(stream: TcpStream, connection: Arc<Connection>) -> Inlet {
        Inlet { stream, connection, first: VecDeque::new() }
    }

    /// Puts back bytes that were read and not used. They are already counted.
    pub(crate) fn put_back(&mut self, bytes: VecDeque<Bytes>) {
        self.first = bytes;
    }

    fn read_first(&mut self, buf: &mut ReadBuf<'_>) {
        while buf.remaining() > 0
            && let Some(piece) = self.first.front_mut()
        {
            let length = piece.len().min(buf.remaining());
            buf.put_slice(&piece[..length]);
            piece.advance(length);
            if piece.is_empty() {
                self.first.pop_front();
            }
        }
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let held = &self.connection.held;
        match held.room() {
            0 => {
                // A client that sends nothing needs no memory, and must not block others.
                ready!(self.stream.poll_read_ready(cx))?;
                held.poll_room(cx).map(Ok)
            }
            room => {
                held.leave();
                Poll::Ready(Ok(room))
            }
        }
    }
}

impl AsyncRead for Inlet {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            self.read_first(buf);
            return Poll::Ready(Ok(()));
        }
        if self.connection.is_lingering() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let room = ready!(self.poll_room(cx))?;
        let before = buf.filled().len();
        let polled = poll_read_up_to(&mut self.stream, cx, buf, room);
        self.connection.held.grow(buf.filled().len() - before);
        polled
    }
}

fn poll_read_up_to(
    stream: &mut TcpStream,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
    room: usize,
) -> Poll<io::Result<()>> {
    if buf.remaining() <= room {
        return Pin::new(stream).poll_read(cx, buf);
    }
    let mut part = ReadBuf::new(buf.initialize_unfilled_to(room));
    ready!(Pin::new(stream).poll_read(cx, &mut part))?;
    let read = part.filled().len();
    buf.advance(read);
    Poll::Ready(Ok(()))
}

impl AsyncWrite for Inlet {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
