//! How far back the feed of a webhook endpoint reaches.

use crate::webhooks::{FEED, create, feed, items, send};
use crate::world::{Answer, PATIENCE, World};
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;

/// An event that fills the log and that the endpoint does not get.
async fn fill(world: &World, id: u32) {
    let id = format!("f{id}");
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-id", id.as_str()),
        ("ce-type", "filler"),
        ("ce-source", "/shop"),
        ("content-type", "text/plain"),
    ];
    let sent = world.ask("POST", "/api/v1/events", &headers, &"x".repeat(200_000)).await;
    assert_eq!(sent.status, 202, "{sent:?}");
}

/// Reads after an event until the response has this status, while the log grows.
async fn until(world: &World, since: &str, status: u16, filled: &mut u32) -> Answer {
    let looked = async {
        loop {
            let answer = world.get(&format!("{FEED}?since={since}")).await;
            if answer.status == status {
                return answer;
            }
            assert!([200, 410].contains(&answer.status), "{answer:?}");
            *filled += 1;
            fill(world, *filled).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, looked).await.expect("retention passes the event in time")
}

#[tokio::test]
async fn an_event_that_retention_has_passed_is_gone_and_later_unknown() {
    let world = World::with(|config| {
        (config.store.segment_bytes, config.store.reserve_bytes) = (1 << 20, 64 << 10);
        config.retention.age = Duration::from_secs(4);
    })
    .await;
    create(&world, "partner", json!({"types": ["order.*"]})).await;
    send(&world, 1..=80, 4).await;
    world.target.until(|calls| calls.len() == 80).await;
    let first = items(&feed(&world, "?limit=1").await)[0]["eventId"].as_str().unwrap().to_owned();
    let mut filled = 0;
    let gone = until(&world, &first, 410, &mut filled).await;
    assert_eq!(gone.problem(), "gone");
    assert!(gone.json()["detail"].as_str().unwrap().contains("read without `since`"), "{gone:?}");
    // An event that is left shows where to continue.
    send(&world, 81..=81, 1).await;
    let newest = feed(&world, "").await;
    let oldest = items(&newest)[0]["eventId"].clone();
    let again = world.get(&format!("{FEED}?since={first}")).await;
    assert_eq!((again.status, &again.json()["oldest"]), (410, &oldest), "{again:?}");
    let unknown = until(&world, &first, 404, &mut filled).await;
    assert_eq!(unknown.problem(), "not-found");
    assert!(unknown.json().get("oldest").is_some(), "{unknown:?}");
}
