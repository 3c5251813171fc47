//! Files that other hands change while we run: secrets and certificates.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, SystemTime};

/// Tells whether any of some files changed since it was last asked, looking at most once per interval.
#[derive(Debug)]
pub struct Watch {
    paths: Vec<String>,
    stamps: Vec<Option<Stamp>>,
    looked: Option<Instant>,
}

/// The inode too: a renamed file may be as old and as long as the one it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Watch {
    pub fn new(paths: Vec<String>) -> Watch {
        Watch { paths, stamps: Vec::new(), looked: None }
    }

    /// True the first time, and whenever a file changed, came or went.
    pub fn changed(&mut self, interval: Duration) -> bool {
        if self.looked.is_some_and(|looked| looked.elapsed() < interval) {
            return false;
        }
        let stamps: Vec<_> = self.paths.iter().map(|path| stamp(path).ok()).collect();
        let first = self.looked.replace(Instant::now()).is_none();
        let changed = first || stamps != self.stamps;
        self.stamps = stamps;
        changed
    }

    /// What was read could not be used: the next look finds it changed.
    pub fn forget(&mut self) {
        self.looked = None;
    }
}

fn stamp(path: &str) -> io::Result<Stamp> {
    let metadata = fs::metadata(path)?;
    Ok(Stamp { modified: metadata.modified().ok(), length: metadata.len(), inode: metadata.ino() })
}
