//! Reads `/proc`.

use std::fs;

/// The used fields of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    /// In ticks since boot. Together with the pid it identifies a process.
    pub started: u64,
    pub resident_pages: u64,
}

pub fn stat(pid: i32) -> Option<Stat> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name is in parentheses and may contain any character, so fields are counted from the last parenthesis.
fn parse(pid: i32, line: &str) -> Option<Stat> {
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    Some(Stat {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        resident_pages: fields.get(21)?.parse().ok()?,
    })
}

/// Whether it is a zombie.
pub fn has_ended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

pub fn all() -> Vec<Stat> {
    pids().into_iter().filter_map(stat).collect()
}

pub fn pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Identifies the current boot of the machine.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Resident pages of a process and all its descendants, by group and by parent.
pub fn resident_pages(leader: i32, all: &[Stat]) -> u64 {
    let mut members: Vec<i32> = all.iter().filter(|stat| stat.group == leader).map(|stat| stat.pid).collect();
    let mut next = 0;
    while let Some(&member) = members.get(next) {
        next += 1;
        let children = all.iter().filter(|stat| stat.parent == member).map(|stat| stat.pid);
        let unknown: Vec<i32> = children.filter(|child| !members.contains(child)).collect();
        members.extend(unknown);
    }
    all.iter().filter(|stat| members.contains(&stat.pid)).map(|stat| stat.resident_pages).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1000 33 0";
        let expected = Stat { pid: 7, parent: 1, group: 7, started: 4711, resident_pages: 33 };
        assert_eq!(parse(7, line), Some(expected));
        let own = stat(std::process::id() as i32).unwrap();
        assert!(own.started > 0 && own.resident_pages > 0);
    }

    #[test]
    fn memory_is_that_of_the_whole_tree() {
        let stat = |pid, parent, group| Stat { pid, parent, group, started: 0, resident_pages: 1 };
        let all = [stat(10, 1, 10), stat(11, 10, 10), stat(12, 11, 12), stat(13, 1, 10), stat(14, 1, 14)];
        assert_eq!(resident_pages(10, &all), 4);
    }
}
