//! How long an id stays known after its event was delivered, and how many of them are kept.
//!
//! A mark is written when its event is accepted, and a prompt delivery writes no second one: a mark lives a tenth longer
//! than its window, so the window still counts from the delivery. Only a delivery that comes later than that renews the
//! mark.
//!
//! Marks that nothing waits behind are counted in groups by age, where age is the address of the record that a mark
//! stands for. When there are too many, the oldest group is forgotten: a mark from before the first group counts only
//! if its event still waits. Tables that hold such marks alone are removed later.

use crate::engine::{Engine, Failure};
use klambda_core::ids::{Address, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_store::marks::{Mark, State};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A mark lives this part of its window longer than the window.
const EXTRA: u64 = 10;
/// A group begins with this part of the marks that are kept, and may grow to three times as many.
const GROUPS: u64 = 40;

/// How long a mark with this window lives.
pub(crate) fn life_ms(window_ms: u64) -> u64 {
    window_ms + window_ms / EXTRA
}

/// The marks of events that do not wait any more, counted by age.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Known {
    /// Oldest first, at least one.
    groups: VecDeque<Group>,
    total: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Group {
    /// Marks from this address on, up to the next group.
    from: Address,
    since: Millis,
    count: u64,
}

impl Default for Known {
    fn default() -> Known {
        Known { groups: VecDeque::from([Group::default()]), total: 0 }
    }
}

impl Known {
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Marks from before this are forgotten, unless their events wait.
    pub fn first(&self) -> Address {
        self.groups.front().map_or(Address(0), |group| group.from)
    }

    /// No mark that counts is older than this.
    pub fn first_time(&self) -> Millis {
        self.groups.front().map_or(Millis::ZERO, |group| group.since)
    }

    /// Begins a new group with the record at `at` if the newest one is full.
    fn turn(&mut self, at: Address, time: Millis, limit: u64) {
        let newest = self.groups.back().copied().unwrap_or_default();
        if newest.count >= group_size(limit) && at > newest.from {
            self.groups.push_back(Group { from: at, since: time, count: 0 });
        }
    }

    /// Counts the mark of an event that was accepted at `accepted`. Answers whether the mark may stay as it is: it is
    /// among the newest.
    fn count_as_it_is(&mut self, accepted: Address, limit: u64) -> bool {
        let size = group_size(limit);
        let mut newest = self.groups.iter_mut().rev();
        let is_counted = match (newest.next(), newest.next()) {
            (Some(newest), _) if accepted >= newest.from => {
                newest.count += 1;
                true
            }
            // What was on its way when the newest group began.
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

    /// Forgets the oldest while the others are enough, or all are too many. Answers how many were forgotten.
    fn limit(&mut self, limit: u64) -> u64 {
        let before = self.total;
        while let Some(oldest) = self.groups.front().filter(|_| self.groups.len() > 1)
            && (self.total - oldest.count >= limit || self.total > limit + limit / EXTRA)
        {
            self.forget_oldest();
        }
        before - self.total
    }

    /// Forgets those whose time is over.
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
    /// An event was delivered by the record at `at`: its window begins.
    pub(crate) fn known_from_now_on(
        &mut self,
        id: SubscriptionId,
        entry: &Entry,
        time: Millis,
        at: Address,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let window_ms = subscription.document.spec.idempotency_ttl_ms;
        let limit = self.config.marks_max;
        self.known.turn(at, time, limit);
        let is_prompt =
            time.since(entry.accepted) <= window_ms / EXTRA || planted::is_on(Bug::WindowFromAcceptance);
        if is_prompt && self.known.count_as_it_is(entry.at, limit) {
            self.limit_known();
            return Ok(());
        }
        if let Some(identity) = self.identity_at(entry.at)? {
            let mark = Mark { at: entry.at, time, state: State::Delivered(at) };
            self.store.marks.put(identity, id, mark);
            self.known.count_new();
            self.limit_known();
        }
        Ok(())
    }

    /// The record at `at` wrote a mark that nothing waits behind.
    pub(crate) fn count_mark(&mut self, time: Millis, at: Address) {
        self.known.turn(at, time, self.config.marks_max);
        self.known.count_new();
        self.limit_known();
    }

    fn limit_known(&mut self) {
        let forgotten = self.known.limit(self.config.marks_max);
        if self.condition.live {
            self.metrics.marks_expired_early += forgotten;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    /// Delivers one event that was accepted at `accepted`; its mark is written anew if need be.
    fn deliver(known: &mut Known, accepted: u64, at: u64) -> bool {
        known.turn(Address(at), Millis(at), LIMIT);
        let stays = known.count_as_it_is(Address(accepted), LIMIT);
        if !stays {
            known.count_new();
        }
        known.limit(LIMIT);
        stays
    }

    #[test]
    fn prompt_deliveries_write_no_mark_and_the_newest_stay() {
        let mut known = Known::default();
        for n in 1..50_000 {
            assert!(deliver(&mut known, n * 10 - 9, n * 10), "{n}");
            assert!(known.len() <= LIMIT + LIMIT / 10, "{n}: {known:?}");
        }
        let first = known.first().0 / 10;
        assert!((49_999 - LIMIT - LIMIT / 10..=49_999 - LIMIT).contains(&first), "{first}");
    }

    #[test]
    fn a_backlog_that_drains_is_counted_by_its_deliveries() {
        let mut known = Known::default();
        // Nothing comes in while it drains: all of it was accepted before.
        let written: Vec<u64> =
            (1..20_000).filter(|n| !deliver(&mut known, *n, 1_000_000 + n)).map(|n| 1_000_000 + n).collect();
        assert!(known.len() <= LIMIT + LIMIT / 10);
        let stay = written.iter().filter(|at| Address(**at) >= known.first()).count() as u64;
        assert!((LIMIT..=LIMIT + LIMIT / 10).contains(&stay), "{stay}");
    }

    #[test]
    fn what_one_record_writes_is_forgotten_together() {
        let mut known = Known::default();
        for n in 0..5000 {
            known.turn(Address(7 + n / 4000), Millis(1), LIMIT);
            known.count_new();
            known.limit(LIMIT);
        }
        assert_eq!((known.len(), known.first()), (1000, Address(8)));
    }

    #[test]
    fn those_whose_time_is_over_do_not_count() {
        let mut known = Known::default();
        for n in 1..=900 {
            deliver(&mut known, n * 10 - 9, n * 10);
        }
        known.expire(Millis(5000));
        assert!((400..=430).contains(&known.len()), "{}", known.len());
        assert!(known.first_time() < Millis(5000));
    }
}
