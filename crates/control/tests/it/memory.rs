//! An in-memory platform. It records every task and completes it immediately, unless a test makes tasks fail or hold.

use klambda_functions::failure::Failure;
use klambda_functions::hash;
use klambda_functions::logs::{Line, Query};
use klambda_functions::name::Name;
use klambda_functions::observed::{
    Artifact, BuildRun, BuildState, Fetch, FetchState, Observed, Version, VersionState,
};
use klambda_functions::platform::{
    Acquired, Files, Home, Logs, News, Open, Pending, Platform, Task, Tell, Unavailable,
};
use klambda_functions::resource::Resource;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tokio::sync::RwLock;

/// Clones share the same state.
#[derive(Clone, Default)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    /// Callers of `observe` and `act` block on this, which panics on a thread that must not block.
    gate: Arc<RwLock<()>>,
}

#[derive(Default)]
struct State {
    tell: Option<Tell>,
    tasks: Vec<(Instant, Name, Task)>,
    seen: HashMap<Name, Observed>,
    /// The resources that the platform was opened with.
    known: Vec<Name>,
    fetches: VecDeque<Failure>,
    builds: VecDeque<Failure>,
    starts: VecDeque<Failure>,
    openings: VecDeque<String>,
    holds: bool,
    /// Called once, when this function is observed.
    meanwhile: Option<(Name, Box<dyn FnOnce() + Send>)>,
}

