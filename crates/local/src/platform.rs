//! One machine as a platform: sources and artifacts in a folder, functions as processes of a fleet.
//!
//! One lock protects the state of all functions. It is held briefly, never while reading files or sending news. Unused
//! artifacts are removed between two observations (`sweep`), never within one.

mod ask;
mod built_artifact;
pub mod cache;
mod deploy;
mod function;
mod image_context;
mod jobs;
mod kept;
mod observe;
mod once;
mod options;
mod secrets;
mod source_of;
mod sweep;
mod work;

pub use image_context::image_context;
pub use once::Once;
pub use options::Options;

use crate::fleet::{self, Begun, Changes, Fleet};
use crate::logs::LogStore;
use crate::process::{self, Spawner, limits::Groups};
use built_artifact::BuiltArtifact;
use function::{Deployed, Function};
use jobs::Jobs;
use klambda_build::{Builder, Slots};
use klambda_core::time::Millis;
use klambda_crash::{Guard, Lock, Point};
use klambda_functions::failure::Failure;
use klambda_functions::hash;
use klambda_functions::logs::Query;
use klambda_functions::name::Name;
use klambda_functions::observed::Observed;
use klambda_functions::platform::{
    Acquired, Endpoint, Files, Home, Lease, Logs, News, Open, Pending, Platform, Task, Tell, Unavailable,
};
use klambda_functions::resource::Resource;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify, RwLock};

/// Time limit for stopping all processes at shutdown.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Clones share the same machine.
#[derive(Clone)]
pub struct Machine {
    shared: Arc<Shared>,
}

