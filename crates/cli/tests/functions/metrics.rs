//! The metrics that dashboards and alerts are written against are there under their names, with their labels.

use crate::support::eventually;
use crate::world::{World, node};
use serde_json::json;
use std::collections::BTreeSet;

/// Metric, and the labels that queries and alerts use of it.
const NAMED: [(&str, &[&str]); 42] = [
    ("klambda_function_replicas", &["function_name", "namespace"]),
    ("klambda_function_invocations_total", &["function_name", "namespace"]),
    ("klambda_function_errors_total", &["function_name", "namespace"]),
    ("klambda_function_cold_starts_total", &["function_name", "namespace"]),
    ("klambda_function_duration_seconds_bucket", &["function_name", "namespace", "le"]),
    ("klambda_build_info", &["version", "commit"]),
    ("process_cpu_seconds_total", &[]),
    ("process_open_fds", &[]),
    ("process_resident_memory_bytes", &[]),
    ("process_start_time_seconds", &[]),
    ("cloudevents_received_total", &["event_type", "result"]),
    ("duplicate_events_skipped_total", &["subscription"]),
    ("event_order_violations_total", &["subscription"]),
    ("event_sequence_gaps_total", &["subscription"]),
    ("events_without_key_total", &["subscription"]),
    ("operator_api_request_duration_seconds_bucket", &["method", "endpoint", "le"]),
    ("operator_api_request_size_bytes_bucket", &["method", "endpoint", "le"]),
    ("operator_api_requests_total", &["method", "endpoint", "status_code"]),
    ("operator_build_cost_total", &["function_name", "namespace"]),
    ("operator_build_duration_seconds_bucket", &["function_name", "namespace", "le"]),
    ("operator_build_jobs_active", &["function_name", "namespace"]),
    ("operator_build_jobs_total", &["function_name", "namespace", "result"]),
    ("operator_circuit_breaker_state", &["subscription"]),
    ("operator_cost_per_function_total", &["function_name", "namespace"]),
    ("operator_cpu_usage_seconds", &[]),
    ("operator_crd_operation_duration_seconds_bucket", &["operation", "function_name", "le"]),
    ("operator_crd_operations_total", &["operation", "function_name", "namespace"]),
    ("operator_dlq_depth", &["function_name", "namespace"]),
    ("operator_dlq_messages_total", &["function_name", "namespace", "reason"]),
    ("operator_event_processing_duration_seconds_bucket", &["event_type", "subscription", "le"]),
    ("operator_event_processing_total", &["event_type", "subscription", "result"]),
    ("operator_event_queue_depth", &["subscription"]),
    ("operator_goroutines", &[]),
    ("operator_knative_services_managed", &["namespace", "status"]),
    ("operator_memory_usage_bytes", &[]),
    ("operator_rate_limit_hits_total", &["endpoint"]),
    ("operator_reconcile_duration_seconds_bucket", &["function_name", "namespace", "phase", "le"]),
    ("operator_reconcile_total", &["function_name", "namespace", "phase", "result"]),
    ("operator_service_creation_duration_seconds_bucket", &["function_name", "namespace", "le"]),
    ("operator_storage_cost_total", &[]),
    ("operator_api_request_duration_seconds_count", &["method", "endpoint"]),
    ("operator_reconcile_duration_seconds_count", &["function_name", "namespace", "phase"]),
];

/// Samples that queries select by a value of a label.
const SELECTED: [&str; 13] = [
    r#"klambda_function_replicas{function_name="f",namespace="default"} 1"#,
    // An invocation and two events.
    r#"klambda_function_invocations_total{function_name="f",namespace="default"} 3"#,
    r#"klambda_function_errors_total{function_name="f",namespace="default"} 1"#,
    r#"klambda_function_duration_seconds_count{function_name="f",namespace="default"} 3"#,
    r#"operator_reconcile_total{function_name="f",namespace="default",phase="Ready",result="success"}"#,
    r#"operator_build_jobs_total{function_name="f",namespace="default",result="success"}"#,
    r#"operator_build_jobs_total{function_name="broken",namespace="default",result="failure"}"#,
    r#"operator_event_processing_total{subscription="lambda.default.f",namespace="default",event_type="good",result="success"}"#,
    r#"operator_event_processing_total{subscription="lambda.default.f",namespace="default",event_type="bad",result="failure"}"#,
    r#"operator_dlq_depth{subscription="lambda.default.f",namespace="default",function_name="f"}"#,
    r#"operator_api_requests_total{method="DELETE",endpoint="/api/v1/lambda/functions/{name}",status_code="429"}"#,
    r#"operator_knative_services_managed{namespace="default",status="ready"}"#,
    r#"operator_knative_services_managed{namespace="default",status="failed"}"#,
];

/// Metrics of this project beside those that the requirements name. Everything else begins with `klambda_`.
const PREFIXES: [&str; 5] = ["process_", "klambda_", "operator_", "event_", "events_without_key_total"];

#[test]
fn what_queries_and_alerts_name_is_there() {
    let world = World::with(vec![("KLAMBDA_FUNCTIONS_RATE_LIMITS_DELETES", "1".into())]);
    let mut spec = node("exports.handler = (event) => { if (event.type === 'bad') throw new Error('no'); };");
    spec["triggers"] = json!([{ "filter": { "type": "good" } }, { "filter": { "type": "bad" } }]);
    spec["retry"] = json!({ "attempts": 1 });
    world.apply("f", &spec);
    world.apply("broken", &node("exports.handler = ("));
    world.ready("f");
    world.failed("broken", "SyntaxError");
    assert_eq!(world.invoke("f", &json!({})).0, 204);
    for _ in 0..3 {
        world.delete("/api/v1/lambda/functions/none");
    }
    world.send("good", "1", "k", &json!({}));
    world.send("bad", "2", "k", &json!({}));
    let text = eventually("everything is counted", || {
        let text = world.get("/metrics").1.as_str().expect("text").to_owned();
        match SELECTED.iter().find(|sample| !text.lines().any(|line| line.starts_with(**sample))) {
            None => Ok(text),
            Some(missing) => Err(format!("{missing} is not in {text}")),
        }
    });
    for (metric, labels) in NAMED {
        let has = |line: &str| {
            let (name, rest) = line.split_once(['{', ' ']).unwrap_or((line, ""));
            name == metric && labels.iter().all(|label| names(rest).contains(label))
        };
        assert!(text.lines().any(has), "no sample of {metric} with {labels:?} in {text}");
    }
    let documented = ["cloudevents_received_total", "duplicate_events_skipped_total"];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let is_ours = PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || documented.contains(&name);
        assert!(is_ours, "{name} should begin with klambda_");
        assert!(!names(line).contains("source"), "a source is no label: {line}");
        let is_operator = NAMED.iter().any(|(named, _)| family(named) == family(name));
        assert!(!name.starts_with("operator_") || is_operator, "{name} is not named by anybody: klambda_");
    }
}

fn names(labels: &str) -> BTreeSet<&str> {
    let before = |part: &'_ str| part.rsplit(['{', ',']).next().map(str::len);
    let pieces = labels.split("=\"");
    pieces.filter_map(|piece| Some(&piece[piece.len() - before(piece)?..])).collect()
}

fn family(name: &str) -> &str {
    let parts = ["_bucket", "_sum", "_count"];
    parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name)
}
