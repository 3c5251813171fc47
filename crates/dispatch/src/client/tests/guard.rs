//! Targets that the outbound guard forbids are never connected to.

use super::super::testing::{Server, delivery, document, turns};
use super::super::{Client, Options, Providers};
use klambda_core::outcome::CallOutcome;
use klambda_outbound::{Allow, Found, Guard, Names, Settings};
use serde_json::json;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// A name service with an address for each lookup, and the last one for all later ones.
struct Script(Mutex<Vec<IpAddr>>);

impl Names for Script {
    fn look_up<'a>(&'a self, _: &'a str, port: u16) -> Found<'a> {
        let mut answers = self.0.lock().expect("answers");
        let next = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
        Box::pin(async move { Ok(vec![SocketAddr::new(next, port)]) })
    }
}

fn client(answers: &[&str], allow: Vec<Allow>) -> (Client, Guard) {
    let answers = answers.iter().map(|text| text.parse().expect("an address")).collect();
    let names = Arc::new(Script(Mutex::new(answers)));
    let guard = Guard::with_names(Settings { allow, ports: Vec::new() }, names);
    // The first address is public. Whether this machine can reach it must not matter.
    let options = Options { connect_timeout_ms: 100, ..Options::default() };
    (Client::with_providers(options, Providers { outbound: guard.clone(), ..Providers::default() }), guard)
}

fn allow(cidr: &str, namespace: &str) -> Allow {
    Allow { network: cidr.parse().expect("a range"), namespaces: vec![namespace.to_owned()] }
}

/// Counts connections, whoever makes them.
async fn counting_listener() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    (address, count)
}

fn why(outcome: CallOutcome) -> String {
    match outcome {
        CallOutcome::NotReady { why, retry_after_ms: 30_000 } => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_name_that_moves_to_loopback_is_not_connected_to() {
    let (address, count) = counting_listener().await;
    for protocol in ["http1", "h2c"] {
        let (client, guard) = client(&["8.8.8.8", "127.0.0.1"], Vec::new());
        let url = format!("http://rebind.example:{}/", address.port());
        let delivery = delivery(json!({ "url": url, "protocol": protocol }));
        let first = client.call(&delivery).await;
        assert!(!matches!(first, CallOutcome::NotReady { .. }), "a public address is allowed: {first:?}");
        let told = why(client.call(&delivery).await);
        assert!(told.contains("rebind.example resolves to a loopback address"), "{told}");
        assert_eq!(guard.refused().map(|(_, count)| count).sum::<u64>(), 1);
    }
    // A connection that was made before would be counted by now, because this one is.
    tokio::net::TcpStream::connect(address).await.expect("a connection");
    tokio::time::timeout(Duration::from_secs(10), async {
        while count.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the listener counts");
    assert_eq!(count.load(Ordering::SeqCst), 1, "a call reached the listener");
}

#[tokio::test]
async fn addresses_are_checked_like_names() {
    let (address, count) = counting_listener().await;
    let (client, _) = client(&["8.8.8.8"], Vec::new());
    for host in ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "localhost", "[::ffff:127.0.0.1]", "[::1]"] {
        let told =
            why(client.call(&delivery(json!({ "url": format!("http://{host}:{}/", address.port()) }))).await);
        assert!(told.contains("loopback") && told.contains("outbound.allow"), "{host}: {told}");
    }
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_connection_is_used_only_by_namespaces_that_may_open_it() {
    let server = Server::start(vec![turns(2)]).await;
    let (client, _) =
        client(&["127.0.0.1"], vec![allow("127.0.0.0/8", "default"), allow("10.0.0.0/8", "other")]);
    let url = format!("http://internal.example:{}/", server.address().port());
    let allowed = delivery(json!({ "url": url }));
    let ok = CallOutcome::Status { code: 200, retry_after_ms: None, detail: String::new() };
    assert_eq!(client.call(&allowed).await, ok);
    for namespace in ["other", "third"] {
        let mut refused = delivery(json!({ "url": url }));
        let mut its = (*document(json!({ "url": url }))).clone();
        its.namespace = namespace.to_owned();
        refused.document = Arc::new(its);
        assert!(why(client.call(&refused).await).contains("loopback"), "{namespace}");
    }
    assert_eq!(client.call(&allowed).await, ok);
    assert_eq!(server.connections(), [0, 0], "the connection was kept");
}
