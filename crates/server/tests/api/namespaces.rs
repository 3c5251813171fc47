//! How requests name their namespace.

use crate::world::World;
use serde_json::{Value, json};

const HEADERS: [(&str, &str); 4] =
    [("ce-specversion", "1.0"), ("ce-source", "/shop"), ("ce-type", "order.placed"), ("ce-id", "1")];

#[tokio::test]
async fn path_and_query_say_it_and_default_goes_without_saying() {
    let world = World::new().await;
    for (way, path) in [
        "/api/v1/events",
        "/api/v1/events?namespace=default",
        "/api/v1/namespaces/default/events",
        "/api/v1/namespaces/default/events?namespace=default",
        "/api/v1/namespaces/default/events?namespace=def%61ult",
    ]
    .into_iter()
    .enumerate()
    {
        let id = way.to_string();
        let headers: Vec<_> = HEADERS
            .iter()
            .map(|(name, value)| (*name, if *name == "ce-id" { &id } else { *value }))
            .collect();
        assert_eq!(world.ask("POST", path, &headers, "").await.status, 202, "{path}");
    }
    let events = world.get("/api/v1/namespaces/default/events?limit=10").await.json();
    assert_eq!(events["items"].as_array().map(Vec::len), Some(5), "{events}");
    let functions = world.get("/api/v1/namespaces/*/lambda/functions").await;
    assert_eq!(functions.status, 200, "{functions:?}");
}

#[tokio::test]
async fn what_names_no_namespace_is_refused() {
    let world = World::new().await;
    for path in [
        "/api/v1/events?namespace=*",
        "/api/v1/events?namespace=Shop",
        "/api/v1/namespaces/a.b/events",
        "/api/v1/namespaces/a/events?namespace=b",
    ] {
        let refused = world.ask("POST", path, &HEADERS, "").await;
        assert_eq!((refused.status, refused.problem()), (400, "bad-request".to_owned()), "{path}");
    }
    let one = world.get("/api/v1/namespaces/*/lambda/functions/f").await;
    assert_eq!((one.status, one.problem()), (400, "bad-request".to_owned()));
    assert!(one.text().contains("works only for lists"), "{one:?}");
    assert_eq!(world.get("/api/v1/namespaces/a/namespaces/b/lanes").await.status, 404);
    assert_eq!(world.ask("POST", "/api/v1/namespaces/nowhere/events", &HEADERS, "").await.status, 404);
}

/// A subscription to everything, the same in every namespace.
async fn subscribe(world: &World, namespace: &str) {
    let mut document = world.document("orders", json!({"ordering": "ordered", "retry": {"attempts": 1}}));
    document["spec"]["target"]["headers"] = json!({"x-namespace": namespace});
    let put = world.put(&format!("/api/v1/namespaces/{namespace}/subscriptions/orders"), &document).await;
    assert_eq!(put.status, 201, "{put:?}");
}

async fn send(world: &World, namespace: &str, id: &str, key: &str) -> Value {
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-source", "/shop"),
        ("ce-type", "order.placed"),
        ("ce-id", id),
        ("ce-partitionkey", key),
    ];
    let path = format!("/api/v1/namespaces/{namespace}/events");
    world.ask("POST", &path, &headers, "").await.json()
}

