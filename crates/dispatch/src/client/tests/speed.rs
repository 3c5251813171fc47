//! Measures the CPU cost of a call, with this client and with the HTTP library in turn. Not a test.
//! `cargo test --release -p klambda-dispatch client::tests::speed -- --ignored --nocapture`

use crate::client::request::Request;
use crate::client::testing::*;
use crate::client::{Client, Options, h2c};
use crate::engine::Delivery;
use bytes::Bytes;
use http::{HeaderValue, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use klambda_core::event_codec::EventView;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DURATION: Duration = Duration::from_secs(1);
const PAIRS: usize = 7;
const EVENT_BYTES: usize = 1024;

/// Runs on blocking threads, which cost the client's thread nothing.
fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            std::thread::spawn(move || answer_all(stream));
        }
    });
    url
}

fn answer_all(mut stream: TcpStream) {
    stream.set_nodelay(true).expect("nodelay");
    let mut buffer = [0; 4096];
    // A request is sent in one write, so one read gets all of it.
    while stream.read(&mut buffer).is_ok_and(|length| length > 0) {
        stream.write_all(OK.as_bytes()).expect("written");
    }
}

/// User and system time of this thread, in seconds.
fn cpu() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("ticks") / 100.0;
    (ticks(11), ticks(12))
}

#[test]
#[ignore = "a measurement"]
fn calls_per_second() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for concurrency in [1, 64, 256] {
        let mut ratios = Vec::new();
        for _ in 0..PAIRS {
            let micros = [Way::Ours, Way::Library].map(|way| {
                let measured = measure(way, concurrency);
                runtime.block_on(tokio::task::LocalSet::new().run_until(measured))
            });
            ratios.push(micros[1] / micros[0]);
        }
        ratios.sort_by(f64::total_cmp);
        println!(
            "{concurrency:4} connections: CPU per call of the library is {:.2} times ours",
            ratios[PAIRS / 2]
        );
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Ours,
    /// hyper without a pool: each caller has its own connection.
    Library,
}

/// Microseconds of CPU per call.
async fn measure(way: Way, concurrency: usize) -> f64 {
    let client = Client::new(Options::default());
    let data = format!("\"{}\"", "z".repeat(EVENT_BYTES));
    let url = serve();
    let delivery = Arc::new(deliver(&document(json!({ "url": url })), &event(data.as_bytes()), None));
    let (began, before) = (Instant::now(), cpu());
    let callers = (0..concurrency).map(|_| {
        let (client, delivery, url) = (client.clone(), delivery.clone(), url.clone());
        tokio::task::spawn_local(async move {
            let mut library = match way {
                Way::Ours => None,
                Way::Library => Some(Library::connect(&url).await),
            };
            let mut calls = 0u64;
            while began.elapsed() < DURATION {
                let code = match &mut library {
                    None => code(&client.call(&delivery).await),
                    Some(library) => library.call(&client, &delivery).await,
                };
                assert_eq!(code, 200);
                calls += 1;
            }
            calls
        })
    });
    let mut calls = 0;
    for caller in callers.collect::<Vec<_>>() {
        calls += caller.await.expect("calls");
    }
    let (after, count) = (cpu(), calls as f64);
    let micros = |from: f64, to: f64| (to - from) * 1e6 / count;
    let (user, system) = (micros(before.0, after.0), micros(before.1, after.1));
    println!(
        "{concurrency:4} connections, {way:?}: {:.0} calls/s, CPU per call: {user:.2} µs user, {system:.2} µs system",
        count / began.elapsed().as_secs_f64(),
    );
    user + system
}

/// A connection of the HTTP library.
struct Library(SendRequest<Full<Bytes>>);

impl Library {
    async fn connect(url: &str) -> Library {
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("nodelay");
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a connection");
        tokio::task::spawn_local(connection);
        Library(sender)
    }

    /// The same request, response and timeout.
    async fn call(&mut self, client: &Client, delivery: &Delivery) -> u16 {
        let target = &*client.shared.prepared(&delivery.document).expect("a target");
        let own = target.headers.fixed().expect("fixed headers");
        let event = EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event");
        let mut request = h2c::http_request(&Request { delivery, event, target, own, trace: None });
        request.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
        *request.uri_mut() = Uri::from_static("/");
        let exchange = async {
            let response = self.0.send_request(request).await.expect("an answer");
            let status = response.status().as_u16();
            response.into_body().collect().await.expect("a body");
            status
        };
        tokio::time::timeout(target.timeout, exchange).await.expect("in time")
    }
}
