//! Durability: a restart, and a backup taken while the server runs.

use crate::world::{NEVER, World, ask, open, start};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

#[tokio::test]
async fn what_waits_outlives_its_segment() {
    let world = World::with(|config| {
        config.store.segment_bytes = 2 << 20;
        config.store.reserve_bytes = 64 << 10;
        config.retention.bytes = 1;
    })
    .await;
    world.subscribe("orders", json!({"paused": true})).await;
    world.send("waits", "k", &[]).await;
    let filler = "x".repeat(10_000);
    for n in 0..60 {
        let batch: Vec<Value> = (0..10)
            .map(|i| {
                json!({"specversion": "1.0", "id": format!("{n}-{i}"), "source": "/s", "type": "t", "subject": "other",
                    "data": filler})
            })
            .collect();
        let media = [("content-type", "application/cloudevents-batch+json")];
        assert_eq!(world.ask("POST", "/api/v1/events", &media, &json!(batch).to_string()).await.status, 202);
    }
    world.post("/api/v1/lanes/orders/other/purge", json!({})).await;
    // A clean shutdown writes a checkpoint. Only segments that it covers may be removed.
    let world = world.restart().await;
    let status = world.until("/api/v1/status", |status| status["logBytes"] == 2 << 20).await;
    let first = status["positions"]["first"].as_u64().unwrap();

    let gone = world.get("/api/v1/events?after=1").await;
    assert_eq!(
        (gone.status, gone.problem(), &gone.json()["oldest"]),
        (410, "gone".to_owned(), &json!(first))
    );
    let page = world.get("/api/v1/events?limit=1").await.json();
    assert_eq!(page["items"][0]["position"], first);
    let lane = world.get("/api/v1/lanes/orders/k").await.json();
    assert_eq!(
        (&lane["depth"], &lane["head"]["id"], &lane["head"]["position"]),
        (&json!(1), &json!("waits"), &json!(1)),
        "{lane:#}"
    );
    let traced = world.get("/api/v1/events/waits?source=/shop").await.json();
    assert_eq!(
        (&traced["position"], &traced["fates"][0]["fate"]),
        (&json!(1), &json!("waiting")),
        "{traced:#}"
    );
    world.post("/api/v1/subscriptions/orders/resume", json!({})).await;
    world.target.until(|all| all.len() == 1).await;
    assert_eq!(world.target.ids(), ["waits"]);
}

#[tokio::test]
async fn a_restart_loses_nothing_and_repeats_nothing() {
    let world = World::new().await;
    world.target.answers(|event| if event.id() == "e2" { 422 } else { 200 });
    world.subscribe("orders", json!({})).await;
    for n in 1..=3 {
        world.send(&format!("e{n}"), "k", &[]).await;
    }
    world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "parked").await;
    let before = world.get("/api/v1/subscriptions/orders").await.json();
    let world = world.restart().await;
    assert_eq!(world.get("/api/v1/subscriptions/orders").await.json(), before);
    assert_eq!(world.send("e1", "k", &[]).await["status"], "skipped");
    let lane = world.get("/api/v1/lanes/orders/k").await.json();
    assert_eq!(
        (&lane["state"], &lane["head"]["id"], &lane["depth"]),
        (&json!("parked"), &json!("e2"), &json!(2))
    );
    assert_eq!(lane["timeline"].as_array().unwrap().len(), 5, "{lane:#}");
    world.target.answers(|_| 200);
    let job = world.post("/api/v1/dlq/replays", json!({"selector": {"ids": ["orders.2"]}})).await;
    assert_eq!(job.status, 202);
    world.target.until(|all| all.len() == 3).await;
    assert_eq!(world.target.ids(), ["e1", "e2", "e3"]);
    world.until("/api/v1/dlq/replays/r1", |job| job["state"] == "succeeded").await;
    let world = world.restart().await;
    assert_eq!(world.get("/api/v1/dlq/replays").await.json()["items"][0]["state"], "succeeded");
    assert_eq!(world.send("e4", "k", &[]).await["position"], 4);
    world.target.until(|all| all.len() == 4).await;
    assert_eq!(world.target.received()[3].headers["ce-lanesequence"], "4");
}

