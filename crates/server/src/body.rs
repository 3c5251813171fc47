//! What goes out and what comes in. Answers of the hot path are plain bytes, never boxed; requests are
//! collected under a size limit, a time limit and a budget that all connections share.

use crate::connection::Connection;
use crate::problem::Problem;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// The body of a response.
pub struct Body(Inner);

enum Inner {
    Whole(Bytes),
    Stream(axum::body::Body, Option<Streaming>),
}

/// While it lives the connection is busy, so that a long stream is not taken for an idle connection.
struct Streaming(Arc<Connection>);

impl Body {
    pub fn empty() -> Body {
        Body(Inner::Whole(Bytes::new()))
    }

    /// Tells the connection when the answer is complete: whole bodies are, streams when they are dropped.
    pub(crate) fn watch(&mut self, connection: &Arc<Connection>) {
        match &mut self.0 {
            Inner::Whole(_) => connection.answered(),
            Inner::Stream(_, streaming) => *streaming = Some(Streaming(Arc::clone(connection))),
        }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.answered();
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body(Inner::Whole(bytes))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body(Inner::Whole(bytes.into()))
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Body(Inner::Whole(text.into()))
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Body {
        Body(Inner::Whole(Bytes::from_static(text.as_bytes())))
    }
}

impl From<axum::body::Body> for Body {
    fn from(body: axum::body::Body) -> Body {
        Body(Inner::Stream(body, None))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match &mut self.0 {
            Inner::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Inner::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Inner::Stream(body, _) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole(bytes) => bytes.is_empty(),
            Inner::Stream(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Inner::Stream(body, _) => body.size_hint(),
        }
    }
}

/// Bytes of requests that are held in memory: being received, or waiting for their commit. Beyond the limit
/// requests are refused with 503, so that clients, not this process, hold what cannot be taken.
#[derive(Debug)]
pub struct Budget {
    held: AtomicUsize,
    limit: usize,
}

impl Budget {
    pub fn new(limit: usize) -> Budget {
        Budget { held: AtomicUsize::new(0), limit }
    }

    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.limit;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes that count against the budget for as long as this lives.
pub(crate) struct Hold<'a> {
    bytes: usize,
    budget: &'a Budget,
}

impl<'a> Hold<'a> {
    pub(crate) fn none(budget: &'a Budget) -> Hold<'a> {
        Hold { bytes: 0, budget }
    }

    /// False if the budget has no room for so many more.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let fits = self.budget.take(bytes);
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.give_back(self.bytes);
        }
    }
}

/// A request's body in one piece. Keep it until the answer is known: the budget is given back when it goes.
pub struct Received<'a> {
    bytes: Bytes,
    held: Hold<'a>,
}

impl<'a> Received<'a> {
    /// Collects a body. A body that came in one frame is that frame, not a copy.
    pub async fn collect(
        mut body: Incoming,
        limit: usize,
        budget: &'a Budget,
        connection: &Connection,
    ) -> Result<Received<'a>, Problem> {
        let mut received = Received { bytes: Bytes::new(), held: Hold::none(budget) };
        if body.is_end_stream() {
            return Ok(received);
        }
        let collected = received.fill(&mut body, limit, connection).await;
        match collected {
            Ok(()) => Ok(received),
            Err(problem) => {
                connection.leave_unread();
                Err(problem)
            }
        }
    }

    /// The body itself. It counts against the budget for as long as `self` lives.
    pub fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }

    async fn fill(
        &mut self,
        body: &mut Incoming,
        limit: usize,
        connection: &Connection,
    ) -> Result<(), Problem> {
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > limit {
            return Err(too_large(limit));
        }
        let receiving = connection.receiving();
        let Some(first) = receiving.data(body).await? else { return Ok(()) };
        self.admit(first.len(), limit)?;
        if body.is_end_stream() {
            self.bytes = first;
            return Ok(());
        }
        let mut whole = BytesMut::with_capacity(announced.max(first.len()));
        whole.extend_from_slice(&first);
        drop(first);
        while let Some(data) = receiving.data(body).await? {
            self.admit(data.len(), limit)?;
            whole.extend_from_slice(&data);
        }
        self.bytes = whole.freeze();
        Ok(())
    }

    fn admit(&mut self, bytes: usize, limit: usize) -> Result<(), Problem> {
        if self.held.bytes + bytes > limit {
            return Err(too_large(limit));
        }
        if !self.held.grow(bytes) {
            return Err(overloaded());
        }
        Ok(())
    }
}

fn too_large(limit: usize) -> Problem {
    Problem::too_large(format!("the body is larger than limits.bodyBytes ({limit} bytes)"))
        .with("limit", limit)
}

fn overloaded() -> Problem {
    Problem::overloaded("limits.pendingBytes of requests are waiting for their commit")
        .retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_never_holds_more_than_its_limit() {
        let budget = Budget::new(10);
        assert!(budget.take(6));
        assert!(!budget.take(5), "refused as a whole");
        assert!(budget.take(4));
        budget.give_back(10);
        assert_eq!(budget.held(), 0);
    }
}
