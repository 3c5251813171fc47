//! `klambda bench`: runs load generator, server and recording sink as separate processes, and reports their measurements.

mod ceiling;
pub mod child;
mod cores;
mod histogram;
pub mod interrupt;
mod klambda;
mod ledger;
mod load;
mod report;
mod rig;
mod round;
mod scenarios;
mod sink;
mod stats;
mod usage;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::ValueEnum;
use serde::de::DeserializeOwned;

use self::report::Report;
use self::rig::{Rig, Subject};
use self::scenarios::Scenario;

/// Measure rates, latencies, CPU and memory on this machine, next to a minimal server as the upper bound.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to measure [default: throughput]
    #[arg(value_enum)]
    pub scenarios: Vec<Scenario>,
    /// Alternating rounds per scenario
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Seconds measured per round, after the warm-up
    #[arg(long, default_value_t = 5.0, value_parser = positive)]
    pub seconds: f64,
    /// Seconds of warm-up per round
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    pub warm_up_seconds: f64,
    /// Pairs of turns with and without the poison key, or the pages
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    pub pairs: u32,
    /// Producer connections
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// Keys of the events
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(11..=10_000_000))]
    pub keys: u32,
    /// Keys in the scenario `keys`
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    pub distinct_keys: u32,
    /// Events in the scenario `backlog`
    #[arg(long, default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub events: u64,
    /// Lanes in the scenario `idle`
    #[arg(long, default_value_t = 10_000_000)]
    pub lanes: u64,
    /// Subscriptions in the scenario `subscriptions`
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub subscriptions: u32,
    /// Events in the scenario `webhooks-retained`
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub retained: u64,
    /// Deliveries in flight at once, unless the scenario sets it
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub concurrency: u32,
    /// Servers to measure, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["ceiling", "klambda"])]
    pub subjects: Vec<Subject>,
    /// Folder for the data folders, on the disk to measure; they are deleted at the end
    #[arg(long, default_value = ".")]
    pub folder: PathBuf,
    /// Configuration file of the server under test [default: the default settings]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Output format, from the global option
    #[arg(skip)]
    pub output: Output,
    #[arg(long, hide = true, requires = "spec")]
    role: Option<Role>,
    #[arg(long, hide = true)]
    spec: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    #[default]
    Table,
    Json,
}

/// The role of this process, if a benchmark started it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    Sink,
    Load,
    Ceiling,
    Serve,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    match (args.role, &args.spec) {
        (Some(role), Some(spec)) => play(role, spec),
        _ => drive(&args),
    }
}

fn play(role: Role, spec: &str) -> anyhow::Result<()> {
    child::live_with_parent()?;
    match role {
        Role::Sink => sink::run(read(spec)?),
        Role::Load => load::run(read(spec)?),
        Role::Ceiling => ceiling::run(read(spec)?),
        Role::Serve => child::become_server(&read::<Vec<String>>(spec)?),
    }
}

fn read<T: DeserializeOwned>(spec: &str) -> anyhow::Result<T> {
    Ok(serde_json::from_str(spec)?)
}

fn drive(args: &Args) -> anyhow::Result<()> {
    interrupt::listen()?;
    let rig = Rig::new(&args.folder, args.config.clone())?;
    let mut reports = Vec::new();
    let mut failed = Vec::new();
    for (name, scenario) in scenarios::chosen(&args.scenarios) {
        match scenario(&rig, args) {
            Ok(report) => {
                rig.show(&report, args.output);
                reports.push(report);
            }
            Err(error) => {
                interrupt::check()?;
                rig.progress.suspend(|| eprintln!("{name} failed: {error:#}"));
                failed.push(name);
            }
        }
    }
    rig.progress.finish_and_clear();
    if args.output == Output::Json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    }
    judge(&reports, failed)
}

/// A fast server that loses, repeats or reorders events has failed.
fn judge(reports: &[Report], mut failed: Vec<&str>) -> anyhow::Result<()> {
    failed.extend(reports.iter().filter(|report| !report.faults.none()).map(|report| report.scenario));
    if !failed.is_empty() {
        bail!("could not be measured, or lost, repeated or reordered events: {}", failed.join(", "));
    }
    Ok(())
}

impl Args {
    fn warm_up(&self) -> Duration {
        Duration::from_secs_f64(self.warm_up_seconds)
    }

    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// A turn with or without the poison key: short, so that a turn and its neighbour see the same machine.
    fn turn(&self) -> Duration {
        self.window() / 5
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text} is no number"))?;
    if number > 0.0 && number <= 3_600.0 {
        Ok(number)
    } else {
        Err("must be above 0 and at most 3600".into())
    }
}
