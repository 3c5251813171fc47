//! Checks the engine's report of its memory use for each kind of content.

use sim::checkers::memory::account_holds;

#[test]
fn the_account_of_memory_holds() {
    for seed in 1..=24 {
        if let Err(violation) = account_holds(seed) {
            panic!("seed {seed}: {}", violation.text);
        }
    }
}
