//! The checkers are checked: a bug is planted, chosen by its number, and must be caught.

use crate::many::Many;
use klambda_core::planted;
use std::process::ExitCode;

/// Plants one bug, or each in turn, and runs seeds until it is caught.
pub fn hunt(only: Option<u32>, from: u64, seeds: u64, jobs: usize) -> ExitCode {
    let mut missed = 0;
    let chosen: Vec<_> = planted::ALL.iter().filter(|bug| only.is_none_or(|only| only == bug.0)).collect();
    for (number, name, _) in &chosen {
        planted::select(*number);
        let many = Many::new(from, seeds, 0);
        many.run(jobs);
        match many.take_failed() {
            Some(outcome) => {
                let (seed, runs) = (outcome.knobs.seed, many.total().seeds);
                let invariant = outcome.violation.map_or("", |failed| failed.violation.invariant);
                println!("bug {number} {name}: caught by {invariant} at seed {seed} after {runs} seeds");
            }
            None => {
                missed += 1;
                println!("bug {number} {name}: NOT CAUGHT in {seeds} seeds");
            }
        }
    }
    planted::select(0);
    println!("{} bugs planted, {} caught", chosen.len(), chosen.len() - missed);
    if missed == 0 && !chosen.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
