//! The planning task: plans functions in order of arrival, stores the results of many functions in one step, then acts.

use crate::control::{Control, DOCUMENTS};
use crate::counts::{FAILURE, SUCCESS};
use crate::deleted;
use crate::revisions;
use crate::state::Stored;
use crate::subscriptions::SubscriptionChange;
use crate::traces::Work;
use klambda_core::time::Millis;
use klambda_crash::{Place, Point, contain};
use klambda_dispatch::Engine;
use klambda_dispatch::documents::{self, CONTENT_BYTES_MAX, DocumentEvent, EVENTS_MAX, Expected, Write};
use klambda_dispatch::runner::Stopped;
use klambda_functions::name::Name;
use klambda_functions::observed::Observed;
use klambda_functions::plan::{Action, Plan, failed, plan};
use klambda_functions::platform::Task;
use klambda_functions::resource::{Phase, Resource, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum number of functions that are planned before the results are stored.
const AT_ONCE: usize = 32;
const STEP_BYTES_MAX: usize = 2 << 20;
/// Delay before a failed write is retried.
const AGAIN_MS: u64 = 1000;

struct Planned {
    name: Name,
    /// The resource that the plan is based on, and the version of its document.
    resource: Arc<Resource>,
    version: u64,
    plan: Plan,
    /// The result label of the metrics.
    result: &'static str,
    /// Number of events about this plan.
    events: usize,
    /// The resource to store. `None` if nothing changes or the resource is removed.
    update: Option<Update>,
    /// Documents of revisions that are added or removed with it.
    revisions: Vec<Write>,
}

struct Update {
    resource: Resource,
    content: Vec<u8>,
}

/// Plans that are stored in one step of the engine.
#[derive(Default)]
struct Step {
    planned: Vec<Planned>,
    bytes: usize,
    events: usize,
}

/// Documents and events that are stored in one step.
struct Group {
    planned: Vec<Planned>,
    writes: Vec<Write>,
    /// In the order of `planned`.
    events: Vec<DocumentEvent>,
}

impl Control {
    pub(crate) async fn reconcile(self) {
        loop {
            Point::Reconcile.pass();
            let now = self.clock.now();
            let (due, next) = {
                let mut state = self.lock();
                (state.take(AT_ONCE, now), state.next_wake())
            };
            if due.is_empty() {
                self.idle(next).await;
                continue;
            }
            if self.platform().await.is_none() {
                due.iter().for_each(|name| self.wake(name, now + AGAIN_MS));
                self.idle(Some(now + AGAIN_MS)).await;
                continue;
            }
            if self.look_at_leaving(&due).await.is_err() {
                return;
            }
            let began = Instant::now();
            let Ok(planned) = self.plan_all(due).await else { return };
            if self.settle(planned, began).await.is_err() {
                return;
            }
        }
    }

    async fn idle(&self, next: Option<Millis>) {
        let wait = next.map_or(3_600_000, |at| at.since(self.clock.now()));
        let _ = tokio::time::timeout(Duration::from_millis(wait), self.changed.notified()).await;
    }

    /// Runs on a thread that may block, because the platform may read files.
    async fn plan_all(&self, names: Vec<Name>) -> Result<Vec<Planned>, Stopped> {
        let control = self.clone();
        let plans = move || names.into_iter().filter_map(|name| control.plan(name)).collect();
        tokio::task::spawn_blocking(plans).await.map_err(|_| Stopped)
    }

    fn plan(&self, name: Name) -> Option<Planned> {
        let (resource, version) = self.live(&name)?;
        let observed = self.observe(&name, &resource);
        let (plan, result) = self.contained_plan(&name, &resource, &observed)?;
        if let Some(at) = plan.wake_at {
            self.lock().wake(&name, at);
        }
        let events = plan.events.len();
        let revisions = Vec::new();
        let mut planned = Planned { name, resource, version, plan, result, events, update: None, revisions };
        if planned.changes() && !planned.removes() && !planned.make_update() {
            // Only a version without this limit can have stored such a large resource. It is planned again when it changes or is deleted.
            tracing::error!(function = %planned.name, "Function is too large to store with its status; make it smaller or delete it");
            self.count_failed(&planned.name);
            return None;
        }
        planned.note_revisions(self.clock.now());
        Some(planned)
    }

    fn observe(&self, name: &Name, resource: &Resource) -> Observed {
        let mut observed = self.running().map(|platform| platform.observe(resource)).unwrap_or_default();
        for version in &mut observed.versions {
            // A function without a URL of its own is called through this server.
            version.url.get_or_insert_with(|| self.invoke_url(resource));
        }
        observed.subscription = self.subscription_of(name);
        observed
    }

    fn invoke_url(&self, resource: &Resource) -> String {
        let (url, kind, metadata) = (&self.options.url, resource.kind.word(), &resource.metadata);
        format!("{url}/api/v1/lambda/{kind}s/{}/invoke?namespace={}", metadata.name, metadata.namespace)
    }

    /// A panic in a plan fails only this resource. Ending the process would not help: the plan would panic after every restart.
    fn contained_plan(
        &self,
        name: &Name,
        resource: &Resource,
        observed: &Observed,
    ) -> Option<(Plan, &'static str)> {
        let (limits, now) = (&self.options.limits, self.clock.now());
        let planned = contain(Place::Plan, || {
            Point::Plan.pass();
            plan(resource, observed, limits, now)
        });
        let panic = match planned {
            Ok(plan) => return Some((plan, SUCCESS)),
            Err(panic) => panic,
        };
        tracing::error!(%panic, function = %name, "Planning a function panicked");
        match contain(Place::Plan, || failed(resource, &panic.to_string(), limits, now)) {
            Ok(plan) => Some((plan, FAILURE)),
            Err(_) => {
                self.count_failed(name);
                None
            }
        }
    }

    /// Stores the results of the plans, then runs their actions.
    async fn settle(&self, planned: Vec<Planned>, began: Instant) -> Result<(), Stopped> {
        let mut act = Vec::new();
        let mut step = Step::default();
        for planned in planned {
            if !planned.changes() {
                act.push(planned);
                continue;
            }
            if step.is_full(&planned) {
                act.extend(self.store_step(std::mem::take(&mut step)).await?);
            }
            step.add(planned);
        }
        act.extend(self.store_step(step).await?);
        act.iter().for_each(|planned| self.count(planned, began.elapsed()));
        act.retain(|planned| !planned.plan.actions.is_empty());
        if act.is_empty() {
            return Ok(());
        }
        let control = self.clone();
        // The platform creates folders and writes files, so this runs on a thread that may block.
        let acting = tokio::task::spawn_blocking(move || control.act_on(act));
        let changes = acting.await.map_err(|_| Stopped)?;
        self.change_subscriptions(changes).await
    }

    /// Counts a plan after its result is stored, even if nothing changed.
    fn count(&self, planned: &Planned, took: Duration) {
        let Planned { name, resource, plan, result, .. } = planned;
        if planned.removes() {
            return self.counting.forget(name);
        }
        self.counting.reconciled(name, plan.status.phase.name(), result, took);
        self.record(planned, took);
        let version = |status: &Status| status.service_status.as_ref().and_then(|seen| seen.version.clone());
        let serves =
            version(&plan.status).filter(|serves| version(&resource.status).as_ref() != Some(serves));
        if let Some(serves) = serves
            && let Some(entry) = self.lock().functions.get(name)
            && let Some((_, since)) = entry.deployed.as_ref().filter(|(version, _)| *version == serves)
        {
            let took = Duration::from_millis(self.clock.now().since(*since));
            self.counting.service_created(name, took);
            let phase = plan.status.phase.name();
            self.record_work(Work {
                name: "operator.service.create",
                function: name,
                resource,
                phase,
                took,
                error: None,
            });
        }
    }

    /// Plans that change nothing are not recorded.
    fn record(&self, planned: &Planned, took: Duration) {
        let Planned { name, resource, plan, result, .. } = planned;
        let has_changed = plan.status != resource.status || !plan.actions.is_empty();
        if self.options.tracer.is_none() || !has_changed {
            return;
        }
        let is_first = resource.status.observed_generation != resource.metadata.generation;
        let error = (*result == FAILURE).then(|| "planning failed".to_owned());
        let phase = plan.status.phase.name();
        let work = Work { name: "operator.reconcile", function: name, resource, phase, took, error };
        self.record_plan(work, is_first);
    }

    fn count_failed(&self, name: &Name) {
        let phase = self.get(name).map_or(Phase::default(), |resource| resource.status.phase);
        self.counting.reconciled(name, phase.name(), FAILURE, Duration::ZERO);
    }

    fn act_on(&self, planned: Vec<Planned>) -> Vec<(Name, SubscriptionChange)> {
        Point::Act.pass();
        let mut changes = Vec::new();
        for Planned { name, resource, plan, .. } in planned {
            for action in plan.actions {
                changes.extend(self.act(&name, &resource, action));
            }
        }
        changes
    }

    /// Returns the plans that were stored. Plans whose resource changed meanwhile are queued again.
    async fn store_step(&self, step: Step) -> Result<Vec<Planned>, Stopped> {
        if step.planned.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<Name> = step.planned.iter().map(|planned| planned.name.clone()).collect();
        let going = step.planned.iter().filter(|planned| planned.removes()).count();
        let group = Group::new(step.planned, self.lock().deleted.too_many(going));
        let control = self.clone();
        match self.step(move |engine| control.put_group(engine, group)).await? {
            Ok((stored, outrun)) => {
                outrun.iter().for_each(|name| self.enqueue(name));
                Ok(stored)
            }
            // One invalid function must not delay the others.
            Err(documents::Error::Invalid(_)) if names.len() > 1 => self.store_each(names).await,
            Err(error) => {
                tracing::warn!(%error, functions = names.len(), "Could not save function status; retrying");
                let at = self.clock.now() + AGAIN_MS;
                names.iter().for_each(|name| self.wake(name, at));
                names.iter().for_each(|name| self.count_failed(name));
                Ok(Vec::new())
            }
        }
    }

    async fn store_each(&self, names: Vec<Name>) -> Result<Vec<Planned>, Stopped> {
        let mut stored = Vec::new();
        for planned in self.plan_all(names).await? {
            if !planned.changes() {
                stored.push(planned);
                continue;
            }
            let mut step = Step::default();
            step.add(planned);
            stored.extend(Box::pin(self.store_step(step)).await?);
        }
        Ok(stored)
    }

    /// Returns the stored plans, and the names of functions that changed meanwhile.
    fn put_group(
        &self,
        engine: &mut Engine,
        mut group: Group,
    ) -> Result<(Vec<Planned>, Vec<Name>), documents::Error> {
        let mut outrun = Vec::new();
        while !group.planned.is_empty() {
            match engine.put_documents(&group.writes, &group.events) {
                Ok(version) => {
                    group.planned.iter_mut().for_each(|planned| self.take_over(planned, version));
                    break;
                }
                Err(documents::Error::Conflict { key, .. }) => {
                    group.leave_out(&key);
                    outrun.push(Name::from_text(&key));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((group.planned, outrun))
    }

    fn take_over(&self, planned: &mut Planned, version: u64) {
        let Some(Update { mut resource, .. }) = planned.update.take() else {
            self.functions_count.fetch_sub(1, Ordering::Relaxed);
            return self.stored(Stored::Removed(planned.name.clone()));
        };
        resource.metadata.resource_version = version.to_string();
        self.stored(Stored::Planned { resource: Arc::new(resource), version });
    }

    /// Starts an action of the plan. A change of a subscription is returned, so that changes of many functions share one step.
    fn act(
        &self,
        name: &Name,
        resource: &Arc<Resource>,
        action: Action,
    ) -> Option<(Name, SubscriptionChange)> {
        let platform = self.running()?;
        match action {
            Action::Platform(task) => {
                self.note_deployed(name, &task);
                platform.act(resource, task);
            }
            Action::Subscribe { document } => return Some((name.clone(), SubscriptionChange::Put(document))),
            Action::Drain { until } => return Some((name.clone(), SubscriptionChange::Delete { until })),
            Action::Unsubscribe => {
                return Some((name.clone(), SubscriptionChange::Delete { until: Millis(0) }));
            }
            Action::Remove => platform.act(resource, Task::Forget),
        }
        None
    }

    /// Remembers when the version was deployed, to measure the time until it is ready.
    fn note_deployed(&self, name: &Name, task: &Task) {
        if let Task::Deploy { version, .. } = task
            && let Some(entry) = self.lock().functions.get_mut(name)
        {
            entry.deployed = Some((version.clone(), self.clock.now()));
        }
    }
}

impl Planned {
    fn changes(&self) -> bool {
        let Plan { status, counters, events, .. } = &self.plan;
        *status != self.resource.status
            || *counters != self.resource.counters
            || !events.is_empty()
            || self.removes()
    }

    fn removes(&self) -> bool {
        self.plan.actions.contains(&Action::Remove)
    }

    /// Returns false if the resource is too large to store. Status fields that were dropped to fit do not count as a change
    /// the next time.
    fn make_update(&mut self) -> bool {
        let mut resource = Resource::clone(&self.resource);
        resource.status = self.plan.status.clone();
        resource.counters = self.plan.counters;
        let Some(content) = resource.to_stored_within(CONTENT_BYTES_MAX) else { return false };
        self.plan.status = resource.status.clone();
        if self.changes() {
            self.update = Some(Update { resource, content });
        }
        true
    }

    fn note_revisions(&mut self, now: Millis) {
        let after = self.update.as_ref().map(|update| &update.resource);
        if after.is_some() || self.removes() {
            self.revisions = revisions::writes(&self.name, &self.resource.status, after, now);
        }
    }

    /// The writes of the document and of its revisions, and the write that keeps its event number when it is deleted.
    fn take_writes(&mut self) -> impl Iterator<Item = Write> + use<> {
        let document = Write {
            kind: DOCUMENTS.into(),
            key: self.name.as_str().to_owned(),
            content: self.update.as_mut().map(|update| std::mem::take(&mut update.content)),
            expected: Expected::Version(self.version),
        };
        let told = self.plan.counters.transitions;
        let number = self.removes().then(|| deleted::keep(&self.name, told));
        [document].into_iter().chain(std::mem::take(&mut self.revisions)).chain(number)
    }

    fn bytes(&self) -> usize {
        let revisions = self.revisions.iter().filter_map(|write| write.content.as_ref()).map(Vec::len);
        self.update.as_ref().map_or(0, |update| update.content.len()) + revisions.sum::<usize>()
    }
}

impl Planned {
    fn take_events(&mut self) -> Vec<DocumentEvent> {
        let events = std::mem::take(&mut self.plan.events).into_iter();
        events.map(|event| DocumentEvent { namespace: self.name.namespace().to_owned(), event }).collect()
    }
}

impl Group {
    fn new(mut planned: Vec<Planned>, forgotten: Vec<Write>) -> Group {
        let mut writes = forgotten;
        writes.extend(planned.iter_mut().flat_map(Planned::take_writes));
        let events = planned.iter_mut().flat_map(Planned::take_events).collect();
        Group { planned, writes, events }
    }

    /// Removes one plan, so that the others can be stored without it.
    fn leave_out(&mut self, key: &str) {
        self.writes.retain(|write| write.key != key && !revisions::is_of(write, key));
        if let Some(index) = self.planned.iter().position(|planned| planned.name.as_str() == key) {
            let before: usize = self.planned[..index].iter().map(|planned| planned.events).sum();
            let outrun = self.planned.remove(index);
            self.events.drain(before..before + outrun.events);
        }
    }
}

impl Step {
    fn is_full(&self, planned: &Planned) -> bool {
        !self.planned.is_empty()
            && (self.bytes + planned.bytes() > STEP_BYTES_MAX
                || self.events + planned.plan.events.len() > EVENTS_MAX)
    }

    fn add(&mut self, planned: Planned) {
        self.bytes += planned.bytes();
        self.events += planned.plan.events.len();
        self.planned.push(planned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_core::event::Event;
    use klambda_functions::resource::Counters;

    fn planned(name: &str, events: usize) -> Planned {
        let event = |n: usize| Event {
            id: format!("{name}{n}"),
            source: "/test".into(),
            kind: "t".into(),
            attributes: Vec::new(),
            data: None,
        };
        let (status, counters) = (Status::default(), Counters::default());
        let told = (0..events).map(event).collect();
        let plan = Plan { actions: Vec::new(), status, counters, wake_at: None, events: told };
        let (name, resource) = (Name::new("default", name), Arc::new(Resource::default()));
        let revisions = Vec::new();
        Planned { name, resource, version: 1, plan, result: SUCCESS, events, update: None, revisions }
    }

    #[test]
    fn one_that_is_left_out_takes_its_own_writes_and_events_along() {
        let mut group = Group::new(vec![planned("a", 1), planned("b", 2), planned("c", 1)], Vec::new());
        assert_eq!(group.events.len(), 4);
        group.leave_out("default/b");
        let ids: Vec<&str> = group.events.iter().map(|told| told.event.id.as_str()).collect();
        let keys: Vec<&str> = group.writes.iter().map(|write| write.key.as_str()).collect();
        assert_eq!((ids, keys), (vec!["a0", "c0"], vec!["default/a", "default/c"]));
        assert_eq!(group.planned.len(), 2);
    }
}
