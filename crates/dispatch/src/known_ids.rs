//! How long ids are remembered after delivery, and how many.
//!
//! A mark is written when its event is accepted, and a prompt delivery writes no second one: a mark lives a tenth
//! longer than its window, so the window still counts from the delivery. Only a later delivery renews the mark.
//!
//! Marks of events that are no longer pending are counted in groups by age, which is the address of the record that
//! wrote the mark. When there are too many, the oldest group is forgotten: a mark from before the first group counts
//! only if its event is still pending. Tables that contain only such marks are deleted later.

use crate::engine::{Engine, Failure};
use klambda_core::ids::SubscriptionId;
use klambda_core::lane::Entry;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::marks::{Mark, State};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A mark outlives its window by one part in this many.
const EXTRA: u64 = 10;
/// A group starts with one part in this many of all kept marks, and may grow to three times that size.
const GROUPS: u64 = 40;

/// The lifetime of a mark with this window.
pub(crate) fn life_ms(window_ms: u64) -> u64 {
    window_ms + window_ms / EXTRA
}

/// Marks of events that are no longer pending, counted by age.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KnownIds {
    /// Oldest first, at least one.
    groups: VecDeque<Group>,
    total: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Group {
    /// Marks from this address on, up to the next group.
    from: LogAddress,
    since: Millis,
    count: u64,
}

impl Default for KnownIds {
    fn default() -> KnownIds {
        KnownIds { groups: VecDeque::from([Group::default()]), total: 0 }
    }
}

impl KnownIds {
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Marks from before this address are forgotten, unless their events are pending.
    pub fn first(&self) -> LogAddress {
        self.groups.front().map_or(LogAddress(0), |group| group.from)
    }

    /// No mark that counts is older than this.
    pub fn first_time(&self) -> Millis {
        self.groups.front().map_or(Millis::ZERO, |group| group.since)
    }

    /// Starts a new group with the record at `at` if the newest one is full.
    fn turn(&mut self, at: LogAddress, time: Millis, limit: u64) {
        let newest = self.groups.back().copied().unwrap_or_default();
        if newest.count >= group_size(limit) && at > newest.from {
            self.groups.push_back(Group { from: at, since: time, count: 0 });
        }
    }

    /// Counts the mark of an event accepted at `accepted`. Returns true if the mark is among the newest and need not
    /// be rewritten.
    fn count_as_it_is(&mut self, accepted: LogAddress, limit: u64) -> bool {
        let size = group_size(limit);
        let mut newest = self.groups.iter_mut().rev();
        let is_counted = match (newest.next(), newest.next()) {
            (Some(newest), _) if accepted >= newest.from => {
                newest.count += 1;
                true
            }
            // The event was in flight when the newest group began.
            (_, Some(second)) if accepted >= second.from && second.count < 2 * size => {
                second.count += 1;
                true
            }
            _ => false,
        };
        self.total += u64::from(is_counted);
        is_counted
    }

    fn count_new(&mut self) {
        if let Some(newest) = self.groups.back_mut() {
            newest.count += 1;
            self.total += 1;
        }
    }

    /// Forgets the oldest groups while the others suffice or there are too many marks. Returns how many marks were
    /// forgotten.
    fn limit(&mut self, limit: u64) -> u64 {
        let before = self.total;
        while let Some(oldest) = self.groups.front().filter(|_| self.groups.len() > 1)
            && (self.total - oldest.count >= limit || self.total > limit + limit / EXTRA)
        {
            self.forget_oldest();
        }
        before - self.total
    }

    /// Forgets groups whose time is over.
    pub fn expire(&mut self, before: Millis) {
        while self.groups.get(1).is_some_and(|second| second.since < before) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(group) = self.groups.pop_front() {
            self.total -= group.count;
        }
    }
}

fn group_size(limit: u64) -> u64 {
    (limit / GROUPS).max(1)
}

impl Engine {
    /// Starts the window of an event that the record at `at` delivered.
    pub(crate) fn known_from_now_on(
        &mut self,
        id: SubscriptionId,
        entry: &Entry,
        is_retried: bool,
        time: Millis,
        at: LogAddress,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let window_ms = subscription.document.spec.idempotency.ttl_ms;
        let limit = self.config.marks_max;
        self.known_ids.turn(at, time, limit);
        let is_prompt =
            time.since(entry.accepted) <= window_ms / EXTRA || planted::is_on(Bug::WindowFromAcceptance);
        // The mark of a retried event leads to its last attempt, which may be far from the event in the log.
        if is_prompt && !is_retried && self.known_ids.count_as_it_is(entry.address(), limit) {
            self.limit_known();
            return Ok(());
        }
        if let Some(identity) = self.identity_at(entry.address())? {
            let mark = Mark { at: entry.address(), time, state: State::Delivered(at) };
            self.store.marks.put(identity, id, mark);
            self.known_ids.count_new();
            self.limit_known();
        }
        Ok(())
    }

    /// Counts a mark, written by the record at `at`, whose event is not pending.
    pub(crate) fn count_mark(&mut self, time: Millis, at: LogAddress) {
        self.known_ids.turn(at, time, self.config.marks_max);
        self.known_ids.count_new();
        self.limit_known();
    }

    fn limit_known(&mut self) {
        let forgotten = self.known_ids.limit(self.config.marks_max);
        if self.condition.live {
            self.metrics.marks_expired_early += forgotten;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    /// Delivers one event accepted at `accepted`, and rewrites its mark if necessary.
    fn deliver(known: &mut KnownIds, accepted: u64, at: u64) -> bool {
        known.turn(LogAddress(at), Millis(at), LIMIT);
        let stays = known.count_as_it_is(LogAddress(accepted), LIMIT);
        if !stays {
            known.count_new();
        }
        known.limit(LIMIT);
        stays
    }

    #[test]
    fn prompt_deliveries_write_no_mark_and_the_newest_stay() {
        let mut known = KnownIds::default();
        for n in 1..50_000 {
            assert!(deliver(&mut known, n * 10 - 9, n * 10), "{n}");
            assert!(known.len() <= LIMIT + LIMIT / 10, "{n}: {known:?}");
        }
        let first = known.first().0 / 10;
        assert!((49_999 - LIMIT - LIMIT / 10..=49_999 - LIMIT).contains(&first), "{first}");
    }

    #[test]
    fn a_backlog_that_drains_is_counted_by_its_deliveries() {
        let mut known = KnownIds::default();
        // Nothing arrives while the backlog drains: all of it was accepted before.
        let written: Vec<u64> =
            (1..20_000).filter(|n| !deliver(&mut known, *n, 1_000_000 + n)).map(|n| 1_000_000 + n).collect();
        assert!(known.len() <= LIMIT + LIMIT / 10);
        let stay = written.iter().filter(|at| LogAddress(**at) >= known.first()).count() as u64;
        assert!((LIMIT..=LIMIT + LIMIT / 10).contains(&stay), "{stay}");
    }

    #[test]
    fn marks_of_one_record_are_forgotten_together() {
        let mut known = KnownIds::default();
        for n in 0..5000 {
            known.turn(LogAddress(7 + n / 4000), Millis(1), LIMIT);
            known.count_new();
            known.limit(LIMIT);
        }
        assert_eq!((known.len(), known.first()), (1000, LogAddress(8)));
    }

    #[test]
    fn expired_marks_do_not_count() {
        let mut known = KnownIds::default();
        for n in 1..=900 {
            deliver(&mut known, n * 10 - 9, n * 10);
        }
        known.expire(Millis(5000));
        assert!((400..=430).contains(&known.len()), "{}", known.len());
        assert!(known.first_time() < Millis(5000));
    }
}
