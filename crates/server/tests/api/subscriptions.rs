//! Creating, changing, pausing and deleting subscriptions.

use crate::world::World;
use serde_json::{Value, json};

#[tokio::test]
async fn a_document_is_created_shown_changed_and_listed() {
    let world = World::new().await;
    let created = world
        .subscribe(
            "orders",
            json!({"target": {"url": world.target.url(), "headers": {"x-api-key": "s3cret"}}}),
        )
        .await;
    assert_eq!(created.headers["location"], "/api/v1/subscriptions/orders");
    let shown = created.json();
    assert_eq!(
        (&shown["kind"], &shown["metadata"]["name"], &shown["status"]["phase"]),
        (&json!("Subscription"), &json!("orders"), &json!("active"))
    );
    assert!(shown["metadata"]["createdAt"].is_string() && !created.text().contains("s3cret"));
    assert_eq!(
        shown["status"]["lanes"],
        json!({"open": 0, "running": 0, "retrying": 0, "gap": 0, "parked": 0, "paused": 0})
    );
    assert_eq!(shown["status"]["breaker"], json!({"state": "closed", "nextProbe": null}));

    let path = "/api/v1/subscriptions/orders";
    let mut changed = world.document("orders", json!({"concurrency": 7}));
    let answer = world.put(path, &changed).await;
    assert_eq!((answer.status, &answer.json()["spec"]["concurrency"]), (200, &json!(7)));
    // The document that the server shows can be sent back.
    changed = answer.json();
    assert_eq!(world.put(path, &changed).await.status, 200);
    let only_new = [("if-none-match", "*"), ("content-type", "application/json")];
    let exists = world.ask("PUT", path, &only_new, &changed.to_string()).await;
    assert_eq!((exists.status, exists.problem()), (412, "exists".to_owned()));
    changed["spec"]["from"] = json!("earliest");
    let immutable = world.put(path, &changed).await;
    assert_eq!((immutable.status, immutable.problem()), (422, "immutable".to_owned()));

    for name in ["b", "c", "d"] {
        world.subscribe(name, json!({})).await;
    }
    let first = world.get("/api/v1/subscriptions?limit=3").await.json();
    assert_eq!((first["items"].as_array().unwrap().len(), &first["next"]), (3, &json!("d")));
    let rest = world.get("/api/v1/subscriptions?limit=3&cursor=d").await.json();
    assert_eq!((&rest["items"][0]["metadata"]["name"], &rest["next"]), (&json!("orders"), &Value::Null));
}

#[tokio::test]
async fn a_dry_run_checks_the_change_and_makes_none() {
    let world = World::new().await;
    let path = "/api/v1/subscriptions/orders";
    let dry = format!("{path}?dryRun=true");
    let secret =
        json!({"concurrency": 2, "target": {"url": world.target.url(), "headers": {"x-api-key": "s3cret"}}});
    let tried = world.put(&dry, &world.document("orders", secret.clone())).await;
    assert_eq!((tried.status, &tried.json()["change"]), (200, &json!("created")));
    assert_eq!(tried.json()["document"]["spec"]["concurrency"], 2);
    assert!(!tried.text().contains("s3cret"));
    assert_eq!(world.get(path).await.status, 404, "nothing was created");

    world.subscribe("orders", secret).await;
    let mut document = world.get(path).await.json();
    assert_eq!(world.put(&dry, &document).await.json()["change"], "unchanged");
    document["spec"]["concurrency"] = json!(9);
    assert_eq!(world.put(&dry, &document).await.json()["change"], "configured");
    assert_eq!(world.get(path).await.json()["spec"]["concurrency"], 2, "nothing was changed");
    document["spec"]["from"] = json!("earliest");
    assert_eq!(world.put(&dry, &document).await.problem(), "immutable");
    document["spec"]["colour"] = json!("red");
    assert_eq!(world.put(&dry, &document).await.status, 422);
}

#[tokio::test]
async fn deleting_asks_what_becomes_of_what_waits() {
    let world = World::new().await;
    let retry = json!({"attempts": "unlimited", "backoff": "5ms", "maxBackoff": "10ms"});
    world.subscribe("orders", json!({"paused": true, "retry": retry})).await;
    world.send("e1", "k", &[]).await;
    let path = "/api/v1/subscriptions/orders";
    let refused = world.delete(path).await;
    assert_eq!(
        (refused.status, refused.problem(), &refused.json()["waiting"]),
        (409, "events-waiting".to_owned(), &json!(1))
    );
    assert_eq!(world.delete(&format!("{path}?drain=true&discard=true")).await.status, 400);
    let paused = world.delete(&format!("{path}?drain=true")).await;
    let detail = paused.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(paused.status == 409 && detail.contains("klambda subscription resume orders"), "{detail}");
    world.target.answers(|_| 503);
    assert_eq!(world.post(&format!("{path}/resume"), json!({})).await.status, 200);
    let draining = world.delete(&format!("{path}?drain=true")).await;
    assert_eq!((draining.status, &draining.json()["status"]["phase"]), (202, &json!("draining")));
    world.target.answers(|_| 200);
    world.until(path, |shown| shown["status"] == 404).await;

    world.subscribe("orders", json!({"paused": true})).await;
    assert_eq!(world.send("e1", "k", &[]).await["status"], "accepted", "a new subscription remembers no ids");
    assert_eq!(world.delete(&format!("{path}?discard")).await.status, 200);
    assert_eq!(world.get(path).await.status, 404);
}

