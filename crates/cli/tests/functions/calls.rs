//! What a handler learns about its call, and how a call can be traced.

use crate::support::eventually;
use crate::support::process::agent;
use crate::world::{World, inline, node};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};

#[test]
fn a_handler_knows_which_attempt_it_is() {
    let world = World::new();
    let mut spec = node(
        "exports.handler = (event, context) => { console.log(`attempt ${context.attempt}`); \
         if (context.attempt < 3) throw new Error('not yet'); };",
    );
    spec["triggers"] = json!([{ "filter": { "type": "t" } }]);
    spec["retry"] = json!({ "attempts": 5, "backoff": "10ms", "maxBackoff": "10ms" });
    world.apply("f", &spec);
    world.ready("f");
    world.send("t", "1", "k", &json!({}));
    let attempts = eventually("the third succeeds", || {
        let seen: Vec<String> =
            world.printed("f").into_iter().filter(|line| line.starts_with("attempt")).collect();
        if seen.len() >= 3 { Ok(seen) } else { Err(format!("{seen:?}")) }
    });
    assert_eq!(attempts, ["attempt 1", "attempt 2", "attempt 3"]);
    eventually("it is delivered", || {
        let (_, seen) = world.get("/api/v1/subscriptions/lambda.default.f");
        if seen["status"]["delivered"] == 1 { Ok(()) } else { Err(seen.to_string()) }
    });
}

/// The start of a replica may take long, but a running one must answer within the timeout of the call.
#[test]
fn a_call_has_a_time_of_its_own() {
    let world = World::with(vec![("KLAMBDA_FUNCTIONS_START_TIMEOUT", "2m".into())]);
    let mut spec = node("exports.handler = (event) => { while (event.data.hang) {} return {}; };");
    spec["retry"] = json!({ "timeout": "1s" });
    world.apply("f", &spec);
    world.ready("f");
    assert_eq!(world.invoke("f", &json!({})).0, 200);
    let began = std::time::Instant::now();
    let (status, body) = world.invoke("f", &json!({ "hang": true }));
    assert_eq!(status, 504, "{body}");
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
}

/// One that says so is not tried again, in every language.
#[test]
fn what_is_not_to_be_retried_is_a_dead_letter_at_once() {
    let world = World::new();
    let python = "import klambda\n\ndef handler(event, context):\n    raise klambda.DoNotRetry('never')\n";
    let specs = [
        ("js", node("exports.handler = () => { const e = new Error('never'); e.retry = false; throw e; };")),
        ("py", inline("python", "index.handler", python)),
    ];
    for (name, mut spec) in specs {
        spec["triggers"] = json!([{ "filter": { "type": name } }]);
        world.apply(name, &spec);
        world.ready(name);
        world.send(name, name, "k", &json!({}));
    }
    let letters = eventually("both are dead letters", || match world.get("/api/v1/dlq").1["items"].clone() {
        Value::Array(letters) if letters.len() == 2 => Ok(letters),
        other => Err(other.to_string()),
    });
    for letter in letters {
        assert_eq!(letter["attempts"], 1, "{letter}");
    }
}

#[test]
fn logs_are_followed_until_the_function_is_gone() {
    let world = World::new();
    world.apply("f", &node("exports.handler = (event) => { console.log(`saw ${event.data.n}`); };"));
    world.ready("f");
    world.invoke("f", &json!({ "n": 1 }));
    let stream = agent()
        .get(format!("{}/api/v1/lambda/functions/f/logs?follow=true&tail=10", world.url))
        .call()
        .expect("an answer");
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let mut lines = BufReader::new(stream.into_body().into_reader()).lines();
    let mut until = |text: &str| {
        let found = lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.starts_with("data: ") && line.contains(text));
        assert!(found.is_some(), "{text} is not told");
    };
    until("saw 1");
    world.invoke("f", &json!({ "n": 2 }));
    until("saw 2");
    assert_eq!(world.delete("/api/v1/lambda/functions/f").0, 202);
    assert_eq!(lines.map_while(Result::ok).filter(|line| line.contains("saw")).count(), 0, "the stream ends");
}

/// Answers every request with the next of these status lines.
fn answering(lines: &'static [&'static str]) -> String {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for (mut peer, line) in listener.incoming().map_while(Result::ok).zip(lines) {
            let _ = peer.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 {line}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            let _ = peer.write_all(head.as_bytes());
        }
    });
    url
}

/// The first answer is to the health check.
#[test]
fn a_status_that_is_none_is_not_passed_on() {
    let world = World::new();
    let url =
        answering(&["200 OK", "101 Switching Protocols", "600 What", "999 What", "599 What", "418 Tea"]);
    let document = json!({ "metadata": { "name": "away" }, "spec": { "source": { "type": "url", "url": { "url": url } } } });
    assert_eq!(world.post("/api/v1/lambda/agents", &document).0, 202);
    eventually("it is ready", || match world.get("/api/v1/lambda/agents/away").1 {
        seen if seen["status"]["phase"] == "Ready" => Ok(()),
        seen => Err(format!("{seen:#}")),
    });
    let statuses = [(); 5].map(|()| world.post("/api/v1/lambda/agents/away/invoke", &json!({})));
    assert_eq!(statuses.each_ref().map(|(status, _)| *status), [502, 502, 502, 599, 418], "{statuses:?}");
    assert!(
        statuses[0].1["type"].as_str().is_some_and(|kind| kind.ends_with("function-broken")),
        "{statuses:?}"
    );
}

/// The server's environment may hold tokens. A function runs as the same user, and knows the server as its parent.
#[test]
fn a_function_cannot_read_the_environment_of_the_server() {
    let world = World::with(vec![("KLAMBDA_TEST_SECRET", "hush-hush".into())]);
    let code = "const fs = require('fs'); exports.handler = () => { try { \
        return { read: fs.readFileSync(`/proc/${process.ppid}/environ`, 'latin1') }; \
        } catch (error) { return { refused: error.code }; } };";
    world.apply("f", &node(code));
    world.ready("f");
    let (status, answer) = world.invoke("f", &json!({}));
    assert_eq!((status, &answer), (200, &json!({ "refused": "EACCES" })));
}

/// The calls of others break with it. That is no sign that the function is down, which would hold all keys for 30 s.
#[test]
fn an_event_that_ends_its_process_opens_no_breaker() {
    let world = World::new();
    let mut spec = node(
        "exports.handler = async (event) => { await new Promise((done) => setTimeout(done, 300)); \
         if (event.data.die) process.exit(3); };",
    );
    spec["triggers"] = json!([{ "filter": { "type": "t" } }]);
    spec["retry"] = json!({ "attempts": 10, "backoff": "300ms" });
    world.apply("f", &spec);
    world.ready("f");
    let began = std::time::Instant::now();
    world.send("t", "1", "bad", &json!({ "die": true }));
    ["a", "b", "c"].iter().for_each(|key| world.send("t", key, key, &json!({})));
    let seen = eventually("the others are delivered", || {
        let (_, seen) = world.get("/api/v1/subscriptions/lambda.default.f");
        if seen["status"]["delivered"] == 3 { Ok(seen) } else { Err(seen.to_string()) }
    });
    assert_eq!(seen["status"]["breaker"]["state"], "closed");
    assert!(began.elapsed() < std::time::Duration::from_secs(25), "{:?}", began.elapsed());
}