#[tokio::test]
async fn a_backup_of_a_running_server_starts_anywhere() {
    let world = World::new().await;
    world.subscribe("orders", json!({"paused": true})).await;
    for n in 1..=50 {
        world.send(&format!("e{n}"), &format!("k{}", n % 5), &[]).await;
    }
    let copy = world.ask("POST", "/api/v1/backup", &[], "").await;
    assert_eq!((copy.status, copy.headers["content-type"].as_str()), (200, "application/x-tar"));
    world.send("after the copy", "k", &[]).await;

    let folder = tempfile::tempdir().unwrap();
    tar::Archive::new(copy.body.as_slice()).unpack(folder.path()).unwrap();
    let restored = start(folder.path(), |_| {}).await;
    let events = |answer: crate::world::Answer| answer.json()["items"].as_array().unwrap().clone();
    let original: Vec<Value> = events(world.get("/api/v1/events").await);
    let copied = events(ask(restored.address(), "GET", "/api/v1/events", &[], b"").await);
    assert_eq!(copied, original[..50]);
    let path = "/api/v1/subscriptions/orders/resume";
    assert_eq!(ask(restored.address(), "POST", path, &[], b"").await.status, 200);
    world.target.until(|all| all.len() == 50).await;
    for key in 0..5 {
        let of_key = world
            .target
            .received()
            .into_iter()
            .filter(|event| event.headers["ce-partitionkey"] == format!("k{key}"));
        let numbers: Vec<u64> =
            of_key.map(|event| event.headers["ce-lanesequence"].parse().unwrap()).collect();
        assert_eq!(numbers, (1..=10).collect::<Vec<u64>>());
    }
}

/// More than sockets buffer: the rest is sent only when the client reads.
#[tokio::test]
async fn a_backup_ends_when_its_token_is_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "stays\nrevoked\n").unwrap();
    let server = start(folder.path(), |config| config.token_file = Some(tokens.clone())).await;
    let data = "x".repeat(1_000_000);
    for n in 0..24 {
        let id = format!("e{n}");
        let headers = [
            ("authorization", "Bearer stays"),
            ("ce-specversion", "1.0"),
            ("ce-id", &id),
            ("ce-source", "/s"),
            ("ce-type", "t"),
        ];
        let sent = ask(server.address(), "POST", "/api/v1/events", &headers, data.as_bytes()).await;
        assert_eq!(sent.status, 202);
    }
    let mut copy =
        open(server.address(), "POST", "/api/v1/backup", &[("authorization", "Bearer revoked")], b"").await;
    let mut some = [0; 100];
    copy.read_exact(&mut some).await.unwrap();
    assert!(some.starts_with(b"HTTP/1.1 200"));
    std::fs::write(&tokens, "stays\n").unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let mut rest = Vec::new();
    let _ = timeout(Duration::from_secs(20), copy.read_to_end(&mut rest)).await.expect("it ends");
    assert!(rest.len() < 20_000_000, "{} bytes came", rest.len());
    assert!(!rest.ends_with(b"0\r\n\r\n"), "a partial backup must not look complete");
}

#[tokio::test]
async fn a_target_that_hangs_does_not_hold_the_end_up() {
    let world =
        World::with(|config| config.delivery.shutdown_timeout = std::time::Duration::from_millis(300)).await;
    world.target.answers(|_| NEVER);
    world.subscribe("orders", json!({})).await;
    world.send("e1", "k", &[]).await;
    world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "running").await;
    let world = world.restart().await;
    world.target.answers(|_| 200);
    // The aborted call counts as not made.
    world.target.until(|all| all.len() == 1).await;
    let lane = world.until("/api/v1/lanes/orders/k", |lane| lane["depth"] == 0).await;
    assert!(lane["timeline"].as_array().unwrap().iter().all(|step| step["step"] != "failed"), "{lane:#}");
}
