//! The output of functions and builds. The newest lines of each function are in memory, for followers and for messages
//! about failures ([`ring`]). All lines go to files, within limits of size and age ([`files`]).
//!
//! One thread writes the files ([`writer`]). Nobody waits for it: lines pass through a queue with a limit in bytes, and a
//! line that does not fit, or that the disk refuses, is dropped and counted. Nothing is synced. A written line survives the
//! end of this program, but not necessarily a power failure.

mod files;
mod reading;
mod ring;
mod writer;

pub use files::Limits;
pub use klambda_functions::logs::{Build, Line, Stream};
pub use ring::{Bounds, Follower, Logs, Printer};

use klambda_crash::{Guard, Lock};
use klambda_functions::logs::Query;
use klambda_functions::platform;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use writer::Queue;

/// Time limit for waiting until the queue is written.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);

/// The logs of all functions. Clones share them.
#[derive(Clone, Debug)]
pub struct LogStore {
    bounds: Bounds,
    functions: Arc<Lock<HashMap<Arc<str>, Arc<Logs>>>>,
    queue: Option<Arc<Queue>>,
}

impl LogStore {
    /// Keeps no files.
    pub fn in_memory(bounds: Bounds) -> LogStore {
        LogStore { bounds, functions: Arc::default(), queue: None }
    }

    /// Removes the logs of functions that are not `known`, which are written as `namespace/name`.
    pub fn open(folder: PathBuf, limits: Limits, known: HashSet<PathBuf>) -> io::Result<LogStore> {
        let queue = Some(Arc::new(writer::start(folder, limits, known)?));
        Ok(LogStore { queue, ..LogStore::in_memory(Bounds::default()) })
    }

    /// The log of a function, `namespace/name`.
    pub fn of(&self, function: &str) -> Arc<Logs> {
        let mut functions = self.lock();
        if let Some(logs) = functions.get(function).filter(|logs| !logs.is_closed()) {
            return logs.clone();
        }
        let name: Arc<str> = function.into();
        let logs = Arc::new(Logs::new(name.clone(), self.bounds, self.queue.clone()));
        functions.insert(name, logs.clone());
        logs
    }

    /// `live` are the running replicas of the function.
    pub fn read(&self, function: &str, query: Query, live: Vec<u64>) -> Box<dyn platform::Logs> {
        Box::new(reading::Reading::new(self.of(function), query, live))
    }

    /// The function is deleted: ends its followers and removes its files.
    pub fn forget(&self, function: &str) {
        if let Some(logs) = self.lock().remove(function) {
            logs.close();
        }
        if let Some(queue) = &self.queue {
            queue.forget(function.into());
        }
    }

    /// Lines that are not on disk since the start.
    pub fn dropped(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.dropped())
    }

    /// Waits until all lines so far are written. Blocks.
    pub fn settle(&self) {
        if let Some(queue) = &self.queue {
            queue.settle(SETTLE_WITHIN);
        }
    }

    fn lock(&self) -> Guard<'_, HashMap<Arc<str>, Arc<Logs>>> {
        self.functions.lock()
    }
}

#[cfg(test)]
mod tests;
