//! A version that was deployed, and how it has fared.

use crate::fleet::failure::Failure;
use crate::fleet::{Restarts, Version};
use std::sync::Arc;
use std::time::Instant;

pub struct Deployed {
    pub ordinal: u64,
    pub version: Version,
    /// A replica of it has answered, now or once.
    pub good: bool,
    /// It is given up, until it is tried again or something else is deployed.
    pub failed: bool,
    /// The last end that nobody had asked for.
    pub trouble: Option<Arc<Failure>>,
    /// Ends in a row without an answer between them.
    pub ends: u32,
    first_end: Instant,
    pub not_before: Option<Instant>,
}

impl Deployed {
    pub fn new(ordinal: u64, version: Version, good: bool, now: Instant) -> Deployed {
        let (trouble, not_before) = (None, None);
        Deployed { ordinal, version, good, failed: false, trouble, ends: 0, first_end: now, not_before }
    }

    /// Nobody had asked for this end.
    pub fn ended(&mut self, failure: Failure, again: bool, answered: bool, restarts: Restarts, now: Instant) {
        if answered || self.ends == 0 || now.duration_since(self.first_end) > restarts.loop_within {
            (self.ends, self.first_end) = (0, now);
        }
        self.ends += 1;
        self.failed = !again || self.ends >= restarts.loop_ends;
        let delay = match self.failed {
            true => restarts.retry,
            false => restarts.backoff.saturating_mul(1 << (self.ends - 1).min(16)).min(restarts.backoff_max),
        };
        self.not_before = Some(now + delay);
        let in_a_loop = self.failed && again;
        self.trouble = Some(Arc::new(if in_a_loop { failure.in_a_loop(self.ends) } else { failure }));
    }

    /// It answered a request: whatever was wrong is over.
    pub fn answered(&mut self) {
        (self.ends, self.trouble, self.not_before) = (0, None, None);
    }

    /// When a replica may be started.
    pub fn startable(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }

    /// Why a caller need not wait.
    pub fn refusal(&self, now: Instant) -> Option<Arc<Failure>> {
        self.startable(now).filter(|_| self.failed).and(self.trouble.clone())
    }
}
