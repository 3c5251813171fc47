//! The task that plans: takes functions in the order of coming, stores what many of them came to in one step, then acts.

use crate::control::{Control, DOCUMENTS};
use crate::counts::{FAILURE, SUCCESS};
use crate::names::Name;
use crate::observe::observe;
use crate::platform::Sweeps;
use crate::subscriptions::Wish;
use klambda_core::time::Millis;
use klambda_crash::{Place, Point, contain};
use klambda_dispatch::Engine;
use klambda_dispatch::documents::{self, CONTENT_BYTES_MAX, EVENTS_MAX, Expected, Write};
use klambda_functions::observed::Observed;
use klambda_functions::plan::{Action, Plan, failed, plan};
use klambda_functions::resource::{Phase, Resource, Status};
use klambda_local::fleet::Changes;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Functions that are planned before their outcome is stored.
const AT_ONCE: usize = 32;
const STEP_BYTES_MAX: usize = 2 << 20;
/// When what could not be stored is tried again.
const AGAIN_MS: u64 = 1000;

struct Planned {
    name: Name,
    /// What the plan was made from.
    resource: Arc<Resource>,
    plan: Plan,
    /// What it counts as.
    result: &'static str,
    /// As it is to be stored; none if nothing changes or it is to be removed.
    outcome: Option<Outcome>,
}

struct Outcome {
    resource: Resource,
    content: Vec<u8>,
}

/// What goes into one step of the engine.
#[derive(Default)]
struct Step {
    planned: Vec<Planned>,
    bytes: usize,
    events: usize,
}

impl Control {
    pub(crate) async fn reconcile(self) {
        let mut sweeps = Sweeps::default();
        loop {
            Point::Reconcile.pass();
            sweeps.run(&self).await;
            let now = self.clock.now();
            let (due, next) = {
                let mut state = self.lock();
                (state.take(AT_ONCE, now), state.next_wake())
            };
            if due.is_empty() {
                self.idle(next.into_iter().chain(sweeps.due()).min()).await;
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
            let control = self.clone();
            // On a thread of its own, so that who asks meanwhile is answered.
            let plans = move || due.into_iter().filter_map(|name| control.plan(name)).collect();
            let Ok(planned) = tokio::task::spawn_blocking(plans).await else { return };
            match self.settle(planned, began).await {
                Ok(true) => sweeps.note(&self),
                Ok(false) => {}
                Err(_) => return,
            }
        }
    }

    async fn idle(&self, next: Option<Millis>) {
        let wait = next.map_or(3_600_000, |at| at.since(self.clock.now()));
        let _ = tokio::time::timeout(Duration::from_millis(wait), self.changed.notified()).await;
    }

    fn plan(&self, name: Name) -> Option<Planned> {
        let (resource, observed) = {
            let mut state = self.lock();
            let entry = state.functions.get_mut(&name)?;
            (entry.resource.clone(), observe(&name, entry, self.running(), &self.options))
        };
        let (plan, result) = self.contained_plan(&name, &resource, &observed)?;
        if let Some(at) = plan.wake_at {
            self.lock().wake(&name, at);
        }
        let mut planned = Planned { name, resource, plan, result, outcome: None };
        if planned.changes() && !planned.removes() && !planned.make_outcome() {
            // Only a version without this limit stored one so large. It is planned when somebody changes or deletes it.
            tracing::error!(function = %planned.name, "It is too large to be kept with its status: make it smaller or delete it.");
            self.count_failed(&planned.name);
            return None;
        }
        Some(planned)
    }

    /// A resource whose plan panics fails, and the others go on: it would panic again after every restart.
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
        tracing::error!(%panic, function = %name, "The plan of a function panicked.");
        match contain(Place::Plan, || failed(resource, &panic.to_string(), limits, now)) {
            Ok(plan) => Some((plan, FAILURE)),
            Err(_) => {
                self.count_failed(name);
                None
            }
        }
    }

