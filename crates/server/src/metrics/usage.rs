//! Resource usage of this process, read from the kernel.

pub struct Usage {
    pub memory_bytes: u64,
    pub cpu_seconds: f64,
    /// In seconds since 1970.
    pub started_at: f64,
}

/// Fields of `/proc/self/stat` after the name: user time, kernel time, start time since boot and resident pages.
const USER: usize = 11;
const KERNEL: usize = 12;
const STARTED: usize = 19;
const RESIDENT: usize = 21;

pub fn read() -> Option<Usage> {
    parse(&std::fs::read_to_string("/proc/self/stat").ok()?, booted_at()?)
}

/// In seconds since 1970.
fn booted_at() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

pub fn open_files() -> Option<usize> {
    // One of them is the folder that is being read.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

fn parse(stat: &str, booted_at: u64) -> Option<Usage> {
    // The name may contain any character, including spaces and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let number = |at: usize| fields.get(at)?.trim().parse::<u64>().ok();
    let seconds = |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Some(Usage {
        memory_bytes: number(RESIDENT)? * rustix::param::page_size() as u64,
        cpu_seconds: seconds(number(USER)? + number(KERNEL)?),
        started_at: booted_at as f64 + seconds(number(STARTED)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_of_the_kernel() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 100 50 0 0 20 0 1 0 4711 1000 33 0";
        let usage = parse(line, 1000).unwrap();
        assert_eq!(usage.memory_bytes, 33 * rustix::param::page_size() as u64);
        assert!((usage.cpu_seconds * rustix::param::clock_ticks_per_second() as f64 - 150.0).abs() < 1e-6);
        let started = 1000.0 + 4711.0 / rustix::param::clock_ticks_per_second() as f64;
        assert!((usage.started_at - started).abs() < 1e-6);
        assert!(read().unwrap().memory_bytes > 0);
        assert!(open_files().unwrap() > 2);
    }
}
