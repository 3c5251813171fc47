//! `/metrics`: all counters and gauges. Labels are bounded: never a key or an id.

pub mod calls;
mod cost;
mod functions;
mod text;
mod usage;

use crate::api::Api;
use crate::listener::Stats;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, header};
use klambda_core::namespace;
use klambda_core::subscription::{CONTROLLER, Document};
use klambda_crash::{Place, contained};
use klambda_dispatch::held_memory::Account;
use klambda_dispatch::metrics::Histogram;
use klambda_dispatch::views::{Sample, SubscriptionSample};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use text::{Buckets, Format, Text};

pub async fn show(api: Api, headers: HeaderMap) -> Result<Response, Problem> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    let mut sample = api.query(|engine| engine.sample()).await?;
    let mut text = Text::new(format);
    about(&mut text);
    calls::calls(&mut text, &api, &sample.metrics);
    bound(&mut sample, api.metering.functions);
    accepting(&mut text, &sample, api.intake.unversioned.load(Relaxed));
    schema_violations(&mut text, &api);
    ordering(&mut text, &sample);
    delivering(&mut text, &sample);
    dead_letters(&mut text, &sample);
    storing(&mut text, &sample);
    connections(&mut text, &api.connections.stats);
    held(&mut text, &api.connections.held, &sample);
    outbound(&mut text, &api);
    functions::functions(&mut text, &api);
    let spent = crate::cost::read(&api, sample.log_bytes + sample.table_bytes);
    cost::cost(&mut text, &spent, &api.metering.meter.prices);
    panics(&mut text);
    process(&mut text);
    Ok(([(header::CONTENT_TYPE, format.content_type())], text.finish()).into_response())
}

fn schema_violations(text: &mut Text, api: &Api) {
    let name = "klambda_schema_violations_total";
    text.counter(
        name,
        "Events whose data does not match the schema of their type, by result: flagged or rejected.",
    );
    for ((namespace, event_type, result), count) in &api.intake.types.violations.lock().counts {
        text.sample(name, &[("namespace", namespace), ("event_type", event_type), ("result", result)], count);
    }
}

fn outbound(text: &mut Text, api: &Api) {
    let name = "klambda_outbound_refused_total";
    text.counter(name, "Connections that the outbound guard refused, by the rule that forbids the address.");
    for (rule, count) in api.control.outbound().refused() {
        text.sample(name, &[("rule", rule.name())], count);
    }
}

/// Only a limited number of functions have labels of their own. The others are left out.
fn bound(sample: &mut Sample, most: usize) {
    let mut named = 0;
    sample.subscriptions.retain(|subscription| {
        let is_function = Document::is_managed(&subscription.name);
        named += usize::from(is_function);
        !is_function || named <= most
    });
}

/// Name, help and value of a gauge that every subscription has.
type Gauge = (&'static str, &'static str, fn(&SubscriptionSample) -> f64);

const SECONDS_OF_MICROS: Buckets = Buckets { first: 4, last: 24, unit: 1e-6, is_duration: true };
const SECONDS_OF_MILLIS: Buckets = Buckets { first: 0, last: 17, unit: 1e-3, is_duration: true };
/// Up to 65.536 s, which the delivery objective uses as its target.
const DELIVERY_TIMES: Buckets = Buckets { first: 4, last: 16, unit: 1e-3, is_duration: true };
const EVENTS: Buckets = Buckets { first: 1, last: 16, unit: 1.0, is_duration: false };

