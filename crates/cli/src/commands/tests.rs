//! Whole commands against a server with prepared answers.

use super::*;
use crate::exit::code;
use clap::Parser;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

/// Answers one request per canned answer, each on its own connection, and hands back what was asked.
struct Canned {
    url: String,
    asked: JoinHandle<Vec<String>>,
}

impl Canned {
    fn new(answers: Vec<(u16, &'static str)>) -> Canned {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let serve = move || answers.into_iter().map(|answer| serve_one(&listener, answer)).collect();
        Canned { url, asked: std::thread::spawn(serve) }
    }

    fn run(&self, line: &str) -> (anyhow::Result<()>, String) {
        run_on(&self.url, line)
    }

    fn asked(self) -> Vec<String> {
        self.asked.join().expect("served")
    }
}

fn serve_one(listener: &TcpListener, (status, body): (u16, &str)) -> String {
    let (stream, _) = listener.accept().expect("a connection");
    let asked = read_request(&stream);
    let content_type = if body.starts_with("id:") { "text/event-stream" } else { "application/json" };
    let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\nconnection: close\r\n");
    let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    (&stream).write_all(answer.as_bytes()).expect("answered");
    asked
}

/// The request line, and the body behind a space.
fn read_request(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).expect("a request line");
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    let body = String::from_utf8(body).expect("text");
    format!("{} {body}", first.trim_end().trim_end_matches(" HTTP/1.1")).trim_end().to_owned()
}

fn run_on(url: &str, line: &str) -> (anyhow::Result<()>, String) {
    let words = ["klambda", "--server", url].into_iter().chain(line.split_whitespace());
    let mut out = Vec::new();
    let result = run_to(Cli::try_parse_from(words).expect(line), &mut out);
    (result, String::from_utf8(out).expect("text"))
}

fn failure(status: u16, body: &'static str) -> anyhow::Error {
    let server = Canned::new(vec![(status, body)]);
    let (result, _) = server.run("describe lane orders k");
    server.asked();
    result.expect_err("a failure")
}

