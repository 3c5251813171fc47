//! The text formats of scrapers: Prometheus 0.0.4 and OpenMetrics 1.0.

use klambda_control::Durations;
use klambda_dispatch::metrics::Histogram;
use klambda_traces::{Exemplar, Series};
use std::fmt::{Display, Write};
use std::time::UNIX_EPOCH;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Prometheus,
    OpenMetrics,
}

pub struct Text {
    format: Format,
    out: String,
}

pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Which powers of two of a histogram are shown, and the size of one unit.
#[derive(Clone, Copy)]
pub struct Buckets {
    pub first: usize,
    pub last: usize,
    /// One unit in the unit of the metric. Durations are counted in whole units, so a bucket ends where the next unit begins.
    pub unit: f64,
    pub is_duration: bool,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// OpenMetrics if the client accepts it, else Prometheus.
    pub fn accepted(accept: &str) -> Format {
        let refuses = |parameter: &str| {
            let quality = parameter.trim().split_once('=').filter(|(name, _)| name.eq_ignore_ascii_case("q"));
            quality.is_some_and(|(_, quality)| quality.parse() == Ok(0.0))
        };
        let named = accept.split(',').any(|media| {
            let mut parts = media.split(';');
            let essence = parts.next().unwrap_or_default();
            essence.trim().eq_ignore_ascii_case("application/openmetrics-text") && !parts.any(refuses)
        });
        if named { Format::OpenMetrics } else { Format::Prometheus }
    }
}

impl Text {
    pub fn new(format: Format) -> Text {
        Text { format, out: String::with_capacity(16 << 10) }
    }

    /// `name` ends in `_total`.
    pub fn counter(&mut self, name: &str, help: &str) {
        let family = match self.format {
            Format::Prometheus => name,
            Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
        };
        self.head(family, "counter", help);
    }

    /// A counter with a documented name without the `_total` that OpenMetrics requires.
    pub fn bare_counter(&mut self, name: &str, help: &str) {
        let kind = match self.format {
            Format::Prometheus => "counter",
            Format::OpenMetrics => "unknown",
        };
        self.head(name, kind, help);
    }

    pub fn gauge(&mut self, name: &str, help: &str) {
        self.head(name, "gauge", help);
    }

    pub fn histogram(&mut self, name: &str, help: &str) {
        self.head(name, "histogram", help);
    }

    fn head(&mut self, family: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.line(format_args!("# HELP {family} {help}"));
        self.line(format_args!("# TYPE {family} {kind}"));
    }

    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let labels = label_text(labels);
        self.line(format_args!("{name}{labels} {value}"));
    }

    pub fn buckets(&mut self, name: &str, labels: Labels<'_>, counts: &Histogram, shown: Buckets) {
        self.buckets_with(name, labels, counts, shown, None);
    }

    /// The same with exemplars, which only OpenMetrics has.
    pub fn buckets_with(
        &mut self,
        name: &str,
        labels: Labels<'_>,
        counts: &Histogram,
        shown: Buckets,
        exemplars: Option<&Series>,
    ) {
        let exemplars = exemplars.filter(|_| self.format == Format::OpenMetrics);
        let mut from = 0;
        for (n, (bound, count)) in counts.cumulative().enumerate() {
            if n >= shown.first && n <= shown.last {
                let bound = if shown.is_duration { bound + 1 } else { bound };
                let bound = format!("{:?}", bound as f64 * shown.unit);
                let exemplar = exemplars.and_then(|all| all.range(from..=n).next_back());
                self.bucket_with(name, labels, &bound, count, exemplar.map(|(_, exemplar)| exemplar));
                from = n + 1;
            }
        }
        let last = exemplars.and_then(|all| all.range(from..).next_back());
        self.bucket_with(name, labels, "+Inf", counts.count, last.map(|(_, exemplar)| exemplar));
        self.sample(&format!("{name}_sum"), labels, counts.sum as f64 * shown.unit);
        self.sample(&format!("{name}_count"), labels, counts.count);
    }

    pub fn durations(&mut self, name: &str, labels: Labels<'_>, durations: &Durations) {
        for (bound, count) in durations.cumulative() {
            self.bucket(name, labels, &format!("{bound:?}"), count);
        }
        self.bucket(name, labels, "+Inf", durations.count);
        self.sample(&format!("{name}_sum"), labels, durations.sum);
        self.sample(&format!("{name}_count"), labels, durations.count);
    }

    fn bucket(&mut self, name: &str, labels: Labels<'_>, bound: &str, count: u64) {
        let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", bound)]).collect();
        self.sample(&format!("{name}_bucket"), &labels, count);
    }

    fn bucket_with(
        &mut self,
        name: &str,
        labels: Labels<'_>,
        bound: &str,
        count: u64,
        exemplar: Option<&Exemplar>,
    ) {
        let Some(Exemplar { trace, span, seconds, time }) = exemplar else {
            return self.bucket(name, labels, bound, count);
        };
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let value = format!("{count} # {{trace_id=\"{trace}\",span_id=\"{span}\"}} {seconds:?} {since:.3}");
        let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", bound)]).collect();
        self.sample(&format!("{name}_bucket"), &labels, value);
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        writeln!(self.out, "{text}").expect("writing to a String cannot fail");
    }

    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

