//! What this process uses, by what the kernel says of it.

pub struct Usage {
    pub memory_bytes: u64,
    pub cpu_seconds: f64,
}

/// Fields of `/proc/self/stat` after the name: time in user and in kernel mode, and resident pages.
const USER: usize = 11;
const KERNEL: usize = 12;
const RESIDENT: usize = 21;

pub fn read() -> Option<Usage> {
    parse(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

fn parse(stat: &str) -> Option<Usage> {
    // The name may hold anything, spaces and brackets too.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let number = |at: usize| fields.get(at)?.trim().parse::<u64>().ok();
    let ticks = (number(USER)? + number(KERNEL)?) as f64;
    Some(Usage {
        memory_bytes: number(RESIDENT)? * rustix::param::page_size() as u64,
        cpu_seconds: ticks / rustix::param::clock_ticks_per_second() as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_of_the_kernel() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 100 50 0 0 20 0 1 0 4711 1000 33 0";
        let usage = parse(line).unwrap();
        assert_eq!(usage.memory_bytes, 33 * rustix::param::page_size() as u64);
        assert!((usage.cpu_seconds * rustix::param::clock_ticks_per_second() as f64 - 150.0).abs() < 1e-6);
        assert!(read().unwrap().memory_bytes > 0);
    }
}