#[test]
fn problems_become_exit_codes_and_one_message() {
    let body = r#"{"title": "Invalid event", "detail": "id: missing", "faults": [{"path": "id", "message": "missing"}]}"#;
    assert_eq!(format!("{:#}", failure(400, body)), "Invalid event: id: missing");
    let body = r#"{"title": "Bad", "detail": "query parameter id: no", "faults": [{"path": "id", "message": "no"}]}"#;
    assert_eq!(format!("{:#}", failure(400, body)), "Bad: query parameter id: no");
    let body = r#"{"title": "Invalid subscription", "detail": "2 faults", "status": 422, "faults": [
        {"path": "spec.retry", "message": "unknown field tries"}, {"path": "spec.target.url", "message": "not a URL"}]}"#;
    let invalid = failure(422, body);
    assert_eq!(code(&invalid), 1);
    assert_eq!(
        format!("{invalid:#}"),
        "Invalid subscription: 2 faults\n  spec.retry: unknown field tries\n  spec.target.url: not a URL"
    );
    assert_eq!(code(&failure(404, r#"{"title": "No such lane"}"#)), 4);
    let body = r#"{"type": "/problems/not-found", "title": "Not found", "detail": "event a not found; use ?source="}"#;
    assert_eq!(format!("{:#}", failure(404, body)), "event a not found; use --source");
    assert_eq!(code(&failure(409, r#"{"title": "Conflict"}"#)), 5);
    assert_eq!(code(&failure(500, "boom")), 1);
    let foreign = format!("{:#}", failure(502, "<html>"));
    assert!(
        foreign.starts_with("http://127.0.0.1:") && foreign.contains(" responded with status 502;"),
        "{foreign}"
    );
    assert!(format!("{:#}", failure(200, "<html>")).contains("is not a klambda server"));
    assert!(format!("{:#}", failure(301, "")).contains("redirection"));
}

#[test]
fn an_unreachable_server_says_how_to_start_one() {
    let free = TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address");
    let (result, _) = run_on(&format!("http://{free}"), "status");
    let error = result.expect_err("nobody listens");
    assert_eq!(code(&error), 3);
    let text = format!("{error:#}");
    assert!(text.contains(&free.to_string()) && text.contains("klambda serve"), "{text}");
}

#[test]
fn a_server_that_does_not_speak_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("bound");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let (result, _) = run_on(&url, "status --timeout 50ms");
    assert_eq!(code(&result.expect_err("silence")), 3);
}

#[test]
fn a_wrong_url_is_a_usage_error() {
    for url in ["ftp://x", "http://", "http://a b"] {
        let (result, _) = run_on(url, "status");
        assert_eq!(code(&result.expect_err(url)), 2, "{url}");
    }
}

#[test]
fn lists_follow_their_cursor_up_to_the_limit() {
    let server = Canned::new(vec![
        (200, r#"{"items": [{"id": "a"}, {"id": "b"}], "next": "c/1"}"#),
        (200, r#"{"items": [{"id": "c"}], "next": null}"#),
    ]);
    let (result, out) = server.run("get dlq --subscription orders --limit 0 -o name");
    result.expect("listed");
    assert_eq!(out, "deadletter/a\ndeadletter/b\ndeadletter/c\n");
    assert_eq!(
        server.asked(),
        [
            "GET /api/v1/dlq?subscription=orders&limit=1000",
            "GET /api/v1/dlq?subscription=orders&limit=1000&cursor=c%2F1"
        ]
    );
}

#[test]
fn apply_tells_created_configured_and_unchanged() {
    let home = tempfile::tempdir().expect("a folder");
    let document =
        |name: &str| format!("kind: Subscription\nmetadata: {{name: {name}}}\nspec: {{concurrency: 2}}\n");
    std::fs::write(home.path().join("1.yaml"), document("a") + "---\n" + &document("b")).expect("written");
    std::fs::write(home.path().join("2.yml"), document("c")).expect("written");
    std::fs::write(home.path().join("notes.txt"), "not: {read").expect("written");
    let same = r#"{"metadata": {"name": "x"}, "spec": {"concurrency": 2}}"#;
    let server = Canned::new(vec![
        (200, r#"{"change": "created"}"#),
        (201, same),
        (200, r#"{"change": "configured"}"#),
        (200, same),
        (200, r#"{"change": "unchanged"}"#),
        (200, same),
    ]);
    let (result, out) = server.run(&format!("apply -f {}", home.path().display()));
    result.expect("applied");
    assert_eq!(out, "subscription/a created\nsubscription/b configured\nsubscription/c unchanged\n");
    let sent = r#"PUT /api/v1/subscriptions/a {"kind":"Subscription","metadata":{"name":"a"},"spec":{"concurrency":2}}"#;
    assert_eq!(server.asked()[1], sent);
}

#[test]
fn functions_are_applied_whole_and_the_server_says_what_changed() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("f.yaml");
    let document = "kind: LambdaFunction\nmetadata: {name: f}\n---\nkind: LambdaAgent\nmetadata: {name: a, namespace: shop}\n";
    std::fs::write(&file, document).expect("written");
    let server = Canned::new(vec![
        (202, r#"{"name": "f", "change": "created"}"#),
        (200, r#"{"change": "unchanged"}"#),
    ]);
    let (result, out) = server.run(&format!("apply -f {}", file.display()));
    result.expect("applied");
    assert_eq!(out, "function/f created\nagent/a unchanged\n");
    assert_eq!(
        server.asked(),
        [
            r#"PUT /api/v1/lambda/functions/f?apply=true {"kind":"LambdaFunction","metadata":{"name":"f"}}"#,
            r#"PUT /api/v1/namespaces/shop/lambda/agents/a?apply=true {"kind":"LambdaAgent","metadata":{"name":"a","namespace":"shop"}}"#,
        ]
    );
}

#[test]
fn an_invocation_is_passed_on_as_it_is() {
    let server = Canned::new(vec![
        (200, "{\"hello\": \"Ada\"}"),
        (200, ""),
        (500, r#"{"error": {"type": "TypeError", "message": "no"}}"#),
    ]);
    let (result, out) = server.run("invoke hello -d {\"name\":\"Ada\"} -n shop");
    result.expect("invoked");
    assert_eq!(out, "{\"hello\": \"Ada\"}\n");
    assert_eq!(server.run("invoke agent/a -d text").1, "");
    let (result, _) = server.run("invoke hello");
    let error = result.expect_err("it failed");
    assert_eq!((code(&error), format!("{error:#}").as_str()), (1, "function/hello: TypeError: no"));
    assert_eq!(
        server.asked(),
        [
            r#"POST /api/v1/namespaces/shop/lambda/functions/hello/invoke {"name":"Ada"}"#,
            "POST /api/v1/lambda/agents/a/invoke text",
            "POST /api/v1/lambda/functions/hello/invoke"
        ]
    );
}

#[test]
fn logs_go_on_where_they_broke_and_end_with_the_function() {
    let first = "id: 7\ndata: {\"number\": 7, \"time\": \"2026-01-01T00:00:00Z\", \"text\": \"a\"}\n\n\
        id: 8\ndata: {\"number\": 8, \"time\": \"2026-01-01T00:00:01Z\", \"text\": \"b\"}\n\n";
    let again = "id: 8\ndata: {\"number\": 8, \"time\": \"2026-01-01T00:00:01Z\", \"text\": \"b\"}\n\n\
        id: 0\ndata: {\"number\": 0, \"time\": \"2026-01-01T00:00:02Z\", \"text\": \"c\"}\n\n";
    let server = Canned::new(vec![(200, ""), (200, first), (200, again), (404, r#"{"title": "Not found"}"#)]);
    let (result, out) = server.run("logs hello -f --tail 2 --event e");
    result.expect("followed to its end");
    assert_eq!(out, "a\nb\nc\n");
    let asked = server.asked();
    let path = "GET /api/v1/lambda/functions/hello/logs";
    assert_eq!(asked[0], format!("{path}?tail=2&eventId=e&follow=false"));
    assert_eq!(asked[1], format!("{path}?tail=2&eventId=e&follow=true"));
    assert_eq!(asked[3], format!("{path}?since=2026-01-01T00%3A00%3A02Z&eventId=e&follow=true"));
}

#[test]
fn waiting_ends_when_it_is_ready_or_cannot_be() {
    let building =
        r#"{"metadata": {"generation": 1}, "status": {"phase": "Building", "observedGeneration": 1}}"#;
    let failed = r#"{"metadata": {"generation": 1}, "status": {"phase": "Failed", "observedGeneration": 1, "conditions": [
        {"type": "BuildReady", "status": "False", "reason": "SyntaxError", "message": "Correct the code."}]}}"#;
    let server = Canned::new(vec![(200, building), (200, failed)]);
    let error = server.run("wait function f").0.expect_err("it failed");
    assert_eq!(code(&error), 1);
    assert_eq!(format!("{error:#}"), "function/f: Correct the code. (SyntaxError)");
    assert_eq!(server.asked().len(), 2);

    let server = Canned::new(vec![(202, "{}"), (200, building), (404, r#"{"title": "No such function"}"#)]);
    let (result, out) = server.run("delete function f --wait");
    result.expect("deleted");
    assert_eq!(out, "function/f deleted\n");
    assert_eq!(server.asked()[0], "DELETE /api/v1/lambda/functions/f");

    let server = Canned::new(vec![(200, building), (404, r#"{"title": "No such function"}"#)]);
    let error = server.run("wait function f").0.expect_err("it is gone");
    assert_eq!(code(&error), 4);
}

#[test]
fn a_rejected_event_fails_the_command_but_every_result_is_told() {
    let server = Canned::new(vec![(
        400,
        r#"{"results": [{"id": "e", "source": "/s", "status": "rejected", "problem": {"title": "Bad", "detail": "no"}}]}"#,
    )]);
    let (result, out) = server.run("event send --type t --id e");
    assert_eq!(code(&result.expect_err("rejected")), 1);
    assert_eq!(out, "event/e rejected: Bad: no\n");
    let sent = r#"POST /api/v1/events {"id":"e","source":"/klambda","specversion":"1.0","type":"t"}"#;
    assert_eq!(server.asked(), [sent]);
}

#[test]
fn a_tail_takes_up_where_the_connection_broke() {
    let server = Canned::new(vec![
        (200, r#"{"positions": {"first": 1, "last": 6}}"#),
        (200, "id: 7\ndata: {\"position\": 7, \"event\": {\"id\": \"a\", \"type\": \"order.x\"}}\n\n"),
        (200, "id: 9\ndata: {\"position\": 9, \"event\": {\"id\": \"b\", \"type\": \"order.y\"}}\n\n"),
    ]);
    let (result, out) = server.run("event tail --type order.* --limit 2 -o name");
    result.expect("tailed");
    assert_eq!(out, "event/a\nevent/b\n");
    assert_eq!(
        server.asked(),
        ["GET /api/v1/status", "GET /api/v1/events?after=6", "GET /api/v1/events?after=7"]
    );
}

#[test]
fn a_replay_is_watched_to_its_end_and_its_failures_are_an_error() {
    let server = Canned::new(vec![
        (200, r#"{"id": "a"}"#),
        (200, r#"{"id": "b"}"#),
        (202, r#"{"id": "r1", "state": "running", "selected": 2}"#),
        (200, r#"{"id": "r1", "state": "running", "selected": 2, "replayed": 1}"#),
        (200, r#"{"id": "r1", "state": "succeeded", "selected": 2, "replayed": 1, "failed": 1, "keys": 1}"#),
    ]);
    let (result, out) = server.run("dlq replay --subscription orders --id a b --rate 5");
    assert_eq!(code(&result.expect_err("one failed")), 1);
    assert!(out.contains("Failed:            1\n"), "{out}");
    let sent = r#"{"dryRun":false,"ratePerSecond":5,"selector":{"ids":["a","b"],"subscription":"orders"}}"#;
    assert_eq!(server.asked()[2], format!("POST /api/v1/dlq/replays {sent}"));
}

#[test]
fn a_dead_letter_that_is_not_there_is_neither_replayed_nor_purged_in_silence() {
    for command in ["dlq replay --id a", "dlq purge --id a --yes"] {
        let server =
            Canned::new(vec![(404, r#"{"title": "Not found", "detail": "there is no dead letter \"a\""}"#)]);
        let (result, _) = server.run(command);
        assert_eq!(code(&result.expect_err("not found")), 4);
        assert_eq!(server.asked(), ["GET /api/v1/dlq/a"]);
    }
}

#[test]
fn a_replay_that_has_finished_is_not_cancelled() {
    for (state, said) in [("succeeded", "already finished"), ("stopped", "cancelled")] {
        let body = format!(r#"{{"id": "r1", "state": "{state}"}}"#);
        let server = Canned::new(vec![(200, body.leak())]);
        let (result, out) = server.run("delete replay r1");
        result.expect("deleted");
        assert_eq!(out, format!("replay/r1 {said}\n"));
        server.asked();
    }
}

#[test]
fn steering_a_lane_whose_key_no_path_holds() {
    let server = Canned::new(vec![(200, r#"{"state": "open"}"#)]);
    let (result, out) = server.run("lane reset orders a/b --expected 42");
    result.expect("reset");
    assert_eq!(out, "lane/orders/a/b reset, now open\n");
    assert_eq!(server.asked(), [r#"POST /api/v1/lanes/reset?subscription=orders&key=a%2Fb {"expected":42}"#]);
}

#[test]
fn deleting_with_events_waiting_names_the_flags() {
    let waiting = r#"{"type": "https://x/problems/events-waiting", "title": "Events are waiting", "waiting": 3,
        "detail": "events wait for it (3)"}"#;
    let managed = r#"{"title": "Conflict", "detail": "it belongs to function f"}"#;
    let server = Canned::new(vec![(409, waiting), (409, managed)]);
    let error = server.run("delete sub orders").0.expect_err("a conflict");
    assert_eq!(code(&error), 5);
    let text = format!("{error:#}");
    let expected = "subscription/orders: 3 events are pending. Use --drain to deliver them first or --discard to drop them";
    assert_eq!(text, expected);
    let error = server.run("delete sub lambda.default.f").0.expect_err("a conflict");
    assert_eq!(format!("{error:#}"), "subscription/lambda.default.f: Conflict: it belongs to function f");
    assert_eq!(server.asked()[0], "DELETE /api/v1/subscriptions/orders");
}

#[test]
fn a_change_that_parked_lanes_hold_up_names_them_and_the_flag() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("s.yaml");
    std::fs::write(&file, "kind: Subscription\nmetadata: {name: a}\n").expect("written");
    let parked = r#"{"title": "Lanes are parked", "detail": "discard what waits with ?discard=true", "lanes": ["k1", "k\n2"]}"#;
    let server = Canned::new(vec![(200, "{}"), (409, parked), (200, "{}"), (200, "{}")]);
    let error = server.run(&format!("apply -f {}", file.display())).0.expect_err("refused");
    assert_eq!(
        format!("{error:#}"),
        "subscription/a: Lanes are parked: discard what waits with --discard\n  parked lanes: k1, k\\n2"
    );
    server.run(&format!("apply --discard --yes -f {}", file.display())).0.expect("applied");
    assert!(server.asked()[3].starts_with("PUT /api/v1/subscriptions/a?discard=true "));
}

#[test]
fn a_dead_letter_that_cannot_be_replayed_says_why() {
    let letter = r#"{"id": "a.3", "subscription": "lambda.shop.a", "key": null, "reason": "validation"}"#;
    let told = |status, subscription| {
        let server = Canned::new(vec![(200, letter), (status, subscription)]);
        let (result, out) = server.run("describe deadletter a.3");
        result.expect("described");
        assert_eq!(server.asked()[1], "GET /api/v1/subscriptions/lambda.shop.a");
        out
    };
    let gone = told(404, "{}");
    assert!(
        gone.contains("Apply function a (namespace shop) again") && !gone.contains("dlq replay"),
        "{gone}"
    );
    let keyless = told(200, r#"{"spec": {"ordering": "ordered"}}"#);
    assert!(keyless.contains("the event has no key") && !keyless.contains("dlq replay"), "{keyless}");
    let unordered = told(200, r#"{"spec": {"ordering": "unordered"}}"#);
    assert!(unordered.contains("klambda dlq replay --id a.3 "), "{unordered}");
}

#[test]
fn what_a_token_and_a_scheme_want_is_said_in_flags() {
    let body =
        r#"{"type": "https://x/problems/unauthorized", "title": "Token missing", "detail": "needs a token"}"#;
    assert!(
        format!("{:#}", failure(401, body)).ends_with("; use --token-file to name the file with your token")
    );
    let plain = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = plain.local_addr().expect("an address");
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = plain.accept().expect("a connection");
        let mut hello = [0; 64];
        let _ = stream.read(&mut hello).expect("a hello");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").expect("answered");
    });
    let error = run_on(&format!("https://{address}"), "status").0.expect_err("not https");
    answering.join().expect("answered");
    let text = format!("{error:#}");
    assert!(text.ends_with(&format!("speaks http, not https; use --server http://{address}")), "{text}");
    assert_eq!(code(&error), 3);
    assert_eq!(code(&run_on("http://127.0.0.1:1", "status -o name").0.expect_err("no name")), 2);
}

#[test]
fn a_reader_that_left_is_no_error() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let cli = Cli::try_parse_from(["klambda", "completion", "bash"]).expect("parsed");
    let error = run_to(cli, &mut Closed).expect_err("nobody reads");
    assert!(exit::is_broken_pipe(&error));
}
