//! Every invalid request gets a problem document that names the error.

use crate::world::World;
use serde_json::json;

type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str, u16, &'a str, &'a str);

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn whatever_is_wrong_is_named() {
    let world = World::with(|config| {
        config.limits.batch_events = 2;
        config.limits.event_bytes = 2048;
        config.limits.subscriptions = 1;
    })
    .await;
    world.subscribe("orders", json!({})).await;
    let batch = ("content-type", "application/cloudevents-batch+json");
    let structured = ("content-type", "application/cloudevents+json");
    let event = "{\"specversion\":\"1.0\",\"id\":\"x\",\"source\":\"/s\",\"type\":\"t\"}";
    let three = format!("[{event},{event},{event}]");
    let large = event.replace("\"t\"", &format!("\"t\",\"data\":\"{}\"", "x".repeat(4000)));
    let other = world.document("other", json!({})).to_string();
    let bad_document = "{\"kind\":\"Subscription\",\"spec\":{\"targt\":{},\"retry\":{\"attempts\":0}}}";
    #[rustfmt::skip]
    let cases: &[Case<'_>] = &[
        ("POST", "/api/v1/events", &[], "", 415, "unsupported-media-type", "application/cloudevents+json"),
        ("POST", "/api/v1/events", &[JSON], "{}", 415, "unsupported-media-type", "ce-specversion"),
        ("POST", "/api/v1/events", &[("ce-id", "x")], "", 400, "invalid-event", "specversion"),
        ("POST", "/api/v1/events", &[("ce-specversion", "1.0")], "", 400, "invalid-event", "\"source\""),
        ("POST", "/api/v1/events?typo=1", &[structured], event, 400, "bad-request", "typo"),
        ("POST", "/api/v1/events", &[structured], "{", 400, "invalid-event", "JSON"),
        ("POST", "/api/v1/events", &[structured], &large, 413, "too-large", "2048"),
        ("POST", "/api/v1/events", &[batch], "{}", 400, "invalid-batch", "array"),
        ("POST", "/api/v1/events", &[batch], &three, 400, "invalid-batch", "limits.batchEvents"),
        ("GET", "/api/v1/events?limit=0", &[], "", 400, "bad-request", "query parameter limit: must be a number from 1 to 1000"),
        ("GET", "/api/v1/events?afer=1", &[], "", 400, "bad-request", "did you mean `after`?"),
        ("GET", "/api/v1/events?after=x", &[], "", 400, "bad-request", "integer"),
        ("GET", "/api/v1/events", &[("accept", "text/event-stream"), ("last-event-id", "x")], "", 400, "bad-request", "Last-Event-ID"),
        ("PUT", "/api/v1/subscriptions/orders", &[], "{", 400, "bad-request", "JSON"),
        ("PUT", "/api/v1/subscriptions/orders", &[], &other, 422, "invalid-subscription", "metadata.name"),
        ("PUT", "/api/v1/subscriptions/orders", &[], bad_document, 422, "invalid-subscription", "did you mean `target`?"),
        ("PUT", "/api/v1/subscriptions/other", &[], &other, 429, "limit-reached", "limits.subscriptions"),
        ("GET", "/api/v1/subscriptions/nobody", &[], "", 404, "not-found", "nobody"),
        ("DELETE", "/api/v1/subscriptions/nobody", &[], "", 404, "not-found", "nobody"),
        ("DELETE", "/api/v1/subscriptions/orders?drain=yes", &[], "", 400, "bad-request", "must be true or false"),
        ("POST", "/api/v1/subscriptions/orders/puase", &[], "", 404, "not-found", "did you mean `pause`?"),
        ("PATCH", "/api/v1/subscriptions/orders", &[], "", 405, "method-not-allowed", "PATCH"),
        ("GET", "/api/v1/lanes?subscription=nobody", &[], "", 404, "not-found", "nobody"),
        ("GET", "/api/v1/lanes?state=parkd", &[], "", 400, "bad-request", "did you mean `parked`?"),
        ("GET", "/api/v1/lanes?sort=size", &[], "", 400, "bad-request", "depth, age, rate"),
        ("GET", "/api/v1/lanes?key=k", &[], "", 400, "bad-request", "subscription"),
        ("GET", "/api/v1/lanes/orders/nobody", &[], "", 404, "not-found", "nobody"),
        ("POST", "/api/v1/lanes/orders/nobody/resume", &[], "", 404, "not-found", "nobody"),
        ("POST", "/api/v1/lanes/orders/k/skipp", &[], "", 404, "not-found", "did you mean `skip`?"),
        ("POST", "/api/v1/lanes/skip?key=k", &[], "", 400, "bad-request", "subscription"),
        ("POST", "/api/v1/lanes/orders/k/reset", &[], "{}", 422, "invalid-body", "expected"),
        ("POST", "/api/v1/lanes/orders/k/reset", &[], "{\"expected\":-1}", 422, "invalid-body", "integer"),
        ("POST", "/api/v1/lanes/orders/k/skip", &[], "{\"x\":1}", 422, "invalid-body", "x"),
        ("GET", "/api/v1/dlq?reason=lat", &[], "", 400, "bad-request", "did you mean `late`?"),
        ("GET", "/api/v1/dlq?since=yesterday", &[], "", 400, "bad-request", "RFC 3339"),
        ("GET", "/api/v1/dlq?subscription=nobody", &[], "", 404, "not-found", "nobody"),
        ("GET", "/api/v1/dlq/orders.7", &[], "", 404, "not-found", "orders.7"),
        ("DELETE", "/api/v1/dlq/nonsense", &[], "", 404, "not-found", "nonsense"),
        ("POST", "/api/v1/dlq/purge", &[], "", 422, "invalid-selector", "to select all dead letters"),
        ("POST", "/api/v1/dlq/purge", &[], "{\"selector\":{}}", 422, "invalid-selector", "is empty"),
        ("POST", "/api/v1/dlq/replays", &[], "{\"selector\":{\"all\":false}}", 422, "invalid-selector", "is empty"),
        ("POST", "/api/v1/dlq/replays", &[], "{\"selector\":{\"all\":true,\"key\":\"k\"}}", 422, "invalid-selector", "selector.all"),
        ("POST", "/api/v1/dlq/replays", &[], "{\"selector\":{\"kye\":1},\"rate\":5}", 422, "invalid-selector", "selector.kye"),
        ("POST", "/api/v1/dlq/replays", &[], "{\"selector\":{\"subscription\":\"nobody\"}}", 404, "not-found", "nobody"),
        ("POST", "/api/v1/dlq/replays", &[], "[]", 422, "invalid-selector", "object"),
        ("GET", "/api/v1/dlq/replays/r9", &[], "", 404, "not-found", "r9"),
        ("DELETE", "/api/v1/dlq/replays/9", &[], "", 404, "not-found", "9"),
        ("GET", "/api/v1/status?verbose", &[], "", 400, "bad-request", "verbose"),
        ("GET", "/api/v1/nowhere", &[], "", 404, "not-found", "nowhere"),
    ];
    for (method, path, headers, body, status, slug, part) in cases {
        let answer = world.ask(method, path, headers, body).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (*status, *slug),
            "{method} {path}: {}",
            answer.text()
        );
        assert!(answer.text().contains(part), "{method} {path}: {part} not in {}", answer.text());
    }
    assert_eq!(world.get("/readyz").await.text(), "ready\n");
}

