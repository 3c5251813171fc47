//! Sending, listing, following and tracing events.

use crate::world::{Target, World, open, start};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::timeout;

fn structured(id: &str, key: &str) -> Value {
    json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "order.paid", "partitionkey": key,
        "data": {"n": 1.50}})
}

#[tokio::test]
async fn all_three_modes_are_accepted_and_delivered_in_order() {
    let world = World::new().await;
    world.subscribe("orders", json!({})).await;
    let first = world.send("e1", "k", &[("ce-colour", "red")]).await;
    assert_eq!(first, json!({"id": "e1", "source": "/shop", "status": "accepted", "position": 1}));

    let media = [("content-type", "application/cloudevents+json")];
    let answer = world.ask("POST", "/api/v1/events", &media, &structured("e2", "k").to_string()).await;
    assert_eq!((answer.status, &answer.json()["results"][0]["position"]), (202, &json!(2)));

    let media = [("content-type", "application/cloudevents-batch+json")];
    let batch = json!([structured("e3", "k"), structured("e1", "k"), {"specversion": "1.0", "id": "bad"}, structured("e4", "k")]);
    let answer = world.ask("POST", "/api/v1/events", &media, &batch.to_string()).await;
    assert_eq!(answer.status, 202);
    let results = answer.json()["results"].clone();
    let statuses: Vec<&str> =
        results.as_array().unwrap().iter().map(|r| r["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["accepted", "skipped", "rejected", "accepted"]);
    assert_eq!(results[1]["reason"], "duplicate");
    assert_eq!(results[2]["problem"]["status"], 400);
    assert!(results[2]["problem"]["faults"].as_array().unwrap().len() >= 2, "{results}");

    world.target.until(|received| received.len() == 4).await;
    let received = world.target.received();
    assert_eq!(world.target.ids(), ["e1", "e2", "e3", "e4"]);
    for (n, event) in received.iter().enumerate() {
        assert_eq!(event.headers["ce-lanesequence"], (n + 1).to_string());
        let before = n.checked_sub(1).map(|before| received[before].id().to_owned());
        assert_eq!(event.headers.get("ce-previousid"), before.as_ref());
    }
    assert_eq!(received[0].headers["ce-colour"], "red");
    assert_eq!(received[1].body, "{\"n\":1.5}", "{:?}", received[1]);

    let again = world.offer("e1", "k", &[]).await;
    assert_eq!((again.status, &again.json()["results"][0]["status"]), (200, &json!("skipped")));
    assert_eq!(
        world.metric("duplicate_events_skipped_total{subscription=\"orders\",namespace=\"default\",reason=\"duplicate\"}").await,
        2.0
    );
}

#[tokio::test]
async fn the_log_is_read_by_page_and_type() {
    let world = World::new().await;
    for n in 1..=5 {
        let kind = if n % 2 == 0 { "order.paid" } else { "order.placed" };
        world.send(&format!("e{n}"), "k", &[("ce-type", kind)]).await;
    }
    let page = world.get("/api/v1/events?limit=2").await.json();
    assert_eq!((page["items"].as_array().unwrap().len(), &page["next"]), (2, &json!("2")));
    assert_eq!(page["items"][0]["event"]["data"], json!({"total": 7}));
    assert!(page["items"][0]["acceptedAt"].as_str().unwrap().ends_with('Z'));
    let rest = world.get("/api/v1/events?after=2").await.json();
    let ids = |page: &Value| -> Vec<String> {
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["event"]["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!((ids(&rest), &rest["next"]), (vec!["e3".into(), "e4".into(), "e5".into()], &Value::Null));
    assert_eq!(ids(&world.get("/api/v1/events?type=order.paid").await.json()), ["e2", "e4"]);
    assert_eq!(ids(&world.get("/api/v1/events?type=order.*&limit=5").await.json()).len(), 5);
    for after in [99, u64::MAX] {
        let past_the_end = world.get(&format!("/api/v1/events?after={after}")).await.json();
        assert_eq!(past_the_end, json!({"items": [], "next": null}));
    }
    let last = u64::MAX.to_string();
    let accept = [("accept", "text/event-stream"), ("last-event-id", last.as_str())];
    let mut stream = open(world.address, "GET", "/api/v1/events", &accept, b"").await;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
}

#[tokio::test]
async fn the_log_is_read_from_its_end() {
    let world = World::new().await;
    for n in 1..=40 {
        let kind = if n % 20 == 0 { "order.paid" } else { "order.placed" };
        world.send(&format!("e{n}"), "k", &[("ce-type", kind)]).await;
    }
    let read = async |query: String| {
        let page = world.get(&format!("/api/v1/events?order=desc{query}")).await.json();
        let items = page["items"].as_array().unwrap().iter();
        (items.map(|item| item["position"].as_u64().unwrap()).collect::<Vec<_>>(), page["next"].clone())
    };
    assert_eq!(read("&limit=3".into()).await, (vec![40, 39, 38], json!("38")));
    assert_eq!(read("&limit=3&before=4".into()).await, (vec![3, 2, 1], Value::Null));
    assert_eq!(read("&before=1".into()).await, (vec![], Value::Null));
    assert_eq!(read(format!("&limit=1&before={}", u64::MAX)).await.0, [40]);
    assert_eq!(read("&type=order.paid".into()).await, (vec![40, 20], Value::Null));
    let (mut all, mut before) = (Vec::new(), String::new());
    loop {
        let (found, next) = read(format!("&limit=7{before}")).await;
        all.extend(found);
        let Some(next) = next.as_str() else { break };
        before = format!("&before={next}");
    }
    assert_eq!(all, (1..=40).rev().collect::<Vec<u64>>());
    for wrong in ["order=up", "before=3", "order=desc&after=3", "order=asc&before=3"] {
        assert_eq!(world.get(&format!("/api/v1/events?{wrong}")).await.status, 400, "{wrong}");
    }
    let accept = [("accept", "text/event-stream")];
    let stream = world.ask("GET", "/api/v1/events?order=desc", &accept, "").await;
    assert_eq!(stream.status, 400);
}

#[tokio::test]
async fn a_tail_sees_events_as_they_are_accepted_and_ends_with_the_server() {
    let world = World::new().await;
    world.send("e1", "k", &[]).await;
    let accept = [("accept", "text/event-stream"), ("last-event-id", "0")];
    let stream = open(world.address, "GET", "/api/v1/events?type=order.*", &accept, b"").await;
    let mut lines = BufReader::new(stream);
    let mut next = async |wanted: &str| {
        let read = async {
            loop {
                let mut line = String::new();
                assert!(lines.read_line(&mut line).await.unwrap() > 0, "the tail ended before {wanted}");
                if line.starts_with(wanted) {
                    return line;
                }
            }
        };
        timeout(Duration::from_secs(10), read).await.unwrap_or_else(|_| panic!("no {wanted}"))
    };
    next("HTTP/1.1 200").await;
    next("content-type: text/event-stream").await;
    next("id: 1").await;
    world.send("e2", "k", &[("ce-type", "other")]).await;
    world.send("e3", "k", &[]).await;
    next("id: 3").await;
    let data = next("data: ").await;
    let item: Value = serde_json::from_str(data.trim_start_matches("data: ")).unwrap();
    assert_eq!((&item["position"], &item["event"]["id"]), (&json!(3), &json!("e3")));

    world.server.stop();
    let mut rest = Vec::new();
    timeout(Duration::from_secs(10), lines.read_to_end(&mut rest)).await.expect("the tail ends").unwrap();
    timeout(Duration::from_secs(10), world.server.ended()).await.expect("the server is not blocked").unwrap();
}

#[tokio::test]
async fn a_stream_ends_when_its_token_is_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "stays\nrevoked\n").unwrap();
    let server = start(folder.path(), |config| config.token_file = Some(tokens.clone())).await;
    let follow = async |authorization: &str| {
        let headers = [("accept", "text/event-stream"), ("authorization", authorization)];
        let mut lines = BufReader::new(open(server.address(), "GET", "/api/v1/events", &headers, b"").await);
        let mut line = String::new();
        while !line.starts_with(": ") {
            line.clear();
            assert!(lines.read_line(&mut line).await.unwrap() > 0, "the stream ended immediately");
        }
        lines
    };
    let (mut revoked, mut stays) = (follow("Bearer revoked").await, follow("Bearer stays").await);
    std::fs::write(&tokens, "stays\n").unwrap();
    let mut rest = Vec::new();
    let ended = timeout(Duration::from_millis(1500), revoked.read_to_end(&mut rest)).await;
    ended.expect("within a second, and a little for the machine").unwrap();
    let open = timeout(Duration::from_millis(100), stays.read_to_end(&mut rest)).await;
    assert!(open.is_err(), "other streams continue");
}

#[tokio::test]
async fn an_event_in_json_needs_no_version_and_is_counted() {
    let world = World::new().await;
    let mut event = structured("bare", "k");
    event.as_object_mut().unwrap().remove("specversion");
    let media = [("content-type", "application/cloudevents+json")];
    let answer = world.ask("POST", "/api/v1/events", &media, &event.to_string()).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(world.metric("klambda_events_without_specversion_total").await, 1.0);
    let stored = world.get("/api/v1/events/bare").await.json();
    assert_eq!(stored["event"]["specversion"], "1.0");
}

#[tokio::test]
async fn an_event_tells_its_fate_in_every_subscription() {
    let world = World::new().await;
    world.target.answers(|event| if event.id() == "bad" { 422 } else { 200 });
    world.subscribe("orders", json!({})).await;
    world.subscribe("audit", json!({"ordering": "unordered", "paused": true})).await;
    world.subscribe("none", json!({"filters": [{"exact": {"type": "never"}}]})).await;
    for id in ["good", "bad", "behind"] {
        world.send(id, "k", &[]).await;
    }
    world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "parked").await;
    let fates = async |id: &str, source: &str| {
        let found = world.get(&format!("/api/v1/events/{id}{source}")).await.json();
        let fates = found["fates"].as_array().unwrap_or_else(|| panic!("{found}")).clone();
        let of =
            |name: &str| fates.iter().find(|fate| fate["subscription"] == name).cloned().unwrap_or_default();
        assert_eq!(fates.len(), 2, "{fates:?}");
        (of("orders"), of("audit"), found["position"].as_u64().unwrap())
    };
    let (orders, audit, position) = fates("good", "?source=/shop").await;
    assert_eq!(
        (&orders["fate"], &orders["key"], &audit["fate"], position),
        (&json!("delivered"), &json!("k"), &json!("waiting"), 1)
    );
    let (orders, _, position) = fates("bad", "").await;
    assert_eq!((&orders["fate"], &orders["laneSequence"], position), (&json!("deadLetter"), &json!(2), 2));
    assert_eq!((&orders["attempts"], &orders["deadLetter"]), (&json!(1), &json!("orders.2")));
    assert_eq!((&orders["attemptLog"][0]["status"], &orders["more"]), (&json!(422), &Value::Null));
    let (orders, ..) = fates("behind", "?source=/shop").await;
    assert_eq!((&orders["fate"], &orders["laneSequence"]), (&json!("waiting"), &json!(3)));
    assert_eq!(world.get("/api/v1/events/nobody").await.problem(), "not-found");
    assert_eq!(world.get("/api/v1/events/good?source=/other").await.problem(), "not-found");
}

/// Of lanes and of unordered subscriptions, through retries, a dead letter and a replay.
#[tokio::test]
async fn an_event_shows_its_attempts_newest_first() {
    let world = World::new().await;
    let heap = Target::start().await;
    for (name, ordering, target) in [("lanes", "ordered", &world.target), ("heap", "unordered", &heap)] {
        let calls = AtomicUsize::new(0);
        target.answers(move |_| [503, 500, 422, 201][calls.fetch_add(1, Ordering::Relaxed).min(3)]);
        let retry = json!({"attempts": 5, "backoff": "10ms", "maxBackoff": "10ms"});
        let spec = json!({"ordering": ordering, "retry": retry, "target": {"url": target.url()}});
        world.subscribe(name, spec).await;
    }
    world.send("e1", "k", &[]).await;
    world.until("/api/v1/dlq", |letters| letters["items"].as_array().unwrap().len() == 2).await;
    let logs = |found: &Value| -> Vec<Value> {
        found["fates"].as_array().unwrap().iter().map(|fate| fate["attemptLog"].clone()).collect()
    };
    let of = |log: &Value, member: &str| -> Vec<Value> {
        log.as_array().unwrap_or_else(|| panic!("{log}")).iter().map(|tried| tried[member].clone()).collect()
    };
    let found = world.get("/api/v1/events/e1").await.json();
    for log in logs(&found) {
        assert_eq!(of(&log, "status"), [422, 500, 503], "{found:#}");
        assert_eq!(of(&log, "attempt"), [3, 2, 1], "{found:#}");
        assert_eq!(of(&log, "outcome"), ["failed"; 3], "{found:#}");
        assert!(of(&log, "durationMs").iter().all(|ms| ms.as_u64().is_some_and(|ms| ms < 5000)), "{found:#}");
    }
    let started = world.post("/api/v1/dlq/replays", json!({"selector": {"all": true}})).await;
    assert_eq!(started.status, 202, "{started:?}");
    let is_delivered = |found: &Value| {
        found["fates"].as_array().unwrap().iter().all(|fate| fate["attemptLog"][0]["status"] == 201)
    };
    let found = world.until("/api/v1/events/e1", is_delivered).await;
    for log in logs(&found) {
        assert_eq!(of(&log, "attempt"), [4, 3, 2, 1], "{found:#}");
        assert_eq!(of(&log, "outcome"), ["delivered", "failed", "failed", "failed"], "{found:#}");
    }
}
