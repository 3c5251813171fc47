//! A deployed version and its history.

use crate::fleet::failure::{Failure, Reason};
use crate::fleet::{Restarts, Version};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Deployed {
    pub ordinal: u64,
    pub version: Version,
    /// How long a replica may be silent while it has calls.
    pub silence_max: Duration,
    /// A replica of it has responded at least once.
    pub good: bool,
    /// It is given up until the next retry or deployment.
    pub failed: bool,
    /// The last unexpected end.
    pub trouble: Option<Arc<Failure>>,
    /// Number of ends in a row without a response in between.
    pub ends: u32,
    /// A call seems to have blocked the start of a replica. Until the next response, only replicas that are up receive calls.
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

    /// Records an unexpected end.
    pub fn ended(&mut self, failure: Failure, again: bool, answered: bool, restarts: Restarts, now: Instant) {
        // A version that was up before can start again without the call that may have blocked it.
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

    /// It responded to a request, so any problem is over.
    pub fn answered(&mut self) {
        (self.ends, self.trouble, self.not_before) = (0, None, None);
        self.only_when_up = false;
    }

    /// When a replica may be started.
    pub fn startable(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }

    /// Why a caller is rejected immediately.
    pub fn refusal(&self, now: Instant) -> Option<Arc<Failure>> {
        self.startable(now).filter(|_| self.failed).and(self.trouble.clone())
    }
}
