//! Short seeds for unoptimized builds. `cargo run --release -p sim` runs complete seeds.

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
