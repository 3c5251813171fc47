//! The front end through real sockets: what clients may and may not do.

#![allow(clippy::unwrap_used)]

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::StatusCode;
use klambda_server::auth::Who;
use klambda_server::config::Tls;
use klambda_server::listener::Stats;
use klambda_server::post_handler::{PostHandler, PostTarget};
use klambda_server::{Config, Frontend, RawResponse, Shutdown};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Responds with the length of the body once the gate is open; to a flood, with more than a socket buffers.
struct Gated {
    gate: Arc<Semaphore>,
    arrived: mpsc::UnboundedSender<()>,
}

impl PostHandler for Gated {
    type Read = Vec<u8>;

    fn read<'a>(
        &self,
        _: PostTarget<'_>,
        _: &Who,
        content_type: Option<&str>,
        headers: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
        body: Bytes,
    ) -> Result<Vec<u8>, RawResponse> {
        if content_type == Some("flood") {
            return Ok(vec![b'x'; 64 << 20]);
        }
        let id =
            headers.filter(|(name, _)| *name == "ce-id").map(|(_, value)| value).next().unwrap_or_default();
        Ok([b"took ", body.len().to_string().as_bytes(), id].concat())
    }

    fn tracer(&self) -> Option<&klambda_dispatch::traces::Tracer> {
        None
    }

    async fn answer(&self, body: Vec<u8>) -> RawResponse {
        let _ = self.arrived.send(());
        self.gate.acquire().await.unwrap().forget();
        RawResponse {
            status: StatusCode::ACCEPTED,
            content_type: Some("text/plain".into()),
            retry_after: None,
            body,
            rest: None,
        }
    }
}

struct Running {
    address: SocketAddr,
    shutdown: Shutdown,
    stats: Arc<Stats>,
    gate: Arc<Semaphore>,
    arrived: mpsc::UnboundedReceiver<()>,
    server: JoinHandle<()>,
}

const OPEN: usize = 1_000_000;

async fn start(change: impl FnOnce(&mut Config)) -> Running {
    start_gated(OPEN, change).await
}

async fn start_gated(permits: usize, change: impl FnOnce(&mut Config)) -> Running {
    let mut config = Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..Config::default() };
    change(&mut config);
    let front = Frontend::open(&config).unwrap();
    front.access().settle(false);
    let (address, stats, shutdown) = (front.address(), front.stats(), Shutdown::new());
    let gate = Arc::new(Semaphore::new(permits));
    let (sender, arrived) = mpsc::unbounded_channel();
    let accept = Gated { gate: gate.clone(), arrived: sender };
    let server = tokio::spawn(front.serve(accept, resources(), shutdown.clone()));
    Running { address, shutdown, stats, gate, arrived, server }
}

fn resources() -> Router {
    Router::new()
        .route("/readyz", get(|| async { "ready" }))
        .route("/api/v1/status", get(|| async { "fine" }))
        .route("/endless", get(|| async { axum::body::Body::new(Endless) }))
}

/// An endless stream, to be read or not.
struct Endless;

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        static CHUNK: [u8; 65536] = [b'x'; 65536];
        std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from_static(&CHUNK)))))
    }
}

fn post(body: &str) -> String {
    format!("POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn get_with(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\n{headers}\r\n")
}

async fn connect(running: &Running) -> TcpStream {
    TcpStream::connect(running.address).await.unwrap()
}

/// Reads one response: its head and exactly its body.
async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut seen = Vec::new();
    let read = async {
        loop {
            let text = String::from_utf8_lossy(&seen).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && body.len() >= content_length(head)
            {
                return text;
            }
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).await.unwrap(), 1, "closed after: {text}");
            seen.push(byte[0]);
        }
    };
    timeout(Duration::from_secs(10), read).await.expect("no answer within 10 s")
}

fn content_length(head: &str) -> usize {
    let line = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    line.map_or(0, |length| length.parse().unwrap())
}

