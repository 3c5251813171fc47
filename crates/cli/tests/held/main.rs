//! Memory that clients and targets can occupy in the real binary. Each attack is observed from outside: the memory of the
//! process, and the latency of another producer.
//!
//! `KLAMBDA_BIN` names the binary, if not the one that was built with these tests. `KLAMBDA_HELD=long` makes the attacks
//! as large as they were when they were found, and expects the latency of a release build.

#[path = "../support/mod.rs"]
mod support;

mod attacks;
mod victim;

fn is_long() -> bool {
    std::env::var("KLAMBDA_HELD").is_ok_and(|value| value == "long")
}
