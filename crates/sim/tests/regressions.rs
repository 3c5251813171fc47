//! Seeds that once found something, and a few that never did: all must pass.

use sim::mix::Knobs;
use sim::run::run;

fn passes(knobs: Knobs) {
    let outcome = run(knobs);
    if let Some(failed) = &outcome.violation {
        panic!(
            "{knobs:?}: {}: {}\n{}",
            failed.violation.invariant,
            failed.violation.text,
            failed.lines.join("\n")
        );
    }
}

#[test]
fn quick_seeds_pass() {
    for seed in 1..=12 {
        passes(Knobs { events_max: 300, ..Knobs::of_seed(seed) });
    }
}

/// A lane that came in from disk for a duplicate lost its gap timer.
#[test]
fn seed_46_passes() {
    passes(Knobs::of_seed(46));
}

/// Ready lanes that were to leave memory and could stay were not queued again.
#[test]
fn seed_85_passes() {
    passes(Knobs::of_seed(85));
}
