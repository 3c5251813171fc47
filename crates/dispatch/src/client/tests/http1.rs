//! Plain HTTP/1.1, against servers that behave and servers that do not.

use crate::client::testing::*;
use crate::client::{Client, Options};
use crate::engine::Place;
use klambda_core::event::{Attribute, Value};
use klambda_core::ids::LaneNumber;
use klambda_core::lane::Flag;
use klambda_core::outcome::CallOutcome;
use serde_json::json;
use std::time::{Duration, SystemTime};

fn client() -> Client {
    Client::new(Options::default())
}

#[tokio::test]
async fn a_request_carries_the_event_and_its_place() {
    let server = Server::start(vec![vec![Step::Request, say(OK)]]).await;
    let mut event = event(b"{\"n\":1}");
    for (name, value) in [
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=1, b=2"),
    ] {
        event.attributes.push(Attribute { name: name.into(), value: Value::String(value.into()) });
    }
    let place =
        Place { number: LaneNumber(7), previous_id: Some("é 6%".into()), flag: Flag::Late, workflow: None };
    let document = document(json!({ "url": server.url, "headers": { "x-team": "shop" } }));
    let outcome = client().call(&deliver(&document, &event, Some(place))).await;
    assert_eq!(outcome, CallOutcome::Status { code: 200, retry_after_ms: None, detail: String::new() });
    let host = server.url.trim_start_matches("http://").split('/').next().expect("a host");
    let expected = [
        "POST /hook?x=1 HTTP/1.1",
        &format!("host: {host}"),
        "x-team: shop",
        concat!("user-agent: knative-lambda/", env!("CARGO_PKG_VERSION")),
        "ce-specversion: 1.0",
        "ce-id: e%201",
        "ce-source: /shop",
        "ce-type: order.paid",
        "ce-partitionkey: order-42",
        "ce-traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "ce-tracestate: a=1,%20b=2",
        "content-type: application/json",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate: a=1, b=2",
        "ce-lanesequence: 7",
        "ce-previousid: %C3%A9%206%25",
        "ce-orderstatus: late",
        "content-length: 7",
        "",
        "{\"n\":1}",
    ];
    assert_eq!(server.requests()[0].1, expected.join("\r\n"));
}

#[tokio::test]
async fn an_unordered_event_has_no_place_and_no_line_of_its_own_making() {
    let server = Server::start(vec![vec![Step::Request, say(OK)]]).await;
    let mut event = event(b"");
    event.data = None;
    event.attributes.push(Attribute {
        name: "datacontenttype".into(),
        value: Value::String("text/plain\r\nx-evil: 1".into()),
    });
    client().call(&deliver(&document(json!({ "url": server.url })), &event, None)).await;
    let request = &server.requests()[0].1;
    for absent in ["lanesequence", "previousid", "orderstatus", "x-evil", "content-type"] {
        assert!(!request.contains(absent), "{request}");
    }
    assert!(request.ends_with("content-length: 0\r\n\r\n"), "{request}");
}

#[tokio::test]
async fn connections_are_kept_and_the_last_one_used_goes_first() {
    let server = Server::start(vec![turns(4), turns(4)]).await;
    let (client, document) = (client(), document(json!({ "url": server.url })));
    for _ in 0..3 {
        assert_eq!(code(&client.call(&deliver(&document, &event(b"1"), None)).await), 200);
    }
    assert_eq!(server.connections(), [0, 0, 0]);
    let both = deliver(&document, &event(b"1"), None);
    tokio::join!(client.call(&both), client.call(&both));
    let mut connections = server.connections();
    connections[3..].sort_unstable();
    assert_eq!(connections, [0, 0, 0, 0, 1]);
}