pub struct Shared {
    options: Options,
    tell: Tell,
    now: Arc<dyn Fn() -> Millis + Send + Sync>,
    fleet: Fleet,
    logs: LogStore,
    builder: Builder,
    functions: Lock<HashMap<Name, Function>>,
    built: Lock<HashMap<String, Arc<BuiltArtifact>>>,
    fetches: Jobs,
    builds: Jobs,
    /// Limits the number of concurrent fetches.
    slots: Slots,
    /// Shared by observers and actors; taken exclusively to remove unused files.
    gate: RwLock<()>,
    /// Work was done since the last sweep.
    worked: Notify,
    /// Backups share it while they read artifacts. A sweep takes it exclusively, but never waits for it.
    pinned: Arc<RwLock<()>>,
    /// Limits looks into source folders to one at a time.
    looking: Mutex<()>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Builder(#[from] klambda_build::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Opens the machine when the first function exists.
pub fn open(options: Options) -> Open {
    Box::new(move |home| {
        let options = options.clone();
        Box::pin(async move {
            let opened = Machine::open(options, home).await.map_err(|error| error.to_string())?;
            Ok(Arc::new(opened) as Arc<dyn Platform>)
        })
    })
}

impl std::ops::Deref for Machine {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Machine {
    /// Kills leftovers of an earlier run, removes unused files, and deploys the versions that served.
    pub async fn open(options: Options, home: Home) -> Result<Machine, OpenError> {
        let opened = tokio::task::spawn_blocking(move || {
            let resources = home.resources.clone();
            let machine = Machine::start(options, home)?;
            resources.iter().for_each(|resource| machine.adopt(resource));
            machine.sweep(None);
            resources.iter().for_each(|resource| machine.restore(resource));
            Ok::<Machine, OpenError>(machine)
        });
        let machine = opened.await.map_err(io::Error::other)??;
        tokio::spawn(machine.clone().watch(machine.fleet.changes()));
        tokio::spawn(machine.clone().sweep_at_times());
        Ok(machine)
    }

    fn start(options: Options, home: Home) -> Result<Machine, OpenError> {
        let folder = options.folder.clone();
        let sources = folder.join("sources");
        if sources.exists() {
            std::fs::remove_dir_all(&sources)?;
        }
        for part in ["sources", "made", "versions", "work"] {
            std::fs::create_dir_all(folder.join(part))?;
        }
        let spawner = Spawner::start(process::Options {
            helper: options.helper.clone(),
            records: folder.join("children"),
            groups: Groups::find(),
        })?;
        let mut fleet = fleet::Options::new(folder.join("fleet"));
        fleet.replicas_max = options.replicas_max;
        let known = home.resources.iter().map(|resource| Name::of(resource).as_str().into()).collect();
        let logs = LogStore::open(folder.join("logs"), options.logs, known)?;
        fleet.logs = logs.clone();
        let mut builder = klambda_build::Options::new(&folder);
        builder.builds_max = options.builds_max;
        builder.launcher = launcher(&options);
        builder.tracker = Some(tracker(spawner.tracker()));
        let shared = Shared {
            tell: home.tell,
            now: home.now,
            fleet: Fleet::start(fleet, spawner)?,
            logs,
            builder: Builder::open(builder)?,
            functions: Lock::default(),
            built: Lock::default(),
            fetches: Jobs::default(),
            builds: Jobs::default(),
            slots: Slots::new(options.builds_max),
            gate: RwLock::new(()),
            worked: Notify::new(),
            pinned: Arc::default(),
            looking: Mutex::new(()),
            options,
        };
        Ok(Machine { shared: Arc::new(shared) })
    }

    /// Restores the state that an earlier run had.
    fn adopt(&self, resource: &Resource) {
        let mut functions = self.lock();
        functions.entry(Name::of(resource)).or_default().needs(resource, Vec::new());
    }

    /// Deploys the version that served when the last run ended, if all its files still exist.
    fn restore(&self, resource: &Resource) {
        let Some(service) = resource.status.service_status.as_ref().filter(|_| !resource.is_deleting())
        else {
            return;
        };
        let Some(version) = service.version.as_deref() else { return };
        let Some(recipe) = self.recipe(version) else { return };
        let name = Name::of(resource);
        let Ok(run) = self.run_of(&name, resource, &recipe) else { return };
        let secrets = secrets::revisions(resource, &self.options);
        let wanted = secrets.version(hash::version(resource, &recipe.artifact)) == version;
        let deployed = Deployed {
            version: version.into(),
            content: self.content(&recipe.artifact),
            artifact: recipe.artifact.as_str().into(),
            generation: if wanted { resource.metadata.generation } else { 0 },
            spec_generation: service.generation,
            scaling: service.scaling.unwrap_or(resource.spec.scaling),
            since: (self.now)(),
            run: Ok(run),
            // It has responded before, so it is not checked again.
            asking: false,
        };
        self.tell_fleet(&name, &deployed);
        self.lock().entry(name).or_default().deployed.push(deployed);
    }

    /// A change of processes triggers an observation, and wakes callers that wait for a replica.
    async fn watch(self, mut changes: Changes) {
        loop {
            let name = Name::from_text(&changes.next().await);
            Point::Fleet.pass();
            (self.tell)(News::Replicas(name));
        }
    }
}

impl Shared {
    fn lock(&self) -> Guard<'_, HashMap<Name, Function>> {
        self.functions.lock()
    }

    fn changed(&self, name: &Name) {
        (self.tell)(News::Changed(name.clone()));
    }

    /// The artifact with this hash, if it exists.
    fn built(&self, hash: &str) -> Option<Arc<BuiltArtifact>> {
        if let Some(built) = self.built.lock().get(hash) {
            return Some(built.clone());
        }
        let built = Arc::new(BuiltArtifact::read(&self.options.folder.join("made"), hash)?);
        self.built.lock().insert(hash.to_owned(), built.clone());
        Some(built)
    }

    fn note_built(&self, hash: &str, artifact: klambda_build::Artifact) -> io::Result<()> {
        let built = BuiltArtifact::of(artifact);
        built.write(&self.options.folder.join("made"), hash)?;
        self.built.lock().insert(hash.to_owned(), Arc::new(built));
        Ok(())
    }

    /// Nothing of the function runs any more.
    fn forget(&self, name: &Name) {
        self.lock().remove(name);
        self.logs.forget(name.as_str());
        let _ = std::fs::remove_dir_all(self.work_folder(name));
    }

    fn work_folder(&self, name: &Name) -> PathBuf {
        self.options.folder.join("work").join(name.as_str().replace('/', "."))
    }
}

impl Platform for Machine {
    fn observe(&self, resource: &Resource) -> Observed {
        let _gate = self.gate.blocking_read();
        Machine::observe(self, resource)
    }

    fn act(&self, resource: &Arc<Resource>, task: Task) {
        let _gate = self.gate.blocking_read();
        let name = Name::of(resource);
        match task {
            Task::Fetch { inputs, number } => self.fetch(&name, resource, inputs, number),
            Task::Build { inputs, number, hash } => self.build(&name, resource, inputs, number, hash),
            Task::CancelBuild { outcome } => self.cancel(&name, outcome),
            Task::Deploy { version, artifact, generation } => {
                self.deploy(&name, resource, version, artifact, generation);
            }
            Task::Scale { version, scaling } => self.scale(&name, &version, scaling),
            Task::Retire { version } => self.retire(&name, resource, &version),
            Task::Forget => self.forget(&name),
        }
        self.worked.notify_one();
    }

    fn acquire(&self, name: &Name) -> Acquired {
        match self.fleet.begin(name.as_str()) {
            Ok(Begun::Granted(lease)) => Acquired::Ready(Box::new(lease)),
            Ok(Begun::Queued(waiting)) => Acquired::Soon(Box::pin(async move {
                let lease = waiting.lease().await.map_err(|error| unavailable(&error))?;
                Ok(Box::new(lease) as Box<dyn Lease>)
            })),
            Err(error) => Acquired::Unavailable(unavailable(&error)),
        }
    }

    fn logs(&self, name: &Name, query: Query) -> Box<dyn Logs> {
        self.logs.read(name.as_str(), query, self.fleet.replicas(name.as_str()))
    }

    fn log_lines_dropped(&self) -> u64 {
        self.logs.dropped()
    }

    fn builds_waiting(&self) -> usize {
        self.builder.waiting()
    }

    fn has_artifact(&self, hash: &str) -> bool {
        BuiltArtifact::read(&self.options.folder.join("made"), hash).is_some()
    }

    fn look(&self, resource: Arc<Resource>) -> Pending<'_, Result<String, Failure>> {
        Box::pin(async move { Machine::look(self, &resource).await })
    }

    fn keep(&self) -> Pending<'_, Box<dyn Send>> {
        Box::pin(async { Box::new(Arc::clone(&self.pinned).read_owned().await) as Box<dyn Send> })
    }

