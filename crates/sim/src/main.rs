//! `sim`: runs seeds of the simulator and prints the results.

use clap::Parser;
use sim::fresh::Fresh;
use sim::many::Many;
use sim::mix::{Knobs, Trouble};
use sim::run::{Failed, RunOutcome, run_and_show};
use sim::shrink::shrink;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Parser)]
#[command(about = "Runs the engine on a simulated disk, network and clock, and checks its invariants")]
struct Args {
    /// Run only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Number of seeds to run, after the regression seeds
    #[arg(long)]
    seeds: Option<u64>,
    /// First seed (default: 1; with --bug or --bugs: the first fresh seed)
    #[arg(long)]
    from: Option<u64>,
    /// Number of fresh seeds to run, after the regression seeds. The commit determines the fresh seeds
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    fresh: Option<u64>,
    /// Number of parallel runs
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Run new seeds (or those from --from) until interrupted (or --seeds are done)
    #[arg(long)]
    nightly: bool,
    /// With --nightly: stop after this time, such as 90s, 10m or 8h
    #[arg(long = "for", value_parser = duration)]
    duration: Option<Duration>,
    /// Troubles to disable in every seed
    #[arg(long, value_delimiter = ',')]
    without: Vec<Trouble>,
    /// Print the whole history of --seed
    #[arg(long)]
    print: bool,
    /// Do not search for a shorter failing run
    #[arg(long)]
    no_shrink: bool,
    /// Plant this bug and run seeds until a checker detects it
    #[cfg(feature = "planted")]
    #[arg(long)]
    bug: Option<u32>,
    /// Plant each bug in turn
    #[cfg(feature = "planted")]
    #[arg(long)]
    bugs: bool,
}

impl Args {
    fn without(&self) -> u32 {
        self.without.iter().fold(0, |bits, trouble| bits | trouble.bit())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "planted")]
    if args.bugs || args.bug.is_some() {
        let from = args.from.unwrap_or_else(fresh);
        return sim::bugs::hunt(args.bug, from, args.seeds.unwrap_or(1000), args.jobs);
    }
    if args.nightly {
        return nightly(&args);
    }
    match args.seed {
        Some(seed) => one(&args, seed),
        None => many(&args),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    klambda_core::quantity::parse_duration_ms(text).map(Duration::from_millis)
}

fn one(args: &Args, seed: u64) -> ExitCode {
    let knobs = Knobs { without: args.without(), ..Knobs::of_seed(seed) };
    let outcome = run_and_show(knobs, &mut |entry| {
        if args.print {
            println!("{entry}");
        }
    });
    if outcome.violation.is_some() {
        return report(args, outcome);
    }
    let RunOutcome { events, crashes, hash, .. } = outcome;
    println!("seed {seed}: {events} events, {crashes} crashes, hash {hash:016x}, ok");
    ExitCode::SUCCESS
}

/// The first fresh seed. Prints it.
fn fresh() -> u64 {
    let fresh = Fresh::here();
    println!("{fresh}");
    fresh.from
}

fn many(args: &Args) -> ExitCode {
    let started = Instant::now();
    let (from, count) = match args.fresh {
        Some(count) => (fresh(), count),
        None => (args.from.unwrap_or(1), args.seeds.unwrap_or(200)),
    };
    let many = Many::new(from, count, args.without()).with_found();
    many.run(args.jobs);
    finish(args, &many, started)
}

fn finish(args: &Args, many: &Many, started: Instant) -> ExitCode {
    let (total, seconds) = (many.total(), started.elapsed().as_secs_f64());
    let failed = many.take_failed();
    println!(
        "{} seeds: {} events, {} requests, {} crashes, {} in {seconds:.1} s",
        total.seeds,
        total.events,
        total.requests,
        total.crashes,
        if failed.is_some() { "FAILED" } else { "ok" },
    );
    failed.map_or(ExitCode::SUCCESS, |outcome| report(args, outcome))
}

/// A start for new seeds. It is unique unless another run begins in the same second.
fn new_place() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() * 1000
}

fn nightly(args: &Args) -> ExitCode {
    let from = args.from.unwrap_or_else(new_place);
    println!("nightly: seeds from {from}");
    let started = Instant::now();
    let many = Arc::new(Many::new(from, args.seeds.unwrap_or(u64::MAX), args.without()));
    let runs = {
        let (many, jobs) = (Arc::clone(&many), args.jobs);
        std::thread::spawn(move || many.run(jobs))
    };
    watch(&many, &runs, started, args.duration);
    many.stop();
    runs.join().expect("the runs do not panic");
    finish(args, &many, started)
}

/// Prints a running total until a signal, the time limit or a failure.
fn watch(many: &Many, runs: &std::thread::JoinHandle<()>, started: Instant, duration: Option<Duration>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime for signals");
    runtime.block_on(async {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
            .expect("a signal handler can be installed");
        let mut shown = Instant::now();
        loop {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => return,
                _ = terminate.recv() => return,
                () = tokio::time::sleep(Duration::from_millis(200)) => {}
            }
            if runs.is_finished() || duration.is_some_and(|duration| started.elapsed() >= duration) {
                return;
            }
            if shown.elapsed() >= Duration::from_secs(10) {
                shown = Instant::now();
                let total = many.total();
                let seconds = started.elapsed().as_secs();
                println!(
                    "{seconds} s: {} seeds, {} events, {} crashes",
                    total.seeds, total.events, total.crashes
                );
            }
        }
    });
}

fn report(args: &Args, outcome: RunOutcome) -> ExitCode {
    let seed = outcome.knobs.seed;
    let shorter = if args.no_shrink { outcome } else { shrink(outcome) };
    let Some(Failed { violation, lines }) = &shorter.violation else { return ExitCode::FAILURE };
    println!("seed {seed}: VIOLATION of {}", violation.invariant);
    println!("  {}", violation.text);
    println!("to reproduce: cargo run --release -p sim -- --seed {seed}");
    println!(
        "shortest run found: {:?}, {} events, {} crashes",
        shorter.knobs, shorter.events, shorter.crashes
    );
    println!("the last relevant entries of its history:");
    for line in lines {
        println!("  {line}");
    }
    ExitCode::FAILURE
}
