//! Sequences, gaps and lists of lanes.

use crate::world::World;
use serde_json::{Value, json};

fn sequenced(gap: Value) -> Value {
    json!({"orderingPolicy": {"sequence": {"attribute": "sequence"}, "gap": gap}})
}

#[tokio::test]
async fn a_gap_is_waited_for_named_and_skipped() {
    let world = World::new().await;
    world.subscribe("orders", sequenced(json!({"timeout": "1h", "action": "skip"}))).await;
    world.send("e1", "a/b", &[("ce-sequence", "1")]).await;
    world.send("e4", "a/b", &[("ce-sequence", "4")]).await;
    let path = "/api/v1/lanes?subscription=orders&key=a%2Fb";
    let lane = world.until(path, |lane| lane["state"] == "gap").await;
    assert_eq!((&lane["gap"]["missing"], &lane["buffered"]), (&json!([2, 3]), &json!(1)), "{lane:#}");
    assert_eq!((&lane["expectedSequence"], &lane["head"]), (&json!(2), &Value::Null));
    assert!(lane["gap"]["until"].is_string() && lane["waitsFor"].as_str().unwrap().contains("2 to 3"));
    assert_eq!(world.get("/api/v1/lanes/orders/a%2Fb").await.json()["state"], "gap");
    let fate = world.get("/api/v1/events/e4?source=/shop").await.json();
    assert_eq!(fate["fates"][0]["fate"], "buffered");

    let skipped = world.post("/api/v1/lanes/skip?subscription=orders&key=a%2Fb", json!({})).await;
    assert_eq!(skipped.status, 200, "{skipped:?}");
    world.target.until(|all| all.len() == 2).await;
    assert_eq!(world.target.received()[1].headers["ce-orderstatus"], "gap");
    assert_eq!(
        world.metric("event_sequence_gaps_total{subscription=\"orders\",namespace=\"default\"}").await,
        1.0
    );
    assert_eq!(
        world.metric("klambda_events_early_total{subscription=\"orders\",namespace=\"default\"}").await,
        1.0
    );

    world.send("e2", "a/b", &[("ce-sequence", "2")]).await;
    world.target.until(|all| all.len() == 3).await;
    assert_eq!(world.target.received()[2].headers["ce-orderstatus"], "late");
    assert_eq!(
        world.metric("event_order_violations_total{subscription=\"orders\",namespace=\"default\"}").await,
        1.0
    );
    assert!(world.get("/metrics").await.text().contains("ordering"));

    let reset = world.post("/api/v1/lanes/reset?subscription=orders&key=a%2Fb", json!({"expected": 9})).await;
    assert_eq!(reset.json()["expectedSequence"], 9, "{reset:?}");
}

#[tokio::test]
async fn a_parked_gap_opens_when_the_missing_event_arrives() {
    let world = World::new().await;
    world.subscribe("orders", sequenced(json!({"timeout": "20ms", "action": "park"}))).await;
    world.send("e1", "k", &[("ce-sequence", "1")]).await;
    world.send("e3", "k", &[("ce-sequence", "3")]).await;
    let lane = world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "parked").await;
    assert_eq!((&lane["gap"]["missing"], &lane["gap"]["until"]), (&json!([2, 2]), &Value::Null));
    assert_eq!(world.get("/api/v1/lanes?state=parked").await.json()["items"][0]["key"], "k");
    assert_eq!(world.get("/api/v1/dlq").await.json()["items"], json!([]), "a gap is no dead letter");
    world.send("e2", "k", &[("ce-sequence", "2")]).await;
    world.target.until(|all| all.len() == 3).await;
    assert_eq!(world.target.ids(), ["e1", "e2", "e3"]);
}

#[tokio::test]
async fn the_lanes_of_a_paused_subscription_are_paused() {
    let world = World::new().await;
    world.subscribe("orders", sequenced(json!({"timeout": "1h", "action": "skip"}))).await;
    world.target.answers(|event| if event.id() == "bad" { 422 } else { 200 });
    world.send("bad", "parked", &[("ce-sequence", "1")]).await;
    world.send("e1", "gap", &[("ce-sequence", "1")]).await;
    world.send("e3", "gap", &[("ce-sequence", "3")]).await;
    world.until("/api/v1/lanes/orders/parked", |lane| lane["state"] == "parked").await;
    world.until("/api/v1/lanes/orders/gap", |lane| lane["state"] == "gap").await;

    world.post("/api/v1/subscriptions/orders/pause", json!({})).await;
    let paused = world.get("/api/v1/lanes?state=paused").await.json();
    let keys: Vec<&Value> = paused["items"].as_array().unwrap().iter().map(|lane| &lane["key"]).collect();
    assert_eq!(keys, ["gap", "parked"]);
    let lane = &paused["items"][0];
    assert_eq!(lane["gap"]["missing"], json!([2, 2]), "{lane:#}");
    assert!(lane["waitsFor"].as_str().unwrap().contains("klambda subscription resume orders"), "{lane:#}");
    for state in ["open", "gap", "parked"] {
        assert_eq!(world.get(&format!("/api/v1/lanes?state={state}")).await.json()["items"], json!([]));
    }
    assert_eq!(
        world.get("/api/v1/lanes?sort=depth&state=paused").await.json()["items"][1]["state"],
        "paused"
    );
    let lanes = world.status("orders").await["lanes"].clone();
    assert_eq!((&lanes["paused"], &lanes["gap"], &lanes["parked"]), (&json!(2), &json!(0), &json!(0)));
    assert_eq!(
        world.metric("klambda_lanes{subscription=\"orders\",namespace=\"default\",state=\"paused\"}").await,
        2.0
    );

    world.post("/api/v1/subscriptions/orders/resume", json!({})).await;
    assert_eq!(world.get("/api/v1/lanes?state=paused").await.json()["items"], json!([]));
    assert_eq!(world.get("/api/v1/lanes/orders/parked").await.json()["state"], "parked");
}