async fn ask(running: &Running, request: &str) -> String {
    let mut stream = connect(running).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    answer(&mut stream).await
}

/// Waits until the server has closed the connection. Returns true if it closed cleanly, without a reset.
async fn closed(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut rest = Vec::new();
    timeout(Duration::from_secs(10), stream.read_to_end(&mut rest))
        .await
        .expect("still open after 10 s")
        .is_ok()
}

async fn until(counter: &AtomicU64, value: u64) {
    let counted = async {
        while counter.load(Ordering::Relaxed) != value {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), counted).await.expect("never counted");
}

#[tokio::test]
async fn answers_on_one_connection_as_often_as_asked() {
    let running = start(|_| {}).await;
    let mut stream = connect(&running).await;
    // Two requests in one write, then a chunked one, then a resource.
    stream.write_all((post("hello") + &post("")).as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.ends_with("took 5"));
    assert!(answer(&mut stream).await.ends_with("took 0"));
    let chunked = "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n";
    stream.write_all(chunked.as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.ends_with("took 7"));
    stream.write_all(get_with("/api/v1/status", "host: localhost\r\n").as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.ends_with("fine"));
    assert_eq!(running.stats.open.load(Ordering::Relaxed), 1);
    drop(stream);
    until(&running.stats.open, 0).await;
}

#[tokio::test]
async fn requests_in_one_piece_are_answered_one_by_one() {
    let mut running = start_gated(0, |_| {}).await;
    let mut stream = connect(&running).await;
    let half = post("third").len() / 2;
    let all = post("1") + &post("22") + &post("third");
    stream.write_all(&all.as_bytes()[..all.len() - half]).await.unwrap();
    for expected in ["took 1", "took 2"] {
        running.arrived.recv().await.unwrap();
        assert!(running.arrived.try_recv().is_err(), "one request at a time");
        running.gate.add_permits(1);
        let answered = answer(&mut stream).await;
        assert!(
            answered.starts_with("HTTP/1.1 202 Accepted\r\n") && answered.ends_with(expected),
            "{answered}"
        );
        assert!(answered.contains("\r\ndate: ") && !answered.contains("connection:"), "{answered}");
    }
    stream.write_all(&all.as_bytes()[all.len() - half..]).await.unwrap();
    running.gate.add_permits(1);
    assert!(answer(&mut stream).await.ends_with("took 5"));
}

