//! Targets that send more than the response to a request. The extra bytes must never acknowledge another event.

use crate::client::testing::*;
use crate::client::{Call, Caller, Client, Options};
use bytes::Bytes;
use klambda_core::address::ReplicaAddress;
use klambda_core::outcome::CallOutcome;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";
const PATIENCE: Duration = Duration::from_secs(20);

/// A target on its own thread, so that a test can wait for it without letting the runtime poll its sockets. The
/// target answers the first request with `answer`, sends `unasked` on demand, and answers later requests with 503.
struct Target {
    address: SocketAddr,
    go_on: Sender<()>,
    said: Receiver<()>,
}

impl Target {
    fn start(answer: String, unasked: &'static str) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (go_on, told) = channel();
        let (saying, said) = channel();
        thread::spawn(move || {
            let (mut first, _) = listener.accept().expect("a connection");
            first.set_nodelay(true).expect("nodelay");
            read_one(&mut first);
            first.write_all(answer.as_bytes()).expect("written");
            told.recv().expect("the channel is open");
            // On loopback, written bytes have arrived.
            first.write_all(unasked.as_bytes()).expect("written");
            saying.send(()).expect("the channel is open");
            // One of these connections carries the second call. It must not be the first.
            thread::spawn(move || answer_busy(first));
            let (second, _) = listener.accept().expect("a connection");
            answer_busy(second);
        });
        Target { address, go_on, said }
    }

    fn say_it(&self) {
        self.go_on.send(()).expect("the channel is open");
        self.said.recv_timeout(PATIENCE).expect("the target has sent its bytes");
    }
}

fn answer_busy(mut stream: TcpStream) {
    while read_one(&mut stream) {
        if stream.write_all(BUSY.as_bytes()).is_err() {
            return;
        }
    }
}

/// A request of this test is sent in one write.
fn read_one(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0)
}

#[tokio::test]
async fn an_answer_that_lay_in_the_socket_acknowledges_nothing() {
    // With the pause the runtime sees the extra bytes before the second call; without it, it does not.
    for pause in [Some(Duration::from_millis(20)), None] {
        for unasked in [OK, "HTTP/1.1 100 Continue\r\n\r\n", "H", "\r\n"] {
            let target = Target::start(OK.into(), unasked);
            let client = Client::new(Options::default());
            let delivery = delivery(json!({ "url": format!("http://{}/", target.address) }));
            assert_eq!(code(&client.call(&delivery).await), 200);
            target.say_it();
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
            assert_eq!(code(&client.call(&delivery).await), 503, "{unasked:?} {pause:?}");
        }
    }
}

#[tokio::test]
async fn an_answer_in_one_piece_with_the_first_acknowledges_nothing() {
    let continues = "HTTP/1.1 100 Continue\r\n\r\n".repeat(30);
    for unasked in [OK, &continues, "HTTP/1.1 200 OK\r\n"] {
        let target = Target::start([OK, unasked].concat(), "");
        let client = Client::new(Options::default());
        let delivery = delivery(json!({ "url": format!("http://{}/", target.address) }));
        assert_eq!(code(&client.call(&delivery).await), 200);
        target.say_it();
        assert_eq!(code(&client.call(&delivery).await), 503, "{unasked:?}");
    }
}

#[tokio::test]
async fn an_answer_that_lay_in_the_socket_answers_no_invocation() {
    let target = Target::start(OK.into(), OK);
    let caller = Caller::new(Options::default());
    let address = ReplicaAddress::from(target.address);
    let call = Call { headers: Vec::new(), body: Bytes::from_static(b"hi") };
    assert_eq!(caller.call(&address, &call, PATIENCE).await.expect("an answer").status, 200);
    target.say_it();
    assert_eq!(caller.call(&address, &call, PATIENCE).await.expect("an answer").status, 503);
}

#[tokio::test]
async fn a_target_that_sends_first_is_not_called() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let connected = TcpStream::connect(address).expect("a connection");
    let (mut accepted, _) = listener.accept().expect("a connection");
    accepted.write_all(OK.as_bytes()).expect("written");
    connected.set_nonblocking(true).expect("non-blocking");
    let stream = tokio::net::TcpStream::from_std(connected).expect("a stream");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let stream = crate::client::stream::Stream::Plain(stream);
    assert!(crate::client::connection::Connection::new(stream, 0, deadline).has_spoken());
}

#[tokio::test]
async fn interim_answers_without_end_are_broken() {
    let flood = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000);
    let outcome = answered(vec![Step::Request, Step::Say(flood), say(OK)]).await;
    assert!(matches!(outcome, CallOutcome::Broken(_)), "{outcome:?}");
}
