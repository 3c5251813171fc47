//! An in-memory platform: performs tasks, and lets tests report their results. It checks every plan.

use klambda_core::event::Event;
use klambda_core::kinds;
use klambda_core::time::Millis;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::hash;
use klambda_functions::observed::*;
use klambda_functions::plan::{Action, Limits, Plan, plan};
use klambda_functions::platform::Task;
use klambda_functions::resource::{Condition, Phase, Resource};
use klambda_functions::revision::Revision;
use klambda_functions::secrets::base;
use std::collections::{BTreeMap, BTreeSet};

pub struct Platform {
    /// `None` after the resource is removed.
    pub resource: Option<Resource>,
    pub observed: Observed,
    pub now: Millis,
    pub limits: Limits,
    pub events: Vec<Event>,
    pub wake_at: Option<Millis>,
    /// The builds that started, by artifact and number; and the numbers of all tries.
    builds: BTreeSet<(String, u64)>,
    tries: BTreeSet<u64>,
    pub phases: Vec<Phase>,
    /// As a control plane stores them: by number, with the status that names them.
    pub revisions: BTreeMap<u64, Revision>,
}

impl Platform {
    pub fn new(resource: Resource) -> Platform {
        Platform {
            resource: Some(resource),
            observed: Observed::default(),
            now: Millis(1000),
            limits: Limits::default(),
            events: Vec::new(),
            wake_at: None,
            builds: BTreeSet::new(),
            tries: BTreeSet::new(),
            phases: Vec::new(),
            revisions: BTreeMap::new(),
        }
    }

    pub fn resource(&self) -> &Resource {
        self.resource.as_ref().unwrap()
    }

    pub fn phase(&self) -> Option<Phase> {
        self.resource.as_ref().map(|resource| resource.status.phase)
    }

    /// Plans, checks and stores; performs the actions unless they are lost. Returns whether there were actions.
    pub fn step(&mut self, lost: bool) -> bool {
        let Some(resource) = self.resource.clone() else { return false };
        let made = plan(&resource, &self.observed, &self.limits, self.now);
        self.check(&resource, &made);
        self.wake_at = made.wake_at;
        self.events.extend(made.events);
        let resource = Resource { status: made.status, counters: made.counters, ..resource };
        self.check_again(&resource, &made.actions);
        self.keep_revisions(&resource);
        if self.phases.last() != Some(&resource.status.phase) {
            self.phases.push(resource.status.phase);
        }
        self.resource = Some(resource);
        if !lost {
            made.actions.iter().cloned().for_each(|action| self.act(action));
        }
        !made.actions.is_empty()
    }

    /// Planning again without a change emits no events.
    fn check_again(&self, resource: &Resource, actions: &[Action]) {
        let again = plan(resource, &self.observed, &self.limits, self.now);
        assert_eq!(again.events, [], "events are emitted once");
        assert_eq!(
            (&again.status, again.counters),
            (&resource.status, resource.counters),
            "a second plan changes nothing"
        );
        let lasting = |action: &&Action| !matches!(action, Action::Platform(Task::CancelBuild { .. }));
        let (before, after): (Vec<&Action>, Vec<&Action>) =
            (actions.iter().filter(lasting).collect(), again.actions.iter().filter(lasting).collect());
        assert_eq!(before, after, "lost actions are requested again");
    }

    fn keep_revisions(&mut self, resource: &Resource) {
        let (before, status) = (self.resource().status.clone(), &resource.status);
        let numbers: Vec<u64> = status.revisions.iter().map(|kept| kept.number).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
        assert!(numbers.len() <= self.limits.revisions_max);
        let newest = before.revisions.last().map_or(0, |kept| kept.number);
        assert!(numbers.last().copied().unwrap_or(0) >= newest, "numbers are not used twice");
        if let Some(serving) = self.observed.serving().filter(|_| !resource.is_deleting()) {
            assert!(
                status.revisions.iter().any(|kept| kept.version == base(&serving.version)),
                "what serves is kept"
            );
        }
        self.revisions.retain(|number, _| status.all_revisions().any(|kept| kept.number == *number));
        for kept in status.all_revisions().filter(|kept| !before.all_revisions().any(|known| known == *kept))
        {
            self.revisions.insert(kept.number, Revision::of(resource, kept, self.now));
        }
    }

    /// As the API does it; says whether there is such a revision.
    pub fn rollback(&mut self, number: u64) -> bool {
        let is_kept = self.resource().status.revisions.iter().any(|kept| kept.number == number);
        let Some(revision) = self.revisions.get(&number).filter(|_| is_kept) else { return false };
        let Ok(written) = revision.restore(self.resource()) else { return false };
        self.resource = Some(written.resource);
        true
    }

