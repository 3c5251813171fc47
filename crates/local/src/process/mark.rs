//! Marks a process and all its descendants: with a word in the environment, and with a number that survives a cleared
//! environment.
//!
//! The number is the limit on file locks, `RLIMIT_LOCKS`. Linux has not used this limit since 2.4, but every process
//! inherits it, keeps it across `exec`, and shows it in `/proc`. Leaving the group, the session or the parent does not
//! change it. Only a process that may raise its limits can.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs;

/// In the environment of every process, with a unique word.
pub const VARIABLE: &str = "KLAMBDA_REPLICA";
const LIMIT_LINE: &str = "Max file locks";

/// The number of a word: FNV-1a, lower than any value that could be a real limit.
pub fn number(word: &str) -> u64 {
    let hash = word.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash >> 2) | (1 << 61)
}

/// Marks this process and its future children. A lower mark that is already set stays.
pub fn take(word: &str) {
    let number = Some(number(word));
    let _ = setrlimit(Resource::Locks, Rlimit { current: number, maximum: number });
}

/// Whether a process has one of these words or their numbers.
pub fn is_on(pid: i32, words: &[String]) -> bool {
    is_in_environment(pid, words) || is_in_limits(pid, words)
}

/// A zombie has no environment.
fn is_in_environment(pid: i32, words: &[String]) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| {
        let word = variable.strip_prefix(VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        word.is_some_and(|word| words.iter().any(|known| known.as_bytes() == word))
    })
}

fn is_in_limits(pid: i32, words: &[String]) -> bool {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    // A zombie still has limits, but need not be killed.
    let ended = || super::proc::has_ended(pid);
    hard_limit(&limits).is_some_and(|limit| words.iter().any(|word| number(word) == limit)) && !ended()
}

fn hard_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(LIMIT_LINE))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_read_where_the_kernel_writes_it() {
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax file locks            7   4711   locks     \n";
        assert_eq!(hard_limit(limits), Some(4711));
        assert_eq!(
            hard_limit("Max file locks            unlimited            unlimited            locks\n"),
            None
        );
        assert_ne!(number("klambda-1-2-3"), number("klambda-1-2-4"));
    }
}
