//! The panels of every dashboard.
//!
//! There is no dashboard for the agent, for event sources or for Linkerd: this program does not export their metrics.

pub struct Board {
    pub name: &'static str,
    pub title: &'static str,
    pub panels: &'static [Panel],
}

pub struct Panel {
    pub title: &'static str,
    /// A unit of Grafana.
    pub unit: &'static str,
    pub query: &'static str,
    pub legend: &'static str,
}

const fn panel(title: &'static str, unit: &'static str, legend: &'static str, query: &'static str) -> Panel {
    Panel { title, unit, query, legend }
}

const SUBSCRIPTION: &str = "{{namespace}}/{{subscription}}";
const FUNCTION: &str = "{{namespace}}/{{function_name}}";
const ENDPOINT: &str = "{{method}} {{endpoint}}";

pub const BOARDS: &[Board] = &[
    Board {
        name: "platform",
        title: "platform",
        panels: &[
            panel(
                "Events received",
                "eps",
                "{{result}}",
                "sum by (result) (rate(cloudevents_received_total[$__rate_interval]))",
            ),
            panel(
                "Deliveries",
                "eps",
                "{{result}}",
                "sum by (result) (rate(operator_event_processing_total[$__rate_interval]))",
            ),
            panel(
                "Time to accept (p99)",
                "s",
                "p99",
                "histogram_quantile(0.99, sum by (le) (rate(klambda_accept_duration_seconds_bucket[$__rate_interval])))",
            ),
            panel(
                "Time to deliver (p99)",
                "s",
                SUBSCRIPTION,
                "histogram_quantile(0.99, sum by (namespace, subscription, le) (rate(klambda_event_delivery_seconds_bucket[$__rate_interval])))",
            ),
            panel(
                "Pending events",
                "short",
                SUBSCRIPTION,
                "sum by (namespace, subscription) (operator_event_queue_depth)",
            ),
            panel(
                "Oldest pending event",
                "s",
                SUBSCRIPTION,
                "max by (namespace, subscription) (klambda_oldest_event_age_seconds)",
            ),
            panel("Lanes", "short", "{{state}}", "sum by (state) (klambda_lanes)"),
            panel(
                "Circuit breakers (1 open, 2 half-open)",
                "short",
                SUBSCRIPTION,
                "operator_circuit_breaker_state",
            ),
            panel(
                "Reconciliations",
                "ops",
                "{{result}}",
                "sum by (result) (rate(operator_reconcile_total[$__rate_interval]))",
            ),
            panel(
                "Reconcile success rate",
                "percentunit",
                "success",
                "sum(rate(operator_reconcile_total{result=\"success\"}[$__rate_interval])) / sum(rate(operator_reconcile_total[$__rate_interval]))",
            ),
            panel(
                "Reconcile latency (p95)",
                "s",
                "p95",
                "histogram_quantile(0.95, sum by (le) (rate(operator_reconcile_duration_seconds_bucket[$__rate_interval])))",
            ),
            panel(
                "Functions by status",
                "short",
                "{{namespace}} {{status}}",
                "sum by (namespace, status) (operator_knative_services_managed)",
            ),
        ],
    },
    Board {
        name: "builds",
        title: "build pipeline",
        panels: &[
            panel("Active builds", "short", "active", "sum(operator_build_jobs_active)"),
            panel("Builds that wait for a slot", "short", "waiting", "klambda_build_jobs_waiting"),
            panel(
                "Finished builds",
                "ops",
                "{{result}}",
                "sum by (result) (rate(operator_build_jobs_total[$__rate_interval]))",
            ),
            panel(
                "Build success rate",
                "percentunit",
                "success",
                "sum(operator_build_jobs_total{result=\"success\"}) / sum(operator_build_jobs_total)",
            ),
            panel(
                "Build duration (p95)",
                "s",
                "p95",
                "histogram_quantile(0.95, sum by (le) (operator_build_duration_seconds_bucket))",
            ),
            panel(
                "Time until a new version answers (p95)",
                "s",
                "p95",
                "histogram_quantile(0.95, sum by (le) (operator_service_creation_duration_seconds_bucket))",
            ),
        ],
    },
    Board {
        name: "api",
        title: "API",
        panels: &[
            panel(
                "Requests",
                "reqps",
                ENDPOINT,
                "sum by (method, endpoint) (rate(operator_api_requests_total[$__rate_interval]))",
            ),
            panel(
                "Latency (p95)",
                "s",
                ENDPOINT,
                "histogram_quantile(0.95, sum by (method, endpoint, le) (rate(operator_api_request_duration_seconds_bucket[$__rate_interval])))",
            ),
            panel(
                "Responses",
                "reqps",
                "{{status_code}}",
                "sum by (status_code) (rate(operator_api_requests_total[$__rate_interval]))",
            ),
            panel(
                "Request size (p95)",
                "bytes",
                ENDPOINT,
                "histogram_quantile(0.95, sum by (method, endpoint, le) (rate(operator_api_request_size_bytes_bucket[$__rate_interval])))",
            ),
            panel(
                "Rate limit hits",
                "reqps",
                "{{endpoint}}",
                "sum by (endpoint) (rate(operator_rate_limit_hits_total[$__rate_interval]))",
            ),
            panel("Open connections", "short", "{{instance}}", "klambda_connections_open"),
        ],
    },
    Board {
        name: "dead-letters",
        title: "dead letters",
        panels: &[
            panel(
                "Dead letters",
                "short",
                SUBSCRIPTION,
                "sum by (namespace, subscription) (operator_dlq_depth)",
            ),
            panel(
                "Oldest dead letter",
                "s",
                SUBSCRIPTION,
                "max by (namespace, subscription) (klambda_dlq_oldest_age_seconds)",
            ),
            panel(
                "New dead letters",
                "eps",
                "{{reason}}",
                "sum by (reason) (rate(operator_dlq_messages_total[$__rate_interval]))",
            ),
            panel(
                "Dropped by a limit",
                "eps",
                "{{reason}}",
                "sum by (reason) (rate(klambda_dlq_dropped_total[$__rate_interval]))",
            ),
            panel(
                "Calls that succeed, replays included",
                "percentunit",
                SUBSCRIPTION,
                "sum by (namespace, subscription) (rate(operator_event_processing_total{result=\"success\"}[$__rate_interval])) / sum by (namespace, subscription) (rate(operator_event_processing_total[$__rate_interval]))",
            ),
            panel(
                "Parked lanes",
                "short",
                SUBSCRIPTION,
                "sum by (namespace, subscription) (klambda_lanes{state=\"parked\"})",
            ),
        ],
    },
    Board {
        name: "system",
        title: "system",
        panels: &[
            panel("CPU", "percentunit", "{{instance}}", "rate(operator_cpu_usage_seconds[$__rate_interval])"),
            panel("Memory", "bytes", "{{instance}}", "operator_memory_usage_bytes"),
            panel("Tasks", "short", "{{instance}}", "operator_goroutines"),
            panel("Open files", "short", "{{instance}}", "process_open_fds"),
            panel("Log and tables", "bytes", "{{instance}}", "klambda_log_bytes + klambda_table_bytes"),
            panel("Free disk space", "bytes", "{{instance}}", "klambda_disk_free_bytes"),
            panel(
                "Duration of syncs (p99)",
                "s",
                "p99",
                "histogram_quantile(0.99, sum by (le) (rate(klambda_commit_duration_seconds_bucket[$__rate_interval])))",
            ),
            panel(
                "Events per sync",
                "short",
                "{{instance}}",
                "rate(klambda_commit_events_sum[$__rate_interval]) / rate(klambda_commit_events_count[$__rate_interval])",
            ),
        ],
    },
    Board {
        name: "functions",
        title: "functions",
        panels: &[
            panel(
                "Calls",
                "reqps",
                FUNCTION,
                "sum by (namespace, function_name) (rate(klambda_function_invocations_total[$__rate_interval]))",
            ),
            panel(
                "Error rate",
                "percentunit",
                FUNCTION,
                "sum by (namespace, function_name) (rate(klambda_function_errors_total[$__rate_interval])) / sum by (namespace, function_name) (rate(klambda_function_invocations_total[$__rate_interval]))",
            ),
            panel(
                "Latency (p50)",
                "s",
                FUNCTION,
                "histogram_quantile(0.5, sum by (namespace, function_name, le) (rate(klambda_function_duration_seconds_bucket[$__rate_interval])))",
            ),
            panel(
                "Latency (p95)",
                "s",
                FUNCTION,
                "histogram_quantile(0.95, sum by (namespace, function_name, le) (rate(klambda_function_duration_seconds_bucket[$__rate_interval])))",
            ),
            panel(
                "Latency (p99)",
                "s",
                FUNCTION,
                "histogram_quantile(0.99, sum by (namespace, function_name, le) (rate(klambda_function_duration_seconds_bucket[$__rate_interval])))",
            ),
            panel(
                "Replicas",
                "short",
                FUNCTION,
                "sum by (namespace, function_name) (klambda_function_replicas)",
            ),
            panel(
                "Cold starts",
                "ops",
                FUNCTION,
                "sum by (namespace, function_name) (rate(klambda_function_cold_starts_total[$__rate_interval]))",
            ),
            panel(
                "Log lines dropped",
                "ops",
                "{{instance}}",
                "rate(klambda_function_log_lines_dropped_total[$__rate_interval])",
            ),
        ],
    },
    Board {
        name: "order",
        title: "event order",
        panels: &[
            panel(
                "Order violations",
                "eps",
                SUBSCRIPTION,
                "sum by (namespace, subscription) (rate(event_order_violations_total[$__rate_interval]))",
            ),
            panel(
                "Sequence gaps in an hour",
                "short",
                SUBSCRIPTION,
                "sum by (namespace, subscription) (increase(event_sequence_gaps_total[1h]))",
            ),
            panel(
                "Events held back",
                "eps",
                SUBSCRIPTION,
                "sum by (namespace, subscription) (rate(klambda_events_early_total[$__rate_interval]))",
            ),
            panel(
                "Idempotency hit rate",
                "percentunit",
                "hits",
                "sum(rate(duplicate_events_skipped_total[$__rate_interval])) / sum(rate(cloudevents_received_total[$__rate_interval]))",
            ),
            panel(
                "Duplicates",
                "eps",
                "{{reason}}",
                "sum by (reason) (rate(duplicate_events_skipped_total[$__rate_interval]))",
            ),
            panel(
                "Events without a key",
                "eps",
                SUBSCRIPTION,
                "sum by (namespace, subscription) (rate(events_without_key_total[$__rate_interval]))",
            ),
        ],
    },
    Board {
        name: "cost",
        title: "tenant cost",
        panels: &[
            panel(
                "Cost by namespace in a day",
                "currencyUSD",
                "{{namespace}}",
                "sum by (namespace) (increase(operator_cost_per_function_total[1d]))",
            ),
            panel(
                "Cost by function in a day",
                "currencyUSD",
                FUNCTION,
                "sum by (namespace, function_name) (increase(operator_cost_per_function_total[1d]))",
            ),
            panel(
                "Build cost by namespace",
                "currencyUSD",
                "{{namespace}}",
                "sum by (namespace) (operator_build_cost_total)",
            ),
            panel("Storage cost", "currencyUSD", "{{instance}}", "operator_storage_cost_total"),
            panel(
                "Total in 30 days",
                "currencyUSD",
                "{{instance}}",
                "sum by (instance) (increase(klambda_cost_dollars_total[30d]))",
            ),
            panel("Monthly budget", "currencyUSD", "{{instance}}", "klambda_cost_budget_dollars"),
        ],
    },
    Board {
        name: "webhooks",
        title: "webhooks",
        panels: &[
            panel(
                "Calls",
                "reqps",
                "{{subscription}} {{result}}",
                "sum by (namespace, subscription, result) (rate(operator_event_processing_total{subscription=~\"webhook[.].*\"}[$__rate_interval]))",
            ),
            panel(
                "Duration of calls (p95)",
                "s",
                SUBSCRIPTION,
                "histogram_quantile(0.95, sum by (namespace, subscription, le) (rate(operator_event_processing_duration_seconds_bucket{subscription=~\"webhook[.].*\"}[$__rate_interval])))",
            ),
            panel(
                "Pending events",
                "short",
                SUBSCRIPTION,
                "sum by (namespace, subscription) (operator_event_queue_depth{subscription=~\"webhook[.].*\"})",
            ),
            panel("Disabled endpoints", "short", SUBSCRIPTION, "klambda_webhook_disabled"),
        ],
    },
];
