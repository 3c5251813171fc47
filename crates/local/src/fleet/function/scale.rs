//! Decides how many replicas a function has.

use super::{Function, starting};
use crate::fleet::life::Life;
use crate::fleet::probe::Expect;
use crate::fleet::replica::Stage;
use crate::fleet::scheduler::Scheduler;
use crate::fleet::{Endpoint, Run, Shared};
use crate::logs::Printer;
use crate::process;
use std::sync::Arc;
use std::time::Instant;

impl Function {
    /// Starts missing replicas, stops surplus ones, and sets the next deadline.
    pub(in crate::fleet) fn look(&mut self, shared: &Arc<Shared>, scheduler: &mut Scheduler, now: Instant) {
        if self.deleting {
            return;
        }
        self.take_over_proof(shared, scheduler);
        self.start_wanted(0, shared, scheduler, now);
        self.start_follower(shared, scheduler, now);
        self.serve_waiters(shared, scheduler, now);
        self.end_idle(shared, scheduler, now);
        self.check_silent(shared, scheduler, now);
    }

    /// If another function has shown that the artifact responds and nothing runs here, that is enough.
    fn take_over_proof(&mut self, shared: &Arc<Shared>, scheduler: &mut Scheduler) {
        let [deployed] = &mut self.versions[..] else { return };
        // Not if it has failed here: the environment of this function may be wrong.
        let untried = !deployed.good && deployed.ends == 0 && self.replicas.is_empty();
        if untried && scheduler.good.contains(&deployed.version.artifact) {
            deployed.good = true;
            self.changed(shared, scheduler);
        }
    }

    /// Starts replicas of the serving version for the open requests, the waiting ones and `more`.
    pub(super) fn start_wanted(
        &mut self,
        more: u32,
        shared: &Arc<Shared>,
        scheduler: &mut Scheduler,
        now: Instant,
    ) {
        let Some(route) = self.route() else { return };
        let ordinal = self.versions[route].ordinal;
        let wanted = self.wanted(route, more);
        while self.live(ordinal) < wanted {
            let deployed = &self.versions[route];
            if let Some(later) = deployed.startable(now) {
                self.look_by(later, shared, scheduler);
                return;
            }
            // After a crash, start one at a time: five replicas that crash together are not five crashes in a row.
            if deployed.ends > 0 && self.live(ordinal) > 0 {
                return;
            }
            let version = &deployed.version;
            let only_proof =
                !deployed.good && self.load(ordinal, more) == 0 && version.scaling.min_replicas == 0;
            if only_proof && !scheduler.proofs.begin(&version.artifact, &self.name) {
                return;
            }
            if !self.start(route, shared, scheduler, now) {
                return;
            }
        }
    }

    /// Number of open requests, waiting requests and `more`.
    fn load(&self, ordinal: u64, more: u32) -> u32 {
        let own = self.replicas.iter().filter(|replica| replica.ordinal == ordinal && replica.is_live());
        let open: u32 = own.map(|replica| replica.in_flight).sum();
        open.saturating_add(self.waiters.len() as u32).saturating_add(more)
    }

    fn wanted(&self, route: usize, more: u32) -> u32 {
        let deployed = &self.versions[route];
        if matches!(deployed.version.run, Run::Remote(_)) {
            return 0;
        }
        let scaling = &deployed.version.scaling;
        let load = self.load(deployed.ordinal, more);
        // A version that never responded is started to test it.
        let proof = u32::from(!deployed.good && !deployed.failed);
        let wanted = load.div_ceil(scaling.target_concurrency.max(1)).max(scaling.min_replicas).max(proof);
        wanted.min(scaling.max_replicas.max(1))
    }

    /// Starts one replica of the successor to test it.
    fn start_follower(&mut self, shared: &Arc<Shared>, scheduler: &mut Scheduler, now: Instant) {
        let Some(newest) = self.versions.len().checked_sub(1) else { return };
        let deployed = &self.versions[newest];
        if self.route() == Some(newest) || deployed.failed || self.live(deployed.ordinal) > 0 {
            return;
        }
        match deployed.startable(now) {
            Some(later) => self.look_by(later, shared, scheduler),
            None => drop(self.start(newest, shared, scheduler, now)),
        }
    }

    /// Starts a replica. A process takes requests from now on. Returns false if the limit is reached.
    fn start(&mut self, index: usize, shared: &Arc<Shared>, scheduler: &mut Scheduler, now: Instant) -> bool {
        let Some(id) = scheduler.claim(&self.name) else { return false };
        let version = self.versions[index].version.clone();
        let (socket, expect) = match version.run {
            Run::Process(_) => (process::listen().ok(), Expect::Ok),
            _ => (None, Expect::Any),
        };
        let endpoint = socket.as_ref().map(|(_, address)| Endpoint::Local(address.clone()));
        let (replica, orders) = starting(id, self.versions[index].ordinal, endpoint, expect, now);
        self.replicas.push(replica);
        let logs = self.logs(&shared.options.logs);
        let life = Life {
            shared: shared.clone(),
            function: self.name.clone(),
            printer: Printer { logs, replica: id, generation: version.generation },
            start_timeout: version.scaling.start_timeout,
            orders,
        };
        shared.runtime.spawn(life.run(version.run, socket));
        self.changed(shared, scheduler);
        true
    }

    /// Stops replicas that were idle for long enough, oldest first.
    fn end_idle(&mut self, shared: &Arc<Shared>, scheduler: &mut Scheduler, now: Instant) {
        let Some(route) = self.route() else { return };
        let (ordinal, wanted) = (self.versions[route].ordinal, self.wanted(route, 0));
        let scaling = &self.versions[route].version.scaling;
        let (grace, drain) = (scaling.grace, scaling.drain);
        let mut spare = self.live(ordinal).saturating_sub(wanted);
        let mut next: Option<Instant> = None;
        let mut ended = false;
        for replica in &mut self.replicas {
            if spare == 0 || !replica.is_idle() || replica.ordinal != ordinal || replica.orders.is_none() {
                continue;
            }
            let until = replica.idle_since + grace;
            if until <= now {
                replica.drain(drain);
                (spare, ended) = (spare - 1, true);
            } else {
                next = Some(next.map_or(until, |next| next.min(until)));
            }
        }
        if let Some(next) = next {
            self.look_by(next, shared, scheduler);
        }
        if ended {
            self.changed(shared, scheduler);
        }
        debug_assert!(
            self.replicas.iter().all(|replica| replica.stage != Stage::Ready || replica.endpoint.is_some())
        );
    }
}