#[tokio::test]
async fn two_with_the_same_names_keys_and_ids_never_meet() {
    let world = World::new().await;
    assert_eq!(world.put("/api/v1/namespaces/shop", &json!({})).await.status, 201);
    assert_eq!(world.put("/api/v1/namespaces/shop", &json!({})).await.status, 200);
    world.target.answers(|received| if received.headers["x-namespace"] == "shop" { 422 } else { 200 });
    for namespace in ["default", "shop"] {
        subscribe(&world, namespace).await;
        for id in ["1", "1", "2"] {
            send(&world, namespace, id, "k").await;
        }
    }
    world.until("/api/v1/subscriptions/orders", |json| json["status"]["delivered"] == 2).await;
    let lane = world.until("/api/v1/lanes/orders/k?namespace=shop", |json| json["state"] == "parked").await;
    assert_eq!((&lane["namespace"], &lane["subscription"]), (&json!("shop"), &json!("orders")));
    assert_eq!(world.get("/api/v1/lanes/orders/k").await.json()["state"], "open");
    let events = world.get("/api/v1/events?namespace=shop").await.json();
    assert_eq!(events["items"].as_array().map(Vec::len), Some(2), "{events}");
    let all = world.get("/api/v1/events?namespace=*").await.json();
    let homes: Vec<&Value> = all["items"].as_array().unwrap().iter().map(|item| &item["namespace"]).collect();
    assert_eq!(homes, ["default", "default", "shop", "shop"], "{all}");

    // One dead letter that is visible only in its namespace, under the same id that it would have in the other.
    let letters = world.get("/api/v1/dlq?namespace=shop").await.json();
    let id = letters["items"][0]["id"].as_str().expect("a dead letter").to_owned();
    assert!(id.starts_with("orders."), "{letters}");
    assert_eq!(world.get("/api/v1/dlq").await.json()["items"], json!([]));
    assert_eq!(world.get(&format!("/api/v1/dlq/{id}")).await.status, 404);
    assert_eq!(world.get("/api/v1/events/1").await.json()["fates"][0]["fate"], "delivered");
    assert_eq!(world.get("/api/v1/events/1?namespace=shop").await.json()["fates"][0]["fate"], "deadLetter");
    let all = json!({"selector": {"all": true}});
    assert_eq!(world.post("/api/v1/dlq/purge", all.clone()).await.json()["purged"], 0);
    assert_eq!(world.post("/api/v1/dlq/replays", json!({"selector": {"ids": [id]}})).await.status, 202);
    world.until("/api/v1/dlq/replays/r1", |json| json["state"] != "running").await;
    assert_eq!(world.get("/api/v1/dlq/replays/r1?namespace=shop").await.status, 404);

    world.target.answers(|_| 200);
    let replay = world.post("/api/v1/namespaces/shop/dlq/replays", all).await;
    assert_eq!(replay.headers["location"], "/api/v1/namespaces/shop/dlq/replays/r2");
    world.until("/api/v1/dlq?namespace=shop", |json| json["items"] == json!([])).await;
    let world = world.restart().await;
    world.until("/api/v1/subscriptions/orders?namespace=shop", |json| json["status"]["delivered"] == 2).await;
    let by_name = world.get("/api/v1/subscriptions?namespace=*").await.json();
    let named: Vec<&Value> = by_name["items"].as_array().unwrap().iter().map(|s| &s["metadata"]).collect();
    assert_eq!(
        named.iter().map(|metadata| metadata["namespace"].as_str().unwrap()).collect::<Vec<_>>(),
        ["default", "shop"]
    );
}

