//! Medians and intervals.

use serde::Serialize;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// A mean, and how far the true one may be from it at 95%.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Interval {
    pub mean: f64,
    pub plus_minus: f64,
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

/// By Student's t, whose 97.5% point is close to 1.96 + 2.5/n + 3.5/n² from 5 degrees of freedom on.
pub fn interval(values: &[f64]) -> Interval {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let freedom = count - 1.0;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / freedom;
    let t = 1.96 + 2.5 / freedom + 3.5 / freedom.powi(2);
    Interval { mean, plus_minus: t * (variance / count).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let three = spread([3.0, 1.0, 2.0]);
        assert_eq!((three.median, three.min, three.max), (2.0, 1.0, 3.0));
        assert_eq!(median([1.0, 2.0]), 1.5);
        let even: Vec<f64> = (0..20).map(f64::from).collect();
        let found = interval(&even);
        // s = 5.916, t(19) = 2.093, so 2.093 * 5.916 / sqrt(20) = 2.769.
        assert!((found.mean - 9.5).abs() < 1e-9 && (found.plus_minus - 2.769).abs() < 0.02, "{found:?}");
    }
}
