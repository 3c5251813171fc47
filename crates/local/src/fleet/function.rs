//! One function: its deployed versions, its replicas, and the callers that wait. Called with the lock of the fleet held.

use super::failure::Failure;
use super::probe::Expect;
use super::replica::{Order, Replica, Stage};
use super::scheduler::Scheduler;
use super::{Endpoint, Error, Run, Shared, Version};
use crate::logs::{LogStore, Logs, Printer, Stream};
use deployed::Deployed;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

pub(super) mod deployed;
mod requests;
mod scale;

pub use requests::Entered;

pub struct Function {
    pub(super) name: Arc<str>,
    /// Oldest first: the serving version and its successor. A good version is removed when its successor becomes good.
    pub(super) versions: Vec<Deployed>,
    pub(super) replicas: Vec<Replica>,
    pub(super) waiters: VecDeque<Waiter>,
    logs: Option<Arc<Logs>>,
    /// The next requested deadline.
    look_at: Option<Instant>,
    deleting: bool,
    /// Whether it is already in the list of changes.
    pub(super) changed: bool,
    next_ordinal: u64,
}

/// A place in the queue for a replica.
pub struct Waiter {
    pub ticket: u64,
    pub answer: oneshot::Sender<Result<Grant, Error>>,
}

/// The right of one request to use a replica.
#[derive(Clone, Debug)]
pub struct Grant {
    pub replica: u64,
    pub endpoint: Endpoint,
    /// The replica was still starting.
    pub early: bool,
}

impl Function {
    pub fn new(name: Arc<str>) -> Function {
        Function {
            name,
            versions: Vec::new(),
            replicas: Vec::new(),
            waiters: VecDeque::new(),
            logs: None,
            look_at: None,
            deleting: false,
            changed: false,
            next_ordinal: 0,
        }
    }

    pub fn deleting(&self) -> bool {
        self.deleting
    }

    pub fn is_gone(&self) -> bool {
        self.deleting && self.replicas.is_empty()
    }

    pub fn logs(&mut self, store: &LogStore) -> Arc<Logs> {
        self.logs.get_or_insert_with(|| store.of(&self.name)).clone()
    }

    pub fn deploy(
        &mut self,
        version: Version,
        shared: &Arc<Shared>,
        scheduler: &mut Scheduler,
        now: Instant,
    ) {
        self.changed(shared, scheduler);
        // A successor that never became good is replaced.
        if self.versions.last().is_some_and(|newest| !newest.good && newest.version.id != version.id)
            && let Some(passed_over) = self.versions.pop()
        {
            self.drain(|replica| replica.ordinal == passed_over.ordinal, version.scaling.drain, shared);
            scheduler.given_up(&passed_over.version.artifact, &self.name, false, now, shared);
        }
        match self.versions.last_mut() {
            Some(newest) if newest.version.id == version.id => newest.version.scaling = version.scaling,
            _ => self.add_version(version, shared, scheduler, now),
        }
        self.look(shared, scheduler, now);
    }

    fn add_version(
        &mut self,
        version: Version,
        shared: &Arc<Shared>,
        scheduler: &mut Scheduler,
        now: Instant,
    ) {
        let idle = !self.replicas.iter().any(|replica| replica.stage != Stage::Draining);
        let remote = match &version.run {
            Run::Remote(url) => Some(url.clone()),
            _ => None,
        };
        // If nothing runs, there is nothing to hand over, so an artifact that has responded before counts as good.
        let good = remote.is_some() || (idle && scheduler.good.contains(&version.artifact));
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        let silence_max = version.silence_max(shared.options.health_checks);
        self.versions.push(Deployed::new(ordinal, version, good, silence_max, now));
        if let Some(url) = remote {
            self.replicas.push(elsewhere(scheduler.number(), ordinal, url, now));
        }
        if good {
            self.promote(shared);
        }
    }

    /// The newest version is good: it serves from now on.
    fn promote(&mut self, shared: &Arc<Shared>) {
        let Some(newest) = self.versions.pop() else { return };
        let (ordinal, drain) = (newest.ordinal, newest.version.scaling.drain);
        self.versions.clear();
        self.versions.push(newest);
        self.drain(|replica| replica.ordinal != ordinal, drain, shared);
    }

    fn drain(&mut self, chosen: impl Fn(&Replica) -> bool, time: Duration, shared: &Shared) {
        for replica in self.replicas.iter_mut().filter(|replica| chosen(replica)) {
            if replica.stage != Stage::Draining {
                replica.drain(time);
            }
        }
        self.drop_elsewhere(shared);
    }

    /// Replicas at a URL have no task that reports their end.
    fn drop_elsewhere(&mut self, shared: &Shared) {
        let ended = |replica: &Replica| {
            replica.orders.is_none() && replica.stage == Stage::Draining && replica.in_flight == 0
        };
        self.replicas.retain(|replica| !ended(replica));
        shared.gone.notify_waiters();
    }

    pub fn begin_removal(&mut self, drain: Duration, shared: &Arc<Shared>, scheduler: &mut Scheduler) {
        self.deleting = true;
        self.refuse_waiters(Error::Deleting);
        self.drain(|_| true, drain, shared);
        for deployed in &self.versions {
            scheduler.given_up(&deployed.version.artifact, &self.name, false, Instant::now(), shared);
        }
        self.changed(shared, scheduler);
        self.look_by(Instant::now() + drain, shared, scheduler);
    }