#[tokio::test]
async fn what_a_namespace_may_have_is_limited() {
    let world = World::new().await;
    let limits = json!({"spec": {"limits": {"backlog": 1, "subscriptions": 1, "functions": 0}}});
    assert_eq!(world.put("/api/v1/namespaces/shop", &limits).await.status, 201);
    subscribe(&world, "shop").await;
    let more = world.document("more", json!({}));
    let refused = world.put("/api/v1/namespaces/shop/subscriptions/more", &more).await;
    assert_eq!((refused.status, refused.problem()), (429, "limit-reached".to_owned()), "{refused:?}");
    let function = json!({"metadata": {"name": "f"}, "spec": {"source": {"type": "image", "image": {"uri": "example.test/f:1"}}}});
    let refused = world.post("/api/v1/namespaces/shop/lambda/functions", function).await;
    assert_eq!(refused.status, 429, "{refused:?}");
    world.target.answers(|_| 503);
    assert_eq!(send(&world, "shop", "1", "k").await["results"][0]["status"], "accepted");
    let full = send(&world, "shop", "2", "k").await;
    assert_eq!((&full["status"], &full["limit"]), (&json!(429), &json!("backlog")), "{full}");
    assert_eq!(
        world.metric("klambda_namespace_rejected_total{namespace=\"shop\",limit=\"backlog\"}").await,
        1.0
    );

    for (method, path, status) in [
        ("DELETE", "/api/v1/namespaces/shop", 409),
        ("DELETE", "/api/v1/namespaces/default", 409),
        ("DELETE", "/api/v1/namespaces/nowhere", 404),
        ("DELETE", "/api/v1/namespaces/shop/subscriptions/orders?discard", 200),
        ("DELETE", "/api/v1/namespaces/shop", 200),
        ("GET", "/api/v1/namespaces/shop", 404),
        ("GET", "/api/v1/namespaces/shop/lanes", 404),
        ("GET", "/api/v1/namespaces/shop/subscriptions", 404),
        ("GET", "/api/v1/namespaces/shop/dlq", 404),
        ("GET", "/api/v1/namespaces/shop/events", 404),
        ("GET", "/api/v1/namespaces/shop/lambda/functions", 404),
    ] {
        assert_eq!(world.ask(method, path, &[], "").await.status, status, "{method} {path}");
    }
    let bad = json!({"kind": "Namespaces", "spec": {"limits": {"backlog": -1}}});
    let refused = world.put("/api/v1/namespaces/shop", &bad).await;
    assert_eq!(
        (refused.status, refused.json()["faults"].as_array().map(Vec::len)),
        (422, Some(2)),
        "{refused:?}"
    );
}

/// Names are untrusted: a slash in a name must not lead into another namespace.
#[tokio::test]
async fn no_name_leads_into_another_namespace() {
    let world = World::new().await;
    assert_eq!(world.put("/api/v1/namespaces/shop", &json!({})).await.status, 201);
    subscribe(&world, "shop").await;
    world.target.answers(|_| 422);
    send(&world, "shop", "1", "k").await;
    let letters = world.until("/api/v1/dlq?namespace=shop", |json| json["items"] != json!([])).await;
    let id = letters["items"][0]["id"].as_str().unwrap().to_owned();
    for (method, path) in [
        ("GET", "/api/v1/subscriptions/shop%2Forders".to_owned()),
        ("DELETE", "/api/v1/subscriptions/shop%2Forders?discard".to_owned()),
        ("POST", "/api/v1/subscriptions/shop%2Forders/pause".to_owned()),
        ("GET", "/api/v1/lanes/shop%2Forders/k".to_owned()),
        ("GET", "/api/v1/lanes?subscription=shop/orders".to_owned()),
        ("GET", "/api/v1/lanes?subscription=shop/orders&key=k".to_owned()),
        ("POST", "/api/v1/lanes/shop%2Forders/k/purge".to_owned()),
        ("POST", "/api/v1/lanes/purge?subscription=shop/orders&key=k".to_owned()),
        ("GET", "/api/v1/dlq?subscription=shop/orders".to_owned()),
        ("GET", format!("/api/v1/dlq/shop%2F{id}")),
        ("DELETE", format!("/api/v1/dlq/shop%2F{id}")),
        ("GET", "/api/v1/lambda/functions/shop%2Fhello".to_owned()),
    ] {
        let answer = world.ask(method, &path, &[], "").await;
        assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
    }
    let named = json!({"selector": {"subscription": "shop/orders"}});
    assert_eq!(world.post("/api/v1/dlq/purge", named.clone()).await.status, 404);
    assert_eq!(world.post("/api/v1/dlq/replays", named).await.status, 404);
    let by_id = json!({"selector": {"ids": [format!("shop/{id}")]}});
    assert_eq!(world.post("/api/v1/dlq/purge", by_id).await.json()["purged"], 0);
    let seen = world.get("/api/v1/subscriptions/orders?namespace=shop").await.json();
    assert_eq!((&seen["status"]["deadLetters"], &seen["status"]["phase"]), (&json!(1), &json!("active")));
}
