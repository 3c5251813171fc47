//! The planner: compares the desired and the observed state, and decides the next actions, the status and the events.
//!
//! [`plan`] runs after every change and at `wake_at`. It depends on state only: a lost action is requested again by the next
//! plan, and a platform ignores requests that are already in progress (it knows a fetch or build by its number, a version
//! and a subscription by their hash). The status and the counters carry everything that must survive between calls. The
//! caller stores them and the events in one step.
//!
//! Rules that always hold:
//! - content that is built or being built is not built again;
//! - the serving version is not retired until the next one responds;
//! - a failed build or version does not affect the serving version: the phase is `Failed` only when nothing serves;
//! - each transition emits its events once and in order: the counters number them, and their ids contain the number.

mod build;
mod delete;
mod outbox;
mod revise;
mod roll_out;
mod secrets;
mod subscribe;

pub(crate) use build::job_name;

use crate::conditions::{self, Saying};
use crate::failure::{Failure, Reason};
use crate::observed::Observed;
use crate::platform::Task;
use crate::resource::{Aspect, Counters, Phase, Resource, Status};
use klambda_core::event::Event;
use klambda_core::kinds::EventKind;
use klambda_core::time::Millis;
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of tries for a fetch, and for a build.
    pub tries_max: u32,
    /// No try starts later than this after the first one.
    pub tries_within_ms: u64,
    /// Delay before the second try. The delay before the third is twice as long.
    pub retry_after_ms: u64,
    /// A version that has not responded by then has failed.
    pub start_ms_max: u64,
    /// Revisions kept of a function, including the serving one.
    pub revisions_max: usize,
    /// How long a deleted function may process its pending events.
    pub drain_ms_max: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    /// Stored together with `counters` and `events`.
    pub status: Status,
    pub counters: Counters,
    /// When to plan again even if nothing changes.
    pub wake_at: Option<Millis>,
    /// In order.
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A task for the platform.
    Platform(Task),
    /// Create or update the subscription from this document.
    Subscribe { document: Value },
    /// Accept no new events, and deliver the pending ones until then.
    Drain { until: Millis },
    /// Delete the subscription. Pending events become dead letters with the reason `unavailable`.
    Unsubscribe,
    /// Nothing is left of the function: delete the resource.
    Remove,
}

impl From<Task> for Action {
    fn from(task: Task) -> Action {
        Action::Platform(task)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            tries_max: 3,
            tries_within_ms: 20_000,
            retry_after_ms: 1000,
            start_ms_max: 120_000,
            revisions_max: 10,
            drain_ms_max: 30_000,
        }
    }
}

pub fn plan(desired: &Resource, observed: &Observed, limits: &Limits, now: Millis) -> Plan {
    let mut planner = Planner::new(desired, observed, limits, now);
    planner.begin();
    match desired.is_deleting() {
        true => planner.delete(),
        false => planner.reconcile(),
    }
    planner.finish()
}

/// The plan for a resource whose [`plan`] panicked: phase `Failed` with the reason. Running versions stay as they are.
pub fn failed(desired: &Resource, why: &str, limits: &Limits, now: Millis) -> Plan {
    refused(desired, &Failure::new(Reason::PlatformError, why), limits, now)
}

/// The plan for a resource that a platform must not act on, with the reason. Running versions stay as they are.
pub fn refused(desired: &Resource, failure: &Failure, limits: &Limits, now: Millis) -> Plan {
    let observed = Observed::default();
    let mut planner = Planner::new(desired, &observed, limits, now);
    planner.begin();
    planner.say(Aspect::DeployReady, Saying::no(failure.reason.name(), failure.message()));
    planner.set_phase(Phase::Failed);
    planner.finish()
}

struct Planner<'a> {
    desired: &'a Resource,
    observed: &'a Observed,
    limits: &'a Limits,
    now: Millis,
    status: Status,
    counters: Counters,
    actions: Vec<Action>,
    wake_at: Option<Millis>,
    told: Vec<(EventKind, Value)>,
    /// Whether the phase or a condition changed.
    changed: bool,
}

impl<'a> Planner<'a> {
    fn new(desired: &'a Resource, observed: &'a Observed, limits: &'a Limits, now: Millis) -> Planner<'a> {
        Planner {
            desired,
            observed,
            limits,
            now,
            status: desired.status.clone(),
            counters: desired.counters,
            actions: Vec::new(),
            wake_at: None,
            told: Vec::new(),
            changed: false,
        }
    }

    fn begin(&mut self) {
        let generation = self.desired.metadata.generation;
        match self.status.observed_generation {
            0 => self.tell_function(EventKind::FunctionCreated),
            seen if seen < generation => self.tell_function(EventKind::FunctionUpdated),
            _ => {}
        }
        self.status.observed_generation = generation;
    }

    fn reconcile(&mut self) {
        let progress = self.build();
        let phase = self.roll_out(progress);
        self.subscribe();
        self.platform_parts();
        self.look_for_secrets();
        self.set_phase(phase);
    }

    fn platform_parts(&mut self) {
        let parts = [
            (
                Aspect::BrokerReady,
                &self.observed.broker,
                Saying::yes("LocalLog", "Events come from the local log"),
            ),
            (
                Aspect::DlqReady,
                &self.observed.dead_letters,
                Saying::yes("LaneDeadLetters", "Dead letters stay in their lanes"),
            ),
            (
                Aspect::AiAgentReady,
                &self.observed.agent,
                Saying::unknown("NotConfigured", "No agent is configured"),
            ),
        ];
        for (aspect, said, otherwise) in parts {
            self.say(aspect, said.clone().unwrap_or(otherwise));
        }
    }

    fn finish(mut self) -> Plan {
        if self.changed {
            self.tell_status(EventKind::StatusUpdated);
        }
        let events = outbox::events(self.desired, &mut self.counters, self.told, self.now);
        let Planner { actions, status, counters, wake_at, .. } = self;
        Plan { actions, status, counters, wake_at, events }
    }

    fn say(&mut self, aspect: Aspect, saying: Saying) {
        let generation = self.desired.metadata.generation;
        self.changed |= conditions::set(&mut self.status.conditions, aspect, saying, generation, self.now);
    }

    fn set_phase(&mut self, phase: Phase) {
        self.changed |= self.status.phase != phase;
        self.status.phase = phase;
    }

    fn act(&mut self, action: impl Into<Action>) {
        self.actions.push(action.into());
    }

    fn wake(&mut self, at: Millis) {
        self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
    }
}
