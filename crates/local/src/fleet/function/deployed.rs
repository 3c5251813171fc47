//! A version that was deployed, and how it has fared.

use crate::fleet::failure::{Failure, Reason};
use crate::fleet::{Restarts, Version};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Deployed {
    pub ordinal: u64,
    pub version: Version,
    /// How long a replica of it may be silent while it has calls.
    pub silence_max: Duration,
    /// A replica of it has answered, now or once.
    pub good: bool,
    /// It is given up, until it is tried again or something else is deployed.
    pub failed: bool,
    /// The last end that nobody had asked for.
    pub trouble: Option<Arc<Failure>>,
    /// Ends in a row without an answer between them.
    pub ends: u32,
    /// A call kept a replica from starting, it seems: until an answer, calls are given only to those that are up.
    pub only_when_up: bool,
    first_end: Instant,
    pub not_before: Option<Instant>,
}

impl Deployed {
    pub fn new(ordinal: u64, version: Version, good: bool, silence_max: Duration, now: Instant) -> Deployed {
        Deployed {
            ordinal,
            version,
            silence_max,
            good,
            failed: false,
            trouble: None,
            ends: 0,
            only_when_up: false,
            first_end: now,
            not_before: None,
        }
    }

    /// Nobody had asked for this end.
    pub fn ended(&mut self, failure: Failure, again: bool, answered: bool, restarts: Restarts, now: Instant) {
        // What has been up before can be again, without the call that may have kept this one from it.
        let kept_from_it = self.good && failure.reason == Reason::NeverAnswered;
        let again = again || kept_from_it;
        self.only_when_up |= kept_from_it;
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
        self.only_when_up = false;
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
