//! Latencies in fixed logarithmic buckets, exact to 3%.

use serde::{Deserialize, Serialize};

const STEPS_PER_DOUBLING: usize = 32;
const BUCKETS: usize = 40 * STEPS_PER_DOUBLING;

pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

/// The summary of a histogram, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub count: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Histogram {
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS], count: 0, sum_ns: 0, max_ns: 0 }
    }

    pub fn record(&mut self, nanos: u64) {
        self.counts[bucket(nanos)] += 1;
        self.count += 1;
        self.sum_ns += nanos;
        self.max_ns = self.max_ns.max(nanos);
    }

    /// Returns the summary and clears the histogram.
    pub fn take(&mut self) -> Summary {
        let summary = Summary {
            count: self.count,
            mean_us: self.sum_ns as f64 / self.count.max(1) as f64 / 1e3,
            p50_us: self.quantile_ns(0.50) as f64 / 1e3,
            p99_us: self.quantile_ns(0.99) as f64 / 1e3,
            max_us: self.max_ns as f64 / 1e3,
        };
        *self = Self::new();
        summary
    }

    fn quantile_ns(&self, quantile: f64) -> u64 {
        let rank = (self.count as f64 * quantile).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank && seen > 0 {
                return upper_bound(index).min(self.max_ns);
            }
        }
        0
    }
}

/// Below 32 ns a bucket per nanosecond, above it 32 buckets per doubling.
fn bucket(nanos: u64) -> usize {
    let steps = STEPS_PER_DOUBLING as u64;
    if nanos < steps {
        return nanos as usize;
    }
    let doubling = nanos.ilog2() - steps.ilog2();
    let index = u64::from(doubling) * steps + (nanos >> doubling);
    (index as usize).min(BUCKETS - 1)
}

fn upper_bound(index: usize) -> u64 {
    if index < 2 * STEPS_PER_DOUBLING {
        return index as u64;
    }
    let doubling = index / STEPS_PER_DOUBLING - 1;
    let step = index % STEPS_PER_DOUBLING + STEPS_PER_DOUBLING;
    ((step as u64 + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_three_percent() {
        let mut histogram = Histogram::new();
        (1..=100_000_u64).for_each(|micros| histogram.record(micros * 1_000));
        let summary = histogram.take();
        assert!((summary.p50_us / 50_000.0 - 1.0).abs() < 0.032, "p50 is {}", summary.p50_us);
        assert!((summary.p99_us / 99_000.0 - 1.0).abs() < 0.032, "p99 is {}", summary.p99_us);
        assert_eq!((summary.count, summary.max_us), (100_000, 100_000.0));
        assert_eq!(histogram.take().count, 0);
    }
}
