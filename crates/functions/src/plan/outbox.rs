//! The events of a plan. The id of an event is derived from the resource, its generation and the transition number, so
//! planning again after a crash produces the same event.

use super::Planner;
use crate::events::{BuildData, FunctionData, HealthStatus, Identity, ServiceData, StatusData, build_event};
use crate::resource::{Aspect, BuildOutcome, BuildStatus, Counters, Resource, Spec, Truth};
use klambda_core::event::Event;
use klambda_core::kinds::EventKind;
use klambda_core::time::Millis;
use serde::Serialize;
use serde_json::Value;

pub(super) fn events(
    resource: &Resource,
    counters: &mut Counters,
    told: Vec<(EventKind, Value)>,
    now: Millis,
) -> Vec<Event> {
    let mut made = Vec::with_capacity(told.len());
    for (kind, data) in told {
        counters.transitions += 1;
        made.push(build_event(&Identity::of(resource, counters.transitions), kind, &data, now));
    }
    made
}

fn json<T: Serialize>(data: &T) -> Value {
    serde_json::to_value(data).unwrap_or_default()
}

/// The spec without the values of environment variables: they may be secrets, and every subscriber sees this event.
fn told_spec(spec: &Spec) -> Value {
    let mut spec = spec.clone();
    spec.env.iter_mut().for_each(|variable| variable.value = None);
    json(&spec)
}

impl Planner<'_> {
    fn tell<T: Serialize>(&mut self, kind: EventKind, data: &T) {
        self.told.push((kind, json(data)));
    }

    pub(super) fn tell_function(&mut self, kind: EventKind) {
        let Resource { kind: resource_kind, metadata, spec, .. } = self.desired;
        let data = FunctionData {
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            kind: *resource_kind,
            spec: told_spec(spec),
            status: None,
        };
        self.tell(kind, &data);
    }

    pub(super) fn tell_build_started(&mut self, build: &BuildStatus) {
        let data = self.build_data(build, "started");
        self.tell(EventKind::BuildStarted, &data);
    }

    pub(super) fn tell_build_ended(&mut self, build: &BuildStatus, outcome: BuildOutcome) {
        let kind = match outcome {
            BuildOutcome::Completed => EventKind::BuildCompleted,
            BuildOutcome::Failed => EventKind::BuildFailed,
            BuildOutcome::Timeout => EventKind::BuildTimeout,
            BuildOutcome::Cancelled => EventKind::BuildCancelled,
            BuildOutcome::Stopped => EventKind::BuildStopped,
        };
        let data = self.build_data(build, outcome.name());
        self.tell(kind, &data);
    }

    fn build_data(&self, build: &BuildStatus, word: &str) -> BuildData {
        let duration = build.completed_at.zip(build.started_at).map(|(end, start)| end.0.since(start.0));
        BuildData {
            function_name: self.desired.metadata.name.clone(),
            namespace: self.desired.metadata.namespace.clone(),
            build_id: build.inputs.clone(),
            job_name: Some(build.job_name.clone()),
            image_uri: build.image_uri.clone(),
            status: word.to_owned(),
            error: build.error.clone(),
            duration_seconds: duration.map(|ms| ms as f64 / 1000.0),
        }
    }

    pub(super) fn tell_service(&mut self, kind: EventKind) {
        let service = self.status.service_status.clone().unwrap_or_default();
        let data = ServiceData {
            service_name: self.desired.metadata.name.clone(),
            namespace: self.desired.metadata.namespace.clone(),
            url: service.url.clone(),
            status: Some(json(&service)),
        };
        self.tell(kind, &data);
    }

    pub(super) fn tell_status(&mut self, kind: EventKind) {
        let health = match self.status.condition(Aspect::ServiceReady).map(|condition| condition.status) {
            Some(Truth::True) => HealthStatus::Healthy,
            Some(Truth::False) => HealthStatus::Unhealthy,
            _ => HealthStatus::Unknown,
        };
        let data = StatusData {
            function_name: self.desired.metadata.name.clone(),
            namespace: self.desired.metadata.namespace.clone(),
            phase: self.status.phase,
            conditions: Some(self.status.conditions.clone()),
            health_status: Some(health),
        };
        self.tell(kind, &data);
    }
}
