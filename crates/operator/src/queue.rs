//! The functions to reconcile: each at most once at a time, with a delay that grows after failures.

use crate::cache::Key;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

const DELAY_MIN: Duration = Duration::from_millis(500);
/// No function waits longer after a failure.
const DELAY_MAX: Duration = Duration::from_secs(300);

/// Takes no lock and reads no clock.
#[derive(Default)]
pub struct Queue {
    due: BTreeSet<(Instant, Key)>,
    at: HashMap<Key, Instant>,
    running: HashSet<Key>,
    /// Changed while they were reconciled.
    again: HashSet<Key>,
    failures: HashMap<Key, u32>,
}

impl Queue {
    /// Plans a reconcile at this time, or earlier if one is planned earlier.
    pub fn add(&mut self, key: Key, at: Instant) {
        if self.running.contains(&key) {
            self.again.insert(key);
            return;
        }
        self.plan(key, at);
    }

    fn plan(&mut self, key: Key, at: Instant) {
        if let Some(known) = self.at.get(&key).copied() {
            if known <= at {
                return;
            }
            self.due.remove(&(known, key.clone()));
        }
        self.at.insert(key.clone(), at);
        self.due.insert((at, key));
    }

    /// The next function that is due. It must be given back with [`Queue::done`].
    pub fn take(&mut self, now: Instant) -> Option<Key> {
        let (at, _) = self.due.first()?;
        if *at > now {
            return None;
        }
        let (_, key) = self.due.pop_first()?;
        self.at.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }

    /// When the next function is due.
    pub fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Functions that are due or being reconciled.
    pub fn len(&self, now: Instant) -> usize {
        self.due.iter().take_while(|(at, _)| *at <= now).count() + self.running.len()
    }

    /// A reconcile ended. `wake` is when to look again although nothing changes. `random` spreads retries.
    pub fn done(&mut self, key: Key, result: Outcome, now: Instant, random: u64) -> Option<Duration> {
        self.running.remove(&key);
        let changed = self.again.remove(&key);
        match result {
            Outcome::Done { wake } => {
                self.failures.remove(&key);
                if changed {
                    self.plan(key.clone(), now);
                }
                if let Some(wake) = wake {
                    self.plan(key, now + wake);
                }
                None
            }
            Outcome::Conflict => {
                self.plan(key, now + Duration::from_millis(50 + random % 100));
                None
            }
            Outcome::Failed => {
                let failures = self.failures.entry(key.clone()).or_default();
                *failures = failures.saturating_add(1);
                let delay = delay(*failures, random);
                // A change by a person need not wait for the end of the delay.
                self.plan(key, if changed { now + DELAY_MIN } else { now + delay });
                Some(delay)
            }
            Outcome::Gone => {
                self.failures.remove(&key);
                if changed {
                    self.plan(key, now);
                }
                None
            }
        }
    }

    /// Forgets everything that waits, when the lease is lost.
    pub fn clear(&mut self) {
        self.due.clear();
        self.at.clear();
        self.again.clear();
        self.failures.clear();
    }
}

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done {
        wake: Option<Duration>,
    },
    /// The cache was behind. The watch delivers the newer object soon.
    Conflict,
    Failed,
    Gone,
}

/// Doubles with each failure; up to a third is random.
fn delay(failures: u32, random: u64) -> Duration {
    let doubled = DELAY_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(DELAY_MAX);
    let third_ms = u64::try_from(doubled.as_millis()).unwrap_or(u64::MAX) / 3;
    doubled - Duration::from_millis(random % third_ms.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Kind;

    fn key(name: &str) -> Key {
        Key { kind: Kind::Function, namespace: "n".into(), name: name.into() }
    }

    #[test]
    fn a_function_is_reconciled_once_at_a_time_and_again_after_a_change() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now + Duration::from_secs(9));
        assert_eq!(queue.take(now), None);
        queue.add(key("a"), now);
        assert_eq!(queue.take(now), Some(key("a")));
        queue.add(key("a"), now);
        assert_eq!(queue.take(now), None, "it runs");
        queue.done(key("a"), Outcome::Done { wake: Some(Duration::from_secs(5)) }, now, 0);
        assert_eq!(queue.take(now), Some(key("a")), "it changed meanwhile");
        queue.done(key("a"), Outcome::Done { wake: Some(Duration::from_secs(5)) }, now, 0);
        assert_eq!((queue.take(now), queue.next()), (None, Some(now + Duration::from_secs(5))));
    }

    #[test]
    fn the_delay_after_failures_grows_to_five_minutes_with_jitter() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let mut fail = |random| {
            queue.add(key("a"), now);
            while queue.take(now + DELAY_MAX).is_none() {}
            queue.done(key("a"), Outcome::Failed, now, random).expect("a delay")
        };
        assert_eq!(fail(0), DELAY_MIN);
        assert_eq!(fail(0), DELAY_MIN * 2);
        let delays: Vec<Duration> = (0..20).map(|_| fail(0)).collect();
        assert_eq!(delays.last(), Some(&DELAY_MAX));
        let spread = fail(u64::MAX / 2);
        assert!(spread < DELAY_MAX && spread > DELAY_MAX / 2, "{spread:?}");
    }
}
