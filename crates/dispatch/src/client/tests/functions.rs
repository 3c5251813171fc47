//! Calls of functions: the replica is acquired first, and events in responses are read.

use super::super::testing::{Server, Step, delivery};
use super::super::{Client, Options, Providers};
use crate::engine::Delivery;
use crate::functions::{Acquired, Functions, Handling, Hold, Lease, Unavailable};
use crate::schema_checks::{Marking, SchemaChecks};
use klambda_core::event::Event;
use klambda_core::outcome::CallOutcome;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// One replica that takes a while to start, and counts the held leases.
struct Replica {
    address: SocketAddr,
    after: Duration,
    held: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

struct Counted(Arc<AtomicUsize>, Arc<AtomicUsize>);

impl Hold for Counted {}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

impl Functions for Replica {
    fn acquire(&self, namespace: &str, name: &str) -> Acquired {
        if (namespace, name) != ("default", "hello") {
            return Acquired::Unavailable(Unavailable { why: "not found".into(), retry_after_ms: 7 });
        }
        let (address, after) = (self.address.into(), self.after);
        let (held, ended) = (self.held.clone(), self.ended.clone());
        Acquired::Soon(Box::pin(async move {
            tokio::time::sleep(after).await;
            held.fetch_add(1, Ordering::SeqCst);
            Ok(Lease { address, held: Box::new(Counted(held, ended)) })
        }))
    }

