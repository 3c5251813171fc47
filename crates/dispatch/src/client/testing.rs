//! Scripted test servers, and deliveries to call them with.

use super::{Client, Options};
use crate::engine::{Delivery, Place, Ticket};
use bytes::Bytes;
use klambda_core::event::{Attribute, Data, Event, Form, Value};
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_core::webhook::EventId;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The steps of a connection, in order. The connection closes at the end.
#[derive(Clone, Debug)]
pub enum Step {
    /// Reads one complete request.
    Request,
    /// Reads at most this many bytes of a request.
    Bytes(usize),
    Say(String),
    /// Sends the text one byte at a time.
    Spell(String),
    Reset,
    Hang,
}

pub struct Server {
    pub url: String,
    requests: Arc<Mutex<Vec<(usize, String)>>>,
}

impl Server {
    /// Each connection runs one script, in order. No more connections are accepted than there are scripts.
    pub async fn start(scripts: Vec<Vec<Step>>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hook?x=1", listener.local_addr().expect("an address"));
        let requests: Arc<Mutex<Vec<(usize, String)>>> = Arc::default();
        let seen = requests.clone();
        tokio::spawn(async move {
            for (number, script) in scripts.into_iter().enumerate() {
                let Ok((stream, _)) = listener.accept().await else { return };
                let seen = seen.clone();
                tokio::spawn(run(stream, script, move |request| {
                    seen.lock().expect("requests").push((number, request));
                }));
            }
        });
        Server { url, requests }
    }

    pub fn address(&self) -> SocketAddr {
        let authority = self.url.trim_start_matches("http://").split('/').next();
        authority.and_then(|authority| authority.parse().ok()).expect("a URL with an address")
    }

    /// Every complete request, with the number of its connection.
    pub fn requests(&self) -> Vec<(usize, String)> {
        self.requests.lock().expect("requests").clone()
    }

    pub fn connections(&self) -> Vec<usize> {
        self.requests().into_iter().map(|(connection, _)| connection).collect()
    }
}

async fn run(mut stream: TcpStream, script: Vec<Step>, mut seen: impl FnMut(String)) {
    stream.set_nodelay(true).expect("nodelay");
    for step in script {
        match step {
            Step::Request => match read_request(&mut stream).await {
                Some(request) => seen(request),
                None => return,
            },
            Step::Bytes(length) => {
                let mut bytes = vec![0; length];
                let _ = stream.read_exact(&mut bytes).await;
            }
            Step::Say(text) => drop(stream.write_all(text.as_bytes()).await),
            Step::Spell(text) => {
                for byte in text.as_bytes() {
                    let _ = stream.write_all(&[*byte]).await;
                    tokio::task::yield_now().await;
                }
            }
            Step::Reset => stream.set_zero_linger().expect("linger"),
            Step::Hang => std::future::pending().await,
        }
    }
}

/// Head and body as text; `None` if no request comes.
pub async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().expect("a number")) {
                return Some(text.into_owned());
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

pub fn say(text: &str) -> Step {
    Step::Say(text.into())
}

/// A script of `count` requests, each answered with success.
pub fn turns(count: usize) -> Vec<Step> {
    (0..count).flat_map(|_| [Step::Request, say(OK)]).collect()
}

pub const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Makes one default call against a server with this script.
pub async fn answered(steps: Vec<Step>) -> CallOutcome {
    let server = Server::start(vec![steps]).await;
    Client::new(Options::default()).call(&delivery(json!({ "url": server.url }))).await
}

pub fn delivery(target: serde_json::Value) -> Delivery {
    deliver(&document(target), &event(b"{\"n\":1}"), None)
}

pub fn document(target: serde_json::Value) -> Arc<Document> {
    document_with(target, json!({ "timeout": "20s" }))
}

pub fn document_with(target: serde_json::Value, retry: serde_json::Value) -> Arc<Document> {
    let document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1",
        "kind": "Subscription",
        "metadata": { "name": "orders" },
        "spec": { "target": target, "retry": retry, "ordering": "ordered" },
    });
    Arc::new(Document::parse(&document).expect("a document"))
}

pub fn event(data: &[u8]) -> Event {
    let text = |name: &str, value: &str| Attribute { name: name.into(), value: Value::String(value.into()) };
    Event {
        id: "e 1".into(),
        source: "/shop".into(),
        kind: "order.paid".into(),
        attributes: vec![text("partitionkey", "order-42"), text("lanesequence", "999")],
        data: Some(Data { bytes: Bytes::copy_from_slice(data), form: Form::Json }),
    }
}

/// Surrounds the event with other bytes, as in the log.
pub fn deliver(document: &Arc<Document>, event: &Event, place: Option<Place>) -> Delivery {
    let mut record = b"before".to_vec();
    event.encode(&mut record);
    let event_id =
        document.spec.target.endpoint().map(|_| EventId::new(&document.namespace, &event.source, &event.id));
    let event = 6..record.len();
    Delivery {
        ticket: Ticket(1),
        document: document.clone(),
        record: Bytes::from(record),
        event,
        event_id,
        following: Vec::new(),
        place,
        attempt: 1,
        time: Millis(1_614_265_330_000),
        accepted: Millis(1_614_265_329_900),
    }
}

pub fn code(outcome: &CallOutcome) -> u16 {
    match outcome {
        CallOutcome::Status { code, .. } => *code,
        other => panic!("{other:?}"),
    }
}

/// Waits for a condition, and panics if it takes too long.
pub async fn until(what: &str, mut met: impl FnMut() -> bool) {
    let waiting = async {
        while !met() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .unwrap_or_else(|_| panic!("timed out waiting: {what}"));
}
