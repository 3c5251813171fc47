//! Medians and intervals.

use serde::Serialize;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// A median, and where the true one lies at 95%.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Interval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

pub fn spread(values: impl IntoIterator<Item = f64>) -> Spread {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else {
        return Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN };
    };
    let middle = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
    Spread { median: middle, min: *min, max: *max }
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    spread(values).median
}

/// By ranks: how many of `n` values lie below the true median is binomial, so its 95% are within 0.98 √n of n/2. Says
/// nothing about how values are spread, and a stall of the machine in one of them moves nothing.
pub fn interval(values: &[f64]) -> Interval {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (half, reach) = (sorted.len() as f64 / 2.0, 0.98 * (sorted.len() as f64).sqrt());
    let low = (half - reach).floor().max(0.0) as usize;
    let high = ((half + reach).ceil() as usize).min(sorted.len() - 1);
    Interval { median: median(sorted.iter().copied()), low: sorted[low], high: sorted[high] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let three = spread([3.0, 1.0, 2.0]);
        assert_eq!((three.median, three.min, three.max), (2.0, 1.0, 3.0));
        assert_eq!(median([1.0, 2.0]), 1.5);
        let even: Vec<f64> = (0..20).rev().map(f64::from).collect();
        // Of 20 values the 6th and the 15th enclose the median at 95.9%; one more on each side is on the safe one.
        let found = interval(&even);
        assert_eq!((found.median, found.low, found.high), (9.5, 5.0, 15.0));
    }
}
