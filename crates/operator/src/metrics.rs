//! Metrics and health of the operator, as text for Prometheus.

use crate::cache::Key;
use klambda_functions::resource::Phase;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub struct Metrics {
    reconciles: AtomicU64,
    failures: AtomicU64,
    events: AtomicU64,
    queue: AtomicU64,
    leading: AtomicBool,
    /// Every watched kind was listed.
    synced: AtomicBool,
    phases: Mutex<HashMap<Key, Phase>>,
}

impl Metrics {
    pub fn reconciled(&self, events: usize) {
        self.reconciles.fetch_add(1, Ordering::Relaxed);
        self.events.fetch_add(events as u64, Ordering::Relaxed);
    }

    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub fn queue(&self, length: usize) {
        self.queue.store(length as u64, Ordering::Relaxed);
    }

    pub fn leading(&self, is_leading: bool) {
        self.leading.store(is_leading, Ordering::Relaxed);
    }

    pub fn synced(&self) {
        self.synced.store(true, Ordering::Relaxed);
    }

    pub fn is_ready(&self) -> bool {
        self.synced.load(Ordering::Relaxed)
    }

    pub fn phase(&self, key: &Key, phase: Phase) {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), phase);
    }

    pub fn forget(&self, key: &Key) {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// The text of `/metrics`. `requests` and `writes` are those to the API server.
    pub fn text(&self, (requests, writes): (u64, u64)) -> String {
        let mut text = String::new();
        let mut one = |name: &str, kind: &str, help: &str, value: u64| {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        };
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        one(
            "operator_leader",
            "gauge",
            "Whether this replica holds the lease.",
            self.leading.load(Ordering::Relaxed).into(),
        );
        one(
            "operator_queue_length",
            "gauge",
            "Functions that wait for a reconcile or are in one.",
            get(&self.queue),
        );
        one("operator_reconciles_total", "counter", "Finished reconciles.", get(&self.reconciles));
        one(
            "operator_reconcile_failures_total",
            "counter",
            "Reconciles that failed and are retried.",
            get(&self.failures),
        );
        one(
            "operator_events_sent_total",
            "counter",
            "Events about functions that the dispatcher accepted.",
            get(&self.events),
        );
        one(
            "operator_api_requests_total",
            "counter",
            "Requests to the API server, without watches.",
            requests,
        );
        one("operator_api_writes_total", "counter", "Requests to the API server that write.", writes);
        let _ = write!(
            text,
            "# HELP operator_functions Functions and agents by phase.\n# TYPE operator_functions gauge\n"
        );
        let phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        for phase in Phase::ALL {
            let count = phases.values().filter(|known| **known == phase).count();
            let _ = writeln!(text, "operator_functions{{phase=\"{}\"}} {count}", phase.name());
        }
        text
    }
}