impl Memory {
    pub fn open(&self) -> Open {
        let memory = self.clone();
        Box::new(move |home: Home| {
            let memory = memory.clone();
            Box::pin(async move {
                let mut state = memory.lock();
                if let Some(why) = state.openings.pop_front() {
                    return Err(why);
                }
                state.known = home.resources.iter().map(|resource| Name::of(resource)).collect();
                state.tell = Some(home.tell);
                drop(state);
                Ok(Arc::new(memory) as Arc<dyn Platform>)
            })
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panicked while holding the lock")
    }

    pub fn fail_fetches(&self, failures: impl IntoIterator<Item = Failure>) {
        self.lock().fetches.extend(failures);
    }

    pub fn fail_builds(&self, failures: impl IntoIterator<Item = Failure>) {
        self.lock().builds.extend(failures);
    }

    pub fn fail_starts(&self, failures: impl IntoIterator<Item = Failure>) {
        self.lock().starts.extend(failures);
    }

    pub fn fail_openings(&self, why: impl IntoIterator<Item = String>) {
        self.lock().openings.extend(why);
    }

    /// Runs `act` the next time the function is observed.
    pub fn meanwhile(&self, name: Name, act: impl FnOnce() + Send + 'static) {
        self.lock().meanwhile = Some((name, Box::new(act)));
    }

    /// From now on tasks are recorded but not completed.
    pub fn hold(&self) {
        self.lock().holds = true;
    }

    /// The functions that the platform was opened with.
    pub fn known(&self) -> Vec<Name> {
        self.lock().known.clone()
    }

    pub fn tasks(&self) -> Vec<Task> {
        self.lock().tasks.iter().map(|(_, _, task)| task.clone()).collect()
    }

    /// When each matching task arrived.
    pub fn times(&self, wanted: impl Fn(&Task) -> bool) -> Vec<Instant> {
        self.lock().tasks.iter().filter(|(_, _, task)| wanted(task)).map(|(at, _, _)| *at).collect()
    }

    /// Makes the serving version fail.
    pub fn crash(&self, name: &Name, failure: &Failure) {
        let mut state = self.lock();
        let versions = state.seen.get_mut(name).into_iter().flat_map(|seen| &mut seen.versions);
        let serving = versions.filter(|version| version.state == VersionState::Serving);
        serving.for_each(|version| version.state = VersionState::Failed(failure.clone()));
        drop(state);
        self.tell(News::Replicas(name.clone()));
    }

    fn tell(&self, news: News) {
        let tell = self.lock().tell.clone();
        if let Some(tell) = tell {
            tell(news);
        }
    }
}

impl State {
    fn perform(&mut self, name: &Name, resource: &Resource, task: Task) {
        let seen = self.seen.entry(name.clone()).or_default();
        match task {
            Task::Fetch { inputs, number } => {
                let state = match self.fetches.pop_front() {
                    Some(failure) => FetchState::Failed(failure),
                    None => FetchState::Done { digest: format!("digest-{inputs}"), commit: None },
                };
                seen.source = Some(Fetch { inputs, number, state });
            }
            Task::Build { inputs, number, hash } => {
                let state = match self.builds.pop_front() {
                    Some(failure) => BuildState::Failed(failure),
                    None => {
                        let uri = format!("memory://{hash}");
                        seen.artifacts.push(Artifact { hash: hash.clone(), uri });
                        BuildState::Done
                    }
                };
                seen.build = Some(BuildRun { inputs, hash, number, state });
            }
            Task::CancelBuild { .. } => (seen.source, seen.build) = (None, None),
            Task::Deploy { version, generation, .. } => {
                let state = self.starts.pop_front().map_or(VersionState::Serving, VersionState::Failed);
                let (elsewhere, scaling) = (None, resource.spec.scaling);
                let version =
                    Version { version, generation, state, replicas: 1, url: None, elsewhere, scaling };
                seen.versions.push(version);
            }
            Task::Scale { version, scaling } => {
                let known = seen.versions.iter_mut().filter(|known| known.version == version);
                known.for_each(|known| known.scaling = scaling);
            }
            Task::Retire { version } => seen.versions.retain(|known| known.version != version),
            Task::Forget => drop(self.seen.remove(name)),
        }
    }
}

impl Platform for Memory {
    fn observe(&self, resource: &Resource) -> Observed {
        let _gate = self.gate.blocking_read();
        let name = Name::of(resource);
        let meanwhile = self.lock().meanwhile.take_if(|(wanted, _)| *wanted == name);
        if let Some((_, act)) = meanwhile {
            act();
        }
        self.lock().seen.get(&name).cloned().unwrap_or_default()
    }

    fn act(&self, resource: &Arc<Resource>, task: Task) {
        let _gate = self.gate.blocking_read();
        let name = Name::of(resource);
        let mut state = self.lock();
        state.tasks.push((Instant::now(), name.clone(), task.clone()));
        if state.holds {
            return;
        }
        state.perform(&name, resource, task);
        drop(state);
        self.tell(News::Changed(name));
    }

    fn acquire(&self, name: &Name) -> Acquired {
        Acquired::Unavailable(Unavailable::NotDeployed(format!("{name} has no replicas in memory")))
    }

    fn logs(&self, _: &Name, _: Query) -> Box<dyn Logs> {
        Box::new(NoLogs)
    }

    fn log_lines_dropped(&self) -> u64 {
        0
    }

    fn builds_waiting(&self) -> usize {
        0
    }

    fn has_artifact(&self, hash: &str) -> bool {
        self.lock().seen.values().any(|seen| seen.artifact(hash).is_some())
    }

    fn look(&self, resource: Arc<Resource>) -> Pending<'_, Result<String, Failure>> {
        Box::pin(std::future::ready(Ok(format!("digest-{}", hash::inputs(&resource)))))
    }

    fn keep(&self) -> Pending<'_, Box<dyn Send>> {
        Box::pin(std::future::ready(Box::new(()) as Box<dyn Send>))
    }

    fn files_of(&self, _: &[Arc<Resource>]) -> Files {
        Files::default()
    }

    fn stop(&self) -> Pending<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

struct NoLogs;

impl Logs for NoLogs {
    fn next(&mut self) -> Pending<'_, Option<Vec<Line>>> {
        Box::pin(std::future::ready(None))
    }
}
