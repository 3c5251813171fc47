//! `/metrics`: everything that is counted. Labels are bounded: never a key or an id.

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
use klambda_dispatch::held::Account;
use klambda_dispatch::metrics::Histogram;
use klambda_dispatch::views::{Sample, SubscriptionSample};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use text::{Buckets, Format, Text};

pub async fn show(api: Api, headers: HeaderMap) -> Result<Response, Problem> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    let mut sample = api.query(|engine| engine.sample()).await?;
    bound(&mut sample, api.metric_functions);
    let mut text = Text::new(format);
    accepting(&mut text, &sample, api.unversioned.load(Relaxed));
    ordering(&mut text, &sample);
    delivering(&mut text, &sample);
    dead_letters(&mut text, &sample);
    storing(&mut text, &sample);
    connections(&mut text, &api.stats);
    held(&mut text, &api.held, &sample);
    functions::functions(&mut text, &api);
    panics(&mut text);
    process(&mut text);
    Ok(([(header::CONTENT_TYPE, format.content_type())], text.finish()).into_response())
}

/// Functions are named in labels only up to a limit; those of more are left out.
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
        "Events accepted that no subscription wanted.",
        metrics.unmatched,
    );
    single(
        text,
        "klambda_events_without_specversion_total",
        "Events in JSON without a specversion, taken as 1.0.",
        unversioned,
    );
    per_subscription(
        text,
        sample,
        "events_without_key_total",
        "Events whose source is their key, as they name no other: all of a source share one lane.",
        &metrics.without_key,
    );
    per_subscription(
        text,
        sample,
        "klambda_backlog_rejected_total",
        "Events turned away because a subscription's backlog was at a limit.",
        &metrics.backlog_rejected,
    );
    let name = "klambda_namespace_rejected_total";
    text.counter(name, "Events turned away because their namespace was at a limit, by limit.");
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
        "From a request's arrival to its durable answer.",
        &metrics.accept_micros,
        SECONDS_OF_MICROS,
    );
}

/// A subscription by its name and its namespace.
fn labels(full_name: &str) -> [(&'static str, &str); 2] {
    let (namespace, name) = namespace::split(full_name);
    [("subscription", name), ("namespace", namespace)]
}

/// The same, and the function whose subscription it is.
fn owner(full_name: &str) -> Vec<(&'static str, &str)> {
    let mut labels = labels(full_name).to_vec();
    labels.extend(Document::function_of(full_name).map(|(_, name)| ("function_name", name)));
    labels
}

fn with<'a>(full_name: &'a str, more: &[(&'static str, &'a str)]) -> Vec<(&'static str, &'a str)> {
    [labels(full_name).as_slice(), more].concat()
}

/// The platform's own, one in each namespace.
fn is_own(full_name: &str) -> bool {
    namespace::split(full_name).1 == CONTROLLER
}

fn ordering(text: &mut Text, sample: &Sample) {
    let metrics = &sample.metrics;
    per_subscription(
        text,
        sample,
        "event_order_violations_total",
        "Violations of event ordering: events that came after a later sequence of their key had passed.",
        &metrics.order_violations,
    );
    per_subscription(
        text,
        sample,
        "event_sequence_gaps_total",
        "Gaps in event ordering: missing sequences that were waited for in vain.",
        &metrics.gaps,
    );
    per_subscription(
        text,
        sample,
        "klambda_events_early_total",
        "Events that came before an earlier sequence of their key and were held back.",
        &metrics.early,
    );
    let name = "duplicate_events_skipped_total";
    text.counter(name, "Events skipped because the subscription knew them, by id or by the key's sequence.");
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
    text.histogram(name, "How long calls of targets took.");
    for subscription in &sample.subscriptions {
        for (kind, done) in sample.metrics.processed_of(&subscription.name) {
            let labels = with(&subscription.name, &[("event_type", kind)]);
            text.buckets(name, &labels, &done.took_ms, SECONDS_OF_MILLIS);
        }
    }
    let gauges: [Gauge; 7] = [
        ("operator_event_queue_depth", "Events that wait, in flight included.", |s| s.waiting as f64),
        ("klambda_event_queue_bytes", "Bytes of the events that wait.", |s| s.waiting_bytes as f64),
        (
            "klambda_unread_events",
            "Events that a subscription accepted while it was behind and has not read.",
            |s| s.unread as f64,
        ),
        ("klambda_unread_bytes", "Bytes of the unread events.", |s| s.unread_bytes as f64),
        ("klambda_events_in_flight", "Calls of targets that are open.", |s| f64::from(s.in_flight)),
        ("klambda_oldest_event_age_seconds", "Age of the event that waits longest.", |s| {
            s.oldest_age_ms as f64 / 1e3
        }),
        (
            "operator_circuit_breaker_state",
            "Breaker of the subscription's target: 0 closed, 1 open, 2 half-open.",
            |s| f64::from(s.breaker),
        ),
    ];
    for (name, help, value) in gauges {
        text.gauge(name, help);
        for subscription in &sample.subscriptions {
            text.sample(name, &labels(&subscription.name), value(subscription));
        }
    }
    lanes(text, sample);
}

fn lanes(text: &mut Text, sample: &Sample) {
    text.gauge("klambda_lanes", "Lanes with something waiting, and paused ones, by state.");
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
        "Lanes in memory; the others are on disk.",
        sample.lanes_in_memory as f64,
    );
    single(text, "klambda_breaker_opened_total", "Times a breaker opened.", sample.metrics.breaker_opened);
}

