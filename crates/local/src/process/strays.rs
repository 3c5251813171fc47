//! What a process started and what left its group: known by its [`mark`], wherever it went.

use super::{mark, proc};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Between two looks for what is left, and how many there are at most: something may be starting while it is ended.
pub const LOOK_AGAIN: Duration = Duration::from_millis(20);
pub const LOOKS_MAX: u32 = 50;

/// Ends strays of processes that have ended. Those that end at the same time share a walk through `/proc`.
#[derive(Debug, Default)]
pub struct Strays {
    marks: Mutex<Vec<String>>,
    turn: tokio::sync::Mutex<()>,
}

impl Strays {
    /// Returns when none with this mark is left.
    pub async fn end(&self, mark: String) {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).push(mark);
        let _turn = self.turn.lock().await;
        // If ours is not among them, it was in the walk before, which began after it was noted.
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

/// Kills all that have one of these marks, and says how many.
pub fn kill_marked(marks: &[String]) -> usize {
    let marked = proc::pids().into_iter().filter(|pid| mark::is_on(*pid, marks));
    marked.filter_map(|pid| kill_process(Pid::from_raw(pid)?, Signal::KILL).ok()).count()
}
