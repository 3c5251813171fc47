//! A response body that another task writes in chunks. The writer waits while the client does not read, and for memory in the
//! account of responses: a chunk counts until the kernel has it.

use bytes::Bytes;
use http::{HeaderMap, header};
use hyper::body::{Body, Frame, SizeHint};
use klambda_dispatch::held_memory::{Holder, Part};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Ends when its writer is dropped. An error aborts the connection, so that a partial body does not look complete.
#[derive(Debug)]
pub struct ByteStream {
    chunks: mpsc::Receiver<io::Result<Bytes>>,
    /// Bytes before the chunks.
    first: Option<Bytes>,
    /// Remaining length, if known.
    length: Option<u64>,
}

/// The writer of a stream. Clones write to the same stream.
#[derive(Clone, Debug)]
pub struct ChunkSender {
    sender: mpsc::Sender<io::Result<Bytes>>,
    held: Arc<Holder>,
}

/// Reserved memory for one chunk.
#[derive(Debug)]
pub struct Room {
    bytes: usize,
    held: Arc<Holder>,
}

/// The content type of Server-Sent Events.
pub const EVENT_STREAM: &str = "text/event-stream";

/// The media types that a request accepts, without their parameters.
pub fn accepted(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let media = values.flat_map(|value| value.split(','));
    media.map(|media| media.split(';').next().unwrap_or_default().trim())
}

/// Whether the client asks for Server-Sent Events.
pub fn wants_stream(headers: &HeaderMap) -> bool {
    accepted(headers).any(|media| media.eq_ignore_ascii_case(EVENT_STREAM))
}

/// Size of one chunk of a long response.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Memory that a chunk of events may need before its length is known, because its last event is not truncated.
pub const EVENTS_BYTES: usize = 2 << 20;
/// Number of chunks in memory, besides the one being written.
const CHUNKS: usize = 1;

impl ByteStream {
    pub fn new(part: &Arc<Part>) -> (ChunkSender, ByteStream) {
        let (sender, chunks) = mpsc::channel(CHUNKS);
        (
            ChunkSender { sender, held: Arc::new(part.holder()) },
            ByteStream { chunks, first: None, length: None },
        )
    }

    /// Sets the length.
    pub fn of_length(self, length: Option<u64>) -> ByteStream {
        ByteStream { length, ..self }
    }

    /// Adds bytes before the chunks.
    pub fn after(self, first: Vec<u8>) -> ByteStream {
        ByteStream { first: Some(first.into()), ..self }
    }

    pub async fn next(&mut self) -> Option<io::Result<Bytes>> {
        self.chunks.recv().await
    }

    pub fn length(&self) -> Option<u64> {
        self.length
    }
}

impl ChunkSender {
    /// Waits for memory for the next chunk of at most this length.
    pub async fn room(&self, bytes: usize) -> Room {
        Room::wait(self.held.clone(), bytes).await
    }

    /// `None` if the client has disconnected.
    pub async fn send(&self, chunk: Vec<u8>, room: Room) -> Option<()> {
        self.sender.send(Ok(room.fill(chunk))).await.ok()
    }

    /// Sends a short text without waiting for memory.
    pub async fn say(&self, text: &str) -> Option<()> {
        let room = Room { bytes: 0, held: self.held.clone() };
        self.send(text.as_bytes().to_vec(), room).await
    }

    /// Aborts the response.
    pub async fn fail(&self, error: io::Error) {
        let _ = self.sender.send(Err(error)).await;
    }

    /// Returns when the client has disconnected.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

impl Room {
    /// Waits for memory for a response in one chunk.
    pub async fn of(part: &Arc<Part>, bytes: usize) -> Room {
        Room::wait(Arc::new(part.holder()), bytes).await
    }

    async fn wait(held: Arc<Holder>, bytes: usize) -> Room {
        held.wait(bytes).await;
        held.grow(bytes);
        Room { bytes, held }
    }

    /// The chunk is complete: its own size counts from here until it is sent.
    pub fn fill(mut self, chunk: Vec<u8>) -> Bytes {
        self.held.grow(chunk.len());
        self.held.shrink(std::mem::take(&mut self.bytes));
        let held = self.held.clone();
        Bytes::from_owner(Chunk { bytes: chunk, held })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.shrink(self.bytes);
    }
}

struct Chunk {
    bytes: Vec<u8>,
    held: Arc<Holder>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.held.shrink(self.bytes.len());
    }
}

impl Body for ByteStream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let first = self.first.take().map(|first| Poll::Ready(Some(Ok(first))));
        let polled = first.unwrap_or_else(|| self.chunks.poll_recv(cx));
        if let (Some(length), Poll::Ready(Some(Ok(chunk)))) = (&mut self.length, &polled) {
            *length = length.saturating_sub(chunk.len() as u64);
        }
        polled.map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Writes from a thread that may block.
pub struct BlockingWriter {
    chunks: ChunkSender,
    gathered: Vec<u8>,
}

impl BlockingWriter {
    pub fn new(chunks: ChunkSender) -> BlockingWriter {
        BlockingWriter { chunks, gathered: Vec::with_capacity(CHUNK_BYTES) }
    }
}

impl io::Write for BlockingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(CHUNK_BYTES - self.gathered.len());
        self.gathered.extend_from_slice(&bytes[..n]);
        if self.gathered.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.gathered, Vec::with_capacity(CHUNK_BYTES));
        // Only one backup runs at a time, with few chunks, so it waits only for its client.
        let room = Room { bytes: 0, held: self.chunks.held.clone() };
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client disconnected");
        self.chunks.sender.blocking_send(Ok(room.fill(chunk))).map_err(gone)
    }
}
