//! Receivers and the network. The outcome of a call is decided when the call starts and reported when it ends. Some
//! receivers do the work but lose the response, some hang, some are down for a while.

use crate::checkers::attempt_log::Answered;
use crate::event::{EventNo, ProducedEvent};
use crate::history::SubNo;
use crate::mix::{Mix, Trouble};
use crate::rng::Rng;
use crate::rules::Rules;
use klambda_core::outcome::CallOutcome;
use klambda_dispatch::Ticket;
use std::collections::BTreeMap;

/// A call in flight.
pub struct Call {
    pub sub: SubNo,
    pub event: EventNo,
    pub ticket: Ticket,
    /// The process that made the call. If it died in the meantime, the outcome is lost.
    pub life: u64,
    pub outcome: CallOutcome,
    /// The events in the response.
    pub replies: Vec<EventNo>,
    /// The receiver does the work, regardless of its response.
    pub acts: bool,
}

/// The temporary state of a host.
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
    /// By end time.
    calls: BTreeMap<(u64, u64), Call>,
    next: u64,
    /// By host: its state, and when it ends.
    hosts: BTreeMap<u64, (Health, u64)>,
    /// The answers that reached the process.
    pub answered: Answered,
}

impl Network {
    pub fn start(&mut self, call: Call, ends_at: u64) {
        self.calls.insert((ends_at, self.next), call);
        self.next += 1;
    }

    /// The next call that has ended by now.
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

    /// Occasionally makes a host unhealthy.
    pub fn weather(&mut self, mix: &Mix, time: u64, rng: &mut Rng) {
        if !mix.has(Trouble::Outages) || !rng.one_in(60) {
            return;
        }
        let health = *rng.pick(&[Health::Refuses, Health::Resets, Health::Hangs, Health::Busy]);
        self.hosts.insert(rng.below(mix.hosts), (health, time + rng.between(20, 1500)));
    }

    /// The result of calling the host with this event: the outcome, whether the receiver does the work, and the
    /// duration.
    pub fn call(
        &self,
        mix: &Mix,
        rules: &Rules,
        made: &ProducedEvent,
        time: u64,
        rng: &mut Rng,
    ) -> (CallOutcome, bool, u64) {
        let took = rng.below(mix.round_ms * 2);
        let health = self
            .hosts
            .get(&rules.host)
            .filter(|(_, until)| *until > time)
            .map_or(Health::Well, |host| host.0);
        if mix.has(Trouble::Outages) {
            match health {
                Health::Well => {}
                Health::Refuses => return (CallOutcome::Refused("no one listens".into()), false, took),
                Health::Resets => return (CallOutcome::Broken("reset".into()), rng.one_in(2), took),
                Health::Hangs => return (CallOutcome::Timeout, rng.one_in(2), rules.retry.timeout_ms),
                Health::Busy => return (status(*rng.pick(&[502, 503, 504]), None), false, took),
            }
        }
        if mix.has(Trouble::NotReady) && rng.one_in(30) {
            let retry_after_ms = rng.between(1, 200);
            return (CallOutcome::NotReady { why: "no replica".into(), retry_after_ms }, false, took);
        }
        if made.poison && mix.has(Trouble::Poison) {
            return (status(*rng.pick(&[400, 413, 415, 422]), None), false, took);
        }
        if mix.has(Trouble::LostAnswers) && rng.one_in(15) {
            return (CallOutcome::Broken("closed before the answer".into()), true, took);
        }
        if mix.has(Trouble::Hangs) && rng.one_in(25) {
            return (CallOutcome::Timeout, rng.one_in(2), rules.retry.timeout_ms);
        }
        if mix.has(Trouble::Failures) && rng.one_in(6) {
            return (failure(rng), rng.one_in(4), took);
        }
        (status(*rng.pick(&[200, 201, 202, 204]), None), true, took)
    }
}

fn failure(rng: &mut Rng) -> CallOutcome {
    match rng.below(12) {
        0 => status(429, Some(rng.below(800))),
        1 => status(503, Some(rng.below(300))),
        2 => status(422, None),
        3 => CallOutcome::Refused("backlog".into()),
        4 => CallOutcome::Broken("reset".into()),
        5 => CallOutcome::Unusable("no certificate".into()),
        _ => status(*rng.pick(&[301, 401, 403, 404, 408, 409, 410, 425, 500, 500, 500, 502]), None),
    }
}

fn status(code: u16, retry_after_ms: Option<u64>) -> CallOutcome {
    CallOutcome::Status { code, retry_after_ms, detail: String::new() }
}
