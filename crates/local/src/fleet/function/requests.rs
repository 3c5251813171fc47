//! The requests of one function: which get a replica immediately, which wait, and what happens when they end.

use super::{Function, Grant, Waiter};
use crate::fleet::replica::Stage;
use crate::fleet::scheduler::Scheduler;
use crate::fleet::{Error, Shared};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

pub enum Entered {
    Granted(Grant),
    Queued { ticket: u64, answer: oneshot::Receiver<Result<Grant, Error>>, wait: Duration },
}

impl Function {
    /// A request arrives. If a replica is up and below its target, this takes only a few comparisons.
    pub fn enter(
        &mut self,
        shared: &Arc<Shared>,
        scheduler: &mut Scheduler,
        now: Instant,
    ) -> Result<Entered, Error> {
        if self.deleting {
            return Err(Error::Deleting);
        }
        let Some(route) = self.route() else { return Err(Error::Unknown(self.name.clone())) };
        if self.waiters.is_empty() {
            if let Some((index, (false, _))) = self.pick() {
                return Ok(Entered::Granted(self.take(index, shared, scheduler, now)));
            }
            self.start_wanted(1, shared, scheduler, now);
            if let Some((index, _)) = self.pick() {
                return Ok(Entered::Granted(self.take(index, shared, scheduler, now)));
            }
        }
        let deployed = &self.versions[route];
        if let Some(failure) = deployed.refusal(now) {
            return Err(Error::Failed(failure));
        }
        let (waiting_max, wait) = (deployed.version.scaling.waiting_max, deployed.version.scaling.wait);
        if self.waiters.len() >= waiting_max {
            return Err(Error::TooManyWaiting(waiting_max));
        }
        let (sender, answer) = oneshot::channel();
        scheduler.next_ticket += 1;
        self.waiters.push_back(Waiter { ticket: scheduler.next_ticket, answer: sender });
        self.start_wanted(0, shared, scheduler, now);
        self.serve_waiters(shared, scheduler, now);
        Ok(Entered::Queued { ticket: scheduler.next_ticket, answer, wait })
    }

    /// The best replica for a request, and its rank.
    fn pick(&self) -> Option<(usize, (bool, u32))> {
        let deployed = &self.versions[self.route()?];
        let ranked = self.replicas.iter().enumerate();
        let ranked = ranked.filter_map(|(index, replica)| Some((index, replica.rank(deployed)?)));
        ranked.min_by_key(|(_, rank)| *rank)
    }

    fn take(&mut self, index: usize, shared: &Shared, scheduler: &mut Scheduler, now: Instant) -> Grant {
        let replica = &mut self.replicas[index];
        replica.in_flight += 1;
        let endpoint = replica.endpoint.clone().expect("only replicas with an address are picked");
        let grant = Grant { replica: replica.id, endpoint, early: replica.stage == Stage::Starting };
        if replica.in_flight == 1 {
            replica.owes_since = now;
            let ordinal = replica.ordinal;
            self.owes(ordinal, shared, scheduler, now);
        }
        grant
    }

    pub(in crate::fleet) fn serve_waiters(
        &mut self,
        shared: &Shared,
        scheduler: &mut Scheduler,
        now: Instant,
    ) {
        while !self.waiters.is_empty() {
            let Some((index, _)) = self.pick() else { return };
            let grant = self.take(index, shared, scheduler, now);
            let Some(waiter) = self.waiters.pop_front() else { return };
            if waiter.answer.send(Ok(grant)).is_err() {
                self.replicas[index].in_flight -= 1;
            }
        }
    }

    /// A caller stops waiting.
    pub fn leave(&mut self, ticket: u64) {
        self.waiters.retain(|waiter| waiter.ticket != ticket);
    }

    /// A request has ended.
    pub fn release(
        &mut self,
        id: u64,
        answered: bool,
        shared: &Arc<Shared>,
        scheduler: &mut Scheduler,
        now: Instant,
    ) {
        // The replica may have stopped first.
        let Some(index) = self.replicas.iter().position(|replica| replica.id == id) else { return };
        let replica = &mut self.replicas[index];
        replica.in_flight -= 1;
        if answered {
            replica.owes_since = now;
        }
        let first_answer = answered && !replica.answered;
        replica.answered |= answered;
        let (idle, stage, ordinal) = (replica.in_flight == 0, replica.stage, replica.ordinal);
        if idle {
            replica.idle_since = now;
        }
        if first_answer && let Some(deployed) = self.versions.iter_mut().find(|one| one.ordinal == ordinal) {
            deployed.answered();
            self.changed(shared, scheduler);
        }
        if !answered {
            self.check_health(index, shared);
        }
        match (idle, stage == Stage::Draining) {
            (true, true) => self.drained(id, shared),
            (true, false) => self.idle(ordinal, shared, scheduler, now),
            _ => {}
        }
        if !self.waiters.is_empty() {
            self.serve_waiters(shared, scheduler, now);
        }
    }

    fn drained(&mut self, id: u64, shared: &Shared) {
        if let Some(replica) = self.replicas.iter_mut().find(|replica| replica.id == id) {
            replica.drained();
        }
        self.drop_elsewhere(shared);
    }

    fn idle(&mut self, ordinal: u64, shared: &Shared, scheduler: &mut Scheduler, now: Instant) {
        let deployed = self.versions.iter().find(|deployed| deployed.ordinal == ordinal);
        if let Some(grace) = deployed.map(|deployed| deployed.version.scaling.grace) {
            self.look_by(now + grace, shared, scheduler);
        }
    }
}
