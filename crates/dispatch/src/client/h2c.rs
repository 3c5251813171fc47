//! HTTP/2 without TLS: many concurrent calls over a few shared connections.

use super::connection::Message;
use super::pool::Pool;
use super::reply::{Excerpt, Reply, RetryAfter};
use super::request::Request;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use klambda_core::outcome::CallOutcome;
use klambda_crash::{Guard, Lock};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The connections to one endpoint.
#[derive(Default)]
pub struct Lines {
    open: Lock<Vec<Line>>,
    /// One caller opens a connection; the others wait and share it.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Line {
    sender: SendRequest<Full<Bytes>>,
    /// Every call holds a clone, so the count of references is the load.
    load: Arc<()>,
    opened: Instant,
    last_used: Instant,
    /// True if the connection was idle for long before this call.
    has_waited: bool,
}

/// Servers commonly allow 100 to 250 streams. A call beyond that limit would wait and could time out.
const CALLS_PER_LINE_MAX: usize = 100;
const LINES_MAX: usize = 64;
/// How much unread data a target may send, per call and per connection. Responses are read at once, and almost
/// nothing of them is kept.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const LINE_WINDOW_BYTES: u32 = 256 << 10;
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn call(
    pool: &Pool,
    request: &Request<'_>,
    deadline: Instant,
    answer_bytes_max: usize,
) -> Result<Reply, CallOutcome> {
    let mut line = None;
    let called = async {
        let began = Instant::now();
        let taken = pool.lines.take(pool, None).await?;
        let (reused, has_waited) = (taken.opened < began, taken.has_waited);
        let first = exchange(line.insert(taken), request, answer_bytes_max).await;
        match first {
            // The connection ended before it could carry this call. A new connection does not have this problem.
            Err(failed) if reused && failed.says_nothing(has_waited) => {
                let fresh = pool.lines.take(pool, Some(began)).await?;
                exchange(line.insert(fresh), request, answer_bytes_max).await.map_err(Failed::outcome)
            }
            other => other.map_err(Failed::outcome),
        }
    };
    match timeout_at(deadline, called).await {
        Ok(replied) => replied,
        Err(_) => {
            // The connection may be dead, so other calls must not use it.
            line.iter().for_each(|line| pool.lines.remove(line));
            Err(CallOutcome::Timeout)
        }
    }
}

enum Failed {
    /// The connection ended before the call was sent.
    NotSent(String),
    /// The connection ended before the response began.
    Closed(String),
    Broken(String),
}

impl Failed {
    /// True if the failure says nothing about the call: the peer may have closed an idle connection before it saw the
    /// call.
    fn says_nothing(&self, has_waited: bool) -> bool {
        matches!(self, Failed::NotSent(_)) || has_waited && matches!(self, Failed::Closed(_))
    }

    fn outcome(self) -> CallOutcome {
        match self {
            Failed::NotSent(why) | Failed::Closed(why) | Failed::Broken(why) => CallOutcome::Broken(why),
        }
    }
}

async fn exchange(line: &mut Line, request: &Request<'_>, answer_bytes_max: usize) -> Result<Reply, Failed> {
    let sent = line.sender.send_request(http_request(request)).await;
    let (head, mut body) = match sent {
        Ok(response) => response.into_parts(),
        Err(error) if error.is_canceled() => return Err(Failed::NotSent(why(&error))),
        Err(error) if line.sender.is_closed() => return Err(Failed::Closed(why(&error))),
        Err(error) => return Err(Failed::Broken(why(&error))),
    };
    let code = head.status.as_u16();
    let value = |name: HeaderName| head.headers.get(name).map(HeaderValue::as_bytes);
    let mut excerpt = Excerpt::of(code);
    value(header::CONTENT_TYPE).into_iter().for_each(|value| excerpt.content_type(value));
    value(header::CONTENT_ENCODING).into_iter().for_each(|value| excerpt.content_encoding(value));
    read_body(&mut body, &mut excerpt, answer_bytes_max).await?;
    Ok(Reply {
        code,
        retry_after: value(header::RETRY_AFTER).and_then(RetryAfter::parse),
        excerpt,
        content: None,
    })
}