#[tokio::test]
async fn a_paused_subscription_takes_events_and_delivers_none() {
    let world = World::new().await;
    world.subscribe("orders", json!({})).await;
    let paused = world.post("/api/v1/subscriptions/orders/pause", json!({})).await.json();
    assert_eq!((&paused["status"]["phase"], &paused["spec"]["paused"]), (&json!("paused"), &json!(true)));
    world.send("e1", "k", &[]).await;
    let status = world.status("orders").await;
    assert_eq!((&status["waiting"], &status["inFlight"]), (&json!(1), &json!(0)));
    assert!(status["oldest"].is_string() && status["waitingBytes"].as_u64().unwrap() > 0);
    let lane = world.get("/api/v1/lanes/orders/k").await.json();
    assert!(lane["waitsFor"].as_str().unwrap().contains("subscription is paused"), "{lane}");
    world.post("/api/v1/subscriptions/orders/resume", json!({})).await;
    world.target.until(|all| all.len() == 1).await;
    world.until("/api/v1/subscriptions/orders", |shown| shown["status"]["delivered"] == 1).await;
}

#[tokio::test]
async fn history_flows_through_the_lanes_first() {
    let world = World::new().await;
    for n in 1..=3 {
        world.send(&format!("e{n}"), "k", &[]).await;
    }
    world.subscribe("late", json!({"from": "earliest"})).await;
    world.send("e4", "k", &[]).await;
    world.target.until(|all| all.len() == 4).await;
    assert_eq!(world.target.ids(), ["e1", "e2", "e3", "e4"]);
    world.until("/api/v1/subscriptions/late", |shown| shown["status"]["phase"] == "active").await;
}

#[tokio::test]
async fn an_owner_is_told_that_events_have_no_key() {
    let world = World::new().await;
    world.subscribe("orders", json!({})).await;
    let headers = [("ce-specversion", "1.0"), ("ce-id", "e1"), ("ce-source", "/shop"), ("ce-type", "t")];
    assert_eq!(world.ask("POST", "/api/v1/events", &headers, "").await.status, 202);
    let messages = world.status("orders").await["messages"].clone();
    assert!(messages[0].as_str().unwrap().contains("1 event without partitionkey"), "{messages}");
    assert_eq!(
        world.metric("events_without_key_total{subscription=\"orders\",namespace=\"default\"}").await,
        1.0
    );
}

#[tokio::test]
async fn what_belongs_to_a_function_is_changed_through_the_function() {
    let world = World::new().await;
    let path = "/api/v1/subscriptions/lambda.default.hello";
    let named = world.put(path, &world.document("lambda.default.hello", json!({}))).await;
    assert_eq!(named.status, 409, "{named:?}");
    assert!(named.text().contains("function hello in namespace default"), "{named:?}");
    assert_eq!(world.delete(path).await.status, 409);
    let target = json!({"target": {"function": {"namespace": "default", "name": "hello"}}});
    let refused = world.put("/api/v1/subscriptions/mine", &world.document("mine", target)).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.text().contains("spec.target.function"), "{refused:?}");
}

#[tokio::test]
async fn what_is_shown_can_be_put_again_and_keeps_its_secrets() {
    let world = World::new().await;
    let target = json!({"target": {"url": world.target.url(), "headers": {"x-api-key": "s3cret"}}});
    world.subscribe("orders", target).await;
    let path = "/api/v1/subscriptions/orders";
    let shown = world.get(path).await.json();
    assert_eq!(shown["spec"]["target"]["headers"]["x-api-key"], "***");
    let again = world.put(path, &shown).await;
    assert_eq!((again.status, &again.json()["spec"]), (200, &shown["spec"]), "{again:?}");
    world.send("e1", "k", &[]).await;
    world.target.until(|all| all.len() == 1).await;
    assert_eq!(world.target.received()[0].headers["x-api-key"], "s3cret");
    let mut elsewhere = shown;
    elsewhere["spec"]["target"]["url"] = json!("http://127.0.0.1:1/");
    let refused = world.put(path, &elsewhere).await;
    assert_eq!((refused.status, refused.problem()), (422, "invalid-subscription".to_owned()), "{refused:?}");
}

#[tokio::test]
async fn what_cannot_work_is_refused_and_what_may_not_yet_is_told() {
    let world = World::new().await;
    let path = "/api/v1/subscriptions/orders";
    let future = world.put(path, &world.document("orders", json!({"from": "2999-01-01T00:00:00Z"}))).await;
    assert_eq!((future.status, future.problem()), (422, "invalid-subscription".to_owned()));
    assert!(future.text().contains("future"), "{future:?}");
    let key = json!({"orderingPolicy": {"key": {"attribute": "data"}}});
    assert_eq!(world.put(path, &world.document("orders", key)).await.status, 422);
    let twice =
        world.document("orders", json!({})).to_string().replacen('{', "{\"kind\":\"Subscription\",", 1);
    let twice = world.ask("PUT", path, &[], &twice).await;
    assert_eq!((twice.status, twice.problem()), (400, "bad-request".to_owned()), "{twice:?}");
    assert!(twice.text().contains("twice"), "{twice:?}");

    let file = world.folder.path().join("token");
    let headers = json!({"x-a": {"file": file}, "x-b": {"env": "KLAMBDA_TEST_NO_SUCH_NAME"}});
    let target = json!({"target": {"url": world.target.url(), "headers": headers}});
    let made = world.subscribe("orders", target).await.json()["status"]["messages"].clone();
    assert_eq!(made, world.status("orders").await["messages"]);
    let messages: Vec<&str> =
        made.as_array().unwrap().iter().map(|message| message.as_str().unwrap()).collect();
    assert!(
        messages[0].starts_with("target.headers.x-a: ") && messages[0].contains("No such file"),
        "{made}"
    );
    assert!(messages[1].contains("KLAMBDA_TEST_NO_SUCH_NAME"), "{made}");
    std::fs::write(&file, "secret").unwrap();
    assert_eq!(world.status("orders").await["messages"].as_array().unwrap().len(), 1);
}
