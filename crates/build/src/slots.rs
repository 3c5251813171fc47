//! Limits concurrent work. Waiting work is reported, because the time in the queue must not count toward timeouts.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The progress that is reported to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits, with this many ahead of it.
    Waits { before: usize },
    /// It starts, and its timeout begins to count.
    Begins,
}

pub type OnStage<'a> = &'a (dyn Fn(Stage) + Send + Sync);

/// Slots are granted in order of arrival.
#[derive(Debug)]
pub struct Slots {
    free: Semaphore,
    waiting: AtomicUsize,
}

/// Counts as waiting until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Slots {
    pub fn new(count: usize) -> Slots {
        Slots { free: Semaphore::new(count.max(1)), waiting: AtomicUsize::new(0) }
    }

    /// `None` if the semaphore is closed.
    pub async fn take(&self, on_stage: OnStage<'_>) -> Option<SemaphorePermit<'_>> {
        let slot = match self.free.try_acquire() {
            Ok(slot) => slot,
            Err(_) => {
                let before = self.waiting.fetch_add(1, Ordering::Relaxed);
                let _waiting = Waiting(&self.waiting);
                on_stage(Stage::Waits { before });
                self.free.acquire().await.ok()?
            }
        };
        on_stage(Stage::Begins);
        Some(slot)
    }

    /// Number of waiters.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}
