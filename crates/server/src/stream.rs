//! A response body that is written elsewhere, piece by piece. The writer waits while the client does not read, and for
//! room in what is held of answers: a piece counts until it is in the hands of the kernel.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use klambda_dispatch::held::{Holder, Part};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Ends when its writer is dropped; an error breaks the connection off, so that nobody takes a part for the whole.
#[derive(Debug)]
pub struct ByteStream {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    /// What comes before the pieces.
    first: Option<Bytes>,
    /// What is still to come, if that is known.
    length: Option<u64>,
}

/// Where the pieces are written. Clones write to the same stream.
#[derive(Clone, Debug)]
pub struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    held: Arc<Holder>,
}

/// Room for one piece, which is made now.
#[derive(Debug)]
pub struct Room {
    bytes: usize,
    held: Arc<Holder>,
}

/// What is made of a long answer at a time.
pub const PIECE_BYTES: usize = 256 << 10;
/// What a piece of events may need in memory until it is known how long it is: the last event of it is not cut.
pub const EVENTS_BYTES: usize = 2 << 20;
/// In memory at the same time, beside what is being written.
const PIECES: usize = 1;

impl ByteStream {
    pub fn new(part: &Arc<Part>) -> (Pieces, ByteStream) {
        let (sender, pieces) = mpsc::channel(PIECES);
        (Pieces { sender, held: Arc::new(part.holder()) }, ByteStream { pieces, first: None, length: None })
    }

    /// So many bytes will come.
    pub fn of_length(self, length: Option<u64>) -> ByteStream {
        ByteStream { length, ..self }
    }

    /// The same, with something before it.
    pub fn after(self, first: Vec<u8>) -> ByteStream {
        ByteStream { first: Some(first.into()), ..self }
    }

    pub async fn next(&mut self) -> Option<io::Result<Bytes>> {
        self.pieces.recv().await
    }

    pub fn length(&self) -> Option<u64> {
        self.length
    }
}

impl Pieces {
    /// Waits for room for the next piece, which may become so long.
    pub async fn room(&self, bytes: usize) -> Room {
        Room::wait(self.held.clone(), bytes).await
    }

    /// None if the client is gone.
    pub async fn send(&self, piece: Vec<u8>, room: Room) -> Option<()> {
        self.sender.send(Ok(room.fill(piece))).await.ok()
    }

    /// Something short, for which nobody waits.
    pub async fn say(&self, text: &str) -> Option<()> {
        let room = Room { bytes: 0, held: self.held.clone() };
        self.send(text.as_bytes().to_vec(), room).await
    }

    /// Breaks the answer off.
    pub async fn fail(&self, error: io::Error) {
        let _ = self.sender.send(Err(error)).await;
    }

    /// The client is gone.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

impl Room {
    /// Waits for room for an answer in one piece.
    pub async fn of(part: &Arc<Part>, bytes: usize) -> Room {
        Room::wait(Arc::new(part.holder()), bytes).await
    }

    async fn wait(held: Arc<Holder>, bytes: usize) -> Room {
        held.wait(bytes).await;
        held.grow(bytes);
        Room { bytes, held }
    }

    /// The piece is made: what it takes counts from here on, until it is sent.
    pub fn fill(mut self, piece: Vec<u8>) -> Bytes {
        self.held.grow(piece.len());
        self.held.shrink(std::mem::take(&mut self.bytes));
        let held = self.held.clone();
        Bytes::from_owner(Piece { bytes: piece, held })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.shrink(self.bytes);
    }
}

struct Piece {
    bytes: Vec<u8>,
    held: Arc<Holder>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.held.shrink(self.bytes.len());
    }
}

impl Body for ByteStream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let first = self.first.take().map(|first| Poll::Ready(Some(Ok(first))));
        let polled = first.unwrap_or_else(|| self.pieces.poll_recv(cx));
        if let (Some(length), Poll::Ready(Some(Ok(piece)))) = (&mut self.length, &polled) {
            *length = length.saturating_sub(piece.len() as u64);
        }
        polled.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Writes from a thread that may block.
pub struct BlockingWriter {
    pieces: Pieces,
    gathered: Vec<u8>,
}

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
        // One backup at a time, of a few pieces: it waits for its client alone.
        let room = Room { bytes: 0, held: self.pieces.held.clone() };
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client went away");
        self.pieces.sender.blocking_send(Ok(room.fill(piece))).map_err(gone)
    }
}
