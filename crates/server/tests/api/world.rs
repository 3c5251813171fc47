//! Shared by the tests: a real server in this process, a scripted target, and a small HTTP client.

use klambda_server::config::Switch;
use klambda_server::{Config, Server, serve};
use klambda_store::real_disk;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct World {
    pub server: Server,
    pub address: SocketAddr,
    pub folder: TempDir,
    pub target: Target,
    change: fn(&mut Config),
}

impl World {
    pub async fn new() -> World {
        World::with(|_| {}).await
    }

    pub async fn with(change: fn(&mut Config)) -> World {
        let folder = tempfile::tempdir().unwrap();
        let target = Target::start().await;
        let server = start(folder.path(), change).await;
        World { address: server.address(), server, folder, target, change }
    }

    /// Shuts down in order and starts on the same folder.
    pub async fn restart(self) -> World {
        self.server.stop();
        let World { server, folder, target, change, .. } = self;
        timeout(PATIENCE, server.ended()).await.expect("the server ends").unwrap();
        let server = start(folder.path(), change).await;
        World { address: server.address(), server, folder, target, change }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask("POST", path, &[("content-type", "application/json")], &body.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, &[], "").await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.ask("PUT", path, &[("content-type", "application/json")], &body.to_string()).await
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        ask(self.address, method, path, headers, body.as_bytes()).await
    }

    /// Creates an ordered subscription to everything, with additional spec fields.
    pub async fn subscribe(&self, name: &str, spec: Value) -> Answer {
        let answer = self.put(&format!("/api/v1/subscriptions/{name}"), &self.document(name, spec)).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer
    }

    pub fn document(&self, name: &str, spec: Value) -> Value {
        let mut document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1",
            "kind": "Subscription",
            "metadata": {"name": name},
            "spec": {
                "target": {"url": self.target.url()},
                "ordering": "ordered",
                "retry": {"attempts": 2, "backoff": "5ms", "maxBackoff": "10ms", "timeout": "5s"},
            },
        });
        for (member, value) in spec.as_object().unwrap() {
            document["spec"][member] = value.clone();
        }
        document
    }

    /// Sends one event in binary mode and returns its result.
    pub async fn send(&self, id: &str, key: &str, more: &[(&str, &str)]) -> Value {
        let answer = self.offer(id, key, more).await;
        assert!(answer.status == 202 || answer.status == 200, "{answer:?}");
        answer.json()["results"][0].clone()
    }

    pub async fn offer(&self, id: &str, key: &str, more: &[(&str, &str)]) -> Answer {
        let mut headers = vec![
            ("ce-specversion", "1.0"),
            ("ce-id", id),
            ("ce-source", "/shop"),
            ("ce-partitionkey", key),
            ("content-type", "application/json"),
        ];
        if !more.iter().any(|(name, _)| *name == "ce-type") {
            headers.push(("ce-type", "order.placed"));
        }
        headers.extend(more);
        self.ask("POST", "/api/v1/events", &headers, "{\"total\": 7}").await
    }

    pub async fn status(&self, name: &str) -> Value {
        self.get(&format!("/api/v1/subscriptions/{name}")).await.json()["status"].clone()
    }

    /// Waits until the resource at this path matches.
    pub async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let seen = Mutex::new(Value::Null);
        let looked = async {
            loop {
                let now = self.get(path).await.json();
                let good = wanted(&now);
                *seen.lock().unwrap() = now;
                if good {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = timeout(PATIENCE, looked).await;
        let seen = seen.into_inner().unwrap();
        waited.unwrap_or_else(|_| panic!("{path} did not match in time: {seen:#}"));
        seen
    }

    pub async fn metric(&self, line: &str) -> f64 {
        let text = self.get("/metrics").await.text();
        let found = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no {line} in {text}")).parse().unwrap()
    }
}

pub async fn start(folder: &Path, change: impl FnOnce(&mut Config)) -> Server {
    let mut config = Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        data: folder.to_owned(),
        ..Config::default()
    };
    config.store.segment_bytes = 16 << 20;
    config.store.reserve_bytes = 1 << 20;
    config.delivery.breaker.half_open_after = Duration::from_millis(100);
    // The targets of these tests are on loopback.
    config.outbound.guard = Switch::Off;
    change(&mut config);
    let started = async {
        loop {
            match Server::start(config.clone()).await {
                // An earlier server in this process has stopped; its threads release the folder a moment later.
                Err(serve::Error::Folder(real_disk::Error::Held { .. })) => {
                    sleep(Duration::from_millis(10)).await
                }
                started => return started.unwrap(),
            }
        }
    };
    timeout(PATIENCE, started).await.expect("the folder is released")
}

