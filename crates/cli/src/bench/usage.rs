//! CPU time and memory of a process, as counted by the kernel.

use std::fs;

use anyhow::Context;

/// The unit of `/proc/PID/stat`: USER_HZ, which Linux fixes at 100 for programs.
const MICROS_PER_TICK: u64 = 10_000;

/// User and system time since the process started.
pub fn cpu_us(pid: u32) -> anyhow::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("a process has ended")?;
    let after_name = stat.rsplit_once(')').context("/proc/PID/stat has no name")?.1;
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    let ticks = |index: usize| -> anyhow::Result<u64> {
        Ok(fields.get(index).context("/proc/PID/stat is short")?.parse()?)
    };
    Ok((ticks(11)? + ticks(12)?) * MICROS_PER_TICK)
}

/// The most memory the process has held so far.
pub fn rss_max_kib(pid: u32) -> anyhow::Result<u64> {
    status_kib(pid, "VmHWM:")
}

/// The memory the process holds now.
pub fn rss_kib(pid: u32) -> anyhow::Result<u64> {
    status_kib(pid, "VmRSS:")
}

fn status_kib(pid: u32, field: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("a process has ended")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(field)).with_context(|| format!("no {field}"))?;
    let number = line.split_ascii_whitespace().next().context("an empty field")?;
    Ok(number.parse()?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_has_a_cost() {
        let pid = std::process::id();
        super::cpu_us(pid).expect("CPU time");
        let now = super::rss_kib(pid).expect("memory");
        assert!(now > 100 && super::rss_max_kib(pid).expect("memory") >= now);
    }
}
