//! Webhook endpoints that take several events in one call.

use crate::webhooks::{ENDPOINTS, create, feed, is_signed_with, items, send};
use crate::world::{Received, World};
use serde_json::{Value, json};
use std::collections::HashSet;

fn events(call: &Received) -> Vec<Value> {
    serde_json::from_str(&call.body).expect("an array")
}

fn ids(call: &Received) -> Vec<String> {
    events(call).iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect()
}

/// Pauses the endpoint, so that events wait, and resumes it.
async fn send_together(world: &World, numbers: std::ops::RangeInclusive<u32>) {
    let path = format!("{ENDPOINTS}/partner");
    assert_eq!(world.post(&format!("{path}/pause"), json!({})).await.status, 200);
    send(world, numbers, 1).await;
    assert_eq!(world.post(&format!("{path}/resume"), json!({})).await.status, 200);
}

#[tokio::test]
async fn a_receiver_acknowledges_all_of_a_call_or_a_prefix() {
    let world = World::new().await;
    let created = create(&world, "partner", json!({"batch": {"maxEvents": 4}})).await.json();
    assert_eq!(created["spec"]["batch"], json!({"maxEvents": 4, "maxBytes": "1Mi"}));
    let secret = created["secret"].as_str().unwrap().to_owned();
    // The receiver takes two events of a call at most.
    world.target.answers(|_| 200);
    world.target.says(|call| match events(call).as_slice() {
        [_, second, _, ..] => json!({"acknowledgedThrough": second["eventId"], "stored": 2}).to_string(),
        _ => "ok".to_owned(),
    });
    send_together(&world, 1..=7).await;
    let path = format!("{ENDPOINTS}/partner");
    world.until(&path, |one| one["status"]["delivered"] == 7).await;
    let calls = world.target.received();
    let expected: [&[&str]; 4] =
        [&["e1", "e2", "e3", "e4"], &["e3", "e4", "e5", "e6"], &["e5", "e6", "e7"], &["e7"]];
    assert_eq!(calls.iter().map(ids).collect::<Vec<_>>(), expected);
    assert!(calls.iter().all(|call| is_signed_with(call, &secret)));
    let call_ids: HashSet<&str> = calls.iter().map(|call| call.headers["webhook-id"].as_str()).collect();
    assert_eq!(call_ids.len(), 4, "calls with other events have other ids");
    assert_eq!(events(&calls[3])[0]["eventId"], calls[3].headers["webhook-id"], "one event keeps its id");
    let all = feed(&world, "").await;
    assert_eq!(events(&calls[0]), items(&all)[..4], "the same as in the feed");
    let deliveries = world.get(&format!("{path}/deliveries")).await.json();
    let outcomes: Vec<&Value> = items(&deliveries).iter().map(|one| &one["outcome"]).collect();
    assert_eq!(outcomes, vec![&json!("delivered"); 7], "{deliveries}");
    assert!(items(&deliveries).iter().all(|one| one["attempt"] == 1 && one["status"] == 200));

    let event = &items(&all)[0]["eventId"];
    let again = world.post(&format!("{path}/resend"), json!({"eventId": event})).await.json();
    assert_eq!(again["succeeded"], true, "{again}");
    assert_eq!(ids(world.target.received().last().unwrap()), ["e1"], "a resend is an array too");
    assert_eq!(world.post(&format!("{path}/test"), json!({})).await.json()["succeeded"], true);
    assert_eq!(events(world.target.received().last().unwrap())[0]["type"], "webhook.test");
}

#[tokio::test]
async fn a_wrong_acknowledgement_and_a_failure_are_attempts_of_the_first_event() {
    let world = World::new().await;
    create(&world, "partner", json!({"batch": {"maxEvents": 10}})).await;
    world.target.answers(|_| 200);
    world.target.says(|_| json!({"acknowledgedThrough": "00000000-0000-5000-8000-000000000000"}).to_string());
    send_together(&world, 1..=3).await;
    let path = format!("{ENDPOINTS}/partner");
    world.until(&path, |one| one["status"]["parked"] == 1).await;
    let deliveries = world.get(&format!("{path}/deliveries")).await.json();
    assert_eq!(items(&deliveries).len(), 3, "three attempts of one event: {deliveries}");
    for one in items(&deliveries) {
        let said = one["error"].as_str().unwrap_or_default();
        assert!(one["id"] == "e1" && said.contains("not in the call: 00000000"), "{one}");
    }
    let same: HashSet<String> =
        world.target.received().iter().map(|call| call.headers["webhook-id"].clone()).collect();
    assert_eq!(same.len(), 1, "a retry with the same events has the same id");
    world.target.says(|_| String::new());
    world.target.answers(|_| 410);
    let resumed = world.post("/api/v1/lanes/webhook.partner/order-0/resume", json!({})).await;
    assert_eq!(resumed.status, 200, "{resumed:?}");
    let disabled = world.until(&path, |one| one["status"]["phase"] == "Disabled").await;
    assert_eq!(
        (&disabled["status"]["disabled"]["reason"], &disabled["status"]["waiting"]),
        (&json!("gone"), &json!(3))
    );
    world.target.answers(|_| 204);
    assert_eq!(world.post(&format!("{path}/enable"), json!({})).await.status, 200);
    world.until(&path, |one| one["status"]["delivered"] == 3).await;
    assert_eq!(ids(world.target.received().last().unwrap()), ["e1", "e2", "e3"]);
}

#[tokio::test]
async fn a_batch_of_cloudevents_has_its_own_media_type_and_unordered_endpoints_have_none() {
    let world = World::new().await;
    create(&world, "partner", json!({"batch": {"maxEvents": 2}, "payload": {"form": "cloudevents"}})).await;
    send_together(&world, 1..=2).await;
    world.target.until(|calls| calls.len() == 1).await;
    let call = world.target.received()[0].clone();
    assert_eq!(call.headers["content-type"], "application/cloudevents-batch+json; charset=utf-8");
    assert_eq!(events(&call)[1]["previouseventid"], events(&call)[0]["eventid"]);
    for (more, path) in [
        (json!({"batch": {"maxEvents": 2}, "ordering": "unordered"}), "batch"),
        (json!({"batch": {}}), "batch.maxEvents"),
        (json!({"batch": {"maxEvents": 1001}}), "batch.maxEvents"),
        (json!({"batch": {"maxEvents": 2, "maxBytes": "1"}}), "batch.maxBytes"),
    ] {
        let mut body = json!({"name": "other", "url": world.target.url()});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = world.post(ENDPOINTS, body).await;
        assert_eq!(
            (refused.status, &refused.json()["faults"][0]["path"]),
            (422, &json!(path)),
            "{refused:?}"
        );
    }
}
