//! A measurement, not a test:
//! `cargo test --release -p klambda-dispatch client::tests::speed -- --ignored --nocapture`

use crate::client::testing::*;
use crate::client::{Client, Options};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DURATION: Duration = Duration::from_secs(4);
const EVENT_BYTES: usize = 1024;

/// Blocking threads cost the client's thread nothing.
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
    // A request comes in one write, so it is read in one read.
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
        runtime.block_on(tokio::task::LocalSet::new().run_until(measure(concurrency)));
    }
}

async fn measure(concurrency: usize) {
    let client = Client::new(Options::default());
    let data = format!("\"{}\"", "z".repeat(EVENT_BYTES));
    let delivery = Arc::new(deliver(&document(json!({ "url": serve() })), &event(data.as_bytes()), None));
    let (began, before) = (Instant::now(), cpu());
    let callers = (0..concurrency).map(|_| {
        let (client, delivery) = (client.clone(), delivery.clone());
        tokio::task::spawn_local(async move {
            let mut calls = 0u64;
            while began.elapsed() < DURATION {
                assert_eq!(code(&client.call(&delivery).await), 200);
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
    println!(
        "{concurrency:4} connections: {:.0} calls/s, CPU per call: {:.2} µs user, {:.2} µs system",
        count / began.elapsed().as_secs_f64(),
        micros(before.0, after.0),
        micros(before.1, after.1),
    );
}