#[tokio::test]
async fn a_connection_that_must_not_be_kept_is_not() {
    let close = say("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    let extra = say("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n");
    let scripts = vec![
        vec![Step::Request, close, Step::Hang],
        vec![Step::Request, extra, Step::Hang],
        vec![Step::Request, say(OK)],
    ];
    let server = Server::start(scripts).await;
    let (client, delivery) = (client(), delivery(json!({ "url": server.url })));
    for _ in 0..3 {
        assert_eq!(code(&client.call(&delivery).await), 200);
    }
    assert_eq!(server.connections(), [0, 1, 2]);
}

#[tokio::test]
async fn a_stale_connection_is_replaced_once() {
    // The server closes or resets the connection after the second request was sent.
    for end in [vec![Step::Bytes(1)], vec![Step::Bytes(1), Step::Reset], vec![Step::Request]] {
        let first = [vec![Step::Request, say(OK)], end].concat();
        let server = Server::start(vec![first, vec![Step::Request, say(OK)]]).await;
        let client = Client::new(Options { stale_ms: 0, ..Options::default() });
        let delivery = delivery(json!({ "url": server.url }));
        assert_eq!(code(&client.call(&delivery).await), 200);
        assert_eq!(code(&client.call(&delivery).await), 200);
        assert_eq!(server.connections().last(), Some(&1));
    }
}

#[tokio::test]
async fn a_target_that_takes_a_call_and_closes_is_not_called_twice() {
    let first = vec![Step::Request, say(OK), Step::Request];
    let server = Server::start(vec![first, vec![Step::Request, say(OK)]]).await;
    let (client, delivery) = (client(), delivery(json!({ "url": server.url })));
    assert_eq!(code(&client.call(&delivery).await), 200);
    assert_eq!(
        client.call(&delivery).await,
        CallOutcome::Broken("connection closed before the response".into())
    );
    assert_eq!(server.connections(), [0, 0]);
}

#[tokio::test]
async fn a_new_connection_is_not_replaced() {
    let scripts =
        vec![vec![Step::Request, say(OK), Step::Request], vec![Step::Request], vec![Step::Request, say(OK)]];
    let server = Server::start(scripts).await;
    let client = Client::new(Options { stale_ms: 0, ..Options::default() });
    let delivery = delivery(json!({ "url": server.url }));
    assert_eq!(code(&client.call(&delivery).await), 200);
    assert_eq!(
        client.call(&delivery).await,
        CallOutcome::Broken("connection closed before the response".into())
    );
    assert_eq!(server.connections(), [0, 0, 1]);
}

#[tokio::test]
async fn a_used_connection_that_breaks_within_the_answer_is_broken() {
    let first = vec![Step::Request, say(OK), Step::Request, say("H")];
    let server = Server::start(vec![first, vec![Step::Request, say(OK)]]).await;
    let (client, delivery) = (client(), delivery(json!({ "url": server.url })));
    assert_eq!(code(&client.call(&delivery).await), 200);
    assert!(matches!(client.call(&delivery).await, CallOutcome::Broken(_)));
    assert_eq!(server.connections(), [0, 0]);
}

#[tokio::test]
async fn every_kind_of_answer_is_read_in_any_number_of_pieces() {
    for (text, expected) in [
        ("HTTP/1.1 202 Accepted\r\ncontent-length: 5\r\n\r\nhello", 202),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200),
        ("HTTP/1.1 200 OK\r\n\r\nhello", 200),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n", 201),
        (
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            307,
        ),
    ] {
        for step in [Step::Say(text.into()), Step::Spell(text.into())] {
            assert_eq!(code(&answered(vec![Step::Request, step]).await), expected, "{text}");
        }
    }
}

#[tokio::test]
async fn an_oversize_answer_counts_and_costs_its_connection() {
    let long = format!("HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{}", "x".repeat(1_000_000));
    let scripts = vec![vec![Step::Request, Step::Say(long)], vec![Step::Request, say(OK)]];
    let server = Server::start(scripts).await;
    let (client, delivery) = (client(), delivery(json!({ "url": server.url })));
    assert_eq!(code(&client.call(&delivery).await), 200);
    assert_eq!(code(&client.call(&delivery).await), 200);
    assert_eq!(server.connections(), [0, 1]);
}

