//! Work that only so many do at the same time. Who waits is told so, since time that was only waited is nobody's fault.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};

/// What whoever asked is told of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits, with so many before it.
    Waits { before: usize },
    /// Its time begins to count.
    Begins,
}

pub type Told<'a> = &'a (dyn Fn(Stage) + Send + Sync);

/// Given out in the order of coming.
#[derive(Debug)]
pub struct Slots {
    free: Semaphore,
    waiting: AtomicUsize,
}

/// Counted for as long as it lives.
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

    /// None when there will be none any more.
    pub async fn take(&self, told: Told<'_>) -> Option<SemaphorePermit<'_>> {
        let slot = match self.free.try_acquire() {
            Ok(slot) => slot,
            Err(_) => {
                let before = self.waiting.fetch_add(1, Ordering::Relaxed);
                let _waiting = Waiting(&self.waiting);
                told(Stage::Waits { before });
                self.free.acquire().await.ok()?
            }
        };
        told(Stage::Begins);
        Some(slot)
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}
