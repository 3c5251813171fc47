//! Metrics of functions and agents, and of requests for them.

use super::text::{Buckets, Text};
use super::{SECONDS_OF_MICROS, gauge};
use crate::api::Api;
use klambda_control::{Counts, Name, OfFunction};

const BYTES: Buckets = Buckets { first: 6, last: 24, unit: 1.0, is_duration: false };
/// Functions beyond `limits.metricFunctions`, in any namespace.
pub const OTHERS: &str = "other";

pub fn functions(text: &mut Text, api: &Api) {
    let counts = api.control.counts();
    reconciling(text, &counts);
    writing(text, &counts);
    building(text, &counts, api.control.builds_waiting());
    let name = "operator_knative_services_managed";
    text.gauge(name, "Functions and agents, by status: ready, pending or failed.");
    for ((namespace, status), count) in api.control.services() {
        text.sample(name, &[("namespace", &namespace), ("status", status)], count);
    }
    let name = "operator_service_creation_duration_seconds";
    text.histogram(name, "Time from the deployment of a version to its first response.");
    per_function(&counts, |function, of| {
        if of.creation_time.count > 0 {
            text.durations(name, &function, &of.creation_time);
        }
    });
    let name = "klambda_function_log_lines_dropped_total";
    text.counter(
        name,
        "Log lines of functions and builds that were not stored: disk full, or too many at once.",
    );
    text.sample(name, &[], api.control.log_lines_dropped());
    requests(text, api);
}

/// Calls `show` with the labels and counters of each function.
fn per_function(counts: &Counts, mut show: impl FnMut([(&str, &str); 2], &OfFunction)) {
    for (name, of) in &counts.functions {
        show(labels(name), of);
    }
    show([("function_name", OTHERS), ("namespace", "")], &counts.others);
}

pub fn labels(name: &Name) -> [(&str, &str); 2] {
    [("function_name", name.name()), ("namespace", name.namespace())]
}

fn reconciling(text: &mut Text, counts: &Counts) {
    let name = "operator_reconcile_total";
    text.counter(name, "Functions and agents reconciled, by result: success or failure.");
    per_function(counts, |[function, namespace], of| {
        for ((phase, result), count) in &of.reconciles {
            text.sample(name, &[function, namespace, ("phase", phase), ("result", result)], count);
        }
    });
    let name = "operator_reconcile_duration_seconds";
    text.histogram(name, "Time from planning a function until its status is stored.");
    per_function(counts, |[function, namespace], of| {
        for (phase, durations) in &of.reconcile_time {
            text.durations(name, &[function, namespace, ("phase", phase)], durations);
        }
    });
}

fn writing(text: &mut Text, counts: &Counts) {
    let name = "operator_crd_operations_total";
    text.counter(name, "Functions and agents created, updated and deleted.");
    per_function(counts, |[function, namespace], of| {
        for (operation, durations) in &of.operations {
            text.sample(name, &[function, namespace, ("operation", operation)], durations.count);
        }
    });
    let name = "operator_crd_operation_duration_seconds";
    text.histogram(name, "Time until a created, updated or deleted function or agent is durable.");
    per_function(counts, |[function, namespace], of| {
        for (operation, durations) in &of.operations {
            text.durations(name, &[function, namespace, ("operation", operation)], durations);
        }
    });
}

fn building(text: &mut Text, counts: &Counts, waiting: usize) {
    let name = "operator_build_jobs_active";
    text.gauge(name, "Builds that are running or waiting for a slot.");
    per_function(counts, |function, of| text.sample(name, &function, of.builds_active));
    gauge(text, "klambda_build_jobs_waiting", "Builds that are waiting for a slot.", waiting as f64);
    let name = "operator_build_jobs_total";
    text.counter(
        name,
        "Finished builds, by result: success, failure, timeout, cancelled or stopped. Known content is not built again.",
    );
    per_function(counts, |[function, namespace], of| {
        for (result, count) in &of.builds {
            text.sample(name, &[function, namespace, ("result", result)], count);
        }
    });
    let name = "klambda_build_cache_emptied_total";
    text.counter(name, "Evicted parts of the build cache, by reason: age or size.");
    for reason in ["age", "size"] {
        text.sample(name, &[("reason", reason)], counts.caches_emptied.get(reason).copied().unwrap_or(0));
    }
    let name = "operator_build_duration_seconds";
    text.histogram(name, "Duration of builds, without the wait for a slot.");
    per_function(counts, |function, of| {
        if of.build_time.count > 0 {
            text.durations(name, &function, &of.build_time);
        }
    });
}

fn requests(text: &mut Text, api: &Api) {
    let counted = api.requests.read();
    let name = "operator_api_requests_total";
    text.counter(
        name,
        "Requests for functions and agents, by method, endpoint and status code, without invocations.",
    );
    for ((method, endpoint), requests) in &counted.endpoints {
        for (status, count) in &requests.by_status {
            let status = status.to_string();
            text.sample(name, &[("method", method), ("endpoint", endpoint), ("status_code", &status)], count);
        }
    }
    let name = "operator_api_request_duration_seconds";
    text.histogram(name, "Duration of these requests.");
    for ((method, endpoint), requests) in &counted.endpoints {
        text.buckets(
            name,
            &[("method", method), ("endpoint", endpoint)],
            &requests.micros,
            SECONDS_OF_MICROS,
        );
    }
    let name = "operator_api_request_size_bytes";
    text.histogram(name, "Size of the request bodies.");
    for ((method, endpoint), requests) in &counted.endpoints {
        text.buckets(name, &[("method", method), ("endpoint", endpoint)], &requests.bytes, BYTES);
    }
    let name = "operator_rate_limit_hits_total";
    text.counter(name, "Requests rejected because the client exceeded functions.rateLimits.");
    for (endpoint, count) in &counted.limited {
        text.sample(name, &[("endpoint", endpoint)], count);
    }
}
