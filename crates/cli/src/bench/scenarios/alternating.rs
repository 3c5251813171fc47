//! Rounds of the ceiling and of klambda in turn, so that a noisy minute hits both.

use serde::Serialize;

use crate::bench::Args;
use crate::bench::report::{Faults, Table, figure, latency, mebibytes};
use crate::bench::rig::{Rig, Subject};
use crate::bench::round::{self, Plan, Round};
use crate::bench::stats::{Spread, median, spread};

#[derive(Serialize)]
#[serde(transparent)]
pub struct Rounds(Vec<Round>);

impl Rounds {
    pub fn run(rig: &Rig, args: &Args, name: &str, plan: &Plan) -> anyhow::Result<Self> {
        let mut rounds = Vec::new();
        for number in 1..=args.rounds() {
            for subject in &args.subjects {
                rig.note(format!("{name}: round {number} of {}, {subject:?}", args.rounds()));
                rounds.push(round::run(rig, *subject, plan)?);
            }
        }
        Ok(Self(rounds))
    }

    pub fn of(&self, subject: Subject) -> impl Iterator<Item = &Round> {
        self.0.iter().filter(move |round| round.subject == subject)
    }

    pub fn median(&self, subject: Subject, value: impl Fn(&Round) -> f64) -> f64 {
        median(self.of(subject).map(value))
    }

    /// Klambda's value over the ceiling's of the same turn; nothing if only one of them was run.
    pub fn ratio(&self, value: impl Fn(&Round) -> f64) -> Option<Spread> {
        let pairs = self.of(Subject::Klambda).zip(self.of(Subject::Ceiling));
        let ratios: Vec<f64> = pairs.map(|(klambda, ceiling)| value(klambda) / value(ceiling)).collect();
        (!ratios.is_empty()).then(|| spread(ratios))
    }

    pub fn faults(&self) -> Faults {
        let mut faults = Faults::default();
        self.0.iter().for_each(|round| faults.add(round.faults));
        faults
    }

    pub fn table(&self, args: &Args) -> Table {
        let mut table = Table::new(&[
            "medians",
            "events/s",
            "(min",
            "max)",
            "accept p50",
            "p99",
            "end to end p50",
            "p99",
            "CPU µs/event",
            "load+sink",
            "backlog",
            "RSS max",
        ]);
        for subject in &args.subjects {
            table.row(self.cells(*subject));
        }
        table
    }

    fn cells(&self, subject: Subject) -> [String; 12] {
        let rate = spread(self.of(subject).map(|round| round.delivered_per_s));
        let time = |value: fn(&Round) -> f64| latency(self.median(subject, value));
        [
            format!("{subject:?}").to_lowercase(),
            figure(rate.median),
            figure(rate.min),
            figure(rate.max),
            time(|round| round.accept.p50_us),
            time(|round| round.accept.p99_us),
            time(|round| round.end_to_end.p50_us),
            time(|round| round.end_to_end.p99_us),
            figure(self.median(subject, |round| round.cpu_us_per_event)),
            figure(self.median(subject, |round| round.load_cpu_us_per_event + round.sink_cpu_us_per_event)),
            figure(self.median(subject, |round| round.backlog as f64)),
            mebibytes(self.of(subject).map(|round| round.rss_max_kib).max().unwrap_or(0)),
        ]
    }
}

pub fn range(spread: &Spread) -> String {
    format!("{} to {}", figure(spread.min), figure(spread.max))
}
