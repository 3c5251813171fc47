//! How an endpoint fared in its latest calls.

use super::{CHUNK, entries};
use crate::engine::{Engine, Failure};
use crate::views::Time;
use klambda_core::ids::SubscriptionId;
use klambda_core::lane::State;
use schemars::JsonSchema;
use serde::Serialize;

/// The latest calls within this time, and at most this many.
const WINDOW_MS: u64 = 24 * 3_600_000;
const CALLS_MAX: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Statistics {
    /// The calls that the other members describe.
    pub calls: u64,
    /// The first of these calls.
    pub since: Option<Time>,
    pub failed: u64,
    /// From 0 to 1; `None` without calls.
    pub success_rate: Option<f64>,
    pub duration_p50_ms: Option<u64>,
    pub duration_p99_ms: Option<u64>,
    pub last_failure_at: Option<Time>,
    /// Workflows whose first event failed and waits for its next attempt, or for a person.
    pub failing_workflows: u64,
}

impl Engine {
    pub(crate) fn statistics(&self, id: SubscriptionId) -> Result<Statistics, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(Statistics::default()) };
        let lanes = &subscription.tally.lanes;
        let mut found = Statistics {
            failing_workflows: lanes[State::Retrying as usize] + lanes[State::Parked as usize],
            ..Statistics::default()
        };
        let mut durations = Vec::new();
        let Some(ends) = self.call_ends(id) else { return Ok(found) };
        for chunk in (ends.forgotten / CHUNK..ends.count.div_ceil(CHUNK)).rev() {
            let row = self.calls_chunk(id, chunk)?;
            for call in entries(&row)?.iter().rev() {
                if durations.len() == CALLS_MAX || self.now.since(call.time) > WINDOW_MS {
                    return Ok(found.summed_up(durations));
                }
                durations.push(call.duration_ms);
                found.since = Some(Time(call.time));
                if !call.succeeded {
                    found.failed += 1;
                    found.last_failure_at.get_or_insert(Time(call.time));
                }
            }
        }
        Ok(found.summed_up(durations))
    }
}

impl Statistics {
    fn summed_up(mut self, mut durations: Vec<u64>) -> Statistics {
        durations.sort_unstable();
        let part = |share: f64| {
            let rank = (share * durations.len() as f64).ceil() as usize;
            durations.get(rank.saturating_sub(1)).copied()
        };
        self.calls = durations.len() as u64;
        (self.duration_p50_ms, self.duration_p99_ms) = (part(0.5), part(0.99));
        let succeeded = self.calls - self.failed;
        self.success_rate = (self.calls > 0).then(|| succeeded as f64 / self.calls as f64);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_durations_that_occurred() {
        let of = |durations: Vec<u64>| Statistics { failed: 1, ..Statistics::default() }.summed_up(durations);
        let hundred = of((1..=100).rev().collect());
        assert_eq!((hundred.duration_p50_ms, hundred.duration_p99_ms), (Some(50), Some(99)));
        assert_eq!(hundred.success_rate, Some(0.99));
        let one = of(vec![7]);
        assert_eq!(
            (one.duration_p50_ms, one.duration_p99_ms, one.success_rate),
            (Some(7), Some(7), Some(0.0))
        );
        assert_eq!(Statistics::default().summed_up(Vec::new()).success_rate, None);
    }
}
