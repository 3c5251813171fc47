//! What is counted of the control plane.

use klambda_crash::{Guard, Lock};
use klambda_dispatch::metrics::Histogram;
use klambda_functions::resource::{Kind, Outcome};
use klambda_functions::write::Change;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Functions planned: nothing was to change, something was, or it could not be stored.
    pub reconciles: BTreeMap<&'static str, u64>,
    /// From the plan to its outcome being stored.
    pub reconcile_micros: Histogram,
    pub operations: BTreeMap<(&'static str, &'static str), u64>,
    pub builds_active: u64,
    pub builds: BTreeMap<&'static str, u64>,
    pub build_ms: Histogram,
}

pub const RECONCILED: [&str; 3] = ["unchanged", "changed", "failed"];
pub const OPERATIONS: [&str; 3] = ["create", "update", "delete"];
pub const BUILDS: [&str; 5] = ["completed", "failed", "timeout", "cancelled", "stopped"];

/// Shared by those who count.
#[derive(Debug, Default)]
pub struct Counting(Lock<Counts>);

impl Counting {
    fn lock(&self) -> Guard<'_, Counts> {
        self.0.lock()
    }

    pub fn read(&self) -> Counts {
        self.lock().clone()
    }

    pub fn reconciled(&self, result: &'static str, count: usize, took: Duration) {
        let mut counts = self.lock();
        *counts.reconciles.entry(result).or_default() += count as u64;
        for _ in 0..count {
            counts.reconcile_micros.add(took.as_micros() as u64);
        }
    }

    pub fn wrote(&self, kind: Kind, is_deleting: bool, change: Change) {
        let operation = match (is_deleting, change) {
            (_, Change::Nothing) => return,
            (true, _) => "delete",
            (false, Change::Created) => "create",
            (false, _) => "update",
        };
        *self.lock().operations.entry((kind.name(), operation)).or_default() += 1;
    }

    pub fn build_begun(&self) {
        self.lock().builds_active += 1;
    }

    pub fn build_ended(&self, outcome: Outcome, took: Duration) {
        let mut counts = self.lock();
        counts.builds_active = counts.builds_active.saturating_sub(1);
        *counts.builds.entry(outcome.name()).or_default() += 1;
        counts.build_ms.add(took.as_millis() as u64);
    }
}
