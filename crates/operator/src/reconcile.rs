//! One reconcile of one function: what differs is applied, then the events are sent, then the status is written.
//!
//! Nothing here has to be remembered. A process that dies at any point leaves objects whose names and hashes tell the next
//! one what was done.

use crate::cache::{Cache, Key};
use crate::child::Child;
use crate::cluster::{Cluster, Error};
use crate::config::Config;
use crate::desired::build::{DOCUMENT_BYTES_MAX, fetch_document};
use crate::emit::{self, Emitter};
use crate::kinds::Kind;
use crate::metrics::Metrics;
use crate::names::{FINALIZER, FUNCTION};
use crate::queue::Outcome;
use crate::read::{self, Read};
use crate::snapshot::Snapshot;
use crate::step::{self, Doomed, Step};
use klambda_core::fault::Fault;
use klambda_core::time::Millis;
use klambda_crash::{Place, contain};
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::resource::{Phase, Resource, Status, Truth};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A rejected object is tried again after this time: a quota or a webhook may have changed.
const REJECTED_AGAIN_MS: u64 = 30_000;

#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error(transparent)]
    Cluster(#[from] Error),
    #[error(transparent)]
    Emit(#[from] emit::Error),
}

/// Everything that a reconcile needs.
pub struct Reconciler {
    pub cluster: Cluster,
    pub cache: Arc<Cache>,
    pub config: Arc<Config>,
    pub emitter: Emitter,
    pub metrics: Arc<Metrics>,
    /// The name of this replica, for Events.
    pub identity: String,
}

fn now() -> Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

impl Reconciler {
    pub async fn reconcile(&self, key: &Key) -> Outcome {
        let Some(object) = self.cache.get(key) else { return Outcome::Gone };
        if !self.config.manages(&key.namespace) {
            return Outcome::Gone;
        }
        match self.run(key, object).await {
            Ok(outcome) => outcome,
            Err(Failed::Cluster(Error::Conflict)) => Outcome::Conflict,
            Err(error) => {
                tracing::warn!(function = format!("{}/{}", key.namespace, key.name), %error, "Could not reconcile; retrying");
                self.metrics.failed();
                Outcome::Failed
            }
        }
    }

    async fn run(&self, key: &Key, object: Arc<Value>) -> Result<Outcome, Failed> {
        let Read { resource, faults } = read::read(&object);
        let object = match self.keep(key, object, &resource).await? {
            Some(object) => object,
            None => return Ok(Outcome::Gone),
        };
        let snapshot = self.cache.snapshot(&key.namespace, &key.name, &resource.metadata.uid);
        let api_version = key.kind.api_version();
        let planned = contain(Place::Plan, || match self.refusal(key, &resource, &faults) {
            Some(failure) if !resource.is_deleting() => {
                step::refuse(&resource, &failure, &self.config, now())
            }
            _ => step::step(&resource, &api_version, &snapshot, &self.config, now()),
        });
        // A panic fails only this function. It would come back after a restart.
        let step = planned.unwrap_or_else(|panic| {
            tracing::error!(%panic, function = format!("{}/{}", key.namespace, key.name), "Planning a function panicked");
            let failure = Failure::new(Reason::PlatformError, panic.to_string());
            step::refuse(&resource, &failure, &self.config, now())
        });
        let rejected = self.act(&resource, &step, &snapshot).await?;
        let step = match rejected {
            None => step,
            // The status tells what the API server, or a webhook of Knative, does not accept.
            Some(failure) => {
                let mut step = step::refuse(&resource, &failure, &self.config, now());
                step.plan.wake_at = Some(now() + REJECTED_AGAIN_MS);
                step
            }
        };
        self.finish(key, &object, &resource, &step).await
    }

    /// Adds the finalizer before anything is created. `None` if the function is gone.
    async fn keep(
        &self,
        key: &Key,
        object: Arc<Value>,
        resource: &Resource,
    ) -> Result<Option<Arc<Value>>, Failed> {
        let finalizers = object["metadata"]["finalizers"].as_array();
        let is_kept = finalizers.is_some_and(|known| known.iter().any(|known| known == FINALIZER));
        match (is_kept, resource.is_deleting()) {
            (true, _) => Ok(Some(object)),
            // Someone removed the finalizer. The garbage collector does the rest.
            (false, true) => Ok(None),
            (false, false) => {
                let Some(kept) = self.cluster.set_finalizer(key.kind, &object, true).await? else {
                    return Ok(None);
                };
                let kept = Arc::new(kept);
                self.cache.put(key.kind, kept.clone());
                Ok(Some(kept))
            }
        }
    }

    /// Why the operator must not act for this resource.
    fn refusal(&self, key: &Key, resource: &Resource, faults: &[Fault]) -> Option<Failure> {
        if !faults.is_empty() {
            let told: Vec<String> =
                faults.iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect();
            return Some(Failure::new(Reason::SpecInvalid, told.join("; ")));
        }
        if let Some(first) = self.first_of_name(key) {
            let what = format!("A {} with the same name exists ({})", first.name(), first.api_version());
            return Some(Failure::new(Reason::NameTaken, what));
        }
        if fetch_document(resource).is_none() {
            let what = format!("Code and dependencies have more than {DOCUMENT_BYTES_MAX} bytes");
            return Some(Failure::new(Reason::SourceTooLarge, what));
        }
        None
    }

    /// Another function or agent that had the name first.
    fn first_of_name(&self, key: &Key) -> Option<Kind> {
        let mut named = self.cache.named(&key.namespace, &key.name);
        let age = |object: &Value| {
            let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
            (text("creationTimestamp"), text("uid"))
        };
        named.sort_by_key(|(_, object)| age(object));
        let first = named.first().map(|(kind, _)| *kind)?;
        (first != key.kind).then_some(first)
    }

    /// Applies what differs and deletes what is not desired. Returns why an object was rejected.
    async fn act(
        &self,
        resource: &Resource,
        step: &Step,
        snapshot: &Snapshot,
    ) -> Result<Option<Failure>, Failed> {
        for doomed in &step.delete {
            self.cluster.delete(&resource.metadata.namespace, doomed).await?;
        }
        for child in &step.apply {
            if self.is_current(child, snapshot, &step.delete) {
                continue;
            }
            if self.is_foreign(child).await? {
                let what = format!("A {} with the same name exists", child.kind.name());
                return Ok(Some(Failure::new(Reason::NameTaken, what)));
            }
            match self.cluster.apply(child).await {
                Ok(applied) => self.cache.put(child.kind, Arc::new(applied)),
                Err(error @ Error::Rejected { .. }) => {
                    return Ok(Some(Failure::new(Reason::PlatformError, error.to_string())));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Whether someone else made a Knative Service of this name. It is not in the cache, because it lacks our label.
    async fn is_foreign(&self, child: &Child) -> Result<bool, Failed> {
        let is_known = self.cache.find(child.kind, &child.namespace, &child.name).is_some();
        if child.kind != Kind::Service || is_known {
            return Ok(false);
        }
        let live = self.cluster.get(child.kind, &child.namespace, &child.name).await?;
        Ok(live.is_some_and(|live| live["metadata"]["labels"][FUNCTION].is_null()))
    }

    fn is_current(&self, child: &Child, snapshot: &Snapshot, deleted: &[Doomed]) -> bool {
        if child.kind == Kind::ServiceAccount && snapshot.has_build_account {
            return true;
        }
        let live = self.cache.find(child.kind, &child.namespace, &child.name);
        let is_deleted =
            deleted.iter().any(|doomed| (doomed.kind, &doomed.name) == (child.kind, &child.name));
        live.is_some_and(|live| !is_deleted && (child.is_immutable() || child.is_covered_by(&live)))
    }

    async fn finish(
        &self,
        key: &Key,
        object: &Value,
        resource: &Resource,
        step: &Step,
    ) -> Result<Outcome, Failed> {
        self.emitter.send(&key.namespace, &step.plan.events, &self.config).await?;
        self.metrics.reconciled(if self.config.emits { step.plan.events.len() } else { 0 });
        if step.is_gone {
            self.cluster.set_finalizer(key.kind, object, false).await?;
            self.metrics.forget(key);
            return Ok(Outcome::Gone);
        }
        let status = read::status_json(&step.plan.status, &step.plan.counters);
        let known = read::status_json(&resource.status, &resource.counters);
        if status != known {
            let mut written = object.clone();
            written["status"] = status;
            let Some(written) = self.cluster.replace_status(key.kind, &written).await? else {
                return Ok(Outcome::Gone);
            };
            self.cache.put(key.kind, Arc::new(written));
            self.tell_people(key, resource, &step.plan.status).await;
        }
        self.metrics.phase(key, step.plan.status.phase);
        let wake = step.plan.wake_at.map(|at| Duration::from_millis(at.since(now()).max(10)));
        Ok(Outcome::Done { wake })
    }

    /// An Event for each condition that turned, and for the phase. A lost Event is only a message less.
    async fn tell_people(&self, key: &Key, resource: &Resource, after: &Status) {
        for (is_warning, reason, note) in messages(&resource.status, after) {
            let event = self.event(key, resource, is_warning, &reason, &note);
            if let Err(error) = self.cluster.create_event(&key.namespace, &event).await {
                tracing::debug!(%error, "Could not create an Event");
            }
        }
    }

    fn event(&self, key: &Key, resource: &Resource, is_warning: bool, reason: &str, note: &str) -> Value {
        let now = jiff::Timestamp::now();
        let random = getrandom::u64().unwrap_or_default();
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "name": format!("{}.{random:016x}", key.name), "namespace": key.namespace },
            "eventTime": format!("{now:.6}"),
            "reportingController": "lambda.knative.io/operator",
            "reportingInstance": self.identity,
            "action": "Reconcile",
            "type": if is_warning { "Warning" } else { "Normal" },
            "reason": reason,
            "note": note.chars().take(1000).collect::<String>(),
            "regarding": {
                "apiVersion": key.kind.api_version(),
                "kind": key.kind.name(),
                "name": key.name,
                "namespace": key.namespace,
                "uid": resource.metadata.uid,
                "resourceVersion": resource.metadata.resource_version,
            },
        })
    }
}

/// What people should know about a change of the status.
fn messages(before: &Status, after: &Status) -> Vec<(bool, String, String)> {
    let mut messages = Vec::new();
    for condition in &after.conditions {
        let known = before.condition(condition.aspect);
        let is_news =
            known.is_none_or(|known| (known.status, &known.reason) != (condition.status, &condition.reason));
        if is_news && condition.status == Truth::False {
            messages.push((true, condition.reason.clone(), condition.message.clone()));
        }
    }
    if before.phase != after.phase {
        let is_warning = after.phase == Phase::Failed;
        messages.push((
            is_warning,
            after.phase.name().to_owned(),
            format!("Phase is {}", after.phase.name()),
        ));
    }
    messages
}