#[tokio::test]
async fn a_wrong_method_is_told_all_the_right_ones() {
    let world = World::new().await;
    for (path, allowed) in [
        ("/api/v1/events", "GET,HEAD,POST"),
        ("/api/v1/events/x", "GET,HEAD"),
        ("/api/v1/lambda/functions/f/invoke", "POST"),
    ] {
        let answer = world.ask("PUT", path, &[], "").await;
        assert_eq!((answer.status, answer.headers["allow"].as_str()), (405, allowed), "{path}");
    }
}

#[tokio::test]
async fn names_are_shown_as_a_person_writes_them() {
    let world = World::new().await;
    for (method, path, part) in [
        ("GET", "/api/v1/caf%C3%A9", "/api/v1/café not found"),
        ("PATCH", "/api/v1/dlq/a%20b", "/api/v1/dlq/a b does not support PATCH"),
        ("GET", "/api/v1/subscriptions/caf%C3%A9", "\"café\" not found"),
        ("GET", "/api/v1/lanes?namespace=caf%C3%A9", "`café` is not a namespace"),
        ("GET", "/api/v1/namespaces/caf%C3%A9/lanes", "`café` is not a namespace"),
    ] {
        let answer = world.ask(method, path, &[], "").await;
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!((400..500).contains(&answer.status) && detail.contains(part), "{path}: {detail}");
    }
}

#[tokio::test]
async fn all_faults_of_a_document_are_listed_at_once() {
    let world = World::new().await;
    let document = json!({"apiVersion": "v1", "kind": "Subscription", "metadata": {"name": "Orders"},
        "spec": {"target": {"url": "ftp://x"}, "ordering": "sorted", "concurrency": 0, "filters": [{"exakt": {}}]}});
    let refused = world.put("/api/v1/subscriptions/Orders", &document).await;
    assert_eq!((refused.status, refused.problem()), (422, "invalid-subscription".to_owned()));
    assert!(refused.json()["faults"].as_array().unwrap().len() >= 6, "{}", refused.text());
}

#[tokio::test]
async fn a_second_server_is_told_who_holds_the_folder() {
    let world = World::new().await;
    let config = klambda_server::Config {
        listen: ([127, 0, 0, 1], 0).into(),
        data: world.folder.path().to_owned(),
        ..Default::default()
    };
    let refused = klambda_server::Server::start(config).await.err().expect("refused").to_string();
    assert!(refused.contains("is in use by process") && !refused.contains('\n'), "{refused}");
}