    fn files_of(&self, resources: &[Arc<Resource>]) -> Files {
        Machine::files_of(self, resources)
    }

    fn stop(&self) -> Pending<'_, ()> {
        Box::pin(async {
            self.fleet.shutdown(STOP_WITHIN).await;
            let logs = self.logs.clone();
            let _ = tokio::task::spawn_blocking(move || logs.settle()).await;
        })
    }
}

impl Lease for fleet::Lease {
    fn endpoint(&self) -> &Endpoint {
        fleet::Lease::endpoint(self)
    }

    fn is_starting(&self) -> bool {
        fleet::Lease::is_starting(self)
    }

    fn answered(&mut self) {
        fleet::Lease::answered(self);
    }
}

fn unavailable(error: &fleet::Error) -> Unavailable {
    let why = error.to_string();
    match error {
        fleet::Error::Unknown(_) => Unavailable::NotDeployed(why),
        fleet::Error::Failed(_) => Unavailable::Failed(why),
        fleet::Error::TooManyWaiting(_) | fleet::Error::NoRoom(_) => Unavailable::Busy(why),
        fleet::Error::Deleting | fleet::Error::Ended => Unavailable::Ending(why),
    }
}

/// Kills the processes that build commands leave behind.
fn tracker(tracker: process::ProcessTracker) -> klambda_build::ProcessTracker {
    let begin = move || -> Box<dyn klambda_build::TrackedProcess> { Box::new(OfBuild(tracker.track())) };
    klambda_build::ProcessTracker(Arc::new(begin))
}

struct OfBuild(process::TrackedProcess);

impl klambda_build::TrackedProcess for OfBuild {
    fn variable(&self) -> (&'static str, &str) {
        self.0.variable()
    }

    fn started(&mut self, pid: i32) {
        self.0.started(pid);
    }

    fn end(self: Box<Self>) {
        self.0.end();
    }
}

/// Builds end with this program, like functions.
fn launcher(options: &Options) -> Vec<std::ffi::OsString> {
    let words = crate::child::launch_words(std::process::id(), true);
    options.helper.iter().cloned().chain(words).chain(["--".into()]).collect()
}
