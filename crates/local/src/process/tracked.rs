//! Processes that other code starts, such as build commands: marked, recorded and killed like those of functions.

use super::leftovers::Records;
use super::mark;
use super::strays::end_all;
use std::sync::Arc;

/// Hands out marks. Clones share the same records.
#[derive(Clone, Debug)]
pub struct ProcessTracker {
    records: Arc<Records>,
}

/// A process and its descendants. `end` kills what is left of them; otherwise the watcher of this program does.
#[derive(Debug)]
pub struct TrackedProcess {
    records: Arc<Records>,
    word: String,
    pid: Option<i32>,
}

impl ProcessTracker {
    pub(super) fn new(records: Arc<Records>) -> ProcessTracker {
        ProcessTracker { records }
    }

    pub fn track(&self) -> TrackedProcess {
        TrackedProcess { records: self.records.clone(), word: self.records.new_name(), pid: None }
    }
}

impl TrackedProcess {
    /// An environment variable for the process, by which the helper marks it.
    pub fn variable(&self) -> (&'static str, &str) {
        (mark::VARIABLE, &self.word)
    }

    pub fn started(&mut self, pid: i32) {
        if let Err(error) = self.records.add(pid, &self.word, None) {
            tracing::warn!(%error, "Could not record a process; the next start would not kill it if it survives");
        }
        self.pid = Some(pid);
    }

    /// Kills what is left. Blocks while it searches.
    pub fn end(self) {
        end_all(std::slice::from_ref(&self.word));
        if let Some(pid) = self.pid {
            self.records.remove(pid);
        }
    }
}
