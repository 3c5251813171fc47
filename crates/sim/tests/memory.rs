//! What the engine says of its memory, for each kind of thing that it holds.

use sim::checkers::memory::account_holds;

#[test]
fn the_account_of_memory_holds() {
    for seed in 1..=24 {
        if let Err(violation) = account_holds(seed) {
            panic!("seed {seed}: {}", violation.text);
        }
    }
}
