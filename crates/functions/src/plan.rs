//! From what is asked for and what is seen to what is to be done next, and what to say of it.
//!
//! [`plan`] is called again after everything that happens and at `wake_at`. It is driven by state, not by steps: an action
//! that was lost is simply asked for again, and a platform ignores what it is already doing (a fetch or build is known by
//! its number, a version and a subscription by their hash). What must be remembered between calls is in the status and
//! in the counters, which the caller stores together with the emitted events in one step.
//!
//! Rules that hold whatever happens:
//! - content that is built or being built is not built again;
//! - the version that serves is not retired before the next one answers;
//! - a failed build or version leaves the serving one alone: `Failed` is said only when nothing serves;
//! - each transition is told once, in order: the counters number events, and their ids are made of that number.

mod build;
mod delete;
mod outbox;
mod roll_out;
mod subscribe;

use crate::conditions::{self, Saying};
use crate::failure::{Failure, Reason};
use crate::observed::Observed;
use crate::platform::Task;
use crate::resource::{Aspect, Counters, Phase, Resource, Status};
use klambda_core::event::Event;
use klambda_core::kinds::Kind;
use klambda_core::time::Millis;
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tries of a source, and then of a build.
    pub tries_max: u32,
    /// No try begins later than this after the first.
    pub tries_within_ms: u64,
    /// Before the second try; twice as long before the third.
    pub retry_after_ms: u64,
    /// A version that has not answered by then has failed.
    pub start_ms_max: u64,
    /// How long a function that is deleted may finish what waits for it.
    pub drain_ms_max: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    /// To be stored, together with `counters` and `events`.
    pub status: Status,
    pub counters: Counters,
    /// When to plan again though nothing happened.
    pub wake_at: Option<Millis>,
    /// In order.
    pub events: Vec<Event>,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// By the platform.
    Platform(Task),
    /// Make the subscription what this document says.
    Subscribe { document: Value },
    /// Take no more events; deliver those that wait until then.
    Drain { until: Millis },
    /// End the subscription. What still waits becomes dead letters, reason `unavailable`.
    Unsubscribe,
    /// Nothing is left: forget the resource.
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

/// The plan of a resource for which [`plan`] itself failed: `Failed` with the reason. What runs is left alone.
pub fn failed(desired: &Resource, why: &str, limits: &Limits, now: Millis) -> Plan {
    let observed = Observed::default();
    let mut planner = Planner::new(desired, &observed, limits, now);
    planner.begin();
    let failure = Failure::new(Reason::PlatformError, why);
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
    told: Vec<(Kind, Value)>,
    /// Whether the phase or a condition is not what it was.
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
            0 => self.tell_function(Kind::FunctionCreated),
            seen if seen < generation => self.tell_function(Kind::FunctionUpdated),
            _ => {}
        }
        self.status.observed_generation = generation;
    }

    fn reconcile(&mut self) {
        let made = self.build();
        let phase = self.roll_out(made);
        self.subscribe();
        self.platform_parts();
        self.set_phase(phase);
    }

    fn platform_parts(&mut self) {
        let parts = [
            (
                Aspect::BrokerReady,
                &self.observed.broker,
                Saying::yes("LocalLog", "Events come from the log."),
            ),
            (
                Aspect::DlqReady,
                &self.observed.dead_letters,
                Saying::yes("LaneDeadLetters", "Dead letters are kept in their lanes."),
            ),
            (
                Aspect::AiAgentReady,
                &self.observed.agent,
                Saying::unknown("NotConfigured", "No agent watches it."),
            ),
        ];
        for (aspect, said, otherwise) in parts {
            self.say(aspect, said.clone().unwrap_or(otherwise));
        }
    }

    fn finish(mut self) -> Plan {
        if self.changed {
            self.tell_status(Kind::StatusUpdated);
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