    fn handle(&self, _: &str, name: &str, delivery: &Delivery) -> Option<Handling> {
        let why = format!("emitted: {}", delivery.is_emitted());
        (name == "inside").then(|| Box::pin(async { CallOutcome::Invalid(why) }) as Handling)
    }
}

fn replica(server: &Server) -> Replica {
    Replica {
        address: server.address(),
        after: Duration::from_millis(30),
        held: Arc::default(),
        ended: Arc::default(),
    }
}

fn target(name: &str) -> serde_json::Value {
    json!({ "function": { "namespace": "default", "name": name } })
}

fn answer(head: &str, body: &str) -> Step {
    Step::Say(format!("HTTP/1.1 200 OK\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
}

fn with_functions(options: Options, functions: impl Functions + 'static) -> Client {
    let functions = Arc::new(functions);
    Client::with_providers(options, Providers { functions, ..Providers::default() })
}

async fn call(options: Options, steps: Vec<Step>) -> CallOutcome {
    let server = Server::start(vec![steps]).await;
    let client = with_functions(options, replica(&server));
    client.call(&delivery(target("hello"))).await
}

#[tokio::test]
async fn a_replica_is_waited_for_held_and_called_again() {
    let said = || answer("content-type: application/json", "{\"value\": 1}");
    let server = Server::start(vec![vec![Step::Request, said(), Step::Request, said()]]).await;
    let replica = replica(&server);
    let (held, ended) = (replica.held.clone(), replica.ended.clone());
    let client = with_functions(Options::default(), replica);
    for calls in 1..=2 {
        let outcome = client.call(&delivery(target("hello"))).await;
        assert!(matches!(outcome, CallOutcome::Status { code: 200, .. }), "{outcome:?}");
        assert_eq!((held.load(Ordering::SeqCst), ended.load(Ordering::SeqCst)), (0, calls));
    }
    assert_eq!(server.connections(), [0, 0]);
    assert!(server.requests()[0].1.starts_with("POST / HTTP/1.1\r\nhost: default.hello\r\n"));
    let gone = client.call(&delivery(target("gone"))).await;
    let why = "function default/gone: not found".to_owned();
    assert_eq!(gone, CallOutcome::NotReady { why, retry_after_ms: 7 });
    let inside = client.call(&delivery(target("inside"))).await;
    assert_eq!(inside, CallOutcome::Invalid("emitted: false".into()));
    let nobody = Client::new(Options::default()).call(&delivery(target("hello"))).await;
    assert!(matches!(nobody, CallOutcome::NotReady { .. }));
}

#[tokio::test]
async fn events_in_an_answer_are_read_in_every_mode() {
    let one = r#"{"specversion":"1.0","type":"paid","data":{"n":1.10}}"#;
    let two = format!(r#"[{one},{{"specversion":"1.0","type":"sent","id":"x","source":"/s"}}]"#);
    let binary = "ce-specversion: 1.0\r\nce-type: paid\r\ncontent-type: application/json";
    for (head, body, expected) in [
        ("content-type: application/cloudevents+json", one, vec![("", "", "paid")]),
        (
            "Content-Type: application/cloudevents-batch+json; charset=utf-8",
            two.as_str(),
            vec![("", "", "paid"), ("x", "/s", "sent")],
        ),
        (binary, "{\"n\":1.10}", vec![("", "", "paid")]),
    ] {
        for spelled in [false, true] {
            let say = match (spelled, answer(head, body)) {
                (true, Step::Say(text)) => Step::Spell(text),
                (_, step) => step,
            };
            let CallOutcome::Replied { replies, .. } =
                call(Options::default(), vec![Step::Request, say]).await
            else {
                panic!("{head}: no replies");
            };
            let seen: Vec<(&str, &str, &str)> = replies
                .iter()
                .map(|event| (event.id.as_str(), event.source.as_str(), event.kind.as_str()))
                .collect();
            assert_eq!(seen, expected, "{head}");
            assert_eq!(
                replies[0].data.as_ref().map(|data| &data.bytes[..]),
                Some(b"{\"n\":1.10}".as_slice())
            );
        }
    }
}

/// Checks the namespace `default`, and adds a letter to the id of each event.
struct Marks;

impl SchemaChecks for Marks {
    fn is_on(&self, namespace: &str) -> bool {
        namespace == "default"
    }

    fn mark<'a>(&'a self, _: &'a str, mut replies: Vec<Event>) -> Marking<'a> {
        replies.iter_mut().for_each(|event| event.id.push('m'));
        Box::pin(async move { replies })
    }
}

#[tokio::test]
async fn events_in_an_answer_are_checked_where_the_namespace_wants_it() {
    for (namespace, id) in [("default", "xm"), ("other", "x")] {
        let one = r#"{"specversion":"1.0","type":"paid","id":"x","source":"/s"}"#;
        let said = answer("content-type: application/cloudevents+json", one);
        let server = Server::start(vec![vec![Step::Request, said]]).await;
        let providers = Providers {
            functions: Arc::new(replica(&server)),
            checks: Arc::new(Marks),
            ..Providers::default()
        };
        let mut delivery = delivery(target("hello"));
        Arc::make_mut(&mut delivery.document).namespace = namespace.into();
        let outcome = Client::with_providers(Options::default(), providers).call(&delivery).await;
        assert!(
            matches!(&outcome, CallOutcome::Replied { replies, .. } if replies[0].id == id),
            "{namespace}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn unreadable_reply_events_are_reported() {
    let long = format!(r#"{{"specversion":"1.0","type":"paid","data":"{}"}}"#, "x".repeat(2000));
    let options = Options { replies_bytes_max: 1000, ..Options::default() };
    for (body, expected) in [
        ("{}", "type"),
        (r#"{"specversion":"1.0"}"#, "type"),
        (r#"{"specversion":"1.0","type":"t","id":""}"#, "id"),
        ("no json", "not a CloudEvent in JSON"),
        (long.as_str(), "longer than 1000 bytes"),
    ] {
        let steps = vec![Step::Request, answer("content-type: application/cloudevents+json", body)];
        let CallOutcome::BadReplies { why, .. } = call(options, steps).await else { panic!("{body}: taken") };
        assert!(why.contains(expected), "{body}: {why}");
    }
}

/// A remote function is called by its URL and is still a function.
#[tokio::test]
async fn events_in_the_answer_of_a_function_elsewhere_are_read() {
    let one = r#"{"specversion":"1.0","type":"paid"}"#;
    let said = answer("content-type: application/cloudevents+json", one);
    let server = Server::start(vec![vec![Step::Request, said]]).await;
    let mut delivery = delivery(json!({ "url": server.url }));
    Arc::make_mut(&mut delivery.document).name = "lambda.default.away".into();
    let outcome = Client::new(Options::default()).call(&delivery).await;
    assert!(
        matches!(&outcome, CallOutcome::Replied { replies, .. } if replies[0].kind == "paid"),
        "{outcome:?}"
    );
}

/// A target that is not a function may send any response.
#[tokio::test]
async fn events_in_the_answer_of_another_target_are_not_read() {
    let said = answer("content-type: application/cloudevents+json", "nonsense");
    let server = Server::start(vec![vec![Step::Request, said]]).await;
    let outcome = Client::new(Options::default()).call(&delivery(json!({ "url": server.url }))).await;
    assert!(matches!(outcome, CallOutcome::Status { code: 200, .. }), "{outcome:?}");
}