fn accepting(text: &mut Text, sample: &Sample, unversioned: u64) {
    let metrics = &sample.metrics;
    text.counter(
        "cloudevents_received_total",
        "Events received, by type and result: accepted, skipped or rejected.",
    );
    let received: BTreeMap<_, _> = metrics.received.iter().collect();
    for ((kind, result), count) in received {
        text.sample("cloudevents_received_total", &[("event_type", kind), ("result", result)], count);
    }
    single(
        text,
        "klambda_events_unmatched_total",
        "Accepted events that matched no subscription.",
        metrics.unmatched,
    );
    single(
        text,
        "klambda_events_unavailable_total",
        "Events that the server could not store: disk full or storage failed.",
        metrics.unavailable,
    );
    single(
        text,
        "klambda_events_without_specversion_total",
        "JSON events without a specversion, accepted as 1.0.",
        unversioned,
    );
    per_subscription(
        text,
        sample,
        "events_without_key_total",
        "Events without a key. Their source is the key, so all events of a source share one lane.",
        &metrics.without_key,
    );
    per_subscription(
        text,
        sample,
        "klambda_backlog_rejected_total",
        "Events rejected because the backlog of a subscription was full.",
        &metrics.backlog_rejected,
    );
    let name = "klambda_namespace_rejected_total";
    text.counter(name, "Events rejected because their namespace was at a limit, by limit.");
    let none_yet = ["eventsPerSecond", "backlog"].map(|limit| ((namespace::DEFAULT, limit), 0));
    let mut counts = BTreeMap::from(none_yet);
    let counted = metrics.namespace_rejected.iter();
    counts.extend(counted.map(|((namespace, limit), count)| ((namespace.as_str(), *limit), *count)));
    for ((namespace, limit), count) in counts {
        text.sample(name, &[("namespace", namespace), ("limit", limit)], count);
    }
    histogram(
        text,
        "klambda_accept_duration_seconds",
        "Time from the arrival of a request to its durable response.",
        &metrics.accept_micros,
        SECONDS_OF_MICROS,
    );
}

/// Labels of a subscription: its name and namespace.
fn labels(full_name: &str) -> [(&'static str, &str); 2] {
    let (namespace, name) = namespace::split(full_name);
    [("subscription", name), ("namespace", namespace)]
}

/// The same, and the function that owns the subscription.
fn owner(full_name: &str) -> Vec<(&'static str, &str)> {
    let mut labels = labels(full_name).to_vec();
    labels.extend(Document::function_of(full_name).map(|(_, name)| ("function_name", name)));
    labels
}

fn with<'a>(full_name: &'a str, more: &[(&'static str, &'a str)]) -> Vec<(&'static str, &'a str)> {
    [labels(full_name).as_slice(), more].concat()
}

/// Whether it is the subscription of the control plane, which exists once in each namespace.
fn is_own(full_name: &str) -> bool {
    namespace::split(full_name).1 == CONTROLLER
}

fn ordering(text: &mut Text, sample: &Sample) {
    let metrics = &sample.metrics;
    per_subscription(
        text,
        sample,
        "event_order_violations_total",
        "Violations of event ordering: events that arrived after a later sequence of their key.",
        &metrics.order_violations,
    );
    per_subscription(
        text,
        sample,
        "event_sequence_gaps_total",
        "Sequence gaps that timed out.",
        &metrics.gaps,
    );
    per_subscription(
        text,
        sample,
        "klambda_events_early_total",
        "Events that arrived before an earlier sequence of their key and were held back.",
        &metrics.early,
    );
    let name = "duplicate_events_skipped_total";
    text.counter(name, "Events skipped as duplicates, by id or by sequence.");
    for subscription in &sample.subscriptions {
        for reason in ["duplicate", "watermark"] {
            let count = metrics.duplicates.get(&(subscription.name.clone(), reason)).copied().unwrap_or(0);
            text.sample(name, &with(&subscription.name, &[("reason", reason)]), count);
        }
    }
}