    /// A replica reports that it is up: for the first time, or in answer to a health check.
    pub fn became_ready(&mut self, id: u64, shared: &Arc<Shared>, scheduler: &mut Scheduler, now: Instant) {
        let Some(replica) = self.replicas.iter_mut().find(|replica| replica.id == id) else { return };
        if matches!(replica.stage, Stage::Ready | Stage::Draining) {
            return;
        }
        replica.stage = Stage::Ready;
        (replica.owes_since, replica.idle_since) = (now, now);
        let ordinal = replica.ordinal;
        if let Some(deployed) = self.versions.iter_mut().find(|deployed| deployed.ordinal == ordinal) {
            (deployed.good, deployed.failed) = (true, false);
            scheduler.proved(&deployed.version.artifact, now, shared);
        }
        if self.versions.last().is_some_and(|newest| newest.good) {
            self.promote(shared);
        }
        self.changed(shared, scheduler);
        self.look(shared, scheduler, now);
    }

    /// The address of a replica is known.
    pub fn opened(
        &mut self,
        id: u64,
        endpoint: Endpoint,
        shared: &Arc<Shared>,
        scheduler: &mut Scheduler,
        now: Instant,
    ) {
        if let Some(replica) = self.replicas.iter_mut().find(|replica| replica.id == id) {
            replica.endpoint = Some(endpoint);
        }
        self.serve_waiters(shared, scheduler, now);
    }

    /// A replica has stopped. Its requests are already broken, and their leases end without it.
    pub fn ended(
        &mut self,
        id: u64,
        failure: Option<(Failure, bool)>,
        shared: &Arc<Shared>,
        scheduler: &mut Scheduler,
        now: Instant,
    ) {
        let Some(index) = self.replicas.iter().position(|replica| replica.id == id) else { return };
        let replica = self.replicas.swap_remove(index);
        let deployed = self.versions.iter_mut().find(|deployed| deployed.ordinal == replica.ordinal);
        if let (Some((failure, again)), Some(deployed)) = (failure, deployed) {
            tracing::info!(function = &*self.name, version = &*deployed.version.id, %failure, "Replica ended");
            let (line, generation) = (failure.log_line(&self.name), deployed.version.generation);
            deployed.ended(failure, again, replica.answered, shared.options.restarts, now);
            if deployed.failed {
                scheduler.given_up(&deployed.version.artifact, &self.name, true, now, shared);
            }
            let printer = Printer { logs: self.logs(&shared.options.logs), replica: id, generation };
            printer.push(Stream::Stderr, &line);
            // The next response of any replica shows that the problem is over.
            let others = self.replicas.iter_mut().filter(|other| other.ordinal == replica.ordinal);
            others.for_each(|other| other.answered = false);
        }
        if let Some(failure) = self.route().and_then(|route| self.versions[route].refusal(now))
            && !self.has_replica_to_route()
        {
            self.refuse_waiters(Error::Failed(failure));
        }
        scheduler.give_back(now, shared);
        if let Some(logs) = self.logs.as_ref().filter(|_| self.replicas.is_empty()) {
            logs.trim();
        }
        self.changed(shared, scheduler);
        self.look(shared, scheduler, now);
        shared.gone.notify_waiters();
    }

    /// The version that receives requests: the newest good one, else the newest.
    pub(super) fn route(&self) -> Option<usize> {
        self.versions.iter().rposition(|deployed| deployed.good).or(self.versions.len().checked_sub(1))
    }

    fn has_replica_to_route(&self) -> bool {
        self.route().is_some_and(|route| self.live(self.versions[route].ordinal) > 0)
    }

    fn live(&self, ordinal: u64) -> u32 {
        let live = |replica: &&Replica| replica.ordinal == ordinal && replica.is_live();
        self.replicas.iter().filter(live).count() as u32
    }

    fn refuse_waiters(&mut self, error: Error) {
        for waiter in self.waiters.drain(..) {
            let _ = waiter.answer.send(Err(error.clone()));
        }
    }

    pub(super) fn changed(&mut self, shared: &Shared, scheduler: &mut Scheduler) {
        if !self.changed {
            self.changed = true;
            scheduler.changed.push_back(self.name.clone());
            shared.changed.notify_one();
        }
    }

    pub(super) fn look_by(&mut self, at: Instant, shared: &Shared, scheduler: &mut Scheduler) {
        if self.look_at.is_none_or(|earlier| at < earlier) {
            self.look_at = Some(at);
            scheduler.look_at(at, &self.name, shared);
        }
    }

    pub fn deadline_reached(
        &mut self,
        at: Instant,
        shared: &Arc<Shared>,
        scheduler: &mut Scheduler,
        now: Instant,
    ) {
        if self.look_at.is_some_and(|asked| asked <= at) {
            self.look_at = None;
        }
        if self.deleting {
            // The drain time is over, also for requests to URLs.
            self.replicas.retain(|replica| replica.orders.is_some());
            shared.gone.notify_waiters();
        }
        self.look(shared, scheduler, now);
    }
}

impl Drop for Function {
    /// Tells log followers that no more lines will come.
    fn drop(&mut self) {
        if let Some(logs) = &self.logs {
            logs.close();
        }
    }
}

fn elsewhere(id: u64, ordinal: u64, url: Arc<str>, now: Instant) -> Replica {
    Replica {
        id,
        ordinal,
        stage: Stage::Ready,
        endpoint: Some(Endpoint::Url(url)),
        expect: Expect::Any,
        in_flight: 0,
        owes_since: now,
        idle_since: now,
        answered: false,
        orders: None,
    }
}

fn starting(
    id: u64,
    ordinal: u64,
    endpoint: Option<Endpoint>,
    expect: Expect,
    now: Instant,
) -> (Replica, watch::Receiver<Order>) {
    let (orders, received) = watch::channel(Order::Run);
    let replica = Replica {
        id,
        ordinal,
        stage: Stage::Starting,
        endpoint,
        expect,
        in_flight: 0,
        owes_since: now,
        idle_since: now,
        answered: false,
        orders: Some(orders),
    };
    (replica, received)
}
