//! Edited dead letters over REST.

use crate::tokens::{ADMIN, bare, issue};
use crate::world::{NEVER, World};
use serde_json::{Value, json};

/// The event that `World::send` sends, with other data.
fn fixed(id: &str, key: &str, total: u64) -> Value {
    json!({
        "specversion": "1.0", "id": id, "source": "/shop", "type": "order.placed", "partitionkey": key,
        "datacontenttype": "application/json", "data": {"total": total},
    })
}

#[tokio::test]
async fn an_operator_edits_a_dead_letter_and_only_its_subscription_gets_the_edit() {
    let world = World::new().await;
    world.target.answers(|_| 422);
    world.subscribe("orders", json!({})).await;
    world.subscribe("others", json!({})).await;
    world.send("e1", "k", &[]).await;
    world.send("e2", "k", &[]).await;
    world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "parked").await;
    world.until("/api/v1/lanes/others/k", |lane| lane["state"] == "parked").await;

    let path = "/api/v1/dlq/orders.1/event";
    let before = world.get("/api/v1/dlq/orders.1").await;
    assert_eq!((&before.headers["etag"], before.json().get("editedBy")), (&"\"0\"".to_owned(), None));
    let put = async |tag: &str, event: &Value| {
        world.ask("PUT", path, &[("if-match", tag)], &event.to_string()).await
    };
    let edited = put("\"0\"", &fixed("e1", "k", 8)).await;
    assert_eq!((edited.status, &edited.headers["etag"]), (200, &"\"1\"".to_owned()), "{}", edited.text());
    let late = put("\"0\"", &fixed("e1", "k", 9)).await;
    assert_eq!((late.status, late.problem()), (412, "outdated".to_owned()));
    assert_eq!(put("*", &fixed("e1", "k", 9)).await.status, 200);
    assert_eq!(put("\"2\"", &fixed("e1", "k", 10)).await.headers["etag"], "\"3\"");
    assert_eq!(put("two", &fixed("e1", "k", 10)).await.problem(), "bad-request");

    let world = world.restart().await;
    let letter = world.get("/api/v1/dlq/orders.1").await.json();
    assert_eq!(letter["event"]["data"], json!({"total": 10}), "{letter:#}");
    assert_eq!(letter["original"]["data"], json!({"total": 7}));
    assert_eq!((&letter["edits"], &letter["holdsLane"]), (&json!(3), &json!(true)));
    assert!(letter["editedAt"].is_string() && letter["editedBy"].is_string(), "{letter:#}");
    let lane = world.get("/api/v1/lanes/orders/k").await.json();
    assert_eq!(lane["head"]["edits"], 3, "{lane:#}");
    assert_eq!(world.get("/api/v1/dlq?subscription=orders").await.json()["items"][0]["edits"], 3);
    let shown = world.get("/api/v1/events/e1?source=/shop").await.json();
    assert_eq!(shown["event"]["data"], json!({"total": 7}), "the log keeps the event: {shown:#}");

    world.target.answers(|_| 200);
    world.post("/api/v1/lanes/orders/k/resume", json!({})).await;
    world.target.until(|all| all.len() == 2).await;
    world.post("/api/v1/dlq/replays", json!({"selector": {"subscription": "others"}})).await;
    world.target.until(|all| all.len() == 4).await;
    let got: Vec<(String, String)> =
        world.target.received().iter().map(|event| (event.id().to_owned(), event.body.clone())).collect();
    let sent = |id: &str, body: &str| (id.to_owned(), body.to_owned());
    assert_eq!(got[0], sent("e1", "{\"total\":10}"));
    assert_eq!(got[1..], ["e2", "e1", "e2"].map(|id| sent(id, "{\"total\": 7}")));
    assert_eq!(world.get("/api/v1/dlq/orders.1").await.status, 404);
}