    /// Says whether there was something to do.
    async fn settle(
        &self,
        planned: Vec<Planned>,
        began: Instant,
    ) -> Result<bool, klambda_dispatch::runner::Stopped> {
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
            return Ok(false);
        }
        let control = self.clone();
        // Folders are made and files written: not on the thread that answers.
        let acting = tokio::task::spawn_blocking(move || control.act_on(act));
        let wishes = acting.await.map_err(|_| klambda_dispatch::runner::Stopped)?;
        self.meet(wishes).await?;
        Ok(true)
    }

    /// Counts a plan whose outcome is stored, also if nothing was to change.
    fn count(&self, planned: &Planned, took: Duration) {
        let Planned { name, resource, plan, result, .. } = planned;
        if planned.removes() {
            return self.counting.forget(name);
        }
        self.counting.reconciled(name, plan.status.phase.name(), result, took);
        let version = |status: &Status| status.service_status.as_ref().and_then(|seen| seen.version.clone());
        let serves =
            version(&plan.status).filter(|serves| version(&resource.status).as_ref() != Some(serves));
        if let Some(serves) = serves
            && let Some(entry) = self.lock().functions.get(name)
            && let Some(deployed) = entry.deployed.iter().find(|deployed| *deployed.version == *serves)
        {
            let took = Duration::from_millis(self.clock.now().since(deployed.since));
            self.counting.service_created(name, took);
        }
    }

    fn count_failed(&self, name: &Name) {
        let phase = self.get(name).map_or(Phase::default(), |resource| resource.status.phase);
        self.counting.reconciled(name, phase.name(), FAILURE, Duration::ZERO);
    }

    fn act_on(&self, planned: Vec<Planned>) -> Vec<(Name, Wish)> {
        Point::Act.pass();
        let mut wishes = Vec::new();
        for Planned { name, resource, plan, .. } in planned {
            for action in plan.actions {
                wishes.extend(self.act(&name, &resource, action));
            }
        }
        wishes
    }

    /// Answers those that were stored; what was made from something that has changed since is planned again.
    async fn store_step(&self, step: Step) -> Result<Vec<Planned>, klambda_dispatch::runner::Stopped> {
        if step.planned.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<Name> = step.planned.iter().map(|planned| planned.name.clone()).collect();
        let control = self.clone();
        match self.handle()?.command(move |engine| control.put_step(engine, step)).await? {
            Ok(stored) => Ok(stored),
            // Whatever is wrong with one of them is no reason for the others to wait.
            Err(documents::Error::Invalid(_)) if names.len() > 1 => self.store_each(names).await,
            Err(error) => {
                tracing::warn!(%error, functions = names.len(), "What functions came to is not stored; it is tried again.");
                let at = self.clock.now() + AGAIN_MS;
                names.iter().for_each(|name| self.wake(name, at));
                names.iter().for_each(|name| self.count_failed(name));
                Ok(Vec::new())
            }
        }
    }

    async fn store_each(&self, names: Vec<Name>) -> Result<Vec<Planned>, klambda_dispatch::runner::Stopped> {
        let mut stored = Vec::new();
        for name in names {
            let Some(planned) = self.plan(name) else { continue };
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

    fn put_step(&self, engine: &mut Engine, step: Step) -> Result<Vec<Planned>, documents::Error> {
        let mut state = self.lock();
        Point::SharedLock.pass();
        let (mut writes, mut events) = (Vec::new(), Vec::new());
        let (mut resources, mut stored) = (Vec::new(), Vec::new());
        for mut planned in step.planned {
            let Some(entry) = state.functions.get(&planned.name) else { continue };
            if !Arc::ptr_eq(&entry.resource, &planned.resource) {
                state.enqueue(&planned.name);
                continue;
            }
            let key = planned.name.as_str().to_owned();
            let (resource, content) = match planned.outcome.take() {
                Some(outcome) => (Some(outcome.resource), Some(outcome.content)),
                None => (None, None),
            };
            writes.push(Write {
                kind: DOCUMENTS.into(),
                key,
                content,
                expected: Expected::Version(entry.version),
            });
            events.append(&mut planned.plan.events);
            resources.push(resource);
            stored.push(planned);
        }
        if writes.is_empty() {
            return Ok(stored);
        }
        let going = going(&stored);
        writes.extend(state.gone.writes(&going));
        let version = engine.put_documents(&writes, &events)?;
        state.gone.keep(going);
        for (planned, resource) in stored.iter().zip(resources) {
            match resource {
                Some(resource) => state.store(resource, version),
                None => drop(state.functions.remove(&planned.name)),
            }
        }
        Ok(stored)
    }

    /// Begins what the plan asks for. What is for the engine is answered, to be done together with that of others.
    fn act(&self, name: &Name, resource: &Arc<Resource>, action: Action) -> Option<(Name, Wish)> {
        let platform = self.running()?;
        match action {
            Action::Fetch { inputs, number } => self.fetch(platform, name, resource, inputs, number),
            Action::Build { inputs, number, hash } => {
                self.build(platform, name, resource, inputs, number, hash);
            }
            Action::CancelBuild => self.cancel(platform, name),
            Action::Deploy { version, artifact, generation } => {
                self.deploy(platform, name, resource, version, artifact, generation);
            }
            Action::Scale { version, scaling } => self.scale(platform, name, &version, scaling),
            Action::Retire { version } => self.retire(platform, name, resource, &version),
            Action::Subscribe { document } => {
                return Some((name.clone(), Wish::Put(document)));
            }
            Action::Drain { until } => return Some((name.clone(), Wish::Leave { until })),
            Action::Unsubscribe => return Some((name.clone(), Wish::Leave { until: Millis(0) })),
            Action::Remove => platform.forget(name),
        }
        None
    }

    /// What happens to processes is a reason to plan, and to go on with what waits for one.
    pub(crate) async fn watch_fleet(self, mut changes: Changes) {
        loop {
            let name = Name::from_text(&changes.next().await);
            Point::Fleet.pass();
            self.enqueue(&name);
            self.caller.sweep();
            if let Ok(handle) = self.handle() {
                handle.function_ready(name.namespace(), name.name());
            }
        }
    }
}

/// Those that are gone with this step, with how many events told of them.
fn going(stored: &[Planned]) -> Vec<(Name, u64)> {
    let gone = stored.iter().filter(|planned| planned.removes());
    gone.map(|planned| (planned.name.clone(), planned.plan.counters.transitions)).collect()
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

    /// Says whether it can be kept. What is left out of its status does not count as changed the next time.
    fn make_outcome(&mut self) -> bool {
        let mut resource = Resource::clone(&self.resource);
        resource.status = self.plan.status.clone();
        resource.counters = self.plan.counters;
        let Some(content) = resource.to_stored_within(CONTENT_BYTES_MAX) else { return false };
        self.plan.status = resource.status.clone();
        if self.changes() {
            self.outcome = Some(Outcome { resource, content });
        }
        true
    }

    fn bytes(&self) -> usize {
        self.outcome.as_ref().map_or(0, |outcome| outcome.content.len())
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