#[tokio::test]
async fn an_invalid_response_is_broken() {
    for steps in [
        vec![Step::Request],
        vec![Step::Request, say("SSH-2.0-OpenSSH_9.6\r\n"), Step::Hang],
        vec![Step::Request, say("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel")],
        vec![Step::Request, say("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel"), Step::Reset],
        vec![Step::Request, Step::Reset],
    ] {
        let outcome = answered(steps.clone()).await;
        assert!(matches!(outcome, CallOutcome::Broken(_)), "{steps:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_target_that_hangs_times_out() {
    let slow = vec![Step::Request, say("HTTP/1.1 200 OK\r\n"), Step::Hang];
    let after_one = vec![Step::Request, say(OK), Step::Request, Step::Hang];
    for script in [vec![Step::Request, Step::Hang], slow, after_one] {
        let calls = script.iter().filter(|step| matches!(step, Step::Request)).count();
        let server = Server::start(vec![script]).await;
        // The connection is shared with a longer timeout, and its timer must not apply here.
        let long = document(json!({ "url": server.url }));
        let short = document_with(json!({ "url": server.url }), json!({ "timeout": "100ms" }));
        let client = client();
        if calls == 2 {
            assert_eq!(code(&client.call(&deliver(&long, &event(b"1"), None)).await), 200);
        }
        let began = SystemTime::now();
        assert_eq!(client.call(&deliver(&short, &event(b"1"), None)).await, CallOutcome::Timeout);
        let took = began.elapsed().expect("time");
        assert!(took >= Duration::from_millis(99) && took < Duration::from_secs(10), "{took:?}");
    }
}

#[tokio::test]
async fn a_timer_that_was_set_for_an_earlier_call_does_not_end_a_later_one() {
    let server = Server::start(vec![[turns(1), vec![Step::Request, Step::Hang]].concat()]).await;
    let client = client();
    let timeout = |timeout: &str| document_with(json!({ "url": server.url }), json!({ "timeout": timeout }));
    assert_eq!(code(&client.call(&deliver(&timeout("700ms"), &event(b"1"), None)).await), 200);
    let began = SystemTime::now();
    assert_eq!(client.call(&deliver(&timeout("1200ms"), &event(b"1"), None)).await, CallOutcome::Timeout);
    assert!(began.elapsed().expect("time") >= Duration::from_millis(1199));
}

#[tokio::test]
async fn an_unreachable_target_is_refused() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", closed.local_addr().expect("an address"));
    drop(closed);
    let outcome = client().call(&delivery(json!({ "url": url }))).await;
    assert!(matches!(outcome, CallOutcome::Refused(_)), "{outcome:?}");
    let outcome = client().call(&delivery(json!({ "url": "http://no-such-host.invalid/" }))).await;
    assert!(matches!(outcome, CallOutcome::Refused(_)), "{outcome:?}");
}

#[tokio::test]
async fn retry_after_and_the_error_are_reported() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(90));
    let body = "{\n  \"detail\": \"no stock\"\n}";
    for (value, range) in [("3", 3000..=3000), (date.as_str(), 80_000..=90_000)] {
        let text = format!(
            "HTTP/1.1 429 Slow\r\nRetry-After: {value}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let outcome = answered(vec![Step::Request, Step::Say(text)]).await;
        let CallOutcome::Status { code: 429, retry_after_ms: Some(ms), detail } = outcome else {
            panic!("{outcome:?}")
        };
        assert!(range.contains(&ms), "{ms}");
        assert_eq!(detail, "{ \"detail\": \"no stock\" }");
    }
}

#[tokio::test]
async fn headers_come_from_files_and_the_environment() {
    let server = Server::start(vec![turns(1000)]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, "Bearer one\n").expect("written");
    let headers = json!({ "authorization": { "file": file }, "x-package": { "env": "CARGO_PKG_NAME" } });
    let (client, delivery) = (client(), delivery(json!({ "url": server.url, "headers": headers })));
    assert_eq!(code(&client.call(&delivery).await), 200);
    let first = server.requests()[0].1.clone();
    assert!(first.contains("\r\nauthorization: Bearer one\r\n"), "{first}");
    assert!(first.contains("\r\nx-package: klambda-dispatch\r\n"), "{first}");

    std::fs::write(&file, "Bearer second").expect("written");
    let mut sent = String::new();
    while !sent.contains("\r\nauthorization: Bearer second\r\n") {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(code(&client.call(&delivery).await), 200);
        sent = server.requests().pop().expect("a request").1;
    }
    std::fs::remove_file(&file).expect("removed");
    let mut outcome = client.call(&delivery).await;
    while !matches!(outcome, CallOutcome::Unusable(_)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        outcome = client.call(&delivery).await;
    }
    std::fs::write(&file, "Bearer third").expect("written");
    assert_eq!(code(&client.call(&delivery).await), 200);
}

