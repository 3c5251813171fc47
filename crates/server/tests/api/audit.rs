//! The audit log over REST: who changed what, without the new values.

use crate::tokens::{ADMIN, bare, issue};
use crate::world::World;
use serde_json::{Value, json};

async fn entries(world: &World, bearer: &str, path: &str) -> Vec<Value> {
    let answer = world.ask("GET", path, &[("authorization", bearer)], "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["items"].as_array().unwrap().clone()
}

fn told(entry: &Value) -> String {
    let text = |member: &str| entry[member].as_str().unwrap_or("-").to_owned();
    ["who", "verb", "kind", "namespace", "name", "from"].map(text).join(" ")
}

#[tokio::test]
async fn every_change_is_noted_with_who_made_it() {
    let world = bare().await;
    let token = issue(&world, json!({"name": "dev", "role": "developer", "namespaces": ["default"]})).await;
    let developer = format!("Bearer {token}");
    let ask = async |method: &str, path: &str, body: &Value| {
        let headers = [("authorization", developer.as_str()), ("content-type", "application/json")];
        world.ask(method, path, &headers, &body.to_string()).await.status
    };
    let secret = json!({"target": {"url": world.target.url(), "headers": {"authorization": "hush-hush"}}});
    let document = world.document("orders", secret);
    assert_eq!(ask("PUT", "/api/v1/subscriptions/orders", &document).await, 201);
    assert_eq!(ask("PUT", "/api/v1/subscriptions/orders", &document).await, 200, "this changes nothing");
    assert_eq!(ask("POST", "/api/v1/subscriptions/orders/pause", &json!({})).await, 200);
    assert_eq!(ask("POST", "/api/v1/subscriptions/others/pause", &json!({})).await, 404);
    assert_eq!(ask("GET", "/api/v1/subscriptions/orders", &json!({})).await, 200);
    let event = [
        ("authorization", ADMIN),
        ("ce-id", "1"),
        ("ce-source", "/s"),
        ("ce-type", "t"),
        ("ce-specversion", "1.0"),
    ];
    let keyed = [&event[..], &[("ce-partitionkey", "a/b")]].concat();
    assert_eq!(world.ask("POST", "/api/v1/events", &keyed, "").await.status, 202);
    assert_eq!(ask("POST", "/api/v1/lanes/purge?subscription=orders&key=a%2Fb", &json!({})).await, 200);
    let agent = json!({"metadata": {"name": "away"}, "spec": {"source": {"type": "url", "url": {"url": world.target.url()}}}});
    assert_eq!(ask("POST", "/api/v1/lambda/agents", &agent).await, 202);
    assert_eq!(ask("DELETE", "/api/v1/lambda/agents/away", &json!({})).await, 202);
    assert_eq!(ask("DELETE", "/api/v1/subscriptions/orders?discard=true", &json!({})).await, 200);
    world.ask("DELETE", "/api/v1/tokens/dev", &[("authorization", ADMIN)], "").await;
    assert_eq!(
        world.ask("PUT", "/api/v1/namespaces/shop", &[("authorization", ADMIN)], "{}").await.status,
        201
    );

    let expected = [
        "token-file put namespace - shop 127.0.0.1",
        "token-file delete token - dev 127.0.0.1",
        "token/dev delete subscription default orders 127.0.0.1",
        "token/dev delete agent default away 127.0.0.1",
        "token/dev create agent default away 127.0.0.1",
        "token/dev purge lane default orders/a/b 127.0.0.1",
        "token/dev pause subscription default orders 127.0.0.1",
        "token/dev put subscription default orders 127.0.0.1",
        "token-file create token - dev 127.0.0.1",
    ];
    let all = entries(&world, ADMIN, "/api/v1/audit?namespace=*").await;
    assert_eq!(all.iter().map(told).collect::<Vec<_>>(), expected);
    let text = json!(all).to_string();
    assert!(!text.contains("hush-hush") && !text.contains(&token), "{text}");
    assert!(all[0]["time"].is_string() && all[0]["number"] == 9, "{text}");
    // Changes of the whole server belong to no namespace.
    let own = entries(&world, ADMIN, "/api/v1/audit").await;
    assert_eq!(own.iter().map(told).collect::<Vec<_>>(), expected[2..8]);
    let unknown = world.ask("GET", "/api/v1/namespaces/other/audit", &[("authorization", ADMIN)], "").await;
    assert_eq!(unknown.status, 404, "{unknown:?}");

    let world = world.restart().await;
    let first =
        world.ask("GET", "/api/v1/audit?namespace=*&limit=3", &[("authorization", ADMIN)], "").await.json();
    assert_eq!((first["items"].as_array().map(Vec::len), &first["next"]), (Some(3), &json!("7")));
    let rest = entries(&world, ADMIN, "/api/v1/audit?namespace=*&cursor=7").await;
    assert_eq!(rest.iter().map(told).collect::<Vec<_>>(), expected[3..]);
}

#[tokio::test]
async fn what_changes_nothing_and_what_another_namespace_of_the_name_did_is_not_shown() {
    let world = bare().await;
    let ask = async |method: &str, path: &str, body: &Value| {
        let headers = [("authorization", ADMIN), ("content-type", "application/json")];
        world.ask(method, path, &headers, &body.to_string()).await.status
    };
    assert_eq!(ask("PUT", "/api/v1/namespaces/shop", &json!({})).await, 201);
    let document = world.document("orders", json!({}));
    let subscription = "/api/v1/namespaces/shop/subscriptions/orders";
    assert_eq!(ask("PUT", subscription, &document).await, 201);
    for _ in 0..3 {
        assert_eq!(ask("POST", &format!("{subscription}/pause"), &json!({})).await, 200);
    }
    let shown = entries(&world, ADMIN, "/api/v1/namespaces/shop/audit").await;
    let verbs: Vec<&str> = shown.iter().map(|entry| entry["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["pause", "put"]);
    assert_eq!(ask("DELETE", &format!("{subscription}?discard"), &json!({})).await, 200);
    assert_eq!(ask("DELETE", "/api/v1/namespaces/shop", &json!({})).await, 200);
    // Times have a resolution of 1 ms: the new namespace must be created in a later one.
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    assert_eq!(ask("PUT", "/api/v1/namespaces/shop", &json!({})).await, 201);
    assert_eq!(entries(&world, ADMIN, "/api/v1/namespaces/shop/audit").await, Vec::<Value>::new());
}

#[tokio::test]
async fn actions_on_lanes_are_noted_and_dry_runs_change_nothing() {
    let world = bare().await;
    let token = issue(&world, json!({"name": "op", "role": "operator", "namespaces": ["default"]})).await;
    let operator = format!("Bearer {token}");
    let ask = async |bearer: &str, method: &str, path: &str, body: &Value| {
        let headers = [("authorization", bearer), ("content-type", "application/json")];
        world.ask(method, path, &headers, &body.to_string()).await
    };
    world.target.answers(|_| 422);
    let spec = json!({"orderingPolicy": {"sequence": {"attribute": "sequence"}}});
    ask(ADMIN, "PUT", "/api/v1/subscriptions/orders", &world.document("orders", spec)).await;
    for sequence in ["1", "2", "3"] {
        let event = json!({"specversion": "1.0", "id": sequence, "source": "/s", "type": "t", "partitionkey": "k",
                           "sequence": sequence});
        let headers = [("authorization", ADMIN), ("content-type", "application/cloudevents+json")];
        assert_eq!(world.ask("POST", "/api/v1/events", &headers, &event.to_string()).await.status, 202);
    }
    let lane = "/api/v1/lanes/orders/k";
    let look = async |path: &str| ask(&operator, "GET", path, &json!({})).await.json();
    while look(lane).await["state"] != "parked" {}

    let before = (look(lane).await, look("/api/v1/dlq").await);
    let dry = json!({"selector": {"all": true}, "dryRun": true});
    let dry = ask(&operator, "POST", "/api/v1/dlq/replays", &dry).await;
    assert_eq!((dry.status, &dry.json()["selected"]), (200, &json!(1)), "{dry:?}");
    assert_eq!((look(lane).await, look("/api/v1/dlq").await), before);
    assert_eq!(look("/api/v1/dlq/replays").await["items"], json!([]));

    let acts = [
        ("pause", json!({})),
        ("resume", json!({})),
        ("skip", json!({})),
        ("reset", json!({"expected": 9})),
        ("purge", json!({})),
    ];
    for (action, body) in &acts {
        let done = ask(&operator, "POST", &format!("{lane}/{action}"), body).await;
        assert_eq!(done.status, 200, "{action}: {done:?}");
        // A resumed lane fails again, and its next event parks it.
        while !["parked", "paused", "open"].contains(&look(lane).await["state"].as_str().unwrap()) {}
    }
    let noted = entries(&world, ADMIN, "/api/v1/audit").await;
    let lines: Vec<String> = noted.iter().take(acts.len()).rev().map(told).collect();
    let expected: Vec<String> =
        acts.iter().map(|(action, _)| format!("token/op {action} lane default orders/k 127.0.0.1")).collect();
    assert_eq!(lines, expected);
}
