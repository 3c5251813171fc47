//! Processes that others start, such as the commands of builds: marked, noted and ended as those of functions are.

use super::leftovers::Records;
use super::mark;
use super::strays::end_all;
use std::sync::Arc;

/// Gives marks. A clone is the same one.
#[derive(Clone, Debug)]
pub struct Tender {
    records: Arc<Records>,
}

/// A process and all it starts. What is left of it is ended when this is told so, or by the watcher of this program.
#[derive(Debug)]
pub struct Tended {
    records: Arc<Records>,
    word: String,
    pid: Option<i32>,
}

impl Tender {
    pub(super) fn new(records: Arc<Records>) -> Tender {
        Tender { records }
    }

    pub fn tend(&self) -> Tended {
        Tended { records: self.records.clone(), word: self.records.new_name(), pid: None }
    }
}

impl Tended {
    /// A variable for the environment of the process, by which the helper marks it.
    pub fn variable(&self) -> (&'static str, &str) {
        (mark::VARIABLE, &self.word)
    }

    pub fn started(&mut self, pid: i32) {
        if let Err(error) = self.records.add(pid, &self.word, None) {
            tracing::warn!(%error, "Could not note a process; the next start will not end what it leaves.");
        }
        self.pid = Some(pid);
    }

    /// Ends what is left of it. Blocks while it looks.
    pub fn end(self) {
        end_all(std::slice::from_ref(&self.word));
        if let Some(pid) = self.pid {
            self.records.remove(pid);
        }
    }
}
