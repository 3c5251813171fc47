//! Counters of the control plane: per function up to a limit, and one total for all other functions.

use klambda_crash::{Guard, Lock};
use klambda_dispatch::metrics::Histogram;
use klambda_functions::name::Name;
use klambda_functions::resource::BuildOutcome;
use klambda_functions::write::Change;
use std::collections::BTreeMap;
use std::time::Duration;

pub const SUCCESS: &str = "success";
pub const FAILURE: &str = "failure";

#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub functions: BTreeMap<Name, OfFunction>,
    /// Total of all functions beyond the limit.
    pub others: OfFunction,
    /// Finished builds, also of deleted functions.
    pub builds: u64,
    /// Evicted parts of the build cache, by reason.
    pub caches_emptied: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug, Default)]
pub struct OfFunction {
    /// By phase and result.
    pub reconciles: BTreeMap<(&'static str, &'static str), u64>,
    /// Time from the plan until its result is stored, by phase.
    pub reconcile_time: BTreeMap<&'static str, Durations>,
    /// Writes, by operation.
    pub operations: BTreeMap<&'static str, Durations>,
    pub builds_active: u64,
    /// By result.
    pub builds: BTreeMap<&'static str, u64>,
    pub build_time: Durations,
    /// Time from the deployment of a version until it is ready.
    pub creation_time: Durations,
    pub calls: Calls,
}

/// Invocations of a function. The engine counts calls for events.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    pub count: u64,
    /// Calls without a response, or with a status other than 2xx.
    pub errors: u64,
    pub took_ms: Histogram,
    /// Calls that waited for a replica to start, including calls for events.
    pub cold_starts: u64,
}

/// A histogram of durations.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    /// Counts per bucket, not cumulative. The last bucket counts durations above the highest bound.
    counts: [u64; Durations::BOUNDS.len() + 1],
    pub sum: f64,
    pub count: u64,
}

impl Durations {
    /// In seconds.
    pub const BOUNDS: [f64; 12] = [0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0];

    fn add(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        self.counts[Durations::BOUNDS.partition_point(|bound| *bound < seconds)] += 1;
        self.sum += seconds;
        self.count += 1;
    }

    /// Each bound with the number of durations at or below it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut total = 0;
        Durations::BOUNDS.into_iter().zip(self.counts).map(move |(bound, count)| {
            total += count;
            (bound, total)
        })
    }
}

#[derive(Debug)]
pub struct Counting {
    functions_max: usize,
    counts: Lock<Counts>,
}

impl Counting {
    /// Counts at most `functions_max` functions by name.
    pub fn new(functions_max: usize) -> Counting {
        Counting { functions_max, counts: Lock::default() }
    }

    fn lock(&self) -> Guard<'_, Counts> {
        self.counts.lock()
    }

    fn of(&self, name: &Name, count: impl FnOnce(&mut OfFunction)) {
        let mut counts = self.lock();
        let is_named = counts.functions.contains_key(name) || counts.functions.len() < self.functions_max;
        match is_named {
            true => count(counts.functions.entry(name.clone()).or_default()),
            false => count(&mut counts.others),
        }
    }

    /// The calls of one function. Nothing for a function beyond the limit.
    pub fn calls(&self, name: &Name) -> Calls {
        self.lock().functions.get(name).map(|of| of.calls.clone()).unwrap_or_default()
    }

    pub fn read(&self) -> Counts {
        self.lock().clone()
    }

    /// Removes the labels of a deleted function.
    pub fn forget(&self, name: &Name) {
        self.lock().functions.remove(name);
    }

    pub fn reconciled(&self, name: &Name, phase: &'static str, result: &'static str, took: Duration) {
        self.of(name, |of| {
            *of.reconciles.entry((phase, result)).or_default() += 1;
            of.reconcile_time.entry(phase).or_default().add(took);
        });
    }

    pub fn wrote(&self, name: &Name, is_deleting: bool, change: Change, took: Duration) {
        let operation = match (is_deleting, change) {
            (_, Change::Nothing) => return,
            (true, _) => "delete",
            (false, Change::Created) => "create",
            (false, _) => "update",
        };
        self.of(name, |of| of.operations.entry(operation).or_default().add(took));
    }

    pub fn build_begun(&self, name: &Name) {
        self.of(name, |of| of.builds_active += 1);
    }

    pub fn build_ended(&self, name: &Name, outcome: BuildOutcome, took: Duration) {
        let result = match outcome {
            BuildOutcome::Completed => SUCCESS,
            BuildOutcome::Failed => FAILURE,
            other => other.name(),
        };
        self.lock().builds += 1;
        self.of(name, |of| {
            of.builds_active = of.builds_active.saturating_sub(1);
            *of.builds.entry(result).or_default() += 1;
            of.build_time.add(took);
        });
    }

    pub fn cache_emptied(&self, reason: &'static str) {
        *self.lock().caches_emptied.entry(reason).or_default() += 1;
    }

    pub fn called(&self, name: &Name, succeeded: bool, took: Duration) {
        self.of(name, |of| {
            of.calls.count += 1;
            of.calls.errors += u64::from(!succeeded);
            of.calls.took_ms.add(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        });
    }

    pub fn cold_start(&self, name: &Name) {
        self.of(name, |of| of.calls.cold_starts += 1);
    }

    pub fn service_created(&self, name: &Name, took: Duration) {
        self.of(name, |of| of.creation_time.add(took));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_beyond_the_limit_are_counted_together() {
        let counting = Counting::new(1);
        let [one, two] = ["one", "two"].map(|name| Name::new("default", name));
        for name in [&one, &two] {
            counting.reconciled(name, "Ready", SUCCESS, Duration::from_millis(1));
        }
        let counts = counting.read();
        assert_eq!(counts.functions[&one].reconciles[&("Ready", SUCCESS)], 1);
        assert_eq!((counts.functions.len(), counts.others.reconciles[&("Ready", SUCCESS)]), (1, 1));
        counting.forget(&one);
        counting.build_begun(&two);
        counting.build_ended(&two, BuildOutcome::Failed, Duration::from_secs(1000));
        let counts = counting.read();
        assert_eq!((counts.functions[&two].builds_active, counts.functions[&two].builds[FAILURE]), (0, 1));
    }

    #[test]
    fn a_duration_is_in_the_bucket_of_its_bound() {
        let mut durations = Durations::default();
        [1, 2, 500, 700_000].into_iter().for_each(|ms| durations.add(Duration::from_millis(ms)));
        let seen: Vec<(f64, u64)> = durations.cumulative().collect();
        assert_eq!((seen[0], seen[1], seen[3], seen[11]), ((0.001, 1), (0.01, 2), (0.5, 3), (600.0, 3)));
        assert_eq!(durations.count, 4);
    }
}