#[tokio::test]
async fn a_paused_lane_still_says_what_is_missing() {
    let world = World::new().await;
    world.subscribe("orders", sequenced(json!({"timeout": "1h", "action": "skip"}))).await;
    world.send("e1", "k", &[("ce-sequence", "1")]).await;
    world.send("e3", "k", &[("ce-sequence", "3")]).await;
    world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "gap").await;
    let paused = world.post("/api/v1/lanes/orders/k/pause", json!({})).await.json();
    assert_eq!((&paused["state"], &paused["gap"]["missing"]), (&json!("paused"), &json!([2, 2])));
}

#[tokio::test]
async fn lanes_are_listed_by_key_and_by_depth() {
    let world = World::new().await;
    world.subscribe("a", json!({"paused": true})).await;
    world.subscribe("b", json!({"paused": true})).await;
    for n in 1..=5 {
        for event in 0..n {
            world.send(&format!("e{n}-{event}"), &format!("k{n}"), &[]).await;
        }
    }
    let mut seen = Vec::new();
    let mut path = "/api/v1/lanes?limit=3".to_owned();
    loop {
        let page = world.get(&path).await.json();
        let lanes = page["items"].as_array().unwrap();
        assert!(lanes.len() <= 3);
        seen.extend(lanes.iter().map(|lane| {
            assert!(lane.get("timeline").is_none());
            format!("{}/{}", lane["subscription"].as_str().unwrap(), lane["key"].as_str().unwrap())
        }));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/lanes?limit=3&cursor={}", next.replace('/', "%2F"));
    }
    let all: Vec<String> =
        ["a", "b"].iter().flat_map(|name| (1..=5).map(move |n| format!("{name}/k{n}"))).collect();
    assert_eq!(seen, all);
    let sorted = world.get("/api/v1/lanes?subscription=a&sort=depth&limit=2").await.json();
    let top: Vec<(u64, &str)> = sorted["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lane| (lane["depth"].as_u64().unwrap(), lane["key"].as_str().unwrap()))
        .collect();
    assert_eq!(top, [(5, "k5"), (4, "k4")]);
    assert_eq!(sorted["items"][0]["head"]["id"], "e5-0");
    assert_eq!(world.get("/api/v1/lanes?sort=age").await.json()["items"][0]["key"], "k1");
    assert_eq!(world.get("/api/v1/lanes?sort=rate").await.json()["items"][0]["key"], "k5");
    assert_eq!(world.get("/api/v1/lanes?state=running").await.json()["items"], json!([]));
    // The same from disk: after a restart, nothing of a paused subscription is in memory.
    let world = world.restart().await;
    let page = world.get("/api/v1/lanes?subscription=b").await.json();
    assert_eq!(page["items"].as_array().unwrap().len(), 5);
    assert_eq!((&page["items"][4]["depth"], &page["items"][4]["head"]["id"]), (&json!(5), &json!("e5-0")));
    let sorted = world.get("/api/v1/lanes?subscription=a&sort=depth").await.json();
    assert_eq!(sorted["items"][0]["key"], "k5");
    assert_eq!(world.get("/api/v1/lanes/a/k5").await.json()["timeline"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn the_timeline_of_a_deep_lane_shows_why_it_is_parked() {
    let world = World::new().await;
    world.target.answers(|_| 422);
    world.subscribe("orders", json!({})).await;
    world.send("first", "k", &[]).await;
    world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "parked").await;
    let steps = |lane: &Value| {
        let steps = lane["timeline"].as_array().unwrap().iter();
        steps.map(|step| format!("{} {}", step["step"], step["id"])).collect::<Vec<_>>()
    };
    let few = world.get("/api/v1/lanes/orders/k").await.json();
    assert_eq!(steps(&few), ["\"accepted\" \"first\"", "\"failed\" \"first\""]);
    for n in 0..150 {
        world.send(&format!("e{n}"), "k", &[]).await;
    }
    let deep = world.get("/api/v1/lanes/orders/k").await.json();
    let shown = steps(&deep);
    assert_eq!(deep["depth"], 151);
    assert_eq!(shown[..3], ["\"accepted\" \"first\"", "\"failed\" \"first\"", "\"not shown\" null"]);
    assert_eq!((shown[3].as_str(), shown.len()), ("\"accepted\" \"e50\"", 103));
    assert_eq!(shown[102], "\"accepted\" \"e149\"");
    let world = world.restart().await;
    assert_eq!(steps(&world.get("/api/v1/lanes/orders/k").await.json())[..3], shown[..3]);
}
