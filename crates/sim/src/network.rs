//! Receivers and the way to them. What a call comes to is decided when it starts and told when it ends; some receivers
//! do the work and lose the answer, some hang, some are down for a while.

use crate::event::{EventNo, Made};
use crate::history::SubNo;
use crate::mix::{Mix, Trouble};
use crate::rng::Rng;
use crate::rules::Rules;
use klambda_core::outcome::Outcome;
use klambda_dispatch::Ticket;
use std::collections::BTreeMap;

/// A call on its way.
pub struct Call {
    pub sub: SubNo,
    pub event: EventNo,
    pub ticket: Ticket,
    /// Of which process: one that died meanwhile is not told.
    pub life: u64,
    pub outcome: Outcome,
    /// The events that come with the answer.
    pub replies: Vec<EventNo>,
    /// The receiver does the work, whatever the answer says.
    pub acts: bool,
}

/// How a host is for a while.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    Refuses,
    Resets,
    Hangs,
    Busy,
}

#[derive(Default)]
pub struct Network {
    /// By the time they end.
    calls: BTreeMap<(u64, u64), Call>,
    next: u64,
    /// By host: how it is, and until when.
    hosts: BTreeMap<u64, (Health, u64)>,
}

impl Network {
    pub fn start(&mut self, call: Call, ends_at: u64) {
        self.calls.insert((ends_at, self.next), call);
        self.next += 1;
    }

    /// The next call that ends now.
    pub fn ended(&mut self, time: u64) -> Option<Call> {
        let first = self.calls.first_entry().filter(|entry| entry.key().0 <= time)?;
        Some(first.remove())
    }

    pub fn next_end(&self) -> Option<u64> {
        self.calls.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn open(&self, life: u64) -> usize {
        self.calls.values().filter(|call| call.life == life).count()
    }

    /// Now and then a host falls ill.
    pub fn weather(&mut self, mix: &Mix, time: u64, rng: &mut Rng) {
        if !mix.has(Trouble::Outages) || !rng.one_in(60) {
            return;
        }
        let health = *rng.pick(&[Health::Refuses, Health::Resets, Health::Hangs, Health::Busy]);
        self.hosts.insert(rng.below(mix.hosts), (health, time + rng.between(20, 1500)));
    }

    /// What calling the host with this event comes to: the outcome, whether the work is done, and how long it takes.
    pub fn call(
        &self,
        mix: &Mix,
        rules: &Rules,
        made: &Made,
        time: u64,
        rng: &mut Rng,
    ) -> (Outcome, bool, u64) {
        let took = rng.below(mix.round_ms * 2);
        let health = self
            .hosts
            .get(&rules.host)
            .filter(|(_, until)| *until > time)
            .map_or(Health::Well, |host| host.0);
        if mix.has(Trouble::Outages) {
            match health {
                Health::Well => {}
                Health::Refuses => return (Outcome::Refused("no one listens".into()), false, took),
                Health::Resets => return (Outcome::Broken("reset".into()), rng.one_in(2), took),
                Health::Hangs => return (Outcome::Timeout, rng.one_in(2), rules.timeout_ms),
                Health::Busy => return (status(*rng.pick(&[502, 503, 504]), None), false, took),
            }
        }
        if mix.has(Trouble::NotReady) && rng.one_in(30) {
            let retry_after_ms = rng.between(1, 200);
            return (Outcome::NotReady { why: "no replica".into(), retry_after_ms }, false, took);
        }
        if made.poison && mix.has(Trouble::Poison) {
            return (status(*rng.pick(&[400, 413, 415, 422]), None), false, took);
        }
        if mix.has(Trouble::LostAnswers) && rng.one_in(15) {
            return (Outcome::Broken("closed before the answer".into()), true, took);
        }
        if mix.has(Trouble::Hangs) && rng.one_in(25) {
            return (Outcome::Timeout, rng.one_in(2), rules.timeout_ms);
        }
        if mix.has(Trouble::Failures) && rng.one_in(6) {
            return (failure(rng), rng.one_in(4), took);
        }
        (status(*rng.pick(&[200, 201, 202, 204]), None), true, took)
    }
}

fn failure(rng: &mut Rng) -> Outcome {
    match rng.below(12) {
        0 => status(429, Some(rng.below(800))),
        1 => status(503, Some(rng.below(300))),
        2 => status(422, None),
        3 => Outcome::Refused("backlog".into()),
        4 => Outcome::Broken("reset".into()),
        5 => Outcome::Unusable("no certificate".into()),
        _ => status(*rng.pick(&[301, 401, 403, 404, 408, 409, 410, 425, 500, 500, 500, 502]), None),
    }
}

fn status(code: u16, retry_after_ms: Option<u64>) -> Outcome {
    Outcome::Status { code, retry_after_ms, detail: String::new() }
}