async fn read_body(body: &mut Incoming, excerpt: &mut Excerpt, bytes_max: usize) -> Result<(), Failed> {
    let mut read = 0;
    while read <= bytes_max {
        let Some(frame) = body.frame().await else { return Ok(()) };
        let frame = frame.map_err(|error| Failed::Broken(why(&error)))?;
        if let Some(data) = frame.data_ref() {
            excerpt.push(data);
            read += data.len();
        }
    }
    Ok(())
}

pub fn http_request(request: &Request<'_>) -> http::Request<Full<Bytes>> {
    let mut http = http::Request::new(Full::new(request.body_bytes()));
    *http.method_mut() = Method::POST;
    *http.uri_mut() = request.target.uri.clone();
    let headers: &mut HeaderMap = http.headers_mut();
    headers.extend(request.own.pairs.iter().cloned());
    request.event_headers(&mut |name, value| {
        let (name, value) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.insert(name, value);
        }
    });
    headers.insert(header::CONTENT_LENGTH, request.body().len().into());
    http
}

fn why(error: &hyper::Error) -> String {
    use std::error::Error;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

impl Lines {
    /// Returns a connection with room, not older than `since`. Opens one if necessary.
    async fn take(&self, pool: &Pool, since: Option<Instant>) -> Result<Line, CallOutcome> {
        if let Some(line) = self.least_loaded(pool, since) {
            return Ok(line);
        }
        let _turn = self.opening.lock().await;
        match self.least_loaded(pool, since) {
            Some(line) => Ok(line),
            None => self.open(pool).await,
        }
    }

    fn least_loaded(&self, pool: &Pool, since: Option<Instant>) -> Option<Line> {
        let mut open = self.lock();
        open.retain(|line| !line.sender.is_closed());
        let full = open.len() >= LINES_MAX;
        let eligible = open.iter_mut().filter(|line| since.is_none_or(|since| line.opened >= since));
        let line = eligible.min_by_key(|line| line.load())?;
        if line.load() >= CALLS_PER_LINE_MAX && !full {
            return None;
        }
        let now = Instant::now();
        line.has_waited = now.saturating_duration_since(line.last_used) >= pool.stale_after();
        line.last_used = now;
        Some(line.clone())
    }

    async fn open(&self, pool: &Pool) -> Result<Line, CallOutcome> {
        let stream = TokioIo::new(pool.dial().await?);
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        builder.initial_stream_window_size(STREAM_WINDOW_BYTES);
        builder.initial_connection_window_size(LINE_WINDOW_BYTES);
        let (sender, connection) =
            builder.handshake(stream).await.map_err(|error| CallOutcome::Broken(why(&error)))?;
        // The task ends with the last sender, or when the peer closes. Every call notices that by itself.
        tokio::spawn(async move { connection.await.ok() });
        let now = Instant::now();
        let line = Line { sender, load: Arc::default(), opened: now, last_used: now, has_waited: false };
        self.lock().push(line.clone());
        Ok(line)
    }

    fn remove(&self, line: &Line) {
        self.lock().retain(|other| !Arc::ptr_eq(&other.load, &line.load));
    }

    pub fn sweep(&self, now: Instant, idle_max: Duration) {
        self.lock().retain(|line| {
            let idle = line.load() == 0 && now.saturating_duration_since(line.last_used) >= idle_max;
            !idle && !line.sender.is_closed()
        });
    }

    fn lock(&self) -> Guard<'_, Vec<Line>> {
        self.open.lock()
    }
}

impl Line {
    fn load(&self) -> usize {
        Arc::strong_count(&self.load) - 1
    }
}
