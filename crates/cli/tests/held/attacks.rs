//! Before held memory was counted, each of these attacks used gigabytes or delayed others by seconds.

use crate::is_long;
use crate::victim::{Victim, read_answer, subscription, until};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const HEAD: &str = "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\nce-specversion: 1.0\r\nce-id: a\r\nce-source: /a\r\n\
                    ce-type: a\r\ncontent-type: text/plain\r\n";

/// Many connections at once would overrun the backlog of the listener; a short pause now and then does not.
fn connections(victim: &Victim, count: usize, first: &[u8]) -> Vec<TcpStream> {
    let open = |n: usize| {
        let mut stream = victim.connect();
        stream.set_nonblocking(true).expect("a setting");
        // The server does not read more, so no more is sent: that is the point of this attack.
        let _ = stream.write(first);
        if n % 200 == 199 {
            std::thread::sleep(Duration::from_millis(5));
        }
        stream
    };
    (0..count).map(open).collect()
}

#[test]
fn bodies_that_are_announced_and_do_not_come() {
    let victim = Victim::start();
    let watch = victim.watch();
    let begun = format!("{HEAD}content-length: {}\r\n\r\n{}", 8 << 20, "x".repeat(1 << 10));
    let _open = connections(&victim, if is_long() { 2000 } else { 600 }, begun.as_bytes());
    victim.suffers("announced bodies", watch);
}

#[test]
fn bodies_that_come_but_for_their_end() {
    let victim = Victim::start();
    let watch = victim.watch();
    let count = if is_long() { 100 } else { 40 };
    let begun = format!("{HEAD}content-length: {}\r\n\r\n", 8 << 20);
    let open = connections(&victim, count, begun.as_bytes());
    let piece = vec![b'x'; 64 << 10];
    for _ in 0..127 {
        open.iter().for_each(|mut stream| drop(stream.write(&piece)));
    }
    until("they wait", || victim.metric("klambda_held_waits_total{part=\"requests\"}") > 0.0);
    victim.suffers("unfinished bodies", watch);
}

#[test]
fn bodies_that_come_in_a_burst_and_stop() {
    let victim = Victim::start();
    let mut early = victim.connect();
    for (count, bytes) in [(400, 130_000), (200, 300_000)] {
        let begun = format!("{HEAD}content-length: 1000000\r\n\r\n{}", "x".repeat(bytes));
        let open = connections(&victim, count, begun.as_bytes());
        until("they wait", || victim.metric("klambda_held_bytes{part=\"requests\"}") > 27e6);
        for n in 0..20 {
            victim.answers_at_once(&mut victim.connect(), count + 2 * n);
            victim.answers_at_once(&mut early, count + 2 * n + 1);
        }
        drop(open);
        until("all is given back", || victim.metric("klambda_held_bytes{part=\"requests\"}") < 1e6);
    }
}

#[test]
fn heads_that_do_not_end() {
    let victim = Victim::start();
    let watch = victim.watch();
    let lines: String = (0..60).map(|n| format!("x-{n}: {}\r\n", "y".repeat(1000))).collect();
    let begun = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{lines}");
    let _open = connections(&victim, if is_long() { 3000 } else { 2000 }, begun.as_bytes());
    victim.answers_at_once(&mut victim.connect(), 0);
    victim.suffers("unfinished heads", watch);
}

#[test]
fn targets_that_neither_read_nor_answer() {
    let victim = Victim::start();
    let target = deaf();
    let url = format!("http://{}/", target.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let kept: Vec<TcpStream> = target.incoming().map_while(Result::ok).collect();
        drop(kept);
    });
    let count = if is_long() { 1500 } else { 500 };
    victim.put("/api/v1/subscriptions/hung", &subscription("hung", "hung", &url, count));
    let watch = victim.watch();
    victim.send("hung", count, 1_000_000);
    victim.suffers("hung calls", watch);
    let held = victim.metric("klambda_held_bytes{part=\"deliveries\"}");
    assert!(held <= 24.0 * 1024.0 * 1024.0, "{held} bytes are held");
    let status: serde_json::Value =
        serde_json::from_str(&victim.get("/api/v1/subscriptions/hung")).expect("JSON");
    assert_eq!(status["status"]["deadLetters"], 0, "{status}");
}

#[test]
fn pages_that_nobody_reads() {
    let victim = Victim::start();
    victim.send("page", 16, 1_000_000);
    let watch = victim.watch();
    let ask = b"GET /api/v1/events?limit=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let open = connections(&victim, if is_long() { 100 } else { 40 }, ask);
    until("some have begun", || victim.metric("klambda_held_bytes{part=\"answers\"}") > 0.0);
    victim.suffers("unread pages", watch);
    drop(open);
    let page: serde_json::Value = serde_json::from_str(&victim.get("/api/v1/events?limit=5")).expect("JSON");
    assert_eq!(page["items"].as_array().map(Vec::len), Some(5));
}