fn dead_letters(text: &mut Text, sample: &Sample) {
    text.gauge("operator_dlq_depth", "Dead letters, those that hold their lanes included.");
    for subscription in &sample.subscriptions {
        text.sample("operator_dlq_depth", &owner(&subscription.name), subscription.dead_letters);
    }
    let letters = &sample.dead_letters;
    // The platform's own subscription is in no other metric.
    for of in letters.iter().filter(|of| is_own(&of.name)) {
        text.sample("operator_dlq_depth", &owner(&of.name), of.depth);
    }
    let ages: BTreeMap<&str, u64> = letters.iter().map(|of| (of.name.as_str(), of.oldest_age_ms)).collect();
    text.gauge("klambda_dlq_oldest_age_seconds", "Age of the oldest event that is a dead letter.");
    let named = sample.subscriptions.iter().map(|subscription| subscription.name.as_str());
    for name in named.chain(ages.keys().copied().filter(|name| is_own(name))) {
        let age_ms = ages.get(name).copied().unwrap_or(0);
        text.sample("klambda_dlq_oldest_age_seconds", &owner(name), age_ms as f64 / 1e3);
    }
    gauge(
        text,
        "klambda_dlq_all_depth",
        "Dead letters of all subscriptions together, also of those without a label of their own.",
        letters.iter().map(|of| of.depth).sum::<u64>() as f64,
    );
    gauge(
        text,
        "klambda_dlq_all_oldest_age_seconds",
        "Age of the oldest event that is a dead letter of any subscription.",
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
        "Dead letters and waiting events that a limit removed, by reason.",
    );
    for ((subscription, reason), count) in dropped(sample) {
        text.sample("klambda_dlq_dropped_total", &with(subscription, &[("reason", reason)]), count);
    }
}

/// Also those that are 0 yet: an increase is seen only of a series that was there before.
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
        "How long syncs of the log took.",
        &metrics.commit_micros,
        SECONDS_OF_MICROS,
    );
    histogram(
        text,
        "klambda_commit_events",
        "Events that one sync made durable.",
        &metrics.commit_events,
        EVENTS,
    );
    gauge(text, "klambda_log_bytes", "Size of the log on disk.", sample.log_bytes as f64);
    gauge(text, "klambda_table_bytes", "Size of the tables on disk.", sample.table_bytes as f64);
    gauge(
        text,
        "klambda_marks",
        "Event ids that are known, those of events that wait and of dead letters included.",
        sample.marks as f64,
    );
    gauge(text, "klambda_memory_limit_bytes", "The configured memory.", sample.memory.limit_bytes as f64);
    gauge(
        text,
        "klambda_memory_used_bytes",
        "What index and buffers take of it.",
        sample.memory.used_bytes as f64,
    );
    gauge(
        text,
        "klambda_disk_full",
        "1 while there is no room for another segment of the log: once the present one is full, new events get 507.",
        f64::from(u8::from(sample.disk_full)),
    );
    if let Some(free) = sample.disk_free_bytes {
        gauge(text, "klambda_disk_free_bytes", "Room that is left on the disk.", free as f64);
    }
    for (name, help, count) in [
        ("klambda_damaged_total", "Records that could not be read back.", metrics.damaged),
        (
            "klambda_tail_cut_bytes_total",
            "Bytes of an unfinished write cut off at the start.",
            metrics.tail_cut,
        ),
        (
            "klambda_marks_expired_early_total",
            "Ids forgotten before their time because there were too many (idempotency.maxMarks).",
            metrics.marks_expired_early,
        ),
        ("klambda_checkpoints_total", "Checkpoints made.", metrics.checkpoints),
        (
            "klambda_checkpoint_failures_total",
            "Chores on the tables that failed and were tried again.",
            metrics.checkpoint_failures,
        ),
    ] {
        single(text, name, help, count);
    }
}

/// This process, under the names that the documents give.
fn process(text: &mut Text) {
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    gauge(text, "operator_goroutines", "Tasks that are alive in the server's runtime.", tasks as f64);
    if let Some(usage) = usage::read() {
        let name = "operator_memory_usage_bytes";
        gauge(
            text,
            name,
            "Resident memory of the server; functions are not included.",
            usage.memory_bytes as f64,
        );
        let name = "operator_cpu_usage_seconds";
        text.bare_counter(name, "Processor time of the server; functions are not included.");
        text.sample(name, &[], usage.cpu_seconds);
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
        "Bytes held on behalf of others, by part of `limits.heldBytes`: requests, deliveries or answers.",
    );
    for (part, bytes, _) in parts {
        text.sample("klambda_held_bytes", &[("part", part)], bytes);
    }
    let name = "klambda_held_waits_total";
    text.counter(
        name,
        "Times a request, delivery or answer had to wait for room in its part of `limits.heldBytes`.",
    );
    for (part, _, waits) in parts {
        text.sample(name, &[("part", part)], waits);
    }
}

fn connections(text: &mut Text, stats: &Stats) {
    let read = |counter: &AtomicU64| counter.load(Relaxed);
    gauge(
        text,
        "klambda_connections_open",
        "Connections of clients that are open.",
        read(&stats.open) as f64,
    );
    single(text, "klambda_connections_accepted_total", "Connections accepted.", read(&stats.accepted));
    let name = "klambda_connections_ended_total";
    text.counter(name, "Connections that the server ended, by reason.");
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
        "Panics that were contained, by place: request, plan or call. Any other panic ends the process.",
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

fn gauge(text: &mut Text, name: &str, help: &str, value: f64) {
    text.gauge(name, help);
    text.sample(name, &[], value);
}

fn histogram(text: &mut Text, name: &str, help: &str, counts: &Histogram, buckets: Buckets) {
    text.histogram(name, help);
    text.buckets(name, &[], counts, buckets);
}
