//! A response body that is written elsewhere, piece by piece. The writer waits while the client does not read.

use bytes::Bytes;
use hyper::body::{Body, Frame};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Ends when its writer is dropped; an error breaks the connection off, so that nobody takes a part for the whole.
pub struct ByteStream(mpsc::Receiver<io::Result<Bytes>>);

pub type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// Few: what lies here is in memory.
const PIECES: usize = 4;

impl ByteStream {
    pub fn new() -> (Pieces, ByteStream) {
        let (pieces, received) = mpsc::channel(PIECES);
        (pieces, ByteStream(received))
    }
}

impl Body for ByteStream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Writes from a thread that may block.
pub struct BlockingWriter {
    pieces: Pieces,
    gathered: Vec<u8>,
}

const PIECE_BYTES: usize = 256 << 10;

impl BlockingWriter {
    pub fn new(pieces: Pieces) -> BlockingWriter {
        BlockingWriter { pieces, gathered: Vec::with_capacity(PIECE_BYTES) }
    }
}

impl io::Write for BlockingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(PIECE_BYTES - self.gathered.len());
        self.gathered.extend_from_slice(&bytes[..n]);
        if self.gathered.len() == PIECE_BYTES {
            self.flush()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.gathered, Vec::with_capacity(PIECE_BYTES));
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client went away");
        self.pieces.blocking_send(Ok(piece.into())).map_err(gone)
    }
}