#[tokio::test]
async fn a_header_that_cannot_be_had_is_unusable_and_not_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, "se\ncret").expect("written");
    for value in
        [json!({ "file": file }), json!({ "env": "NO_SUCH_VARIABLE_HERE" }), json!({ "file": "/no/such" })]
    {
        let delivery = delivery(json!({ "url": "http://127.0.0.1:1/", "headers": { "x-secret": value } }));
        let outcome = client().call(&delivery).await;
        let CallOutcome::Unusable(why) = &outcome else { panic!("{outcome:?}") };
        assert!(why.contains("x-secret") && !why.contains("cret\n") && !why.contains("se\n"), "{why}");
    }
}

#[tokio::test]
async fn large_bodies_arrive_whole() {
    let data = format!("\"{}\"", "z".repeat(5 << 20));
    let server = Server::start(vec![vec![Step::Request, say(OK), Step::Request, say(OK)]]).await;
    let document = document(json!({ "url": server.url }));
    let (client, large) = (client(), deliver(&document, &event(data.as_bytes()), None));
    assert_eq!(code(&client.call(&large).await), 200);
    assert_eq!(code(&client.call(&deliver(&document, &event(b"1"), None)).await), 200);
    assert!(server.requests()[0].1.ends_with(&data));
    assert_eq!(server.connections(), [0, 0]);
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_counts() {
    let data = format!("\"{}\"", "z".repeat(5 << 20));
    let refuse = say("HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let server = Server::start(vec![vec![Step::Bytes(100), refuse, Step::Hang]]).await;
    let document = document(json!({ "url": server.url }));
    let outcome = client().call(&deliver(&document, &event(data.as_bytes()), None)).await;
    assert_eq!(code(&outcome), 413);
}

#[tokio::test]
async fn a_success_before_the_end_of_the_request_does_not_count() {
    let data = format!("\"{}\"", "z".repeat(5 << 20));
    let early = vec![Step::Bytes(100), say(OK), Step::Hang];
    let server = Server::start(vec![early, vec![Step::Request, say(OK)]]).await;
    let document = document(json!({ "url": server.url }));
    let large = deliver(&document, &event(data.as_bytes()), None);
    let client = client();
    let outcome = client.call(&large).await;
    assert_eq!(outcome, CallOutcome::Broken("success response before the request was sent".into()));
    assert_eq!(code(&client.call(&large).await), 200);
    assert_eq!(server.connections(), [1]);
}

#[tokio::test]
async fn idle_connections_are_closed_and_old_documents_forgotten() {
    let server = Server::start(vec![turns(2), turns(2)]).await;
    let client = Client::new(Options { pool_idle_ms: 1, ..Options::default() });
    let first = delivery(json!({ "url": server.url }));
    assert_eq!(code(&client.call(&first).await), 200);
    let pool = client.shared.prepared(&first.document).expect("a target").pool();
    assert_eq!(pool.idle_count(), 1);
    until("the idle connection is closed", || pool.idle_count() == 0).await;
    assert_eq!(code(&client.call(&first).await), 200);
    assert_eq!(server.connections(), [0, 1]);
    drop((first, pool));
    until("the document is forgotten", || client.shared.targets().prepared.is_empty()).await;
    until("its connections too", || client.shared.targets().pools.is_empty()).await;
}

#[tokio::test]
async fn a_call_is_small_and_can_be_sent() {
    fn is_send<T: Send>(value: T) -> usize {
        std::mem::size_of_val(&value)
    }
    let (client, mut delivery) = (client(), delivery(json!({ "url": "http://127.0.0.1:1/" })));
    let size = is_send(client.deliver(&mut delivery));
    assert!(size <= 1024, "{size}");
}
