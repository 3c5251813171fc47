//! A server that is attacked, and a producer that must not notice.

use crate::is_long;
use crate::support::process::{Process, agent, wait_until_ready};
use crate::support::{KLAMBDA, eventually, free_port};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The memory of the process besides the setting `memory`, under any attack.
const BESIDE_MEMORY: u64 = 150 << 20;
const MEMORY: u64 = 32 << 20;
/// For an unoptimized build beside other tests. Requests that wait for memory wait for tens of seconds.
const AT_ONCE: Duration = Duration::from_secs(5);

pub struct Victim {
    process: Process,
    pub address: String,
    _folder: TempDir,
}

impl Victim {
    pub fn start() -> Victim {
        raise_open_files();
        let folder = tempfile::tempdir().expect("a folder");
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(std::env::var_os("KLAMBDA_BIN").unwrap_or_else(|| KLAMBDA.into()));
        command.args(["serve", "--listen", &address, "--data"]).arg(folder.path().join("data"));
        command.env("KLAMBDA_MEMORY", MEMORY.to_string());
        let mut process = Process::start(&mut command, &folder.path().join("serve.log"));
        wait_until_ready(&format!("http://{address}"), &mut process);
        Victim { process, address, _folder: folder }
    }

    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("a connection")
    }

    pub fn post(&self, path: &str, document: &Value) {
        let answer = agent().post(format!("http://{}{path}", self.address)).send_json(document);
        assert!(answer.expect("an answer").status().is_success());
    }

    pub fn put(&self, path: &str, document: &Value) {
        let mut answer =
            agent().put(format!("http://{}{path}", self.address)).send_json(document).expect("an answer");
        let text = answer.body_mut().read_to_string().expect("text");
        assert!(answer.status().is_success(), "{text}");
    }

    pub fn get(&self, path: &str) -> String {
        let mut answer = agent().get(format!("http://{}{path}", self.address)).call().expect("an answer");
        answer.body_mut().read_to_string().expect("text")
    }

    /// Events that it accepts, one after another, over one connection.
    pub fn send(&self, kind: &str, count: usize, bytes: usize) {
        let mut connection = self.connect();
        let data = "x".repeat(bytes);
        (0..count).for_each(|n| drop(post(&mut connection, kind, n, &data)));
    }

    /// One event with the id 0; answers its source.
    pub fn send_text(&self, kind: &str, data: &str) -> String {
        post(&mut self.connect(), kind, 0, data);
        format!("/{kind}")
    }

    /// A small request, over a connection that is open, and a probe over another are answered without waiting for anybody.
    pub fn answers_at_once(&self, connection: &mut TcpStream, n: usize) {
        let began = Instant::now();
        connection.set_read_timeout(Some(Duration::from_secs(20))).expect("a setting");
        post(connection, "small", n, &"x".repeat(2000));
        assert_eq!(self.get("/healthz"), "ok\n");
        let took = began.elapsed();
        assert!(took < AT_ONCE, "two small requests took {took:?}");
    }

    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("what is resident");
        let kib = line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
        kib.expect("a number") << 10
    }

    /// A sample of its metrics.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    }

    /// Watches for a while, with the attack under way.
    pub fn suffers(&self, what: &str, watch: Watch) {
        let rounds = if is_long() { 1000 } else { 200 };
        let mut most = 0;
        while watch.posts() < rounds {
            most = most.max(self.resident_bytes());
            std::thread::sleep(Duration::from_millis(20));
        }
        let p99 = watch.p99();
        println!("{what}: {} MiB, p99 {} ms", most >> 20, p99.as_millis());
        let limit = MEMORY + BESIDE_MEMORY;
        assert!(most <= limit, "{what}: {} MiB are resident, {} MiB may be", most >> 20, limit >> 20);
        // Unoptimized, and beside other tests, this only distinguishes a server that continues from one that does not.
        let limit = Duration::from_millis(if is_long() { 100 } else { 10_000 });
        assert!(p99 <= limit, "{what}: another producer's p99 is {p99:?}");
    }

    /// A producer that sends until it is dropped.
    pub fn watch(&self) -> Watch {
        let (took, ended) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let mut connection = self.connect();
        let producing = {
            let (took, ended) = (Arc::clone(&took), ended.clone());
            std::thread::spawn(move || {
                for n in 0.. {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let began = Instant::now();
                    post(&mut connection, "bystander", n, "{}");
                    lock(&took).push(began.elapsed());
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        };
        Watch { took, ended, producing: Some(producing) }
    }
}

type Took = Arc<std::sync::Mutex<Vec<Duration>>>;

pub struct Watch {
    took: Took,
    ended: Arc<AtomicBool>,
    producing: Option<JoinHandle<()>>,
}

impl Watch {
    fn posts(&self) -> usize {
        let has_ended = self.producing.as_ref().is_some_and(JoinHandle::is_finished);
        assert!(!has_ended, "the producer failed");
        lock(&self.took).len()
    }

    fn p99(&self) -> Duration {
        let mut took = lock(&self.took).clone();
        took.sort_unstable();
        took[took.len() * 99 / 100]
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.producing.take().map(JoinHandle::join);
    }
}

fn lock(took: &Took) -> std::sync::MutexGuard<'_, Vec<Duration>> {
    took.lock().expect("no one panics with it in hand")
}

fn post(connection: &mut TcpStream, kind: &str, n: usize, data: &str) -> String {
    let head = format!(
        "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\nce-specversion: 1.0\r\nce-id: {n}\r\nce-source: /{kind}\r\n\
         ce-type: {kind}\r\nce-partitionkey: k{n}\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
        data.len()
    );
    connection.write_all(head.as_bytes()).expect("written");
    connection.write_all(data.as_bytes()).expect("written");
    let answer = read_answer(connection);
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    answer
}

/// Head and body, as one text.
pub fn read_answer(connection: &mut TcpStream) -> String {
    let mut reader = BufReader::new(connection);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "closed: {head}");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        head.push_str(&line);
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    head + &String::from_utf8_lossy(&body)
}

pub fn subscription(name: &str, kind: &str, url: &str, concurrency: usize) -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription",
        "metadata": {"name": name},
        "spec": {
            "target": {"url": url}, "ordering": "ordered", "concurrency": concurrency,
            "filters": [{"exact": {"type": kind}}], "retry": {"timeout": "60s"},
        },
    })
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || if is_so() { Ok(()) } else { Err("not yet".to_owned()) });
}

/// The soft limit is often less than the connections that are opened here.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