#[tokio::test]
async fn a_request_may_come_in_any_pieces() {
    let running = start(|_| {}).await;
    let mut stream = connect(&running).await;
    stream.set_nodelay(true).unwrap();
    let request = post("drip").replace("host:", "ce-id:  of it \r\nHost:");
    for bytes in [1, 7] {
        for piece in request.as_bytes().chunks(bytes) {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert!(answer(&mut stream).await.ends_with("took 4of it"));
    }
    // A body of many reads, and the next request directly after it.
    let large = post(&"x".repeat(1 << 20)) + &post("next");
    stream.write_all(large.as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.ends_with("took 1048576"));
    assert!(answer(&mut stream).await.ends_with("took 4"));
}

#[tokio::test]
async fn whatever_follows_events_is_answered_in_its_place() {
    let running = start(|_| {}).await;
    let event = post("hello");
    let chunked = "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n0\r\n\r\n";
    let query = event.replace("/events", "/events?");
    let odd = [
        (get_with("/api/v1/status", "host: localhost\r\n"), "200", "fine"),
        (chunked.to_owned(), "202", "took 3"),
        (query, "202", "took 5"),
        (event.replace("host:", "connection: close\r\nhost:"), "202", "took 5"),
        (event.replace("HTTP/1.1", "HTTP/1.0"), "202", "took 5"),
        (event.replace("localhost", "evil.example"), "421", ""),
        (event.replace("host:", "content-length: 4\r\nhost:"), "400", ""),
        (event.replace("host:", "host : x\r\nhost:"), "400", ""),
        (event.replace("host:", "x: y\r\n folded\r\nhost:"), "400", ""),
        ("nonsense\r\n\r\n".to_owned(), "400", ""),
    ];
    for (request, status, body) in odd {
        let mut stream = connect(&running).await;
        stream.write_all((event.clone() + &request).as_bytes()).await.unwrap();
        assert!(answer(&mut stream).await.ends_with("took 5"));
        let answered = answer(&mut stream).await;
        let (_, code) = answered.split_once(' ').unwrap();
        assert!(code.starts_with(status) && answered.ends_with(body), "{request}: {answered}");
    }
}

#[tokio::test]
async fn who_waits_to_be_told_to_go_on_is_told() {
    let running = start(|_| {}).await;
    let mut stream = connect(&running).await;
    let request = post("hello").replace("host:", "expect: 100-continue\r\nhost:");
    let (head, body) = request.split_at(request.len() - 5);
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 100"));
    stream.write_all(body.as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.ends_with("took 5"));
}

#[tokio::test]
async fn half_a_request_is_no_request() {
    let mut running = start(|_| {}).await;
    for cut in [10, 50, post("hello").len() - 1] {
        let mut stream = connect(&running).await;
        stream.write_all(&post("hello").as_bytes()[..cut]).await.unwrap();
        stream.shutdown().await.unwrap();
        closed(&mut stream).await;
    }
    until(&running.stats.open, 0).await;
    assert!(running.arrived.try_recv().is_err());
}

#[tokio::test]
async fn what_is_not_there_is_a_problem() {
    let running = start(|_| {}).await;
    let missing = ask(&running, &get_with("/api/v1/nothing", "host: localhost\r\n")).await;
    assert!(missing.starts_with("HTTP/1.1 404") && missing.contains("application/problem+json"), "{missing}");
    assert!(missing.contains("problems/not-found"), "{missing}");
    let method = ask(&running, "DELETE /api/v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(method.starts_with("HTTP/1.1 405") && method.contains("allow: GET,HEAD"), "{method}");
    assert!(method.contains("problems/method-not-allowed"), "{method}");
    for odd in ["CONNECT localhost:80", "OPTIONS *", "GET http://localhost/nothing"] {
        let answer = ask(&running, &format!("{odd} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{odd}: {answer}");
    }
}

#[tokio::test]
async fn what_is_no_request_is_a_problem_and_the_end() {
    let running = start(|_| {}).await;
    let fine = get_with("/api/v1/status", "host: localhost\r\n");
    let twice = post("x").replace("content-length: 1", "content-length: 1\r\ncontent-length: 2");
    let many = "x: y\r\n".repeat(200);
    let large = format!("x-long: {}\r\n", "x".repeat(70_000));
    for (bad, status) in [
        ("so it goes\r\n\r\n".to_owned(), "400 Bad Request"),
        (get_with("/api/v1/status", "no colon\r\n"), "400 Bad Request"),
        (twice, "400 Bad Request"),
        (get_with("/api/v1/status", &many), "431 Request Header Fields Too Large"),
        (get_with("/api/v1/status", &large), "431 Request Header Fields Too Large"),
    ] {
        for before in ["", &fine, &post("hello")] {
            let mut stream = connect(&running).await;
            stream.write_all([before, &bad].concat().as_bytes()).await.unwrap();
            if !before.is_empty() {
                assert!(answer(&mut stream).await.contains(" 20"), "{before}");
            }
            let refused = answer(&mut stream).await;
            assert!(refused.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{refused}");
            assert!(refused.contains("\r\nconnection: close\r\n"), "{refused}");
            assert!(refused.contains("application/problem+json"), "{refused}");
            let (_, body) = refused.split_once("\r\n\r\n").unwrap();
            assert!(body.contains(&status[..3]) && body.ends_with('}'), "{refused}");
            stream.shutdown().await.unwrap();
            assert!(closed(&mut stream).await, "reset");
        }
    }
}

/// On the fast path, on the slow path, and after each of them on the same connection.
#[tokio::test]
async fn what_can_be_read_in_two_ways_is_refused_on_both_ways() {
    let mut running = start(|_| {}).await;
    let events = "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\n";
    let status = "GET /api/v1/status HTTP/1.1\r\nhost: localhost\r\n";
    let headers = [
        "content-length: 1\n\r\nx",
        "content-length: 1\r\n\nx",
        "content-length: 1\n\nx",
        "content-length: 1\r\nx: y\n",
        "content-length: 1\r\nx: y\r\n folded\r\n\r\nx",
        "content-length : 1\r\n\r\nx",
        "content-length: 1\r\ncontent-length: 1\r\n\r\nx",
        "content-length: 1, 1\r\n\r\nx",
        "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n0\r\n\r\n",
        "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: identity\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n1\nx\n0\n\n",
        "transfer-encoding: chunked\r\n\r\n1;a\nb\r\nx\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n00000000000000001\r\nx\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n0\r\na: b\nc: d\r\n\r\n",
    ];
    let first_lines = ["POST /api/v1/events HTTP/1.1\n", "GET /api/v1/status HTTP/1.1\n"];
    let bad = headers.iter().flat_map(|rest| [events, status].map(|start| [start, *rest].concat()));
    let mut posts = 0;
    for bad in bad.chain(first_lines.map(str::to_owned)) {
        let fine = get_with("/api/v1/status", "host: localhost\r\n");
        for (before, count) in
            [(String::new(), 0), (post("hello"), 1), (fine.clone(), 1), (post("a") + &fine, 2)]
        {
            posts += usize::from(before.starts_with("POST"));
            let mut stream = connect(&running).await;
            // The bytes that follow must not be taken for a request either.
            stream.write_all([&before[..], &bad, &fine].concat().as_bytes()).await.unwrap();
            for _ in 0..count {
                assert!(answer(&mut stream).await.contains(" 20"), "{before}");
            }
            let refused = answer(&mut stream).await;
            assert!(refused.starts_with("HTTP/1.1 400 "), "{bad:?}: {refused}");
            assert!(refused.contains("application/problem+json"), "{bad:?}: {refused}");
            assert!(refused.contains("\r\nconnection: close\r\n"), "{bad:?}: {refused}");
            stream.shutdown().await.unwrap();
            let mut rest = Vec::new();
            timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await.unwrap().unwrap();
            assert!(rest.is_empty(), "{bad:?}: {}", String::from_utf8_lossy(&rest));
        }
    }
    let arrived = std::iter::from_fn(|| running.arrived.try_recv().ok()).count();
    assert_eq!(arrived, posts, "none of them arrived");
}

#[tokio::test]
async fn who_closes_its_sending_side_gets_its_answer() {
    let mut running = start_gated(0, |_| {}).await;
    let chunked = "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n\
                   5\r\nhello\r\n0\r\n\r\n";
    for request in [post("hello"), chunked.to_owned(), post("hello").replace("HTTP/1.1", "HTTP/1.0")] {
        let mut stream = connect(&running).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        running.arrived.recv().await.unwrap();
        // Time for the server to notice the end.
        tokio::time::sleep(Duration::from_millis(20)).await;
        running.gate.add_permits(1);
        assert!(answer(&mut stream).await.ends_with("took 5"), "{request}");
        assert!(closed(&mut stream).await);
    }
}

#[tokio::test]
async fn slow_headers_end_the_connection_however_they_drip() {
    let running = start(|config| config.limits.header_timeout = Duration::from_millis(300)).await;
    let mut silent = connect(&running).await;
    let (mut read, mut write) = connect(&running).await.into_split();
    let began = Instant::now();
    let drip = tokio::spawn(async move {
        for byte in "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ".bytes().chain(std::iter::repeat(b'x')) {
            if write.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    closed(&mut read).await;
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(290) && took < Duration::from_secs(5), "{took:?}");
    closed(&mut silent).await;
    drip.abort();
    until(&running.stats.header_timeouts, 2).await;
}

#[tokio::test]
async fn a_second_request_gets_no_longer_than_the_first() {
    let running = start(|config| config.limits.header_timeout = Duration::from_millis(300)).await;
    let mut stream = connect(&running).await;
    stream.write_all(post("x").as_bytes()).await.unwrap();
    answer(&mut stream).await;
    stream.write_all(b"POST /api").await.unwrap();
    let began = Instant::now();
    closed(&mut stream).await;
    assert!(began.elapsed() < Duration::from_secs(5), "the idle timeout must not apply");
    until(&running.stats.header_timeouts, 1).await;
    // Nor does a request that arrived together with the first.
    let mut stream = connect(&running).await;
    stream.write_all((post("x") + "POST /api/v1/events HTTP/1.1\r\nhost").as_bytes()).await.unwrap();
    answer(&mut stream).await;
    closed(&mut stream).await;
    until(&running.stats.header_timeouts, 2).await;
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let running = start(|config| config.limits.idle_timeout = Duration::from_millis(200)).await;
    let mut stream = connect(&running).await;
    stream.write_all(post("x").as_bytes()).await.unwrap();
    answer(&mut stream).await;
    closed(&mut stream).await;
    until(&running.stats.idle_timeouts, 1).await;
}

#[tokio::test]
async fn a_slow_body_is_told_so() {
    let running = start(|config| config.limits.body_timeout = Duration::from_millis(200)).await;
    let mut stream = connect(&running).await;
    stream.write_all(post("0123456789").trim_end_matches("89").as_bytes()).await.unwrap();
    let late = answer(&mut stream).await;
    assert!(late.starts_with("HTTP/1.1 408") && late.contains("limits.bodyTimeout"), "{late}");
    drop(stream);
    until(&running.stats.body_timeouts, 1).await;
}

#[tokio::test]
async fn a_slow_commit_is_not_a_slow_client() {
    let running = start_gated(0, |config| {
        config.limits.body_timeout = Duration::from_millis(50);
        config.limits.header_timeout = Duration::from_millis(50);
        config.limits.idle_timeout = Duration::from_millis(50);
    })
    .await;
    let mut stream = connect(&running).await;
    stream.write_all(post("patience").as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    running.gate.add_permits(1);
    assert!(answer(&mut stream).await.ends_with("took 8"));
}

#[tokio::test]
async fn an_oversize_body_gets_its_413_even_while_it_is_sent() {
    let running = start(|config| config.limits.body_bytes = 1 << 20).await;
    let announced = "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8388608\r\n\r\n";
    let chunked =
        "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n800000\r\n";
    for head in [announced, chunked] {
        let (mut read, mut write) = connect(&running).await.into_split();
        let sending = tokio::spawn(async move {
            write.write_all(head.as_bytes()).await?;
            write.write_all(&vec![b'x'; 8 << 20]).await
        });
        let refused = answer(&mut read).await;
        assert!(refused.starts_with("HTTP/1.1 413") && refused.contains("limits.bodyBytes"), "{refused}");
        sending.await.unwrap().expect("the server keeps reading, so that a reset does not lose the response");
        assert!(closed(&mut read).await);
    }
}

#[tokio::test]
async fn requests_in_memory_are_bounded_over_all_connections() {
    const BODY: usize = 60_000;
    let mut running = start_gated(0, |config| {
        config.limits.body_bytes = 64 << 10;
        config.limits.held_bytes = 256 << 10;
        config.limits.body_timeout = Duration::from_secs(1);
    })
    .await;
    let large = post(&"x".repeat(BODY));
    let mut first = connect(&running).await;
    first.write_all(large.as_bytes()).await.unwrap();
    running.arrived.recv().await.unwrap();
    // It has the reserve. The others share the rest, which is not enough for any of them.
    let mut large_ones = Vec::new();
    for _ in 0..4 {
        let mut stream = connect(&running).await;
        stream.write_all(large.as_bytes()).await.unwrap();
        large_ones.push(stream);
    }
    // Small requests pass meanwhile.
    let mut small = connect(&running).await;
    small.write_all(post("small").as_bytes()).await.unwrap();
    running.arrived.recv().await.unwrap();
    for stream in &mut large_ones {
        let refused = answer(stream).await;
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: 1"), "{refused}");
        assert!(refused.contains("limits.heldBytes"), "{refused}");
    }
    running.gate.add_permits(2);
    assert!(answer(&mut first).await.ends_with(&format!("took {BODY}")));
    assert!(answer(&mut small).await.ends_with("took 5"));
    running.gate.add_permits(1);
    assert!(ask(&running, &large).await.ends_with(&format!("took {BODY}")));
}

#[tokio::test]
async fn a_connection_too_many_is_refused_until_another_ends() {
    let running = start(|config| config.limits.connections = 1).await;
    let mut first = connect(&running).await;
    first.write_all(post("x").as_bytes()).await.unwrap();
    answer(&mut first).await;
    let refused = ask(&running, &post("y")).await;
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("problems/too-many-connections"),
        "{refused}"
    );
    assert_eq!(running.stats.refused.load(Ordering::Relaxed), 1);
    drop(first);
    until(&running.stats.open, 0).await;
    assert!(ask(&running, &post("z")).await.ends_with("took 1"));
}

#[tokio::test]
async fn a_client_that_will_not_read_is_let_go() {
    let running = start(|config| config.limits.body_timeout = Duration::from_millis(200)).await;
    let mut stream = connect(&running).await;
    stream.write_all(get_with("/endless", "host: localhost\r\n").as_bytes()).await.unwrap();
    until(&running.stats.stalled, 1).await;
    until(&running.stats.open, 0).await;
    let mut stream = connect(&running).await;
    let flood = post("x").replace("host:", "content-type: flood\r\nhost:");
    stream.write_all(flood.as_bytes()).await.unwrap();
    until(&running.stats.stalled, 2).await;
    until(&running.stats.open, 0).await;
}

#[tokio::test]
async fn web_pages_of_others_stay_out() {
    let running = start(|config| config.allow_hosts = vec!["shop.example".into()]).await;
    let host = ask(&running, &get_with("/api/v1/status", "host: evil.example\r\n")).await;
    assert!(host.starts_with("HTTP/1.1 421") && host.contains("--allow-host evil.example"), "{host}");
    let origin = "host: localhost\r\norigin: https://evil.example\r\n";
    let origin = ask(&running, &get_with("/api/v1/status", origin)).await;
    assert!(origin.starts_with("HTTP/1.1 403") && origin.contains("--allow-host evil.example"), "{origin}");
    let posted = post("x").replace("localhost", "evil.example");
    assert!(ask(&running, &posted).await.starts_with("HTTP/1.1 421"), "the hot path is guarded too");
    assert!(ask(&running, "GET /api/v1/status HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    assert!(
        ask(&running, &get_with("/api/v1/status", "host: shop.example\r\n"))
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert!(ask(&running, &get_with("/healthz", "host: evil.example\r\n")).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn with_a_token_file_only_its_tokens_open() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "s3cret\n").unwrap();
    let running = start(|config| config.token_file = Some(file.path().to_owned())).await;
    let none = ask(&running, &post("x")).await;
    assert!(none.starts_with("HTTP/1.1 401") && none.contains("www-authenticate: Bearer"), "{none}");
    let allowed = post("x").replace("host:", "authorization: Bearer s3cret\r\nhost:");
    assert!(ask(&running, &allowed).await.ends_with("took 1"));
    assert!(ask(&running, &allowed.replace("s3cret", "secret")).await.starts_with("HTTP/1.1 401"));
    let status = |token: &str| {
        get_with("/api/v1/status", &format!("host: localhost\r\nauthorization: Bearer {token}\r\n"))
    };
    assert!(ask(&running, &status("wrong")).await.starts_with("HTTP/1.1 401"));
    assert!(ask(&running, &status("s3cret")).await.starts_with("HTTP/1.1 200"));
    for open in ["/healthz", "/health", "/readyz"] {
        assert!(
            ask(&running, &get_with(open, "host: localhost\r\n")).await.starts_with("HTTP/1.1 200"),
            "{open}"
        );
    }
}

#[tokio::test]
async fn strangers_are_not_listened_to_without_a_token() {
    let open = Config { listen: SocketAddr::from(([0, 0, 0, 0], 0)), ..Config::default() };
    let refused = Frontend::open(&open).err().expect("refused").to_string();
    assert!(refused.contains("--token-file") && !refused.contains('\n'), "{refused}");
}

#[tokio::test]
async fn speaks_tls() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let running = start(|config| {
        config.tls = Tls { cert: Some(cert), key: Some(key) };
        config.limits.header_timeout = Duration::from_millis(300);
    })
    .await;

    let mut stream = tls_client(&certified, running.address).await;
    stream.write_all(post("secretly").as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.ends_with("took 8"));

    let mut silent = connect(&running).await;
    closed(&mut silent).await;
    let mut plain = connect(&running).await;
    plain.write_all(post("in the open").as_bytes()).await.unwrap();
    closed(&mut plain).await;
    until(&running.stats.tls_failures, 2).await;
}

async fn tls_client(
    certified: &rcgen::CertifiedKey<rcgen::KeyPair>,
    address: SocketAddr,
) -> impl AsyncRead + AsyncWrite + Unpin {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn shutdown_finishes_what_is_open_and_begins_nothing() {
    let mut running = start_gated(0, |_| {}).await;
    let mut idle = connect(&running).await;
    idle.write_all(get_with("/api/v1/status", "host: localhost\r\n").as_bytes()).await.unwrap();
    answer(&mut idle).await;
    let mut silent = connect(&running).await;
    let mut begun = connect(&running).await;
    begun.write_all(&post("begun").as_bytes()[..60]).await.unwrap();
    until(&running.stats.open, 3).await;
    let mut open = connect(&running).await;
    open.write_all(post("last").as_bytes()).await.unwrap();
    running.arrived.recv().await.unwrap();

    running.shutdown.request();
    assert!(closed(&mut idle).await, "an idle connection ends immediately");
    assert!(closed(&mut silent).await, "and so does one that never sent a byte");
    begun.write_all(&post("begun").as_bytes()[60..]).await.unwrap();
    running.arrived.recv().await.unwrap();
    assert!(!running.server.is_finished());
    running.gate.add_permits(2);
    for (stream, expected) in [(&mut open, "took 4"), (&mut begun, "took 5")] {
        let last = answer(stream).await;
        assert!(last.ends_with(expected) && last.contains("\r\nconnection: close\r\n"), "{last}");
        assert!(closed(stream).await);
    }
    timeout(Duration::from_secs(10), &mut running.server).await.expect("ends").unwrap();
    assert!(TcpStream::connect(running.address).await.is_err());
    assert_eq!(running.stats.cut.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn shutdown_does_not_wait_for_ever() {
    let mut running =
        start_gated(0, |config| config.delivery.shutdown_timeout = Duration::from_millis(200)).await;
    let mut open = connect(&running).await;
    open.write_all(post("never").as_bytes()).await.unwrap();
    running.arrived.recv().await.unwrap();
    running.shutdown.request();
    timeout(Duration::from_secs(10), &mut running.server).await.expect("ends at the deadline").unwrap();
    closed(&mut open).await;
    assert_eq!(running.stats.cut.load(Ordering::Relaxed), 1);
}
