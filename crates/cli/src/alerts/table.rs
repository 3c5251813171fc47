//! Every alert, with the severities and durations of the operations documents.

use super::burn;

/// The groups of the rules file, in order.
pub const GROUPS: [&str; 9] =
    ["order", "delivery", "store", "functions", "objectives", "cost", "rabbitmq", "linkerd", "agent"];

#[derive(Clone, Debug)]
pub struct Alert {
    pub name: &'static str,
    pub group: &'static str,
    pub severity: &'static str,
    pub component: &'static str,
    /// A label that tells alerts of one name apart.
    pub threshold: Option<&'static str>,
    /// How long the expression must hold before the alert fires.
    pub hold: &'static str,
    /// PromQL; see [`Scale`](super::Scale) for its durations.
    pub expr: String,
    pub summary: &'static str,
    pub description: &'static str,
}

/// The alerts of the documents in the order of [`GROUPS`].
pub fn alerts() -> Vec<Alert> {
    [order(), delivery(), store(), functions(), objectives(), cost(), others()].concat()
}

fn warning(group: &'static str, name: &'static str, hold: &'static str, expr: &str) -> Alert {
    Alert {
        name,
        group,
        severity: "warning",
        component: "klambda",
        threshold: None,
        hold,
        expr: expr.to_owned(),
        summary: "",
        description: "",
    }
}

fn critical(group: &'static str, name: &'static str, hold: &'static str, expr: &str) -> Alert {
    Alert { severity: "critical", ..warning(group, name, hold, expr) }
}

impl Alert {
    fn says(self, summary: &'static str, description: &'static str) -> Alert {
        Alert { summary, description, ..self }
    }

    fn of(self, component: &'static str) -> Alert {
        Alert { component, ..self }
    }
}

fn order() -> Vec<Alert> {
    vec![
        warning(
            "order",
            "EventOrderViolation",
            "1m",
            "sum by (namespace, subscription) (rate(event_order_violations_total[5m])) > 0",
        )
        .says(
            "Event order violations detected",
            "{{ $value | humanize }} events per second of {{ $labels.subscription }} in {{ $labels.namespace }} arrive after a later sequence of their key",
        ),
        warning(
            "order",
            "DuplicateEventProcessing",
            "5m",
            "sum by (namespace, subscription) (rate(duplicate_events_skipped_total[5m])) > 0.5",
        )
        .says(
            "High rate of duplicate events",
            "{{ $value | humanize }} duplicate events per second for {{ $labels.subscription }} in {{ $labels.namespace }}. A producer sends its events more than once",
        ),
    ]
}

fn delivery() -> Vec<Alert> {
    vec![
        warning("delivery", "HighDLQDepth", "2m", "operator_dlq_depth > 100").says(
            "Many dead letters",
            "{{ $labels.subscription }} in {{ $labels.namespace }} has {{ $value }} dead letters",
        ),
        warning("delivery", "LaneParked", "5m", r#"klambda_lanes{state="parked"} > 0"#).says(
            "Lanes wait for manual action",
            "{{ $value }} lanes of {{ $labels.subscription }} in {{ $labels.namespace }} are parked. Their events wait until somebody resumes, skips or replays",
        ),
        warning(
            "delivery",
            "BacklogOld",
            "5m",
            "klambda_oldest_event_age_seconds > seconds(10m)\n\
             unless on (instance, namespace, subscription) klambda_lanes{state=~\"parked|paused\"} > 0",
        )
        .says(
            "Events wait too long",
            "The oldest event of {{ $labels.subscription }} in {{ $labels.namespace }} has waited for {{ $value | humanizeDuration }}",
        ),
        warning("delivery", "SubscriptionBehind", "10m", "klambda_unread_events > 0").says(
            "A subscription is behind",
            "{{ $labels.subscription }} in {{ $labels.namespace }} has not read {{ $value }} events. Retention can remove them",
        ),
        warning(
            "delivery",
            "EventsDropped",
            "0s",
            "sum by (namespace, subscription, reason) (increase(klambda_dlq_dropped_total[15m])) > 0",
        )
        .says(
            "A limit drops events",
            "{{ $labels.subscription }} in {{ $labels.namespace }} loses events ({{ $labels.reason }})",
        ),
        // A half-open breaker has not closed yet.
        critical("delivery", "CircuitBreakerOpen", "1m", "operator_circuit_breaker_state > 0").says(
            "Circuit breaker open",
            "The target of {{ $labels.subscription }} in {{ $labels.namespace }} does not answer",
        ),
        warning("delivery", "EndpointDisabled", "0s", "klambda_webhook_disabled == 1").says(
            "A webhook endpoint is disabled",
            "{{ $labels.subscription }} in {{ $labels.namespace }} gets no calls until somebody enables it",
        ),
        warning("delivery", "SourceDisconnected", "2m", "klambda_source_connected == 0").says(
            "An event source is disconnected",
            "{{ $labels.source }} in {{ $labels.namespace }} has no connection",
        ),
    ]
}

