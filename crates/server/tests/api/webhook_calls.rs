//! The calls of webhook endpoints: what was tried, and how events are sent again.

use crate::tokens::{ADMIN, guarded};
use crate::webhooks::{ENDPOINTS, FEED, body, create, feed, is_signed_with, items, send};
use crate::world::{PATIENCE, World, open};
use klambda_core::time::Millis;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

async fn deliveries(world: &World, query: &str) -> Value {
    let answer = world.get(&format!("{ENDPOINTS}/partner/deliveries{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Waits until `count` attempts are listed.
async fn until_tried(world: &World, count: usize) -> Vec<Value> {
    let path = format!("{ENDPOINTS}/partner/deliveries");
    let page = world.until(&path, |page| items(page).len() >= count).await;
    assert_eq!(items(&page).len(), count, "{page}");
    items(&page).to_vec()
}

#[tokio::test]
async fn every_attempt_is_listed_and_survives_a_restart() {
    let world = World::new().await;
    create(&world, "partner", json!({"workflowKey": "partitionkey"})).await;
    // The second event fails twice.
    let tries = std::sync::Mutex::new(0);
    world.target.answers(move |call| {
        let mut tries = tries.lock().unwrap();
        *tries += u32::from(body(call)["id"] == "e2");
        if body(call)["id"] == "e2" && *tries <= 2 { 503 } else { 204 }
    });
    send(&world, 1..=4, 2).await;
    let all = until_tried(&world, 6).await;
    let times: Vec<&str> = all.iter().map(|item| item["time"].as_str().unwrap()).collect();
    // As texts, 27.78Z is not before 27.789Z.
    let millis = |time: &str| Millis::parse_rfc3339(time);
    assert!(times.is_sorted_by(|a, b| millis(a) >= millis(b)), "newest first: {times:?}");
    let of_e2: Vec<(&Value, &Value, &Value)> = all
        .iter()
        .filter(|item| item["id"] == "e2")
        .map(|item| (&item["attempt"], &item["status"], &item["outcome"]))
        .collect();
    let (delivered, failed) = (json!("delivered"), json!("failed"));
    assert_eq!(
        of_e2,
        [
            (&json!(3), &json!(204), &delivered),
            (&json!(2), &json!(503), &failed),
            (&json!(1), &json!(503), &failed)
        ]
    );
    let entry = all.iter().find(|item| item["id"] == "e1").unwrap();
    assert_eq!((&entry["type"], &entry["workflowId"]), (&json!("order.placed"), &json!("order-1")));
    assert!(entry["sequenceNumber"] == 1 && entry["durationMs"].is_u64(), "{entry}");

    let world = world.restart().await;
    assert_eq!(items(&deliveries(&world, "").await), all, "a restart changes nothing");
    let event = all[0]["eventId"].as_str().unwrap();
    for (query, expected) in [
        ("?status=failed", 2),
        ("?status=ok", 4),
        ("?workflowId=order-0&status=ok", 2),
        ("?since=2100-01-01T00:00:00Z", 0),
        (&format!("?since={}", times[5]), 6),
        (&format!("?eventId={event}&status=ok"), 1),
    ] {
        assert_eq!(items(&deliveries(&world, query).await).len(), expected, "{query}");
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = deliveries(&world, &format!("?limit=4{cursor}")).await;
        seen.extend(items(&page).to_vec());
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, all);
    for wrong in ["?status=bad", "?since=monday", "?eventId=1", "?cursor=x", "?limit=0"] {
        let path = format!("{ENDPOINTS}/partner/deliveries{wrong}");
        assert_eq!(world.get(&path).await.problem(), "bad-request", "{wrong}");
    }
    assert_eq!(world.get(&format!("{ENDPOINTS}/nobody/deliveries")).await.problem(), "not-found");

    let shown = world.get(&format!("{ENDPOINTS}/partner")).await.json();
    let latest = &shown["status"]["statistics"];
    assert_eq!((&latest["calls"], &latest["failed"]), (&json!(6), &json!(2)), "{shown}");
    assert!(latest["durationP99Ms"].as_u64() >= latest["durationP50Ms"].as_u64(), "{latest}");
    assert_eq!(latest["lastFailureAt"], all.iter().find(|item| item["outcome"] == "failed").unwrap()["time"]);
}

#[tokio::test]
async fn attempts_are_streamed_until_the_token_is_revoked() {
    let world = guarded().await;
    let admin = [("authorization", ADMIN), ("content-type", "application/json")];
    let endpoints = format!("/api/v1/namespaces/shop{}", &ENDPOINTS[7..]);
    let new = json!({"name": "partner", "url": world.target.url()}).to_string();
    assert_eq!(world.ask("POST", &endpoints, &admin, &new).await.status, 201);
    let link = world.ask("POST", &format!("{endpoints}/partner/link?expires=5m"), &admin, "").await;
    assert_eq!((link.status, link.headers["cache-control"].as_str()), (201, "no-store"), "{link:?}");
    let link = link.json();
    let bearer = format!("Bearer {}", link["token"].as_str().unwrap());
    let mine = [("authorization", bearer.as_str()), ("accept", "text/event-stream")];
    let stream = open(world.server.address(), "GET", link["url"].as_str().unwrap(), &mine, b"").await;
    let mut lines = BufReader::new(stream).lines();
    let mut next_data = async || loop {
        let line = timeout(PATIENCE, lines.next_line()).await.expect("in time").unwrap();
        match line {
            Some(line) if line.starts_with("data: ") => return Some(line),
            Some(_) => {}
            None => return None,
        }
    };
    let event = [
        ("authorization", ADMIN),
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-type", "order.placed"),
        ("ce-source", "/shop"),
    ];
    // The stream starts with the attempts after it was opened, so events are sent until one shows up.
    let path = "/api/v1/namespaces/shop/events";
    assert_eq!(world.ask("POST", path, &event, "").await.status, 202);
    let data: Value = serde_json::from_str(&next_data().await.expect("data")["data: ".len()..]).unwrap();
    assert_eq!((&data["id"], &data["outcome"]), (&json!("1"), &json!("delivered")));

    let tokens = world.ask("GET", "/api/v1/tokens", &admin, "").await.json();
    let name = items(&tokens).iter().find(|token| token["role"] == "endpoint-admin").unwrap()["name"].clone();
    let path = format!("/api/v1/tokens/{}", name.as_str().unwrap());
    assert_eq!(world.ask("DELETE", &path, &admin, "").await.status, 200);
    assert_eq!(next_data().await, None, "the stream ends");
    let feed = world.ask("GET", FEED, &mine, "").await;
    assert_eq!(feed.status, 401, "{feed:?}");
    for wrong in ["25h", "0s", "soon"] {
        let refused =
            world.ask("POST", &format!("{endpoints}/partner/link?expires={wrong}"), &admin, "").await;
        assert_eq!(refused.problem(), "bad-request", "{wrong}");
    }
    assert_eq!(world.ask("POST", &format!("{endpoints}/nobody/link"), &admin, "").await.status, 404);
    for _ in 0..20 {
        assert_eq!(world.ask("POST", &format!("{endpoints}/partner/link"), &admin, "").await.status, 201);
    }
    let refused = world.ask("POST", &format!("{endpoints}/partner/link"), &admin, "").await;
    assert!(refused.problem() == "limit-reached" && refused.text().contains("20 links"), "{refused:?}");
}

async fn resend(world: &World, event: &Value) -> crate::world::Answer {
    world.post(&format!("{ENDPOINTS}/partner/resend"), json!({"eventId": event})).await
}

#[tokio::test]
async fn an_event_is_sent_again_without_disturbing_its_workflow() {
    let world = World::new().await;
    let secret = create(&world, "partner", json!({})).await.json()["secret"].as_str().unwrap().to_owned();
    send(&world, 1..=3, 1).await;
    world.target.until(|calls| calls.len() == 3).await;
    until_tried(&world, 3).await;
    let second = body(&world.target.received()[1]);
    let sent = resend(&world, &second["eventId"]).await;
    assert_eq!((sent.status, &sent.json()["succeeded"]), (200, &json!(true)), "{sent:?}");
    let again = world.target.received()[3].clone();
    assert_eq!(body(&again), second, "the same body");
    assert!(is_signed_with(&again, &secret) && again.headers["klambda-resend"] == "true", "{again:?}");
    let all = until_tried(&world, 4).await;
    assert_eq!((&all[0]["resend"], &all[0]["eventId"]), (&json!(true), &second["eventId"]));
    assert!(
        all[1].get("resend").is_none() && !world.target.received()[0].headers.contains_key("klambda-resend")
    );

    send(&world, 4..=4, 1).await;
    world.target.until(|calls| calls.len() == 5).await;
    let next = body(&world.target.received()[4]);
    assert_eq!((&next["sequenceNumber"], &next["id"]), (&json!(4), &json!("e4")), "the numbers go on");
    let audit = world.get("/api/v1/audit").await.json();
    assert_eq!((&items(&audit)[0]["verb"], &items(&audit)[0]["name"]), (&json!("resend"), &json!("partner")));

    // One that fails, one that waits, one that is unknown.
    world.target.answers(|_| 500);
    let failed = resend(&world, &second["eventId"]).await.json();
    assert_eq!((&failed["succeeded"], &failed["status"]), (&json!(false), &json!(500)));
    assert_eq!(world.post(&format!("{ENDPOINTS}/partner/pause"), json!({})).await.status, 200);
    send(&world, 5..=5, 1).await;
    let waiting = items(&feed(&world, "").await)[4]["eventId"].clone();
    let refused = resend(&world, &waiting).await;
    assert!(refused.problem() == "conflict" && refused.text().contains("still waiting"), "{refused:?}");
    assert_eq!(resend(&world, &json!("00000000-0000-5000-8000-000000000000")).await.problem(), "not-found");
    assert_eq!(resend(&world, &json!("e1")).await.status, 422);
    let world = world.restart().await;
    until_tried(&world, 6).await;
}

#[tokio::test]
async fn what_failed_since_a_time_is_sent_again_in_order() {
    let world = World::new().await;
    create(&world, "partner", json!({"workflowKey": "partitionkey"})).await;
    world.target.answers(|_| 500);
    send(&world, 1..=2, 2).await;
    let path = format!("{ENDPOINTS}/partner");
    world.until(&path, |one| one["status"]["parked"] == 2).await;
    // A resend of a dead letter is a replay in its place.
    let first = items(&feed(&world, "").await)[0].clone();
    world.target.answers(|_| 204);
    let replayed = resend(&world, &first["eventId"]).await;
    assert_eq!(replayed.status, 202, "{replayed:?}");
    world.until(&path, |one| one["status"]["parked"] == 1).await;

    let recover = format!("{path}/recover");
    let dry = world.post(&recover, json!({"since": "2020-01-01T00:00:00Z", "dryRun": true})).await.json();
    assert_eq!((&dry["selected"], &dry["dryRun"]), (&json!(1), &json!(true)), "{dry}");
    let none = world.post(&recover, json!({"since": "2100-01-01T00:00:00Z", "dryRun": true})).await.json();
    assert_eq!(none["selected"], 0);
    let other = json!({"since": "2020-01-01T00:00:00Z", "dryRun": true, "workflowId": "order-7"});
    assert_eq!(world.post(&recover, other).await.json()["selected"], 0);
    let begun = world.post(&recover, json!({"since": "2020-01-01T00:00:00Z"})).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    let job = begun.headers["location"].clone();
    let done = world.until(&job, |job| job["state"] == "succeeded").await;
    assert_eq!((&done["replayed"], &done["failed"]), (&json!(1), &json!(0)), "{done}");
    world.until(&path, |one| one["status"]["delivered"] == 2).await;
    assert_eq!(world.delete(&job).await.json()["state"], "succeeded", "it is over");

    assert_eq!(world.post(&recover, json!({})).await.status, 422);
    assert_eq!(world.post(&recover, json!({"since": "now"})).await.status, 422);
    create(&world, "other", json!({})).await;
    let id = job.rsplit('/').next().unwrap();
    assert_eq!(world.get(&format!("{ENDPOINTS}/other/recover/{id}")).await.problem(), "not-found");
}

#[tokio::test]
async fn dead_letters_of_a_deleted_endpoint_go_to_the_next_one_of_its_name() {
    let world = World::new().await;
    let policy = json!({"ordering": "unordered"});
    let old = create(&world, "partner", policy.clone()).await.json()["secret"].as_str().unwrap().to_owned();
    world.target.answers(|_| 500);
    send(&world, 1..=1, 1).await;
    let path = format!("{ENDPOINTS}/partner");
    world.until(&path, |one| one["status"]["deadLetters"] == 1).await;
    world.target.answers(|_| 204);
    assert_eq!(world.delete(&path).await.status, 200);
    let replay = json!({"selector": {"subscription": "webhook.partner"}});
    let refused = world.post("/api/v1/dlq/replays", replay.clone()).await;
    assert!(refused.text().contains("create webhook endpoint partner again"), "{refused:?}");
    let new = create(&world, "partner", policy).await.json()["secret"].as_str().unwrap().to_owned();
    assert_eq!(world.post("/api/v1/dlq/replays", replay).await.status, 202);
    world.target.until(|calls| calls.last().is_some_and(|call| is_signed_with(call, &new))).await;
    assert!(!is_signed_with(world.target.received().last().unwrap(), &old));
}

#[tokio::test]
async fn an_endpoint_is_enabled_from_a_chosen_time() {
    let world = World::new().await;
    create(&world, "partner", json!({})).await;
    let path = format!("{ENDPOINTS}/partner");
    assert_eq!(world.post(&format!("{path}/disable"), json!({})).await.status, 200);
    send(&world, 1..=3, 1).await;
    let wrong = world.post(&format!("{path}/enable"), json!({"from": "soon"})).await;
    assert_eq!((wrong.status, &wrong.json()["faults"][0]["path"]), (422, &json!("from")));
    let enabled = world.post(&format!("{path}/enable"), json!({"from": "2100-01-01T00:00:00Z"})).await.json();
    assert_eq!((&enabled["status"]["phase"], &enabled["status"]["waiting"]), (&json!("Ready"), &json!(0)));
    send(&world, 4..=4, 1).await;
    world.target.until(|calls| calls.len() == 1).await;
    let first = body(&world.target.received()[0]);
    assert_eq!((&first["sequenceNumber"], &first["orderStatus"]), (&json!(4), &json!("gap")), "{first}");
    assert_eq!(items(&feed(&world, "").await).len(), 4, "the feed is complete");
    let again = world.post(&format!("{path}/enable"), json!({"from": "2100-01-01T00:00:00Z"})).await;
    assert_eq!(again.status, 409, "an enabled endpoint cannot be enabled from a time: {again:?}");
    let paused = world.post(&format!("{path}/pause"), json!({"from": "2100-01-01T00:00:00Z"})).await;
    assert_eq!(paused.status, 422, "{paused:?}");
    // An event that was skipped can still be sent.
    let skipped = items(&feed(&world, "").await)[0].clone();
    assert_eq!(resend(&world, &skipped["eventId"]).await.json()["succeeded"], true);
}

#[tokio::test]
async fn a_purge_leaves_nothing_in_the_feed_of_a_disabled_endpoint() {
    let world = World::new().await;
    create(&world, "partner", json!({})).await;
    let path = format!("{ENDPOINTS}/partner");
    assert_eq!(world.post(&format!("{path}/disable"), json!({})).await.status, 200);
    send(&world, 1..=3, 1).await;
    assert_eq!(items(&feed(&world, "").await).len(), 3);
    let purged = world.post("/api/v1/lanes/webhook.partner/order-0/purge", json!({})).await;
    assert_eq!(purged.status, 200, "{purged:?}");
    assert!(items(&feed(&world, "").await).is_empty());
}

#[tokio::test]
async fn a_stream_of_deliveries_can_continue_after_any_number() {
    let world = World::new().await;
    create(&world, "partner", json!({})).await;
    send(&world, 1..=2, 1).await;
    until_tried(&world, 2).await;
    let last = u64::MAX.to_string();
    let headers = [("accept", "text/event-stream"), ("last-event-id", last.as_str())];
    let path = format!("{ENDPOINTS}/partner/deliveries");
    let stream = open(world.server.address(), "GET", &path, &headers, b"").await;
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = timeout(PATIENCE, lines.next_line()).await.expect("in time").unwrap() {
        // Reads the attempts once before this.
        if line.starts_with(": following") {
            break;
        }
    }
    send(&world, 3..=3, 1).await;
    until_tried(&world, 3).await;
}
