//! Shortens the durations of rules, so that a test can wait for an alert.
//!
//! An expression of the table contains durations in four forms: the range `[5m]`, `offset 1d)`, `seconds(10m)`, which
//! becomes a number of seconds, and `bucket(1m)`, which becomes the bound of the first histogram bucket of at least that
//! length.

use klambda_core::quantity::parse_duration_ms;

#[derive(Clone, Copy, Debug)]
pub struct Scale(f64);

impl Scale {
    pub fn parse(text: &str) -> Result<Scale, String> {
        match text.parse::<f64>() {
            Ok(factor) if factor > 0.0 && factor <= 1.0 => Ok(Scale(factor)),
            _ => Err("must be a number above 0 and at most 1".to_owned()),
        }
    }

    /// A duration as Prometheus writes it, at least one millisecond.
    pub fn duration(self, text: &str) -> String {
        match self.milliseconds(text) {
            ms if ms % 86_400_000 == 0 => format!("{}d", ms / 86_400_000),
            ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
            ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
            ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
            ms => format!("{ms}ms"),
        }
    }

    pub fn expression(self, text: &str) -> String {
        let ranges = replace(text, "[", ']', |range| format!("[{}]", self.duration(range)));
        let offsets = replace(&ranges, "offset ", ')', |back| format!("offset {})", self.duration(back)));
        let seconds = replace(&offsets, "seconds(", ')', |length| self.seconds(length).to_string());
        replace(&seconds, "bucket(", ')', |length| format!("{:?}", self.bucket(length)))
    }

    fn seconds(self, length: &str) -> f64 {
        self.milliseconds(length) as f64 / 1e3
    }

    fn bucket(self, length: &str) -> f64 {
        self.milliseconds(length).next_power_of_two() as f64 / 1e3
    }

    fn milliseconds(self, text: &str) -> u64 {
        // Durations are constants of the table. A wrong one fails the test of the committed rules.
        let ms = parse_duration_ms(text).unwrap_or_else(|error| panic!("rule with duration {text}: {error}"));
        ((ms as f64 * self.0).round() as u64).max(1)
    }
}

impl Default for Scale {
    fn default() -> Scale {
        Scale(1.0)
    }
}

/// Replaces each argument between `start` and `end`, including both.
fn replace(text: &str, start: &str, end: char, with: impl Fn(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(start) {
        let (argument, after) = after.split_once(end).unwrap_or((after, ""));
        out.push_str(before);
        out.push_str(&with(argument));
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_of_an_expression_is_scaled() {
        let scale = Scale::parse("0.02").expect("a scale");
        assert_eq!(scale.expression("rate(a[5m]) > seconds(10m)"), "rate(a[6s]) > 12");
        assert_eq!(scale.expression(r#"a{le="bucket(1m)"}"#), r#"a{le="2.048"}"#);
        assert_eq!(scale.expression("sum(a[7d] offset 1d)"), "sum(a[12096s] offset 1728s)");
        assert_eq!(Scale::default().expression(r#"a{le="bucket(1m)"}[1h]"#), r#"a{le="65.536"}[1h]"#);
        assert_eq!(scale.duration("30s"), "600ms");
        for wrong in ["0", "-1", "2", "x", "NaN"] {
            assert!(Scale::parse(wrong).is_err(), "{wrong}");
        }
    }
}