fn store() -> Vec<Alert> {
    vec![
        critical("store", "ServerDown", "1m", r#"up{job="klambda"} == 0"#).says(
            "klambda is down",
            "Prometheus cannot reach {{ $labels.instance }}. No events are accepted or delivered",
        ),
        critical("store", "StoreFull", "1m", "klambda_disk_full == 1").says(
            "The disk is full",
            "{{ $labels.instance }} has no room for new events and rejects them with 507",
        ),
        warning("store", "DiskSpaceLow", "10m", "klambda_disk_free_bytes < 5e9").says(
            "Little disk space",
            "{{ $labels.instance }} has {{ $value | humanize1024 }}B of free disk space",
        ),
        critical("store", "DataDamaged", "0s", "increase(klambda_damaged_total[1h]) > 0").says(
            "Records are damaged",
            "{{ $labels.instance }} could not read records of its log. Their events are dead letters",
        ),
        warning("store", "ContainedPanic", "0s", "increase(klambda_panics_total[1h]) > 0").says(
            "klambda contained a panic",
            "A bug in klambda on {{ $labels.instance }} ({{ $labels.place }}). The log has the details",
        ),
    ]
}

fn functions() -> Vec<Alert> {
    let of_function = "sum by (namespace, function_name)";
    vec![
        warning(
            "functions",
            "HighReconciliationFailureRate",
            "5m",
            &format!(
                "{of_function} (rate(operator_reconcile_total{{result=\"failure\"}}[5m]))\n\
                 / {of_function} (rate(operator_reconcile_total[5m])) > 0.1"
            ),
        )
        .says(
            "High reconciliation failure rate",
            "{{ $value | humanizePercentage }} of the reconciliations of {{ $labels.function_name }} in {{ $labels.namespace }} fail",
        )
        .of("operator"),
        warning("functions", "ReconcileQueueDepth", "5m", "sum by (name) (workqueue_depth) > 1000")
            .says("The reconcile queue is long", "{{ $value }} resources wait in {{ $labels.name }}")
            .of("operator"),
        warning(
            "functions",
            "BuildJobFailures",
            "5m",
            &format!("{of_function} (rate(operator_build_jobs_total{{result=\"failure\"}}[10m])) > 0.1"),
        )
        .says(
            "High build failure rate",
            "{{ $value | humanize }} builds per second of {{ $labels.function_name }} in {{ $labels.namespace }} fail",
        )
        .of("operator"),
        warning(
            "functions",
            "LambdaFunctionHighErrorRate",
            "5m",
            &format!(
                "{of_function} (rate(klambda_function_errors_total[5m]))\n\
                 / {of_function} (rate(klambda_function_invocations_total[5m])) > 0.1"
            ),
        )
        .says(
            "High error rate of a function",
            "{{ $value | humanizePercentage }} of the calls of {{ $labels.function_name }} in {{ $labels.namespace }} fail",
        )
        .of("lambda-function"),
        warning(
            "functions",
            "LambdaFunctionHighLatency",
            "5m",
            "histogram_quantile(0.95, sum by (namespace, function_name, le) (rate(klambda_function_duration_seconds_bucket[5m])))\n\
             > seconds(5s)",
        )
        .says(
            "High latency of a function",
            "The 95th percentile of {{ $labels.function_name }} in {{ $labels.namespace }} is {{ $value | humanizeDuration }}",
        )
        .of("lambda-function"),
        warning(
            "functions",
            "HighRateLimitHits",
            "0s",
            "sum by (instance, endpoint) (rate(operator_rate_limit_hits_total[5m])) > 10",
        )
        .says(
            "High rate limit hits detected",
            "{{ $value | humanize }} requests per second to {{ $labels.endpoint }} exceed functions.rateLimits",
        )
        .of("operator"),
    ]
}