fn delivering(text: &mut Text, sample: &Sample) {
    let name = "operator_event_processing_total";
    text.counter(name, "Calls of targets, by result: success or failure.");
    for subscription in &sample.subscriptions {
        for (kind, done) in sample.metrics.processed_of(&subscription.name) {
            for (result, count) in [("success", done.delivered), ("failure", done.failed)] {
                let labels = with(&subscription.name, &[("event_type", kind), ("result", result)]);
                text.sample(name, &labels, count);
            }
        }
    }
    let name = "operator_event_processing_duration_seconds";
    text.histogram(name, "Duration of calls of targets.");
    for subscription in &sample.subscriptions {
        for (kind, done) in sample.metrics.processed_of(&subscription.name) {
            let labels = with(&subscription.name, &[("event_type", kind)]);
            text.buckets(name, &labels, &done.took_ms, SECONDS_OF_MILLIS);
        }
    }
    delivery_times(text, sample);
    let gauges: [Gauge; 7] = [
        ("operator_event_queue_depth", "Pending events, including those in flight.", |s| s.waiting as f64),
        ("klambda_event_queue_bytes", "Bytes of pending events.", |s| s.waiting_bytes as f64),
        ("klambda_unread_events", "Events that a subscription that is behind has not read yet.", |s| {
            s.unread as f64
        }),
        ("klambda_unread_bytes", "Bytes of unread events.", |s| s.unread_bytes as f64),
        ("klambda_events_in_flight", "Open calls of targets.", |s| f64::from(s.in_flight)),
        ("klambda_oldest_event_age_seconds", "Age of the oldest pending event.", |s| {
            s.oldest_age_ms as f64 / 1e3
        }),
        (
            "operator_circuit_breaker_state",
            "Circuit breaker of the target: 0 closed, 1 open, 2 half-open.",
            |s| f64::from(s.breaker),
        ),
    ];
    for (name, help, value) in gauges {
        text.gauge(name, help);
        for subscription in &sample.subscriptions {
            text.sample(name, &labels(&subscription.name), value(subscription));
        }
    }
    let name = "klambda_webhook_disabled";
    text.gauge(name, "1 while a webhook endpoint is disabled, otherwise 0.");
    for endpoint in &sample.subscriptions {
        if let Some(disabled) = endpoint.disabled {
            text.sample(name, &labels(&endpoint.name), f64::from(u8::from(disabled)));
        }
    }
    lanes(text, sample);
}

/// One histogram per subscription, over all event types: there are many subscriptions.
fn delivery_times(text: &mut Text, sample: &Sample) {
    let name = "klambda_event_delivery_seconds";
    text.histogram(name, "Time from the acceptance of an event to its delivery.");
    for subscription in &sample.subscriptions {
        let mut times = Histogram::default();
        for done in sample.metrics.calls_of(&subscription.name) {
            times.merge(&done.delivered_after_ms);
        }
        text.buckets(name, &labels(&subscription.name), &times, DELIVERY_TIMES);
    }
}

fn lanes(text: &mut Text, sample: &Sample) {
    text.gauge("klambda_lanes", "Lanes with pending events and paused lanes, by state.");
    for subscription in &sample.subscriptions {
        let lanes = &subscription.lanes;
        for (state, count) in [
            ("open", lanes.open),
            ("running", lanes.running),
            ("retrying", lanes.retrying),
            ("gap", lanes.gap),
            ("parked", lanes.parked),
            ("paused", lanes.paused),
        ] {
            text.sample("klambda_lanes", &with(&subscription.name, &[("state", state)]), count);
        }
    }
    gauge(
        text,
        "klambda_lanes_in_memory",
        "Lanes in memory. The others are on disk.",
        sample.lanes_in_memory as f64,
    );
    single(
        text,
        "klambda_breaker_opened_total",
        "Number of times a circuit breaker opened.",
        sample.metrics.breaker_opened,
    );
}

fn dead_letters(text: &mut Text, sample: &Sample) {
    text.gauge("operator_dlq_depth", "Dead letters, including those that park their lane.");
    for subscription in &sample.subscriptions {
        text.sample("operator_dlq_depth", &owner(&subscription.name), subscription.dead_letters);
    }
    let letters = &sample.dead_letters;
    // The subscription of the control plane appears in no other metric.
    for of in letters.iter().filter(|of| is_own(&of.name)) {
        text.sample("operator_dlq_depth", &owner(&of.name), of.depth);
    }
    let ages: BTreeMap<&str, u64> = letters.iter().map(|of| (of.name.as_str(), of.oldest_age_ms)).collect();
    text.gauge("klambda_dlq_oldest_age_seconds", "Age of the oldest dead letter.");
    let named = sample.subscriptions.iter().map(|subscription| subscription.name.as_str());
    for name in named.chain(ages.keys().copied().filter(|name| is_own(name))) {
        let age_ms = ages.get(name).copied().unwrap_or(0);
        text.sample("klambda_dlq_oldest_age_seconds", &owner(name), age_ms as f64 / 1e3);
    }
    gauge(
        text,
        "klambda_dlq_all_depth",
        "Dead letters of all subscriptions, including those without their own label.",
        letters.iter().map(|of| of.depth).sum::<u64>() as f64,
    );
    gauge(
        text,
        "klambda_dlq_all_oldest_age_seconds",
        "Age of the oldest dead letter of all subscriptions.",
        letters.iter().map(|of| of.oldest_age_ms).max().unwrap_or(0) as f64 / 1e3,
    );
    text.counter("operator_dlq_messages_total", "Events that became dead letters, by reason.");
    for ((subscription, reason), count) in &sample.metrics.dead_letters {
        let mut labels = owner(subscription);
        labels.push(("reason", reason.name()));
        text.sample("operator_dlq_messages_total", &labels, count);
    }
    text.counter(
        "klambda_dlq_dropped_total",
        "Dead letters and pending events removed by a limit, by reason.",
    );
    for ((subscription, reason), count) in dropped(sample) {
        text.sample("klambda_dlq_dropped_total", &with(subscription, &[("reason", reason)]), count);
    }
}

