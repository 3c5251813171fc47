//! Failing targets: parked lanes, dead letters, replays, circuit breakers, backlogs.

use crate::world::{NEVER, World};
use serde_json::{Value, json};

#[tokio::test]
async fn a_poison_event_parks_its_lane_and_a_replay_keeps_the_order() {
    let world = World::new().await;
    world.target.answers(|event| if event.id() == "e2" { 500 } else { 200 });
    world.subscribe("orders", json!({})).await;
    for n in 1..=4 {
        world.send(&format!("e{n}"), "order-42", &[]).await;
        world.send(&format!("other{n}"), "order-43", &[]).await;
    }
    let lane = world.until("/api/v1/lanes/orders/order-42", |lane| lane["state"] == "parked").await;
    assert_eq!(
        (&lane["depth"], &lane["head"]["id"], &lane["head"]["attempts"]),
        (&json!(3), &json!("e2"), &json!(2))
    );
    assert!(lane["waitsFor"].as_str().unwrap().contains("manual action"), "{lane:#}");
    assert_eq!(lane["head"]["lastError"], "HTTP 500");
    assert_eq!((&lane["laneSequence"], &lane["gap"]), (&json!(4), &Value::Null));
    let steps: Vec<&str> =
        lane["timeline"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(steps.iter().filter(|step| **step == "failed").count(), 2, "{lane:#}");
    assert_eq!(steps.iter().filter(|step| **step == "accepted").count(), 4);
    let delivered =
        lane["timeline"].as_array().unwrap().iter().find(|step| step["step"] == "delivered").unwrap();
    assert_eq!((&delivered["id"], &delivered["position"]), (&json!("e1"), &json!(1)));
    world.target.until(|all| all.iter().filter(|event| event.id().starts_with("other")).count() == 4).await;

    let letters = world.get("/api/v1/dlq?subscription=orders").await.json();
    let letter = &letters["items"][0];
    assert_eq!((letters["items"].as_array().unwrap().len(), &letters["next"]), (1, &Value::Null));
    assert_eq!(
        (&letter["holdsLane"], &letter["reason"], &letter["laneSequence"]),
        (&json!(true), &json!("retries-exhausted"), &json!(2))
    );
    assert!(letter.get("event").is_none());
    let id = letter["id"].as_str().unwrap();
    let whole = world.get(&format!("/api/v1/dlq/{id}")).await.json();
    assert_eq!((&whole["event"]["id"], &whole["event"]["data"]), (&json!("e2"), &json!({"total": 7})));
    let status = world.status("orders").await;
    assert_eq!(
        (&status["parked"], &status["deadLetters"], &status["waiting"]),
        (&json!(1), &json!(1), &json!(3))
    );

    let selector = json!({"subscription": "orders"});
    let dry = world.post("/api/v1/dlq/replays", json!({"selector": selector, "dryRun": true})).await;
    assert_eq!((dry.status, &dry.json()["selected"], &dry.json()["items"]), (200, &json!(1), &json!([id])));
    assert_eq!(world.get("/api/v1/dlq/replays").await.json()["items"], json!([]));

    world.target.answers(|_| 200);
    let job = world.post("/api/v1/dlq/replays", json!({"selector": selector})).await;
    assert_eq!((job.status, &job.headers["location"]), (202, &"/api/v1/dlq/replays/r1".to_owned()));
    let done = world.until("/api/v1/dlq/replays/r1", |job| job["state"] != "running").await;
    assert_eq!(
        (&done["state"], &done["replayed"], &done["keys"]),
        (&json!("succeeded"), &json!(1), &json!(1)),
        "{done:#}"
    );
    assert_eq!((&done["orderViolations"], &done["duplicates"]), (&json!(0), &json!(0)));
    world.target.until(|all| all.len() == 8).await;
    let order: Vec<String> = world.target.ids().into_iter().filter(|id| id.starts_with('e')).collect();
    assert_eq!(order, ["e1", "e2", "e3", "e4"]);
    world.until("/api/v1/dlq", |letters| letters["items"] == json!([])).await;
}

#[tokio::test]
async fn attempts_are_told_since_they_were_fresh_and_in_all() {
    let world = World::new().await;
    world.target.answers(|_| 500);
    world.subscribe("orders", json!({"retry": {"attempts": 2, "backoff": "5ms"}})).await;
    world.send("e1", "k", &[]).await;
    let counts = |lane: &Value| (lane["head"]["attempts"].clone(), lane["head"]["attemptsTotal"].clone());
    let parked =
        |total: u32| move |lane: &Value| lane["state"] == "parked" && lane["head"]["attemptsTotal"] == total;
    let lane = world.until("/api/v1/lanes/orders/k", parked(2)).await;
    assert_eq!(counts(&lane), (json!(2), json!(2)));
    world.post("/api/v1/lanes/orders/k/resume", json!({})).await;
    let lane = world.until("/api/v1/lanes/orders/k", parked(4)).await;
    assert_eq!(counts(&lane), (json!(2), json!(4)));
    let world = world.restart().await;
    assert_eq!(counts(&world.get("/api/v1/lanes/orders/k").await.json()), (json!(2), json!(4)));

    let spec = json!({"retry": {"attempts": 2, "backoff": "1h", "maxBackoff": "1h"}});
    world.put("/api/v1/subscriptions/orders", &world.document("orders", spec)).await;
    world.post("/api/v1/lanes/orders/k/resume", json!({})).await;
    let lane = world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "retrying").await;
    assert_eq!(counts(&lane), (json!(1), json!(5)));

    // An event that left its lane and came back has been tried before.
    world.post("/api/v1/lanes/orders/k/skip", json!({})).await;
    world.post("/api/v1/dlq/replays", json!({"selector": {"subscription": "orders"}})).await;
    let lane = world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "retrying").await;
    assert_eq!(counts(&lane), (json!(1), json!(6)));
}

