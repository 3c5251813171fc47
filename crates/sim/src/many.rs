//! Runs many seeds on several threads. Each run uses one thread; only the assignment of seeds to threads is not
//! deterministic.

use crate::found::FOUND;
use crate::mix::Knobs;
use crate::run::{RunOutcome, run};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    pub seeds: u64,
    pub events: u64,
    pub requests: u64,
    pub crashes: u64,
}

pub struct Many {
    next: AtomicU64,
    end: u64,
    /// Seeds to run before the others.
    first: &'static [(u64, &'static str)],
    next_first: AtomicUsize,
    /// Troubles that are disabled in every seed, as bits.
    without: u32,
    stop: AtomicBool,
    total: Mutex<Total>,
    failed: Mutex<Option<RunOutcome>>,
}

impl Many {
    /// `count` seeds, starting with `from`.
    pub fn new(from: u64, count: u64, without: u32) -> Many {
        Many {
            next: AtomicU64::new(from),
            end: from.saturating_add(count),
            first: &[],
            next_first: AtomicUsize::new(0),
            without,
            stop: AtomicBool::new(false),
            total: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// Runs the regression seeds first.
    pub fn with_found(self) -> Many {
        Many { first: FOUND, ..self }
    }

    fn next_seed(&self) -> Option<u64> {
        let first = self.first.get(self.next_first.fetch_add(1, Ordering::Relaxed));
        if let Some((seed, _)) = first {
            return Some(*seed);
        }
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return None;
            }
            if self.first.iter().all(|(first, _)| *first != seed) {
                return Some(seed);
            }
        }
    }

    /// Runs until all seeds are done, one fails, or `stop` is called.
    pub fn run(&self, jobs: usize) {
        std::thread::scope(|scope| {
            for _ in 0..jobs.max(1) {
                scope.spawn(|| self.work());
            }
        });
    }

    fn work(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let Some(seed) = self.next_seed() else { return };
            let outcome = run(Knobs { without: self.without, ..Knobs::of_seed(seed) });
            self.count(&outcome);
            if outcome.violation.is_some() {
                self.stop();
                let mut failed = self.failed.lock().expect("no thread panics while it holds the lock");
                if failed.as_ref().is_none_or(|other| other.knobs.seed > seed) {
                    *failed = Some(outcome);
                }
            }
        }
    }

    fn count(&self, outcome: &RunOutcome) {
        let mut total = self.total.lock().expect("no thread panics while it holds the lock");
        total.seeds += 1;
        total.events += outcome.events;
        total.requests += outcome.requests;
        total.crashes += outcome.crashes;
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn total(&self) -> Total {
        *self.total.lock().expect("no thread panics while it holds the lock")
    }

    /// The outcome of the lowest seed that failed.
    pub fn take_failed(&self) -> Option<RunOutcome> {
        self.failed.lock().expect("no thread panics while it holds the lock").take()
    }
}
