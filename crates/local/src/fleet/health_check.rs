//! Replicas that owe a response: a call ended without one, or none came for longer than the call timeout. The fleet sends
//! them a health check, and no calls until they respond.
//!
//! If a replica does not respond quickly, others are started in its place. It may still be busy with a call within its
//! timeout, so it is killed only after it was silent for the whole call timeout. A starting replica keeps its start timeout
//! while it has calls. The replicas started in its place receive calls only when they are up, because a call may be what
//! blocks the start.

use super::function::Function;
use super::probe::{self, Expect};
use super::replica::{Order, Replica, Stage};
use super::scheduler::Scheduler;
use super::{Endpoint, HealthChecks, Run, Shared, Version};
use klambda_core::address::ReplicaAddress;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The variable that tells wrappers the call timeout, and the timeout that they use without it.
const CALL_MAX: &str = "KLAMBDA_TIMEOUT_MS";
const CALL_MAX_DEFAULT: Duration = Duration::from_secs(30);

impl Version {
    /// How long a replica may be silent while it has calls.
    pub(super) fn silence_max(&self, health_checks: HealthChecks) -> Duration {
        let environment = match &self.run {
            Run::Process(command) => &command.environment[..],
            Run::Image(image) => &image.environment,
            Run::Remote(_) => &[],
        };
        let given = environment.iter().rfind(|(name, _)| name == CALL_MAX);
        let given = given.and_then(|(_, value)| value.parse().ok()).map(Duration::from_millis);
        given.unwrap_or(CALL_MAX_DEFAULT).max(health_checks.at_least)
    }
}

impl Function {
    /// Checks replicas that were silent for too long while they had calls, and sets the next deadline.
    pub(super) fn check_silent(&mut self, shared: &Arc<Shared>, scheduler: &mut Scheduler, now: Instant) {
        let mut next: Option<Instant> = None;
        for index in 0..self.replicas.len() {
            let replica = &self.replicas[index];
            if replica.in_flight == 0 || !matches!(replica.stage, Stage::Starting | Stage::Ready) {
                continue;
            }
            let until = replica.owes_since + self.silence_max(replica.ordinal);
            match until <= now {
                true => self.check_health(index, shared),
                false => next = Some(next.map_or(until, |next| next.min(until))),
            }
        }
        if let Some(next) = next {
            self.look_by(next, shared, scheduler);
        }
    }

    fn silence_max(&self, ordinal: u64) -> Duration {
        let deployed = self.versions.iter().find(|deployed| deployed.ordinal == ordinal);
        deployed.map_or(CALL_MAX_DEFAULT, |deployed| deployed.silence_max)
    }

    /// An idle replica received a call.
    pub(super) fn owes(&mut self, ordinal: u64, shared: &Shared, scheduler: &mut Scheduler, now: Instant) {
        self.look_by(now + self.silence_max(ordinal), shared, scheduler);
    }

    /// Sends a health check to a replica.
    pub(super) fn check_health(&mut self, index: usize, shared: &Arc<Shared>) {
        let replica = &mut self.replicas[index];
        let Some(Endpoint::Local(address)) = &replica.endpoint else { return };
        let deployed = self.versions.iter_mut().find(|deployed| deployed.ordinal == replica.ordinal);
        let silence_max = deployed.as_ref().map_or(CALL_MAX_DEFAULT, |deployed| deployed.silence_max);
        let starting = replica.stage == Stage::Starting;
        match (replica.stage, deployed) {
            (Stage::Ready, _) => {}
            (Stage::Starting, Some(deployed)) if deployed.good => deployed.only_when_up = true,
            _ => return,
        }
        replica.stage = Stage::Asked;
        let question = Question {
            shared: shared.clone(),
            function: self.name.clone(),
            replica: replica.id,
            address: address.clone(),
            expect: replica.expect,
            silence_max,
            starting,
        };
        shared.runtime.spawn(question.ask());
    }

    fn unresponsive(&mut self, id: u64) -> Option<&mut Replica> {
        let unresponsive = |stage| matches!(stage, Stage::Asked | Stage::Silent);
        self.replicas.iter_mut().find(|replica| replica.id == id && unresponsive(replica.stage))
    }

    /// The replica did not respond quickly.
    fn silent(&mut self, id: u64, shared: &Arc<Shared>, scheduler: &mut Scheduler, now: Instant) {
        let Some(replica) = self.unresponsive(id) else { return };
        replica.stage = Stage::Silent;
        tracing::info!(function = &*self.name, replica = id, "Replica does not respond");
        self.changed(shared, scheduler);
        self.look(shared, scheduler, now);
    }

    fn give_up(&mut self, id: u64, starting: bool) {
        let Some(replica) = self.unresponsive(id) else { return };
        if starting && replica.in_flight > 0 {
            return;
        }
        replica.stage = Stage::Draining;
        replica.order(Order::Kill);
    }
}

struct Question {
    shared: Arc<Shared>,
    function: Arc<str>,
    replica: u64,
    address: ReplicaAddress,
    expect: Expect,
    silence_max: Duration,
    starting: bool,
}

impl Question {
    async fn ask(self) {
        let Question { shared, function, replica, address, expect, silence_max, starting } = self;
        let at_once = shared.options.health_checks.at_once;
        let up = probe::until_up(&address, expect);
        tokio::pin!(up);
        if tokio::time::timeout(at_once, &mut up).await.is_err() {
            shared.with(&function, |function, scheduler, now| {
                function.silent(replica, &shared, scheduler, now)
            });
            if tokio::time::timeout(silence_max.saturating_sub(at_once), up).await.is_err() {
                return shared.with(&function, |function, _, _| function.give_up(replica, starting));
            }
        }
        shared.became_ready(&function, replica);
    }
}
