//! Responses in one piece. A long response counts from its creation until the kernel has it, so that clients that do not
//! read cannot make the server keep many of them.

use crate::problem::Problem;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::Response;
use hyper::body::Body as _;
use klambda_dispatch::held_memory::{Holder, Part};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Shorter responses are not counted, because the kernel buffers them even if the client does not read.
const SHORT_BYTES: usize = 16 << 10;
/// Total size of responses that wait for memory. A response beyond it is rejected immediately.
const WAITING_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(crate) struct ResponseMemory {
    answers: Arc<Part>,
    waiting: Semaphore,
    patience: Duration,
}

/// Marks a response whose body is already counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted;

impl ResponseMemory {
    /// `patience` is how long a response may wait for memory.
    pub(crate) fn new(answers: Arc<Part>, patience: Duration) -> ResponseMemory {
        ResponseMemory { answers, waiting: Semaphore::new(WAITING_BYTES), patience }
    }

    pub(crate) fn is_long(bytes: usize) -> bool {
        bytes > SHORT_BYTES
    }

    /// The same bytes, which count until they are dropped. `None` if there was no memory in time.
    pub(crate) async fn hold(&self, bytes: Bytes) -> Option<Bytes> {
        if !ResponseMemory::is_long(bytes.len()) {
            return Some(bytes);
        }
        let held = self.answers.holder();
        if !held.has_room(bytes.len()) {
            let place = bytes.len().min(WAITING_BYTES) as u32;
            let _place = self.waiting.try_acquire_many(place).ok()?;
            timeout(self.patience, held.wait(bytes.len())).await.ok()?;
        }
        held.grow(bytes.len());
        Some(Bytes::from_owner(Held { bytes, _held: held }))
    }

    /// The same response, or a problem if there was no memory for it.
    pub(crate) async fn count(&self, response: Response<axum::body::Body>) -> Response<axum::body::Body> {
        let is_whole =
            response.body().size_hint().exact().is_some_and(|bytes| ResponseMemory::is_long(bytes as usize));
        if !is_whole || response.extensions().get::<Counted>().is_some() {
            return response;
        }
        let (head, body) = response.into_parts();
        let bytes = match axum::body::to_bytes(body, usize::MAX).await {
            Ok(bytes) => bytes,
            Err(error) => {
                return Problem::internal(format!("the response was aborted: {error}")).into_response();
            }
        };
        match self.hold(bytes).await {
            Some(bytes) => Response::from_parts(head, bytes.into()),
            None => overloaded().into_response(),
        }
    }
}

struct Held {
    bytes: Bytes,
    _held: Holder,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn overloaded() -> Problem {
    Problem::overloaded("the server has no memory for the response (limits.heldBytes), because other clients do not read theirs")
        .retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn counts_what_is_long_until_it_is_sent() {
        let part = Part::new(1 << 20, 256 << 10);
        let unsent = ResponseMemory::new(part.clone(), Duration::from_millis(10));
        let short = unsent.hold(Bytes::from(vec![0; SHORT_BYTES])).await.expect("room");
        assert_eq!(part.used(), 0);
        let long = || unsent.hold(Bytes::from(vec![0; 200 << 10]));
        let first = long().await.expect("room");
        assert_eq!(part.used(), 200 << 10);
        let (second, third) = (long().await.expect("room"), long().await.expect("the reserve"));
        assert!(long().await.is_none(), "no memory in time");
        drop((short, first, second));
        assert!(long().await.is_some());
        drop(third);
        assert_eq!(part.used(), 0);
        let marked = || {
            let mut response = Response::new(axum::body::Body::from(vec![0; 64 << 10]));
            response.extensions_mut().insert(Counted);
            response
        };
        let _response = unsent.count(marked()).await;
        assert_eq!(part.used(), 0, "it is counted elsewhere");
    }
}