fn label_text(labels: Labels<'_>) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let escape = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_core::trace::Derivation;

    #[test]
    fn each_format_names_counters_its_own_way() {
        let write = |format| {
            let mut text = Text::new(format);
            text.counter("a_total", "how many\nof them");
            text.sample("a_total", &[("type", "x\"y\\z\n")], 7);
            text.finish()
        };
        assert_eq!(
            write(Format::Prometheus),
            "# HELP a_total how many\\nof them\n# TYPE a_total counter\na_total{type=\"x\\\"y\\\\z\\n\"} 7\n"
        );
        assert!(write(Format::OpenMetrics).starts_with("# HELP a how many"));
        assert!(write(Format::OpenMetrics).ends_with("# EOF\n"));
        assert_eq!(
            Format::accepted("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"),
            Format::OpenMetrics
        );
        for refused in
            ["*/*", "application/openmetrics-text;q=0", "application/openmetrics-text; Q=0.000, */*"]
        {
            assert_eq!(Format::accepted(refused), Format::Prometheus, "{refused}");
        }
    }

    #[test]
    fn exemplars_are_for_openmetrics_only_and_lie_in_their_bucket() {
        let mut counts = Histogram::default();
        [1, 3, 9].into_iter().for_each(|value| counts.add(value));
        let exemplar = |seconds| {
            let (trace, span) = (Derivation::new(0).trace_id(), Derivation::new(0).span_id());
            Exemplar { trace, span, seconds, time: UNIX_EPOCH + std::time::Duration::from_millis(1500) }
        };
        let series = Series::from([(1, exemplar(0.001)), (2, exemplar(0.003)), (4, exemplar(0.009))]);
        let write = |format| {
            let mut text = Text::new(format);
            let shown = Buckets { first: 2, last: 3, unit: 0.001, is_duration: true };
            text.buckets_with("d", &[], &counts, shown, Some(&series));
            text.finish()
        };
        assert!(!write(Format::Prometheus).contains('#'));
        let text = write(Format::OpenMetrics);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("d_bucket{le=\"0.004\"} 2 # {trace_id=\""), "{text}");
        assert!(lines[0].ends_with("\"} 0.003 1.500"), "{text}");
        assert_eq!(lines[1], "d_bucket{le=\"0.008\"} 2");
        assert!(
            lines[2].starts_with("d_bucket{le=\"+Inf\"} 3 # {") && lines[2].contains("} 0.009 "),
            "{text}"
        );
    }

    #[test]
    fn buckets_are_cumulative_and_end_in_infinity() {
        let mut counts = Histogram::default();
        [0, 1, 3, 1 << 40].into_iter().for_each(|value| counts.add(value));
        let mut text = Text::new(Format::Prometheus);
        text.buckets("d", &[], &counts, Buckets { first: 1, last: 2, unit: 0.001, is_duration: true });
        let text = text.finish();
        assert!(
            text.starts_with("d_bucket{le=\"0.002\"} 2\nd_bucket{le=\"0.004\"} 3\nd_bucket{le=\"+Inf\"} 4\n"),
            "{text}"
        );
        assert!(text.ends_with("d_count 4\n"), "{text}");
    }
}
