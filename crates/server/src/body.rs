//! Bodies of requests and responses. Responses of the hot path are plain bytes, never boxed. Requests are collected under a
//! size limit, a time limit and a memory limit.

use crate::body_buffer::BodyBuffer;
use crate::connection::Connection;
use crate::problem::Problem;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use klambda_core::quantity::shown_bytes;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The body of a response.
pub struct Body(Inner);

enum Inner {
    Whole(Bytes),
    Stream(axum::body::Body, Option<Streaming>),
}

/// Keeps the connection busy while it exists, so that a long stream does not count as idle.
struct Streaming(Arc<Connection>);

impl Body {
    pub fn empty() -> Body {
        Body(Inner::Whole(Bytes::new()))
    }

    /// Tells the connection when the response is complete: a whole body is, a stream when it is dropped.
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

/// The whole body of a request. A body that arrived in one frame is not copied.
pub(crate) async fn collect(
    mut body: Incoming,
    limit: usize,
    connection: &Connection,
) -> Result<Bytes, Problem> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let collected = gather(&mut body, limit, connection).await;
    if collected.is_err() {
        connection.leave_unread();
    }
    collected
}

async fn gather(body: &mut Incoming, limit: usize, connection: &Connection) -> Result<Bytes, Problem> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(too_large(limit));
    }
    let receiving = connection.receiving();
    let Some(first) = receiving.data(body).await? else { return Ok(Bytes::new()) };
    connection.took(first.len());
    if first.len() > limit {
        return Err(too_large(limit));
    }
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut arrived = BodyBuffer::default();
    arrived.extend(&first);
    drop(first);
    while let Some(data) = receiving.data(body).await? {
        connection.took(data.len());
        if arrived.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        arrived.extend(&data);
    }
    Ok(arrived.into_whole().into())
}

fn too_large(limit: usize) -> Problem {
    let shown = shown_bytes(limit as u64);
    Problem::too_large(format!("the request is larger than {shown} (limits.bodyBytes)")).with("limit", limit)
}

pub(crate) fn overloaded() -> Problem {
    Problem::overloaded(
        "the server has no memory for the request (limits.heldBytes); it waited for limits.bodyTimeout",
    )
    .retry_after(Duration::from_secs(1))
}
