//! What is counted of functions and agents, and of requests for them.

use super::text::Text;
use super::{SECONDS_OF_MICROS, SECONDS_OF_MILLIS, gauge, histogram};
use crate::api::Api;
use crate::metrics::text::Buckets;
use klambda_control::{BUILDS, Counts, OPERATIONS, RECONCILED};
use klambda_functions::resource::Kind;

const BYTES: Buckets = Buckets { first: 6, last: 24, unit: 1.0, is_duration: false };

pub fn functions(text: &mut Text, api: &Api) {
    let counts: Counts = api.control.counts();
    let name = "operator_reconcile_total";
    text.counter(name, "Functions and agents planned, by result: unchanged, changed or failed.");
    for result in RECONCILED {
        text.sample(name, &[("result", result)], counts.reconciles.get(result).copied().unwrap_or(0));
    }
    histogram(
        text,
        "operator_reconcile_duration_seconds",
        "From the plan of a function to its outcome being stored.",
        &counts.reconcile_micros,
        SECONDS_OF_MICROS,
    );
    let name = "operator_crd_operations_total";
    text.counter(name, "Functions and agents created, updated and deleted.");
    for kind in Kind::ALL.map(Kind::name) {
        for operation in OPERATIONS {
            let count = counts.operations.get(&(kind, operation)).copied().unwrap_or(0);
            text.sample(name, &[("kind", kind), ("operation", operation)], count);
        }
    }
    builds(text, &counts, api.control.builds_waiting());
    gauge(
        text,
        "operator_knative_services_managed",
        "Functions and agents that have a version to call.",
        api.control.serving() as f64,
    );
    requests(text, api);
}

fn builds(text: &mut Text, counts: &Counts, waiting: usize) {
    gauge(
        text,
        "operator_build_jobs_active",
        "Builds that run or wait for their turn.",
        counts.builds_active as f64,
    );
    gauge(text, "operator_build_jobs_waiting", "Of these, builds that wait for their turn.", waiting as f64);
    let name = "operator_build_jobs_total";
    text.counter(name, "Builds that ended, by result: completed, failed, timeout, cancelled or stopped. What was built before is not built again.");
    for result in BUILDS {
        text.sample(name, &[("result", result)], counts.builds.get(result).copied().unwrap_or(0));
    }
    histogram(
        text,
        "operator_build_duration_seconds",
        "How long builds took, from when they had a slot.",
        &counts.build_ms,
        SECONDS_OF_MILLIS,
    );
}

fn requests(text: &mut Text, api: &Api) {
    let counted = api.requests.read();
    let name = "operator_api_requests_total";
    text.counter(
        name,
        "Requests for functions and agents, by method, address and status; calls of functions aside.",
    );
    if counted.requests.is_empty() {
        text.sample(name, &[("method", "GET"), ("path", "/api/v1/lambda/functions"), ("status", "200")], 0);
    }
    for ((method, path, status), count) in &counted.requests {
        let status = status.to_string();
        text.sample(name, &[("method", method), ("path", path), ("status", &status)], count);
    }
    let name = "operator_api_request_duration_seconds";
    histogram(text, name, "How long these requests took.", &counted.micros, SECONDS_OF_MICROS);
    histogram(text, "operator_api_request_size_bytes", "Their bodies.", &counted.bytes, BYTES);
}
