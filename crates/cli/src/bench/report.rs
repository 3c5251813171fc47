//! The results of a scenario, for people and for scripts.

use std::borrow::Cow;
use std::fmt::Write;

use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Report {
    pub scenario: &'static str,
    /// The scenario and its settings, in one line.
    pub about: String,
    #[serde(skip)]
    pub table: Table,
    pub goals: Vec<Goal>,
    pub faults: Faults,
    /// The rounds, as measured.
    pub rounds: serde_json::Value,
}

#[derive(Debug, Default)]
pub struct Table {
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Goal {
    pub what: Cow<'static, str>,
    pub found: f64,
    pub bound: Bound,
    pub met: bool,
    /// The spread of the figure, or another remark.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Counts that must be zero.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Faults {
    pub violations: u64,
    pub duplicates: u64,
    pub missing: u64,
}

impl Goal {
    pub fn new(what: impl Into<Cow<'static, str>>, found: f64, bound: Bound, detail: String) -> Self {
        let met = match bound {
            Bound::AtLeast(least) => found >= least,
            Bound::AtMost(most) => found <= most,
        };
        Self { what: what.into(), found, bound, met, detail }
    }
}

impl Faults {
    pub fn add(&mut self, other: Faults) {
        self.violations += other.violations;
        self.duplicates += other.duplicates;
        self.missing += other.missing;
    }

    pub fn none(&self) -> bool {
        self.violations == 0 && self.duplicates == 0 && self.missing == 0
    }
}

impl Report {
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.scenario, self.about);
        text.push_str(&self.table.text());
        for goal in &self.goals {
            let (sign, bound) = match goal.bound {
                Bound::AtLeast(bound) => ("≥", bound),
                Bound::AtMost(bound) => ("≤", bound),
            };
            let verdict = if goal.met { "met   " } else { "missed" };
            let found = figure(goal.found);
            let _ = writeln!(
                text,
                "  {verdict} {}: {found} (goal {sign} {}) {}",
                goal.what,
                figure(bound),
                goal.detail
            );
        }
        let Faults { violations, duplicates, missing } = self.faults;
        let _ = writeln!(text, "  violations {violations}, duplicates {duplicates}, missing {missing}");
        text
    }
}

impl Table {
    pub fn new(columns: &[&'static str]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([self.columns[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        let header = self.columns.iter().map(|column| (*column).to_owned()).collect();
        for row in [&header].into_iter().chain(&self.rows) {
            for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = if index == 0 {
                    write!(text, "  {cell:<width$}")
                } else {
                    write!(text, "  {cell:>width$}")
                };
            }
            text.push('\n');
        }
        text
    }
}

/// A number with a sensible number of digits.
pub fn figure(number: f64) -> String {
    match number.abs() {
        size if size >= 1_000.0 => thousands(number.round() as i64),
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

fn thousands(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if number < 0 { format!("-{grouped}") } else { grouped }
}

/// A latency in the unit that suits it.
pub fn latency(micros: f64) -> String {
    if micros >= 1_000.0 { format!("{} ms", figure(micros / 1e3)) } else { format!("{} µs", figure(micros)) }
}

pub fn mebibytes(kib: u64) -> String {
    format!("{:.1} MiB", kib as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(figure(1_234_567.0), "1,234,567");
        assert_eq!((figure(12.34), figure(0.756)), ("12.3".into(), "0.76".into()));
        assert_eq!((latency(1500.0), latency(90.0)), ("1.50 ms".into(), "90.0 µs".into()));
    }
}
