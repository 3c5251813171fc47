//! The same seed gives the same run, down to the last entry of its history.

use sim::mix::Knobs;
use sim::run::run;

fn small(seed: u64) -> Knobs {
    Knobs { events_max: 400, ..Knobs::of_seed(seed) }
}

#[test]
fn a_seed_decides_everything() {
    for seed in [1, 2, 3] {
        let (first, second) = (run(small(seed)), run(small(seed)));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!((first.events, first.crashes), (second.events, second.crashes), "seed {seed}");
        assert!(first.events > 100, "seed {seed}: {} events", first.events);
    }
}

#[test]
fn another_seed_is_another_run() {
    assert_ne!(run(small(1)).hash, run(small(2)).hash);
}
