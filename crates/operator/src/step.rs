//! One reconcile without the cluster: observe, plan, and list what to apply and to delete. Pure.

use crate::child::Child;
use crate::config::{Config, JOBS_KEPT};
use crate::desired::{self, Owned, Wanted, build};
use crate::kinds::Kind;
use crate::names;
use crate::observe;
use crate::snapshot::{self, Snapshot, annotation, is_condition, is_deleting};
use klambda_core::time::Millis;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::hash;
use klambda_functions::plan::{Action, Plan, plan, refused};
use klambda_functions::platform::Task;
use klambda_functions::resource::{BuildOutcome, Resource};
use serde_json::Value;
use std::sync::Arc;

#[derive(Debug)]
pub struct Step {
    pub plan: Plan,
    /// In this order.
    pub apply: Vec<Child>,
    pub delete: Vec<Doomed>,
    /// Nothing is left of the function: its finalizer can go.
    pub is_gone: bool,
}

/// An object to delete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Doomed {
    pub kind: Kind,
    pub name: String,
    /// Deletes this object only, not another one of the same name.
    pub uid: Option<String>,
}

impl Doomed {
    fn of(kind: Kind, object: &Value) -> Doomed {
        let uid = object["metadata"]["uid"].as_str().map(str::to_owned);
        Doomed { kind, name: snapshot::name(object).to_owned(), uid }
    }
}

pub fn step(
    resource: &Resource,
    api_version: &str,
    snapshot: &Snapshot,
    config: &Config,
    now: Millis,
) -> Step {
    let observed = observe::observe(resource, snapshot, config);
    let plan = plan(resource, &observed, &config.limits, now);
    let is_gone = plan.actions.contains(&Action::Remove);
    let mut step = Step { plan, apply: Vec::new(), delete: Vec::new(), is_gone };
    step.act(resource, api_version, snapshot, config);
    if !resource.is_deleting() {
        let wanted = wanted(resource, &step.plan);
        if wanted.is_some() && !snapshot.has(Kind::Service) {
            return without_serving(resource, config, now);
        }
        step.apply.extend(desired::children(resource, api_version, wanted.as_ref(), snapshot, config));
        step.tidy(snapshot);
    }
    step
}

/// A resource that must not be acted on: it is invalid, or its name is taken. What runs stays.
pub fn refuse(resource: &Resource, failure: &Failure, config: &Config, now: Millis) -> Step {
    let plan = refused(resource, failure, &config.limits, now);
    Step { plan, apply: Vec::new(), delete: Vec::new(), is_gone: false }
}

fn without_serving(resource: &Resource, config: &Config, now: Millis) -> Step {
    let what = "Knative Serving is not installed, so nothing can be deployed. Install Knative Serving";
    refuse(resource, &Failure::new(Reason::PlatformError, what), config, now)
}

/// What should run, if its image exists.
fn wanted(resource: &Resource, plan: &Plan) -> Option<Wanted> {
    let build = plan.status.build_status.as_ref()?;
    let artifact = build.hash.as_ref().filter(|_| build.outcome == Some(BuildOutcome::Completed))?;
    let image = build.image_uri.clone().filter(|_| resource.spec.url().is_none())?;
    Some(Wanted { version: hash::version(resource, artifact), image })
}

impl Step {
    fn act(&mut self, resource: &Resource, api_version: &str, snapshot: &Snapshot, config: &Config) {
        for action in self.plan.actions.clone() {
            match action {
                Action::Platform(Task::Build { inputs, number, hash }) => {
                    let name = self.plan.status.build_status.as_ref().map(|build| build.job_name.clone());
                    let build = build::Try { name: name.unwrap_or_default(), inputs, artifact: hash, number };
                    self.build(&Owned { resource, api_version }, &build, snapshot, config);
                }
                Action::Platform(Task::CancelBuild { .. }) => {
                    let open = snapshot.jobs.iter().filter(|job| !is_finished(job) && !is_deleting(job));
                    self.delete.extend(open.map(|job| Doomed::of(Kind::Job, job)));
                }
                // Knative moves the traffic and removes old revisions. Only the end of a function ends its service.
                Action::Platform(Task::Retire { .. }) if resource.is_deleting() => {
                    let service = snapshot.service.iter().filter(|service| !is_deleting(service));
                    self.delete.extend(service.map(|service| Doomed::of(Kind::Service, service)));
                }
                Action::Drain { .. } | Action::Unsubscribe => {
                    let known = snapshot.subscription.iter().filter(|known| !is_deleting(known));
                    self.delete.extend(known.map(|known| Doomed::of(Kind::Subscription, known)));
                }
                // Desired objects cover these.
                Action::Platform(_) | Action::Subscribe { .. } | Action::Remove => {}
            }
        }
    }

    /// A Job of an earlier try with the same inputs goes first: Jobs are immutable.
    fn build(&mut self, owned: &Owned<'_>, build: &build::Try, snapshot: &Snapshot, config: &Config) {
        let earlier = snapshot.jobs.iter().find(|job| snapshot::name(job) == build.name);
        match earlier {
            Some(job) if is_deleting(job) => {}
            Some(job) if annotation(job, names::TRY) != Some(&build.number.to_string()) => {
                self.delete.push(Doomed::of(Kind::Job, job));
            }
            _ => self.apply.extend(build::children(owned, build, config)),
        }
    }

    /// Removes what is no longer desired: Triggers with other filters, documents of ended builds, old Jobs, policies.
    fn tidy(&mut self, snapshot: &Snapshot) {
        let is_desired = |kind: Kind, object: &Value| {
            self.apply.iter().any(|child| child.kind == kind && child.name == snapshot::name(object))
        };
        let mut doomed = Vec::new();
        let triggers = snapshot.triggers.iter().filter(|trigger| !is_desired(Kind::Trigger, trigger));
        doomed.extend(triggers.map(|trigger| Doomed::of(Kind::Trigger, trigger)));
        let is_open = self.plan.status.build_status.as_ref().is_some_and(|build| build.outcome.is_none());
        let maps = snapshot.config_maps.iter().filter(|map| !is_open && !is_desired(Kind::ConfigMap, map));
        doomed.extend(maps.map(|map| Doomed::of(Kind::ConfigMap, map)));
        let mut finished: Vec<&Arc<Value>> =
            snapshot.jobs.iter().filter(|job| is_finished(job) && !is_deleting(job)).collect();
        finished
            .sort_by_key(|job| job["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned());
        let old = finished.len().saturating_sub(JOBS_KEPT);
        doomed.extend(finished.into_iter().take(old).map(|job| Doomed::of(Kind::Job, job)));
        let policies = snapshot.policies.iter().filter_map(|policy| {
            let kind = desired::mesh::KINDS.into_iter().find(|kind| policy["kind"] == kind.name())?;
            (!is_desired(kind, policy)).then(|| Doomed::of(kind, policy))
        });
        doomed.extend(policies);
        // An object that is being deleted needs no second request.
        doomed.sort();
        doomed.dedup();
        self.delete.extend(doomed);
    }
}

fn is_finished(job: &Value) -> bool {
    is_condition(job, "Complete", "True") || is_condition(job, "Failed", "True")
}

#[cfg(test)]
mod tests;
