//! Tests the checkers: selects a planted bug by its number and verifies that a checker detects it.

use crate::checkers::Violation;
use crate::many::Many;
use crate::mix::Knobs;
use crate::run::run;
use klambda_core::planted;
use std::process::ExitCode;

/// Plants one bug, or each bug in turn, and runs seeds until a checker detects it.
pub fn hunt(only: Option<u32>, from: u64, seeds: u64, jobs: usize) -> ExitCode {
    let mut missed = 0;
    let chosen: Vec<_> = planted::ALL.iter().filter(|bug| only.is_none_or(|only| only == bug.0)).collect();
    for (number, name, _) in &chosen {
        match catch(*number, from, seeds, jobs) {
            Some(Caught { seed, violation, runs }) => {
                let Violation { invariant, text, .. } = violation;
                println!("bug {number} {name}: caught by {invariant} at seed {seed} after {runs} seeds");
                if only.is_some() {
                    println!("  {text}");
                }
            }
            None => {
                missed += 1;
                println!("bug {number} {name}: NOT CAUGHT in {seeds} seeds");
            }
        }
    }
    println!("{} bugs planted, {} caught", chosen.len(), chosen.len() - missed);
    if missed == 0 && !chosen.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Caught {
    seed: u64,
    violation: Violation,
    runs: u64,
}

/// Ignores a seed that also fails without the bug, because it proves nothing about the bug.
fn catch(number: u32, from: u64, seeds: u64, jobs: usize) -> Option<Caught> {
    let (mut next, end, mut runs) = (from, from.saturating_add(seeds), 0);
    while next < end {
        planted::select(number);
        let many = Many::new(next, end - next, 0);
        many.run(jobs);
        planted::select(0);
        runs += many.total().seeds;
        let outcome = many.take_failed()?;
        let seed = outcome.knobs.seed;
        if run(Knobs::of_seed(seed)).violation.is_none() {
            return outcome.violation.map(|failed| Caught { seed, violation: failed.violation, runs });
        }
        println!("seed {seed} fails without a bug");
        next = seed + 1;
    }
    None
}