fn objectives() -> Vec<Alert> {
    vec![
        critical("objectives", "DeliveryObjectiveFastBurn", "2m", &burn::fast(burn::delivery)).says(
            "Events are delivered late",
            "{{ $value | humanizePercentage }} of the events on {{ $labels.instance }} are not delivered within a minute. A month's budget of 0.1 % is gone in two days",
        ),
        warning("objectives", "DeliveryObjectiveSlowBurn", "15m", &burn::slow(burn::delivery)).says(
            "Events are delivered late",
            "{{ $value | humanizePercentage }} of the events on {{ $labels.instance }} are not delivered within a minute. A month's budget of 0.1 % is gone in five days",
        ),
        critical("objectives", "AcceptObjectiveFastBurn", "2m", &burn::fast(burn::accepting)).says(
            "Events are not accepted",
            "{{ $labels.instance }} could not store {{ $value | humanizePercentage }} of the events. A month's budget of 0.1 % is gone in two days",
        ),
        warning("objectives", "AcceptObjectiveSlowBurn", "15m", &burn::slow(burn::accepting)).says(
            "Events are not accepted",
            "{{ $labels.instance }} could not store {{ $value | humanizePercentage }} of the events. A month's budget of 0.1 % is gone in five days",
        ),
    ]
}

fn cost() -> Vec<Alert> {
    let spent = "sum by (instance) (increase(klambda_cost_dollars_total[30d]))";
    let budget = |threshold: &'static str, share: &str, severity| {
        let expr = format!("{spent}\n/ (sum by (instance) (klambda_cost_budget_dollars) > 0) >= {share}");
        let alert = warning("cost", "BudgetUsed", "0s", &expr);
        Alert { severity, threshold: Some(threshold), ..alert }.says(
            "The monthly budget is used up",
            "{{ $labels.instance }} has used {{ $value | humanizePercentage }} of its budget in 30 days",
        )
    };
    vec![
        warning(
            "cost",
            "CostAnomaly",
            "0s",
            "sum by (instance) (increase(klambda_cost_dollars_total[1d]))\n\
             > 1.25 * sum by (instance) (increase(klambda_cost_dollars_total[7d])) / 7\n\
             and sum by (instance) (klambda_cost_dollars_total offset 7d)",
        )
        .says(
            "The daily cost is unusual",
            "{{ $labels.instance }} cost ${{ $value | humanize }} in a day, 25 % above the average of the week",
        ),
        warning(
            "cost",
            "FunctionCostHigh",
            "0s",
            "sum by (namespace, function_name) (increase(operator_cost_per_function_total[1d]))\n\
             > on () group_left () (max(klambda_cost_function_limit_dollars) > 0)",
        )
        .says(
            "A function is expensive",
            "{{ $labels.function_name }} in {{ $labels.namespace }} cost ${{ $value | humanize }} in a day",
        ),
        budget("80%", "0.8", "warning"),
        budget("90%", "0.9", "warning"),
        budget("100%", "1", "critical"),
    ]
}

/// Rules for neighbours of klambda. Other programs export their series.
fn others() -> Vec<Alert> {
    vec![
        warning("rabbitmq", "RabbitMQConsumerBacklog", "0s", "rabbitmq_queue_messages > 1000")
            .says("RabbitMQ queue backlog high", "{{ $labels.queue }} has {{ $value }} messages")
            .of("rabbitmq"),
        warning(
            "linkerd",
            "LinkerdHighErrorRate",
            "5m",
            "sum by (deployment) (rate(linkerd_response_total{deployment=~\"lambda-.*\",classification=\"failure\"}[5m]))\n\
             / sum by (deployment) (rate(linkerd_response_total{deployment=~\"lambda-.*\"}[5m])) > 0.1",
        )
        .says(
            "High error rate in the mesh",
            "{{ $value | humanizePercentage }} of the responses of {{ $labels.deployment }} are failures",
        )
        .of("linkerd"),
        warning(
            "linkerd",
            "LinkerdHighLatency",
            "5m",
            "histogram_quantile(0.95, sum by (deployment, le) (rate(linkerd_response_latency_ms_bucket{deployment=~\"lambda-.*\"}[5m])))\n\
             > 5000",
        )
        .says("High latency in the mesh", "The 95th percentile of {{ $labels.deployment }} is {{ $value }} ms")
        .of("linkerd"),
        warning("agent", "AIAgentInvestigationQueueDepth", "2m", "ai_agent_investigation_queue_depth > 50")
            .says("The investigation queue of the agent grows", "{{ $value }} alerts wait for investigation")
            .of("ai-agent"),
    ]
}
