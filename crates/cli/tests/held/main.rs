//! Memory that strangers can take: the real binary under clients and targets that make it hold what is theirs. Each
//! attack is watched from outside: the memory of the process, and what another producer notices of it.
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
