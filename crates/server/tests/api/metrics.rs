//! `/metrics` and `/api/v1/status`.

use crate::world::World;
use serde_json::json;
use std::collections::{HashMap, HashSet};

const NAMES: [&str; 24] = [
    "cloudevents_received_total",
    "event_order_violations_total",
    "duplicate_events_skipped_total",
    "event_sequence_gaps_total",
    "klambda_events_early_total",
    "events_without_key_total",
    "klambda_events_unmatched_total",
    "operator_event_processing_total",
    "operator_event_processing_duration_seconds",
    "operator_event_queue_depth",
    "operator_dlq_depth",
    "operator_dlq_messages_total",
    "klambda_dlq_dropped_total",
    "operator_circuit_breaker_state",
    "klambda_accept_duration_seconds",
    "klambda_commit_duration_seconds",
    "klambda_commit_events",
    "klambda_lanes",
    "klambda_oldest_event_age_seconds",
    "klambda_log_bytes",
    "klambda_marks",
    "klambda_memory_used_bytes",
    "klambda_disk_full",
    "klambda_connections_open",
];

#[tokio::test]
async fn both_formats_parse_and_name_everything() {
    let world = World::new().await;
    world.target.answers(|event| if event.id() == "bad" { 400 } else { 200 });
    world.subscribe("orders", json!({})).await;
    world.send("good", "k", &[]).await;
    world.send("bad", "k", &[("ce-type", "odd\\type")]).await;
    world.until("/api/v1/lanes/orders/k", |lane| lane["state"] == "parked").await;

    let plain = world.get("/metrics").await;
    assert!(plain.headers["content-type"].starts_with("text/plain; version=0.0.4"));
    let open = world.ask("GET", "/metrics", &[("accept", "application/openmetrics-text")], "").await;
    assert!(open.headers["content-type"].starts_with("application/openmetrics-text"));
    assert!(open.text().ends_with("# EOF\n"));
    for (answer, is_open) in [(plain, false), (open, true)] {
        let types = check(&answer.text(), is_open);
        for name in NAMES {
            let family = if is_open { name.strip_suffix("_total").unwrap_or(name) } else { name };
            assert!(types.contains_key(family), "{family} is missing");
        }
    }
    assert_eq!(
        world.metric("cloudevents_received_total{event_type=\"odd\\\\type\",result=\"accepted\"}").await,
        1.0
    );
    assert_eq!(
        world
            .metric(
                "operator_event_processing_total{subscription=\"orders\",namespace=\"default\",event_type=\"order.placed\",result=\"success\"}"
            )
            .await,
        1.0
    );
    assert_eq!(
        world
            .metric(
                "operator_dlq_messages_total{subscription=\"orders\",namespace=\"default\",reason=\"poison\"}"
            )
            .await,
        1.0
    );
    let dropped =
        "klambda_dlq_dropped_total{subscription=\"orders\",namespace=\"default\",reason=\"overflow\"}";
    assert_eq!(world.metric(dropped).await, 0.0, "an alert on its increase sees the first event");
    assert_eq!(world.metric("operator_dlq_depth{subscription=\"orders\",namespace=\"default\"}").await, 1.0);
    assert_eq!(
        world.metric("klambda_lanes{subscription=\"orders\",namespace=\"default\",state=\"parked\"}").await,
        1.0
    );
    assert_eq!(world.metric("klambda_accept_duration_seconds_count").await, 2.0);
    assert_eq!(world.metric("klambda_commit_events_sum").await, 2.0);
}

/// Every sample belongs to the family announced before it. No family and no series appears twice.
fn check(text: &str, is_open: bool) -> HashMap<String, String> {
    let mut types: HashMap<String, String> = HashMap::new();
    let mut family = String::new();
    let mut series = HashSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            family = name.to_owned();
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(series.insert(name.to_owned()), "{line} twice");
            let bare = name.split('{').next().unwrap();
            let suffixes: &[&str] = match types[&family].as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                "counter" if is_open => &["_total"],
                _ => &[""],
            };
            assert!(suffixes.iter().any(|suffix| format!("{family}{suffix}") == bare), "{line} in {family}");
        }
    }
    types
}

#[tokio::test]
async fn the_status_sums_up() {
    let world = World::new().await;
    let empty = world.get("/api/v1/status").await.json();
    assert_eq!(empty["positions"], json!({"first": null, "last": null}));
    world.subscribe("orders", json!({"paused": true})).await;
    world.send("e1", "k", &[]).await;
    let status = world.get("/api/v1/status").await.json();
    assert_eq!((&status["subscriptions"], &status["waiting"]), (&json!(1), &json!(1)));
    assert_eq!(status["positions"], json!({"first": 1, "last": 1}));
    assert_eq!((&status["disk"]["full"], &status["listening"]), (&json!(false), &json!(world.server.url())));
    assert!(
        status["memory"]["usedBytes"].as_u64().unwrap() < status["memory"]["limitBytes"].as_u64().unwrap()
    );
    assert!(status["version"].is_string() && status["uptimeSeconds"].is_u64() && status["logBytes"].is_u64());
}
