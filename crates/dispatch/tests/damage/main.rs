//! A real data folder after a power cut, and with damage.
//!
//! An engine works on a real folder under load. An image in memory follows every write, sync and rename. So at any
//! moment all states that a power cut could leave can be tried, and any byte of any file can be damaged. Each time,
//! the folder is opened and drained to the last event, and every delivered event is compared byte for byte.
//!
//! `KLAMBDA_CHAOS=long` runs twenty times as many cases; `KLAMBDA_SEED` repeats a run.

mod cut;
mod flips;
mod load;
mod mirror;
mod verdict;

use std::io::Write as _;

/// The number of cases, or twenty times as many in the long version.
fn times(n: usize) -> usize {
    if std::env::var("KLAMBDA_CHAOS").is_ok_and(|value| value == "long") { 20 * n } else { n }
}

fn seed() -> u64 {
    let given =
        std::env::var("KLAMBDA_SEED").ok().map(|text| text.parse().expect("KLAMBDA_SEED is a number"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = given.unwrap_or(now.as_millis() as u64);
    println!("KLAMBDA_SEED={seed}");
    seed
}

/// Prints the summary line, and appends it to the file named by `KLAMBDA_SUMMARY`.
fn summarize(line: &str) {
    println!("{line}");
    if let Some(path) = std::env::var_os("KLAMBDA_SUMMARY") {
        let mut file = std::fs::File::options().create(true).append(true).open(path).expect("the summary");
        file.write_all(format!("{line}\n").as_bytes()).expect("written");
    }
}
