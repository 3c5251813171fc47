//! Metrics of calls per function, for events and invocations.

use super::SECONDS_OF_MILLIS;
use super::functions::{OTHERS, labels};
use super::text::Text;
use crate::api::Api;
use klambda_control::{Counts, Name};
use klambda_dispatch::metrics::{Histogram, Metrics};
use std::collections::BTreeMap;

/// Calls of one function, or of several.
#[derive(Default)]
pub struct Totals {
    replicas: u64,
    pub calls: u64,
    pub errors: u64,
    pub cold_starts: u64,
    pub took_ms: Histogram,
}

/// Name, help and value of a metric.
type Number = (&'static str, &'static str, fn(&Totals) -> u64);

const COUNTERS: [Number; 3] = [
    (
        "klambda_function_invocations_total",
        "Finished calls of a function, for events and invocations.",
        |totals| totals.calls,
    ),
    (
        "klambda_function_errors_total",
        "Failed calls of a function: no response, or a status other than 2xx.",
        |totals| totals.errors,
    ),
    (
        "klambda_function_cold_starts_total",
        "Calls of a function that waited for a replica to start.",
        |totals| totals.cold_starts,
    ),
];

pub fn calls(text: &mut Text, api: &Api, metrics: &Metrics) {
    let counts = api.control.counts();
    let by_function = totals(api.control.replicas(), &counts, metrics);
    let name = "klambda_function_replicas";
    text.gauge(name, "Ready replicas of a function.");
    for (function, totals) in &by_function {
        text.sample(name, &label(function), totals.replicas);
    }
    for (name, help, value) in COUNTERS {
        text.counter(name, help);
        for (function, totals) in &by_function {
            text.sample(name, &label(function), value(totals));
        }
    }
    let name = "klambda_function_duration_seconds";
    text.histogram(name, "Duration of calls of a function, including cold starts.");
    for (function, totals) in &by_function {
        text.buckets(name, &label(function), &totals.took_ms, SECONDS_OF_MILLIS);
    }
}

fn label(name: &Option<Name>) -> [(&str, &str); 2] {
    name.as_ref().map_or([("function_name", OTHERS), ("namespace", "")], labels)
}

/// Totals per function. `None` means all functions without labels of their own.
fn totals(functions: Vec<(Name, u32)>, counts: &Counts, metrics: &Metrics) -> BTreeMap<Option<Name>, Totals> {
    let mut totals: BTreeMap<Option<Name>, Totals> = BTreeMap::new();
    totals.entry(None).or_default().add_calls(&counts.others.calls);
    for (name, replicas) in functions {
        let counted = counts.functions.get(&name);
        let of = totals.entry(counted.is_some().then(|| name.clone())).or_default();
        of.replicas += u64::from(replicas);
        counted.into_iter().for_each(|counted| of.add_calls(&counted.calls));
        of.add_events(metrics, &name.subscription());
    }
    totals
}

impl Totals {
    /// Adds the calls for events of a subscription.
    pub fn add_events(&mut self, metrics: &Metrics, subscription: &str) {
        for done in metrics.calls_of(subscription) {
            self.calls += done.delivered + done.failed;
            self.errors += done.failed;
            self.took_ms.merge(&done.took_ms);
        }
    }

    pub fn add_calls(&mut self, calls: &klambda_control::Calls) {
        self.calls += calls.count;
        self.errors += calls.errors;
        self.cold_starts += calls.cold_starts;
        self.took_ms.merge(&calls.took_ms);
    }
}
