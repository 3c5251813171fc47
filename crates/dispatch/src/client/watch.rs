//! Detects changes of files such as secrets and certificates.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, SystemTime};

/// Reports whether any of the files changed since the last call. Checks at most once per interval.
#[derive(Debug)]
pub struct Watch {
    paths: Vec<String>,
    stamps: Vec<Option<Stamp>>,
    looked: Option<Instant>,
}

/// Includes the inode, because a file that replaces another may have the same time and length.
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

    /// True on the first call, and whenever a file was changed, created or deleted.
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

    /// Called when the content could not be used, so that the next check reports a change.
    pub fn forget(&mut self) {
        self.looked = None;
    }
}

fn stamp(path: &str) -> io::Result<Stamp> {
    let metadata = fs::metadata(path)?;
    Ok(Stamp { modified: metadata.modified().ok(), length: metadata.len(), inode: metadata.ino() })
}
