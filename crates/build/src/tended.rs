//! Marks the commands of a build, so that the processes they leave behind can be found and killed.

use std::fmt;
use std::sync::Arc;

/// Watches over one command.
pub trait Tended: Send {
    /// Goes into the command's environment.
    fn variable(&self) -> (&'static str, &str);
    fn started(&mut self, pid: i32);
    /// Ends what the command left. May block.
    fn end(self: Box<Self>);
}

/// Begins to watch over a command that is to be started.
#[derive(Clone)]
pub struct Tender(pub Arc<dyn Fn() -> Box<dyn Tended> + Send + Sync>);

impl fmt::Debug for Tender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tender")
    }
}
