//! Descendants that left the process group, recognized by their [`mark`].

use super::{mark, proc};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Delay between two searches, and the maximum number of searches: a process may start others while it is killed.
pub const LOOK_AGAIN: Duration = Duration::from_millis(20);
pub const LOOKS_MAX: u32 = 50;

/// Kills strays of processes that have ended. Processes that end at the same time share a scan of `/proc`.
#[derive(Debug, Default)]
pub struct Strays {
    marks: Mutex<Vec<String>>,
    turn: tokio::sync::Mutex<()>,
}

impl Strays {
    /// Returns when no process with this mark is left.
    pub async fn end(&self, mark: String) {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).push(mark);
        let _turn = self.turn.lock().await;
        // If our mark is not in the list, the previous scan handled it: that scan began after the mark was added.
        let marks = std::mem::take(&mut *self.marks.lock().unwrap_or_else(PoisonError::into_inner));
        if !marks.is_empty() {
            let _ = tokio::task::spawn_blocking(move || end_all(&marks)).await;
        }
    }
}

pub fn end_all(marks: &[String]) {
    for _ in 0..LOOKS_MAX {
        if kill_marked(marks) == 0 {
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Kills all processes with one of these marks, and returns their number.
pub fn kill_marked(marks: &[String]) -> usize {
    let marked = proc::pids().into_iter().filter(|pid| mark::is_on(*pid, marks));
    marked.filter_map(|pid| kill_process(Pid::from_raw(pid)?, Signal::KILL).ok()).count()
}