// ---- the client -----------------------------------------------------------------------------------------------

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The slug of the problem.
    pub fn problem(&self) -> String {
        assert_eq!(
            self.headers.get("content-type").map(String::as_str),
            Some("application/problem+json"),
            "{self:?}"
        );
        let json = self.json();
        assert_eq!(json["status"], self.status, "{json}");
        assert!(json["title"].is_string() && json["detail"].is_string(), "{json}");
        let kind = json["type"].as_str().unwrap().to_owned();
        kind.strip_prefix("https://knative-lambda.dev/problems/").unwrap().to_owned()
    }
}

pub async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = open(address, method, path, headers, body).await;
    let mut bytes = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("no answer").unwrap();
    parse(&bytes)
}

pub async fn open(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
    stream
}

fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let rest = &bytes[end + 4..];
    let body = match headers.get("transfer-encoding") {
        Some(_) => unchunked(rest),
        None => rest.to_vec(),
    };
    Answer { status, headers, body }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").expect("the stream was truncated");
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + length]);
        rest = &rest[line + 4 + length..];
    }
}

// ---- the target -----------------------------------------------------------------------------------------------

#[derive(Clone, Debug)]
pub struct Received {
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Received {
    pub fn id(&self) -> &str {
        &self.headers["ce-id"]
    }
}

/// A script with this status hangs.
pub const NEVER: u16 = 0;

type Script<T> = Box<dyn Fn(&Received) -> T + Send>;

/// Receives events and responds according to its script, at first with 204.
#[derive(Clone)]
pub struct Target {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    script: Arc<Mutex<Script<u16>>>,
    body: Arc<Mutex<Script<String>>>,
}

impl Target {
    pub async fn start() -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target {
            address: listener.local_addr().unwrap(),
            received: Arc::default(),
            script: Arc::new(Mutex::new(Box::new(|_| 204))),
            body: Arc::new(Mutex::new(Box::new(|_| String::new()))),
        };
        let serving = target.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().converse(stream));
            }
        });
        target
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub fn answers(&self, script: impl Fn(&Received) -> u16 + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    /// The bodies of its answers.
    pub fn says(&self, script: impl Fn(&Received) -> String + Send + 'static) {
        *self.body.lock().unwrap() = Box::new(script);
    }

    /// The acknowledged events, in order.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    pub fn ids(&self) -> Vec<String> {
        self.received().iter().map(|event| event.id().to_owned()).collect()
    }

    pub async fn until(&self, wanted: impl Fn(&[Received]) -> bool) {
        let seen = async {
            while !wanted(&self.received()) {
                sleep(Duration::from_millis(2)).await;
            }
        };
        if timeout(PATIENCE, seen).await.is_err() {
            panic!("the target never got what was expected: {:?}", self.ids());
        }
    }

    fn converse(self, stream: TcpStream) -> impl Future<Output = Option<()>> + Send {
        let mut stream = BufReader::new(stream);
        async move {
            loop {
                let mut headers = HashMap::new();
                let mut line = String::new();
                if stream.read_line(&mut line).await.ok()? == 0 {
                    return None;
                }
                loop {
                    line.clear();
                    stream.read_line(&mut line).await.ok()?;
                    let Some((name, value)) = line.trim_end().split_once(':') else { break };
                    headers.insert(name.to_lowercase(), value.trim().to_owned());
                }
                let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
                let mut body = vec![0; length];
                stream.read_exact(&mut body).await.ok()?;
                let event = Received { headers, body: String::from_utf8(body).unwrap() };
                let status = (*self.script.lock().unwrap())(&event);
                let body = (*self.body.lock().unwrap())(&event);
                if status == NEVER {
                    return std::future::pending().await;
                }
                if (200..300).contains(&status) {
                    self.received.lock().unwrap().push(event);
                }
                let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.ok()?;
            }
        }
    }
}