#[tokio::test]
async fn a_letter_has_the_key_of_its_event_and_a_number_only_from_a_lane() {
    let world = World::new().await;
    world.target.answers(|_| 400);
    let policy = json!({"orderingPolicy": {"sequence": {"attribute": "sequence"}}});
    world.subscribe("sequenced", policy).await;
    world.subscribe("unordered", json!({"ordering": "unordered"})).await;
    world.send("e1", "k", &[("ce-sequence", "soon")]).await;
    let list =
        world.until("/api/v1/dlq", |list| list["items"].as_array().is_some_and(|all| all.len() == 2)).await;
    let shown =
        |letter: &Value| [&letter["reason"], &letter["key"], &letter["laneSequence"]].map(Value::clone);
    assert_eq!(shown(&list["items"][0]), [json!("validation"), json!("k"), Value::Null]);
    assert_eq!(shown(&list["items"][1]), [json!("poison"), Value::Null, Value::Null]);
    assert_eq!(world.get("/api/v1/dlq?key=k").await.json()["items"][0]["id"], "sequenced.1");
    let world = world.restart().await;
    assert_eq!(world.get("/api/v1/dlq?key=k").await.json()["items"][0]["id"], "sequenced.1");
}

#[tokio::test]
async fn a_letter_on_its_way_is_not_deleted() {
    let world = World::new().await;
    world.target.answers(|_| 422);
    let spec =
        json!({"orderingPolicy": {"onFailure": "skip"}, "retry": {"backoff": "1h", "maxBackoff": "1h"}});
    world.subscribe("orders", spec).await;
    for (n, status, why) in [(1, NEVER, "is being delivered"), (2, 500, "is being replayed")] {
        let key = format!("k{n}");
        world.target.answers(|_| 422);
        world.send(&format!("e{n}"), &key, &[]).await;
        world.until("/api/v1/dlq", |list| list["items"].as_array().is_some_and(|all| all.len() == 1)).await;
        world.target.answers(move |_| status);
        let id = format!("orders.{n}");
        world.post("/api/v1/dlq/replays", json!({"selector": {"ids": [id]}})).await;
        let lane = format!("/api/v1/lanes/orders/{key}");
        world
            .until(&lane, |lane| lane["state"] == if status == NEVER { "running" } else { "retrying" })
            .await;
        let refused = world.delete(&format!("/api/v1/dlq/{id}")).await;
        assert_eq!((refused.status, refused.problem()), (409, "conflict".to_owned()));
        assert!(refused.text().contains(why), "{}", refused.text());
    }
}

