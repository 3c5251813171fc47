//! Numbers of replicas. They are never reused, also after a restart, because logs outlive their replicas.
//!
//! A file holds the first free number. It is written once for many numbers, so a restart skips some. It is not synced:
//! after a power failure a number may appear twice in a log.

use std::path::{Path, PathBuf};

/// How many numbers one write reserves.
const RESERVED: u64 = 100;

#[derive(Debug)]
pub struct Numbers {
    file: PathBuf,
    last: u64,
    reserved: u64,
}

impl Numbers {
    /// The folder exists.
    pub fn open(folder: &Path) -> Numbers {
        let file = folder.join("replicas");
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let last = text.trim().parse().unwrap_or(0);
        Numbers { file, last, reserved: last }
    }

    pub fn next(&mut self) -> u64 {
        if self.last == self.reserved {
            self.reserved += RESERVED;
            if let Err(error) = std::fs::write(&self.file, format!("{}\n", self.reserved)) {
                tracing::warn!(%error, "Could not reserve numbers of replicas; logs may show a number twice");
            }
        }
        self.last += 1;
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_used_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut first = Numbers::open(folder.path());
        let used: Vec<u64> = (0..150).map(|_| first.next()).collect();
        assert_eq!(used, (1..=150).collect::<Vec<_>>());
        assert_eq!(Numbers::open(folder.path()).next(), 201);
        assert_eq!(Numbers::open(folder.path()).next(), 301);
    }
}
