//! The HTTP library on bytes in memory, for comparison. Our parsers may reject input that the library accepts, but
//! the library must accept everything that our parsers accept, with the same result.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use hyper::{Request, Response};
use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Far more rounds than any input needs.
const ROUNDS_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub method: String,
    pub target: String,
    /// Lower-case names, in their original order.
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Whole(Vec<u8>),
    Refused,
    /// The input ended before the body.
    Cut,
}

/// The requests that the library finds. It stops at the first request whose head it rejects.
pub fn requests(bytes: &[u8]) -> Vec<Seen> {
    let seen: Rc<RefCell<Vec<Seen>>> = Rc::default();
    let service = service_fn(|request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            let (head, body) = request.into_parts();
            let headers = head.headers.iter();
            let headers =
                headers.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect();
            let body = collect(body).await;
            seen.borrow_mut().push(Seen {
                method: head.method.to_string(),
                target: head.uri.to_string(),
                headers,
                body,
            });
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let io = Io { bytes, may_read: true };
    let connection =
        hyper::server::conn::http1::Builder::new().half_close(true).serve_connection(io, service);
    let mut connection = pin!(connection);
    assert!(rounds(|context| connection.as_mut().poll(context).is_ready()), "the library does not finish");
    seen.take()
}

/// The status and body of the response to a POST, if the library accepts it.
pub fn answer(bytes: &[u8]) -> Option<(u16, Body)> {
    let io = Io { bytes, may_read: false };
    let mut call = pin!(async move {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.ok()?;
        let request =
            Request::post("/").header("host", "a").body(Full::new(Bytes::from_static(b"x"))).ok()?;
        let mut connection = pin!(connection);
        let mut exchange = pin!(async {
            let (head, body) = sender.send_request(request).await.ok()?.into_parts();
            Some((head.status.as_u16(), collect(body).await))
        });
        std::future::poll_fn(|context| {
            let ended = connection.as_mut().poll(context).is_ready();
            match exchange.as_mut().poll(context) {
                Poll::Pending if ended => exchange.as_mut().poll(context),
                polled => polled,
            }
        })
        .await
    });
    let mut answer = None;
    let is_over = rounds(|context| match call.as_mut().poll(context) {
        Poll::Pending => false,
        Poll::Ready(replied) => {
            answer = replied;
            true
        }
    });
    assert!(is_over, "the library does not finish");
    answer
}

async fn collect(body: Incoming) -> Body {
    match body.collect().await {
        Ok(body) => Body::Whole(body.to_bytes().to_vec()),
        Err(error) if is_cut(&error) => Body::Cut,
        Err(_) => Body::Refused,
    }
}

fn is_cut(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    error.is_incomplete_message()
        || source.is_some_and(|source| source.kind() == io::ErrorKind::UnexpectedEof)
}

/// In-memory I/O never blocks, so polling repeatedly is enough.
fn rounds(mut is_over: impl FnMut(&mut Context<'_>) -> bool) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    (0..ROUNDS_MAX).any(|_| is_over(&mut context))
}

/// Returns these bytes and then the end of the stream. Discards writes.
struct Io<'a> {
    bytes: &'a [u8],
    /// For a client: the response comes after the request.
    may_read: bool,
}

impl Read for Io<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.may_read {
            return Poll::Pending;
        }
        let (now, later) = self.bytes.split_at(self.bytes.len().min(into.remaining()));
        into.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}

impl Write for Io<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.may_read = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