    fn check(&self, before: &Resource, made: &Plan) {
        let serving = self.observed.serving().is_some();
        if !before.is_deleting() {
            assert_eq!(
                made.status.phase == Phase::Ready,
                serving,
                "the phase is Ready if and only if a version serves"
            );
            let retired = |version: &Version| {
                made.actions.contains(&Task::Retire { version: version.version.clone() }.into())
            };
            let left = self.observed.versions.iter().any(|version| version.is_serving() && !retired(version));
            assert_eq!(left, serving, "the last serving version stays");
        }
        if let Some(at) = made.wake_at {
            assert!(at > self.now, "the wake time is in the future");
        }
        for condition in &made.status.conditions {
            self.check_time(before.status.condition(condition.aspect), condition);
        }
    }

    fn check_time(&self, before: Option<&Condition>, after: &Condition) {
        let expected = match before {
            Some(before) if before.status == after.status => before.last_transition_time.0,
            _ => self.now,
        };
        assert_eq!(after.last_transition_time.0, expected, "{after:?}");
        assert!(!after.reason.is_empty() && !after.message.is_empty(), "{after:?}");
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Platform(task) => self.perform(task),
            Action::Subscribe { document } => {
                let hash = hash::of(&document);
                let waiting = 0;
                self.observed.subscription =
                    Some(Subscription { hash, waiting, draining: false, taken: true, fault: None });
            }
            Action::Drain { .. } => self.observed.subscription.as_mut().unwrap().draining = true,
            Action::Unsubscribe => self.observed.subscription = None,
            Action::Remove => {
                assert!(self.observed.versions.is_empty() && self.observed.subscription.is_none());
                self.resource = None;
            }
        }
    }

    fn perform(&mut self, task: Task) {
        let scaling = self.resource().spec.scaling;
        match task {
            Task::Forget => unreachable!("only the control plane sends this, after the resource is removed"),
            Task::Fetch { inputs, number } => self.fetch(inputs, number),
            Task::Build { inputs, number, hash } => self.build(inputs, number, hash),
            Task::CancelBuild { .. } => self.cancel(),
            Task::Deploy { version, generation, .. } => {
                assert!(self.observed.version(&version).is_none(), "deployed twice");
                let state = VersionState::Starting { since: self.now };
                let url = None;
                let elsewhere = self.resource().spec.url().map(str::to_owned);
                self.observed.versions.push(Version {
                    version,
                    generation,
                    state,
                    replicas: 1,
                    url,
                    elsewhere,
                    scaling,
                });
            }
            Task::Scale { version, scaling } => self.version(&version).scaling = scaling,
            Task::Retire { version } => self.version(&version).state = VersionState::Retiring,
        }
    }

    fn version(&mut self, version: &str) -> &mut Version {
        self.observed.versions.iter_mut().find(|known| known.version == version).unwrap()
    }

    fn fetch(&mut self, inputs: String, number: u64) {
        self.check_try(number);
        let known = self.observed.source.as_ref();
        if known.is_none_or(|fetch| fetch.number != number) {
            self.observed.source = Some(Fetch { inputs, number, state: FetchState::Running });
        }
    }

    fn build(&mut self, inputs: String, number: u64, hash: String) {
        self.check_try(number);
        assert!(self.observed.artifact(&hash).is_none(), "built twice: {hash}");
        self.builds.insert((hash.clone(), number));
        self.observed.build = Some(BuildRun { inputs, hash, number, state: BuildState::Running });
    }

    /// At most three tries start, none later than 20 s after the first. A lost try may be requested again later.
    fn check_try(&mut self, number: u64) {
        let build = self.resource().status.build_status.clone().unwrap();
        assert!(build.attempts <= self.limits.tries_max, "more than three tries");
        if self.tries.insert(number) {
            let last = build.tried_since.unwrap().0 + self.limits.tries_within_ms;
            assert!(self.now <= last || build.attempts == 1, "a late try");
        }
    }

    fn cancel(&mut self) {
        self.observed.source.take_if(|fetch| fetch.state.is_open());
        self.observed.build.take_if(|run| run.state.is_open());
    }

    /// A running task has to wait after all, or a waiting one starts.
    pub fn queued(&mut self, waits: bool) {
        if let Some(fetch) = self.observed.source.as_mut().filter(|fetch| fetch.state.is_open()) {
            fetch.state = if waits { FetchState::Waiting { before: 2 } } else { FetchState::Running };
        }
        if let Some(run) = self.observed.build.as_mut().filter(|run| run.state.is_open()) {
            run.state = if waits { BuildState::Waiting { before: 2 } } else { BuildState::Running };
        }
    }

    pub fn fetched(&mut self, outcome: Result<&str, Failure>) {
        if let Some(fetch) = self.observed.source.as_mut().filter(|fetch| fetch.state.is_open()) {
            fetch.state = match outcome {
                Ok(digest) => FetchState::Done {
                    digest: format!("{}-{digest}", fetch.inputs),
                    commit: Some(digest.to_owned()),
                },
                Err(failure) => FetchState::Failed(failure),
            };
        }
    }

    pub fn built(&mut self, outcome: Result<(), Failure>) {
        if let Some(run) = self.observed.build.as_mut().filter(|run| run.state.is_open()) {
            run.state = match outcome {
                Ok(()) => BuildState::Done,
                Err(failure) => BuildState::Failed(failure),
            };
            if run.state == BuildState::Done {
                let uri = format!("/artifacts/{}", run.hash);
                self.observed.artifacts.push(Artifact { hash: run.hash.clone(), uri });
            }
        }
    }

    pub fn started(&mut self, outcome: Result<(), Failure>) {
        let starting = |version: &&mut Version| matches!(version.state, VersionState::Starting { .. });
        if let Some(version) = self.observed.versions.iter_mut().find(starting) {
            version.state = match outcome {
                Ok(()) => VersionState::Serving,
                Err(failure) => VersionState::Failed(failure),
            };
        }
    }

    pub fn crashed(&mut self, failure: Failure) {
        if let Some(version) = self.observed.versions.iter_mut().find(|version| version.is_serving()) {
            version.state = VersionState::Failed(failure);
        }
    }

    pub fn recovered(&mut self) {
        let failed = |version: &&mut Version| matches!(version.state, VersionState::Failed(_));
        if let Some(version) = self.observed.versions.iter_mut().find(failed) {
            version.state = VersionState::Serving;
        }
    }

    pub fn retired_are_gone(&mut self) {
        self.observed.versions.retain(|version| !version.is_retiring());
    }

    /// Restarts the platform: running tasks are lost, files on disk are not.
    pub fn restarted(&mut self) {
        let Observed { artifacts, subscription, .. } = std::mem::take(&mut self.observed);
        self.observed = Observed { artifacts, subscription, ..Observed::default() };
    }

    /// Completes all running tasks successfully until the plan has no more actions.
    pub fn settle(&mut self) {
        for _ in 0..200 {
            let asked = self.step(false);
            let before = self.observed.clone();
            self.fetched(Ok("d"));
            self.built(Ok(()));
            self.started(Ok(()));
            self.retired_are_gone();
            if asked || before != self.observed {
                continue;
            }
            match self.wake_at.filter(|_| self.resource.is_some() && !self.lacks_secret()) {
                Some(at) => self.now = at,
                None => return,
            }
        }
        panic!("the plan never settles: {:#?}", self.resource);
    }

    /// Then it is planned again and again until the secret exists.
    fn lacks_secret(&self) -> bool {
        self.resource()
            .status
            .conditions
            .iter()
            .any(|condition| condition.reason == Reason::SecretNotFound.name())
    }

    pub fn kinds(&self) -> Vec<&str> {
        self.events.iter().map(|event| event.kind.as_str()).collect()
    }

    pub fn count(&self, kind: &str) -> usize {
        self.events.iter().filter(|event| event.kind == kind).count()
    }

    pub fn builds(&self) -> usize {
        self.builds.len()
    }

    /// Each transition is reported once, numbered without gaps, in a valid order.
    pub fn check_events(&self) {
        let ids: BTreeSet<&str> = self.events.iter().map(|event| event.id.as_str()).collect();
        assert_eq!(ids.len(), self.events.len(), "ids are unique");
        let mut building = false;
        for (index, event) in self.events.iter().enumerate() {
            let sequence = event.attribute("sequence").unwrap();
            assert_eq!(sequence, (index + 1).to_string(), "transitions are numbered");
            assert_eq!(event.kind == kinds::FUNCTION_CREATED, index == 0);
            match event.kind.as_str() {
                kinds::BUILD_STARTED => {
                    assert!(!building, "a build started while another one runs");
                    building = true;
                }
                kinds::BUILD_COMPLETED
                | kinds::BUILD_FAILED
                | kinds::BUILD_TIMEOUT
                | kinds::BUILD_CANCELLED
                | kinds::BUILD_STOPPED => {
                    assert!(building, "a build ended that had not started");
                    building = false;
                }
                kinds::SERVICE_CREATED => assert!(!self.kinds()[..index].contains(&kinds::SERVICE_CREATED)),
                kinds::SERVICE_UPDATED | kinds::SERVICE_DELETED => {
                    assert!(self.kinds()[..index].contains(&kinds::SERVICE_CREATED));
                }
                _ => {}
            }
        }
    }
}