/// Includes zeros: an increase is visible only in a series that existed before.
fn dropped(sample: &Sample) -> BTreeMap<(&str, &str), u64> {
    const REASONS: [&str; 3] = ["expired", "overflow", "retention"];
    let names = sample.subscriptions.iter().map(|subscription| subscription.name.as_str());
    let mut counts: BTreeMap<(&str, &str), u64> =
        names.flat_map(|name| REASONS.map(|reason| ((name, reason), 0))).collect();
    let counted = &sample.metrics.dead_letters_dropped;
    counts.extend(counted.iter().map(|((name, reason), count)| ((name.as_str(), *reason), *count)));
    counts
}

fn storing(text: &mut Text, sample: &Sample) {
    let metrics = &sample.metrics;
    histogram(
        text,
        "klambda_commit_duration_seconds",
        "Duration of syncs of the log.",
        &metrics.commit_micros,
        SECONDS_OF_MICROS,
    );
    histogram(
        text,
        "klambda_commit_events",
        "Events made durable by one sync.",
        &metrics.commit_events,
        EVENTS,
    );
    gauge(text, "klambda_log_bytes", "Size of the log on disk.", sample.log_bytes as f64);
    gauge(text, "klambda_table_bytes", "Size of the tables on disk.", sample.table_bytes as f64);
    gauge(
        text,
        "klambda_marks",
        "Remembered event ids, including those of pending events and dead letters.",
        sample.marks as f64,
    );
    gauge(text, "klambda_memory_limit_bytes", "Configured memory limit.", sample.memory.limit_bytes as f64);
    gauge(
        text,
        "klambda_memory_used_bytes",
        "Memory used by index and buffers.",
        sample.memory.used_bytes as f64,
    );
    gauge(
        text,
        "klambda_disk_full",
        "1 while the disk has no room for another log segment. When the current segment is full, new events are rejected with 507.",
        f64::from(u8::from(sample.disk_full)),
    );
    if let Some(free) = sample.disk_free_bytes {
        gauge(text, "klambda_disk_free_bytes", "Free space on the disk.", free as f64);
    }
    for (name, help, count) in [
        ("klambda_damaged_total", "Records that could not be read.", metrics.damaged),
        ("klambda_tail_cut_bytes_total", "Bytes of incomplete writes removed at startup.", metrics.tail_cut),
        (
            "klambda_marks_expired_early_total",
            "Event ids forgotten early because of idempotency.maxMarks.",
            metrics.marks_expired_early,
        ),
        ("klambda_checkpoints_total", "Completed checkpoints.", metrics.checkpoints),
        (
            "klambda_checkpoint_failures_total",
            "Failed checkpoints and merges, which are retried.",
            metrics.checkpoint_failures,
        ),
    ] {
        single(text, name, help, count);
    }
}

fn about(text: &mut Text) {
    let name = "klambda_build_info";
    text.gauge(name, "Always 1. The labels are the version of the server and the commit it was built from.");
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("commit", env!("KLAMBDA_COMMIT"))];
    text.sample(name, &labels, 1);
}