/// A byte of text can be six as JSON.
#[test]
fn events_that_nobody_reads() {
    let victim = Victim::start();
    let source = victim.send_text("long", &"\u{1}".repeat(1_000_000));
    let path = format!("/api/v1/events/0?source={source}");
    let length = victim.get(&path).len();
    assert!(length > 6_000_000, "{length}");
    let watch = victim.watch();
    let ask = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let open = connections(&victim, if is_long() { 400 } else { 100 }, ask.as_bytes());
    until("some wait", || victim.metric("klambda_held_waits_total{part=\"answers\"}") > 0.0);
    let held = victim.metric("klambda_held_bytes{part=\"answers\"}");
    assert!((length as f64..32e6).contains(&held), "{held} bytes are held");
    victim.suffers("unread events", watch);
    drop(open);
    until("all is given back", || victim.metric("klambda_held_bytes{part=\"answers\"}") == 0.0);
    assert_eq!(victim.get(&path).len(), length);
}

/// The answer to a batch repeats the ids and sources of its events.
#[test]
fn answers_to_batches_that_nobody_reads() {
    let victim = Victim::start();
    let events: Vec<_> = (0..1000)
        .map(|n| {
            let source = format!("/{n}/{}", "s".repeat(4000));
            json!({"specversion": "1.0", "id": "a", "source": source, "type": "a"})
        })
        .collect();
    let batch = serde_json::to_string(&events).expect("JSON");
    let post = format!(
        "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/cloudevents-batch+json\r\n\
         content-length: {}\r\n\r\n{batch}",
        batch.len()
    );
    let watch = victim.watch();
    let open: Vec<TcpStream> = (0..if is_long() { 100 } else { 20 })
        .map(|_| {
            let mut stream = deafened(&victim);
            stream.write_all(post.as_bytes()).expect("written");
            stream
        })
        .collect();
    until("some are held", || victim.metric("klambda_held_bytes{part=\"answers\"}") > 0.0);
    victim.suffers("unread answers to batches", watch);
    drop(open);
    until("all is given back", || victim.metric("klambda_held_bytes{part=\"answers\"}") == 0.0);
}

#[test]
fn answers_that_nobody_reads() {
    const ANSWER: usize = 15_000_000;
    let victim = Victim::start();
    let agent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", agent.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in agent.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer_at_length(stream, ANSWER));
        }
    });
    let spec = json!({"source": {"type": "url", "url": {"url": url}}});
    victim.post(
        "/api/v1/lambda/agents",
        &json!({"apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaAgent", "metadata": {"name": "wordy"}, "spec": spec}),
    );
    let call =
        "POST /api/v1/lambda/agents/wordy/invoke HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    until("it can be called", || {
        let mut connection = victim.connect();
        connection.write_all(call.as_bytes()).expect("written");
        read_answer(&mut connection).starts_with("HTTP/1.1 200")
    });
    let watch = victim.watch();
    let _open = connections(&victim, if is_long() { 60 } else { 30 }, call.as_bytes());
    until("some have begun", || victim.metric("klambda_held_bytes{part=\"answers\"}") > 0.0);
    victim.suffers("unread answers", watch);
    let mut connection = victim.connect();
    connection.write_all(call.as_bytes()).expect("written");
    let answer = read_answer(&mut connection);
    assert!(answer.len() > ANSWER, "who reads gets it whole: {}", &answer[..300.min(answer.len())]);
}

/// A listener whose connections take little that is not read.
fn deaf() -> TcpListener {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4 << 10).expect("a setting");
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    socket.listen(4096).expect("a listener");
    socket.into()
}

/// A connection that takes little that is not read.
fn deafened(victim: &Victim) -> TcpStream {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4 << 10).expect("a setting");
    let address: std::net::SocketAddr = victim.address.parse().expect("an address");
    socket.connect(&address.into()).expect("a connection");
    socket.into()
}

/// Answers every request on a connection, whatever it is, with a long body.
fn answer_at_length(mut stream: TcpStream, length: usize) {
    let mut asked = [0; 16 << 10];
    while stream.read(&mut asked).is_ok_and(|count| count > 0) {
        let is_call = asked.starts_with(b"POST");
        let body = vec![b'x'; if is_call { length } else { 0 }];
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)).is_err() {
            return;
        }
    }
}
