//! Marks the commands of a build, so that the processes they leave behind can be found and killed.

use std::fmt;
use std::sync::Arc;

/// Tracks one command.
pub trait TrackedProcess: Send {
    /// An environment variable for the command.
    fn variable(&self) -> (&'static str, &str);
    fn started(&mut self, pid: i32);
    /// Kills processes that the command left behind. May block.
    fn end(self: Box<Self>);
}

/// Starts tracking a command before it is started.
#[derive(Clone)]
pub struct ProcessTracker(pub Arc<dyn Fn() -> Box<dyn TrackedProcess> + Send + Sync>);

impl fmt::Debug for ProcessTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessTracker")
    }
}