#[tokio::test]
async fn what_an_edit_must_not_do_is_refused() {
    let world = World::with(|config| config.limits.event_bytes = 1000).await;
    world.target.answers(|_| 422);
    let sequence = json!({"sequence": {"attribute": "sequence"}});
    world.subscribe("orders", json!({"orderingPolicy": sequence})).await;
    world.send("e1", "k", &[("ce-sequence", "1")]).await;
    world.until("/api/v1/dlq", |list| list["items"][0]["id"] == "orders.1").await;
    let put = async |event: &Value| world.put("/api/v1/dlq/orders.1/event", event).await;
    let with = |name: &str, value: Value| {
        let mut event = fixed("e1", "k", 8);
        event["sequence"] = json!("1");
        event[name] = value;
        event
    };
    for (event, fields, words) in [
        (with("id", json!("e2")), "id", "\"e1\""),
        (with("source", json!("/x")), "source", "\"/shop\""),
        (with("partitionkey", json!("l")), "key", "must stay \"k\", but the edited event has \"l\""),
        (with("sequence", json!("2")), "sequence", "must stay 1, but the edited event has 2"),
    ] {
        let refused = put(&event).await;
        assert_eq!((refused.status, refused.problem()), (422, "invalid-body".to_owned()));
        let fault = &refused.json()["faults"][0];
        assert_eq!(fault["path"], fields, "{fault}");
        assert!(fault["message"].as_str().unwrap().contains(words), "{fault}");
    }
    assert_eq!(put(&with("data", json!("x".repeat(1001)))).await.problem(), "too-large");
    assert_eq!(put(&with("type", json!(""))).await.problem(), "invalid-event");
    assert_eq!(put(&json!([])).await.problem(), "invalid-event");
    let missing = world.put("/api/v1/dlq/orders.9/event", &with("type", json!("t"))).await;
    assert_eq!(missing.problem(), "not-found");
    assert_eq!(world.get("/api/v1/dlq/orders.1").await.json().get("edits"), None, "nothing changed");

    world.target.answers(|_| NEVER);
    world.post("/api/v1/dlq/replays", json!({"selector": {"all": true}})).await;
    world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "running").await;
    let refused = put(&with("data", json!(1))).await;
    assert_eq!((refused.status, refused.problem()), (409, "conflict".to_owned()), "{}", refused.text());
}

#[tokio::test]
async fn an_edit_names_its_author_also_in_the_audit_log() {
    let world = bare().await;
    let token = issue(&world, json!({"name": "ann", "role": "operator", "namespaces": ["default"]})).await;
    world.target.answers(|_| 422);
    let admin = [("authorization", ADMIN), ("content-type", "application/json")];
    let document = world.document("orders", json!({})).to_string();
    world.ask("PUT", "/api/v1/subscriptions/orders", &admin, &document).await;
    let event = fixed("e1", "k", 7).to_string();
    let structured = [("authorization", ADMIN), ("content-type", "application/cloudevents+json")];
    assert_eq!(world.ask("POST", "/api/v1/events", &structured, &event).await.status, 202);
    let bearer = format!("Bearer {token}");
    let edited = async || {
        let headers = [("authorization", bearer.as_str())];
        let body = fixed("e1", "k", 8).to_string();
        world.ask("PUT", "/api/v1/dlq/orders.1/event", &headers, &body).await
    };
    let answer = loop {
        let answer = edited().await;
        // The event is not a dead letter yet.
        if answer.status != 404 && answer.status != 409 {
            break answer;
        }
    };
    assert_eq!((answer.status, &answer.json()["editedBy"]), (200, &json!("token/ann")), "{}", answer.text());
    let audit = world.ask("GET", "/api/v1/audit", &admin, "").await.json();
    let entry = &audit["items"][0];
    assert_eq!(
        [&entry["who"], &entry["verb"], &entry["kind"], &entry["name"]],
        ["token/ann", "edit", "deadletter", "orders.1"],
        "{entry}"
    );
    assert!(!audit.to_string().contains("total"), "no payload in the audit log");
}
