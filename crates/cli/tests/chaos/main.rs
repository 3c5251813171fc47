//! The real binary among real troubles: killed, stopped, on a disk that fills up or fails, with targets that die.
//! The answers to producers and the calls of the target are recorded outside of it, and only `history` judges them.
//!
//! `KLAMBDA_BIN` names the binary, if not the one that was built with these tests. `KLAMBDA_SEED` repeats the choices
//! of a run. `KLAMBDA_CHAOS=long` tries every k-th failure of 1 to 200 and ten times the kills.

#[path = "../support/mod.rs"]
mod support;

mod full_disk;
mod history;
mod io_errors;
mod kills;
#[cfg(feature = "planted")]
mod panics;
mod pauses;
mod producer;
mod random;
mod target;
mod victim;

use std::io::Write as _;

fn is_long() -> bool {
    std::env::var("KLAMBDA_CHAOS").is_ok_and(|value| value == "long")
}

/// The summary of a harness in one line: printed, and written to the file named by `KLAMBDA_SUMMARY`.
fn summarize(line: &str) {
    println!("{line}");
    if let Some(path) = std::env::var_os("KLAMBDA_SUMMARY") {
        let mut file = std::fs::File::options().create(true).append(true).open(path).expect("the summary");
        file.write_all(format!("{line}\n").as_bytes()).expect("written");
    }
}