#[tokio::test]
async fn letters_are_paged_filtered_deleted_and_purged() {
    let world = World::new().await;
    world.target.answers(|_| 400);
    world.subscribe("a", json!({"orderingPolicy": {"onFailure": "skip"}})).await;
    world.subscribe("b.c", json!({"ordering": "unordered"})).await;
    for n in 1..=5 {
        let kind = if n == 5 { "order.paid" } else { "order.placed" };
        world.send(&format!("e{n}"), &format!("k{n}"), &[("ce-type", kind)]).await;
    }
    let full = |list: &Value, n: usize| list["items"].as_array().is_some_and(|items| items.len() == n);
    world.until("/api/v1/dlq", |list| full(list, 10)).await;
    let mut seen = Vec::new();
    let mut path = "/api/v1/dlq?limit=3".to_owned();
    loop {
        let page = world.get(&path).await.json();
        seen.extend(
            page["items"].as_array().unwrap().iter().map(|letter| letter["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/dlq?limit=3&cursor={next}");
    }
    assert_eq!(seen, ["a.1", "a.2", "a.3", "a.4", "a.5", "b.c.1", "b.c.2", "b.c.3", "b.c.4", "b.c.5"]);
    assert!(full(&world.get("/api/v1/dlq?type=order.paid").await.json(), 2));
    assert!(full(&world.get("/api/v1/dlq?subscription=a&key=k2&reason=poison").await.json(), 1));
    assert!(full(&world.get("/api/v1/dlq?until=2020-01-01T00:00:00Z").await.json(), 0));
    for other in ["b.c.+2", "b.c.02"] {
        assert_eq!(world.delete(&format!("/api/v1/dlq/{other}")).await.problem(), "not-found", "{other}");
    }
    assert_eq!(world.delete("/api/v1/dlq/b.c.2").await.json()["eventId"], "e2");
    assert_eq!(world.delete("/api/v1/dlq/b.c.2").await.problem(), "not-found");
    let none = world.post("/api/v1/dlq/purge", json!({"selector": {"ids": []}, "holders": true})).await;
    assert_eq!(none.json(), json!({"purged": 0, "kept": 0}), "an empty list is nothing, not everything");
    let purged = world.post("/api/v1/dlq/purge", json!({"selector": {"subscription": "b.c"}})).await;
    assert_eq!(purged.json(), json!({"purged": 4, "kept": 0}));
    assert!(full(&world.get("/api/v1/dlq").await.json(), 5));
    // The id of an event that failed may be sent again.
    world.target.answers(|_| 200);
    assert_eq!(world.send("e1", "k1", &[]).await["status"], "accepted");
}

#[tokio::test]
async fn a_lane_is_skipped_resumed_paused_and_purged_by_hand() {
    let world = World::new().await;
    world.target.answers(|_| 422);
    world.subscribe("orders", json!({})).await;
    for n in 1..=3 {
        world.send(&format!("e{n}"), "k", &[]).await;
    }
    let parked_at =
        |id: &'static str| move |lane: &Value| lane["state"] == "parked" && lane["head"]["id"] == id;
    world.until("/api/v1/lanes/orders/k", parked_at("e1")).await;
    let skipped = world.post("/api/v1/lanes/orders/k/skip", json!({})).await;
    assert_eq!((skipped.status, &skipped.json()["depth"]), (200, &json!(2)));
    world.until("/api/v1/lanes/orders/k", parked_at("e2")).await;
    assert_eq!(world.get("/api/v1/dlq").await.json()["items"][0]["holdsLane"], false);

    assert_eq!(world.post("/api/v1/lanes/orders/k/pause", json!({})).await.json()["state"], "paused");
    world.target.answers(|_| 200);
    world.post("/api/v1/lanes/orders/k/resume", json!({})).await;
    world.target.until(|all| all.len() == 2).await;
    assert_eq!(world.target.ids(), ["e2", "e3"]);
    assert_eq!(world.target.received()[0].headers["ce-orderstatus"], "gap");
    assert_eq!(world.target.received()[0].headers["ce-previousid"], "e1");

    let nothing = world.post("/api/v1/lanes/orders/k/skip", json!({})).await;
    assert_eq!((nothing.status, nothing.problem()), (409, "conflict".to_owned()));
    world.target.answers(|_| 422);
    world.send("e4", "k", &[]).await;
    world.until("/api/v1/lanes/orders/k", parked_at("e4")).await;
    let purged = world.post("/api/v1/lanes/orders/k/purge", json!({})).await.json();
    assert_eq!(
        (&purged["depth"], &purged["state"], &purged["head"]),
        (&json!(0), &json!("open"), &Value::Null)
    );
    let last = purged["timeline"].as_array().and_then(|steps| steps.last()).expect("a step");
    assert_eq!((&last["step"], &last["detail"]), (&json!("purged"), &json!("1 event")));
}

#[tokio::test]
async fn a_dead_target_opens_its_breaker() {
    let world =
        World::with(|config| config.delivery.breaker.half_open_after = std::time::Duration::from_secs(60))
            .await;
    world.target.answers(|_| 503);
    world
        .subscribe(
            "orders",
            json!({"retry": {"attempts": "unlimited", "backoff": "5ms", "maxBackoff": "10ms"}}),
        )
        .await;
    for n in 1..=4 {
        world.send(&format!("e{n}"), &format!("k{n}"), &[]).await;
    }
    let open = |subscription: &Value| subscription["status"]["breaker"]["state"] == "open";
    let shown = world.until("/api/v1/subscriptions/orders", open).await;
    assert!(shown["status"]["breaker"]["nextProbe"].is_string());
    assert_eq!(
        world.metric("operator_circuit_breaker_state{subscription=\"orders\",namespace=\"default\"}").await,
        1.0
    );
    let waits = |lane: &Value| lane["waitsFor"].as_str().is_some_and(|text| text.contains("breaker"));
    world.until("/api/v1/lanes/orders/k1", waits).await;
}

#[tokio::test]
async fn a_full_backlog_turns_producers_away_and_names_the_lane() {
    let world = World::new().await;
    world.subscribe("orders", json!({"paused": true, "backlog": {"maxEvents": 2, "onFull": "reject"}})).await;
    world.send("e1", "deep", &[]).await;
    world.send("e2", "deep", &[]).await;
    let refused = world.offer("e3", "k", &[]).await;
    assert_eq!((refused.status, refused.problem()), (429, "backlog-full".to_owned()));
    let json = refused.json();
    assert_eq!(
        (&json["subscription"], &json["deepestLane"]["key"]),
        (&json!("orders"), &json!("deep")),
        "{json}"
    );
    assert_eq!(json["results"][0]["problem"]["limit"], "backlog.maxEvents");
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(
        world.metric("klambda_backlog_rejected_total{subscription=\"orders\",namespace=\"default\"}").await,
        1.0
    );
}
