//! Detects commands that hang: no output and no CPU use.

use crate::output::Output;
use rustix::process::Pid;
use std::time::{Duration, Instant};

/// CPU time that an idle process may use, in clock ticks.
const IDLE_TICKS: u64 = 5;
/// Number of checks within the stall timeout.
const LOOKS: u32 = 8;
/// Fields of `/proc/PID/stat` after the name: the group, and the CPU times of the process and its ended children.
const GROUP: usize = 2;
const TIMES: std::ops::Range<usize> = 11..15;

#[derive(PartialEq, Eq)]
struct Activity {
    written: u64,
    ticks: Option<u64>,
}

/// Returns when the group has been idle for this long.
pub(crate) async fn stalls(group: Option<Pid>, output: &Output, after: Duration) {
    let see = || Activity { written: output.written(), ticks: group.and_then(ticks) };
    let (mut last, mut since) = (see(), Instant::now());
    loop {
        tokio::time::sleep(after / LOOKS).await;
        let seen = see();
        if !is_idle(&last, &seen) {
            (last, since) = (seen, Instant::now());
        } else if since.elapsed() >= after {
            return;
        }
    }
}

/// A group without readable CPU times counts as working.
fn is_idle(before: &Activity, after: &Activity) -> bool {
    let used = before.ticks.zip(after.ticks).map(|(before, after)| before.abs_diff(after));
    before.written == after.written && used.is_some_and(|used| used <= IDLE_TICKS)
}

fn ticks(group: Pid) -> Option<u64> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let stats = processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    Some(stats.filter_map(|stat| ticks_in(&stat, group)).sum())
}

/// `None` for a process of another group.
fn ticks_in(stat: &str, group: Pid) -> Option<u64> {
    // The name may contain any character, including spaces and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let is_member = fields.get(GROUP)?.parse() == Ok(group.as_raw_nonzero().get());
    let times = fields.get(TIMES).filter(|_| is_member)?;
    times.iter().map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_group_counts_and_a_little_is_nothing() {
        let stat = "7 (a) b) S 1 42 42 0 -1 0 0 0 0 0 10 20 3 4 20 0";
        assert_eq!(ticks_in(stat, Pid::from_raw(42).expect("a pid")), Some(37));
        assert_eq!(ticks_in(stat, Pid::from_raw(41).expect("a pid")), None);
        assert_eq!(ticks_in("7 (a", Pid::from_raw(42).expect("a pid")), None);
        let seen = |written, ticks| Activity { written, ticks };
        assert!(is_idle(&seen(1, Some(10)), &seen(1, Some(15))));
        assert!(!is_idle(&seen(1, Some(10)), &seen(1, Some(16))));
        assert!(!is_idle(&seen(1, Some(10)), &seen(2, Some(10))));
        assert!(!is_idle(&seen(1, None), &seen(1, None)));
    }
}
