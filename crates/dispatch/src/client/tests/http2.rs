//! HTTP/2 with prior knowledge, against hyper's server.

use crate::client::testing::*;
use crate::client::{Client, Options};
use crate::engine::Place;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use klambda_core::ids::LaneNumber;
use klambda_core::lane::Flag;
use klambda_core::outcome::CallOutcome;
use serde_json::json;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

#[derive(Clone, Default)]
struct Seen {
    requests: Arc<Mutex<Vec<(http::request::Parts, Bytes)>>>,
    connections: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

/// Answers with the status in the path (`/status/503`), or hangs at `/hang`.
async fn serve(seen: Seen) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let requests = seen.requests.clone();
            let service = service_fn(move |request| answer(request, requests.clone()));
            let connection =
                http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
            let task = tokio::spawn(async move { drop(connection.await) });
            seen.connections.lock().expect("connections").push(task);
        }
    });
    url
}

async fn answer(
    request: http::Request<Incoming>,
    requests: Arc<Mutex<Vec<(http::request::Parts, Bytes)>>>,
) -> Result<http::Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    let code: u16 = match head.uri.path().strip_prefix("/status/") {
        Some(code) => code.parse().expect("a status"),
        None => std::future::pending().await,
    };
    requests.lock().expect("requests").push((head, body));
    let response = http::Response::builder()
        .status(code)
        .header("retry-after", "2")
        .header("content-type", "text/plain");
    Ok(response.body(Full::from("busy\nnow")).expect("a response"))
}

fn target(url: &str, path: &str) -> serde_json::Value {
    json!({ "url": format!("{url}{path}"), "protocol": "h2c", "headers": { "x-team": "shop" } })
}

#[tokio::test]
async fn calls_share_a_connection_and_carry_the_event() {
    let seen = Seen::default();
    let url = serve(seen.clone()).await;
    let client = Client::new(Options::default());
    let document = document(target(&url, "/status/204"));
    let place =
        Place { number: LaneNumber(3), previous_id: Some("ö".into()), flag: Flag::Gap, workflow: None };
    let delivery = Arc::new(deliver(&document, &event(b"{\"n\":1}"), Some(place)));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..150 {
        let (client, delivery) = (client.clone(), delivery.clone());
        calls.spawn(async move { client.call(&delivery).await });
    }
    assert!(calls.join_all().await.iter().all(|outcome| code(outcome) == 204));
    assert!(seen.connections.lock().expect("connections").len() <= 2);
    let requests = seen.requests.lock().expect("requests");
    let (head, body) = &requests[0];
    assert_eq!(
        (head.version, &head.method, requests.len()),
        (http::Version::HTTP_2, &http::Method::POST, 150)
    );
    assert_eq!(&body[..], b"{\"n\":1}");
    for (name, value) in [
        ("ce-id", "e%201"),
        ("ce-lanesequence", "3"),
        ("ce-previousid", "%C3%B6"),
        ("ce-orderstatus", "gap"),
        ("x-team", "shop"),
        ("content-type", "application/json"),
        ("content-length", "7"),
        ("user-agent", concat!("knative-lambda/", env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(head.headers.get(name).map(|v| v.to_str().expect("text")), Some(value), "{name}");
    }
}

#[tokio::test]
async fn errors_are_reported_and_a_lost_connection_is_replaced() {
    let seen = Seen::default();
    let url = serve(seen.clone()).await;
    let client = Client::new(Options { stale_ms: 0, ..Options::default() });
    let delivery = delivery(target(&url, "/status/503"));
    let busy = CallOutcome::Status { code: 503, retry_after_ms: Some(2000), detail: "busy now".into() };
    assert_eq!(client.call(&delivery).await, busy);
    seen.connections.lock().expect("connections")[0].abort();
    assert_eq!(client.call(&delivery).await, busy);
    assert_eq!(client.call(&delivery).await, busy);
    assert_eq!(seen.connections.lock().expect("connections").len(), 2);
}

#[tokio::test]
async fn a_connection_on_which_a_call_timed_out_is_not_trusted() {
    let seen = Seen::default();
    let url = serve(seen.clone()).await;
    let client = Client::new(Options::default());
    let hangs = document_with(target(&url, "/hang"), json!({ "timeout": "100ms" }));
    assert_eq!(client.call(&deliver(&hangs, &event(b"1"), None)).await, CallOutcome::Timeout);
    assert_eq!(code(&client.call(&delivery(target(&url, "/status/200"))).await), 200);
    assert_eq!(seen.connections.lock().expect("connections").len(), 2);
}

#[tokio::test]
async fn an_unreachable_target_is_refused_and_http1_is_broken() {
    let client = Client::new(Options::default());
    let outcome = client.call(&delivery(target("http://127.0.0.1:1", "/"))).await;
    assert!(matches!(outcome, CallOutcome::Refused(_)), "{outcome:?}");
    let server =
        Server::start(vec![vec![say("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")]]).await;
    let outcome = client.call(&delivery(json!({ "url": server.url, "protocol": "h2c" }))).await;
    assert!(matches!(outcome, CallOutcome::Broken(_)), "{outcome:?}");
}