/// Metrics of this process, under their documented names and under those of Prometheus clients.
fn process(text: &mut Text) {
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    gauge(text, "operator_goroutines", "Live tasks in the runtime of the server.", tasks as f64);
    if let Some(usage) = usage::read() {
        let name = "operator_memory_usage_bytes";
        gauge(text, name, "Resident memory of the server, without functions.", usage.memory_bytes as f64);
        let name = "operator_cpu_usage_seconds";
        text.bare_counter(name, "CPU time of the server, without functions.");
        text.sample(name, &[], usage.cpu_seconds);
        let name = "process_cpu_seconds_total";
        text.counter(name, "The same as operator_cpu_usage_seconds.");
        text.sample(name, &[], usage.cpu_seconds);
        let memory = usage.memory_bytes as f64;
        gauge(text, "process_resident_memory_bytes", "The same as operator_memory_usage_bytes.", memory);
        let name = "process_start_time_seconds";
        gauge(text, name, "Start time of the server, in seconds since 1970.", usage.started_at);
    }
    if let Some(count) = usage::open_files() {
        gauge(text, "process_open_fds", "Open file descriptors of the server.", count as f64);
    }
}

fn held(text: &mut Text, account: &Account, sample: &Sample) {
    let parts = [
        ("requests", account.requests.used(), account.requests.waits()),
        ("deliveries", sample.unsent_bytes, sample.metrics.room_waits),
        ("answers", account.answers.used(), account.answers.waits()),
    ];
    text.gauge(
        "klambda_held_bytes",
        "Bytes held for clients and targets, by part of `limits.heldBytes`: requests, deliveries or answers.",
    );
    for (part, bytes, _) in parts {
        text.sample("klambda_held_bytes", &[("part", part)], bytes);
    }
    let name = "klambda_held_waits_total";
    text.counter(
        name,
        "Number of times a request, delivery or response waited for memory in its part of `limits.heldBytes`.",
    );
    for (part, _, waits) in parts {
        text.sample(name, &[("part", part)], waits);
    }
}

fn connections(text: &mut Text, stats: &Stats) {
    let read = |counter: &AtomicU64| counter.load(Relaxed);
    gauge(text, "klambda_connections_open", "Open client connections.", read(&stats.open) as f64);
    single(text, "klambda_connections_accepted_total", "Accepted client connections.", read(&stats.accepted));
    let name = "klambda_connections_ended_total";
    text.counter(name, "Client connections closed by the server, by reason.");
    for (reason, counter) in [
        ("refused", &stats.refused),
        ("header-timeout", &stats.header_timeouts),
        ("body-timeout", &stats.body_timeouts),
        ("idle-timeout", &stats.idle_timeouts),
        ("stalled", &stats.stalled),
        ("tls", &stats.tls_failures),
        ("shutdown", &stats.cut),
    ] {
        text.sample(name, &[("reason", reason)], read(counter));
    }
}

fn panics(text: &mut Text) {
    let name = "klambda_panics_total";
    text.counter(
        name,
        "Contained panics, by place: request, plan or call. Any other panic ends the process.",
    );
    for place in Place::ALL {
        text.sample(name, &[("place", place.name())], contained(place));
    }
}

fn per_subscription(
    text: &mut Text,
    sample: &Sample,
    name: &str,
    help: &str,
    counts: &BTreeMap<String, u64>,
) {
    text.counter(name, help);
    for subscription in &sample.subscriptions {
        let count = counts.get(&subscription.name).copied().unwrap_or(0);
        text.sample(name, &labels(&subscription.name), count);
    }
}

fn single(text: &mut Text, name: &str, help: &str, count: u64) {
    text.counter(name, help);
    text.sample(name, &[], count);
}

fn single_amount(text: &mut Text, name: &str, help: &str, amount: f64) {
    text.counter(name, help);
    text.sample(name, &[], amount);
}

fn gauge(text: &mut Text, name: &str, help: &str, value: f64) {
    text.gauge(name, help);
    text.sample(name, &[], value);
}

fn histogram(text: &mut Text, name: &str, help: &str, counts: &Histogram, buckets: Buckets) {
    text.histogram(name, help);
    text.buckets(name, &[], counts, buckets);
}
