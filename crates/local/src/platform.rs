//! One machine as a platform: sources and artifacts in a folder, functions as processes of a fleet.
//!
//! What is known of each function is behind one lock, held for short: never while a file is read or something is told.
//! What was built and is needed by nobody is removed between two observations (`sweep`), never within one.

mod ask;
pub mod cache;
mod deploy;
mod function;
mod jobs;
mod made;
mod observe;
mod options;
mod secrets;
mod source_of;
mod sweep;
mod work;

pub use options::Options;

use crate::fleet::{self, Begun, Changes, Fleet};
use crate::process::{self, Spawner, limits::Groups};
use function::{Deployed, Function};
use jobs::Jobs;
use klambda_build::{Slots, Workshop};
use klambda_core::time::Millis;
use klambda_crash::{Guard, Lock, Point};
use klambda_functions::hash;
use klambda_functions::name::Name;
use klambda_functions::observed::Observed;
use klambda_functions::platform::{
    Acquired, Endpoint, Home, Lease, Logs, News, Open, Pending, Platform, Task, Tell, Unavailable,
};
use klambda_functions::resource::Resource;
use made::Made;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, RwLock};

/// How long what runs may take to end when the program does.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// A clone is the same machine.
#[derive(Clone)]
pub struct Machine {
    shared: Arc<Shared>,
}

pub struct Shared {
    options: Options,
    tell: Tell,
    now: Arc<dyn Fn() -> Millis + Send + Sync>,
    fleet: Fleet,
    workshop: Workshop,
    functions: Lock<HashMap<Name, Function>>,
    made: Lock<HashMap<String, Arc<Made>>>,
    fetches: Jobs,
    builds: Jobs,
    /// Fetches that run at the same time.
    slots: Slots,
    /// Shared by those who observe and act; taken alone to remove what nobody needs.
    gate: RwLock<()>,
    /// Something was done since the last sweep.
    worked: Notify,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Workshop(#[from] klambda_build::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Opens the machine when there is a function for it.
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
    /// Ends what an earlier run left first, removes what nobody needs, and deploys again what served.
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
        let mut workshop = klambda_build::Options::new(&folder);
        workshop.builds_max = options.builds_max;
        workshop.launcher = launcher(&options);
        workshop.tender = Some(tender(spawner.tender()));
        let shared = Shared {
            tell: home.tell,
            now: home.now,
            fleet: Fleet::start(fleet, spawner)?,
            workshop: Workshop::open(workshop)?,
            functions: Lock::default(),
            made: Lock::default(),
            fetches: Jobs::default(),
            builds: Jobs::default(),
            slots: Slots::new(options.builds_max),
            gate: RwLock::new(()),
            worked: Notify::new(),
            options,
        };
        Ok(Machine { shared: Arc::new(shared) })
    }

    /// Takes over what an earlier run knew of it.
    fn adopt(&self, resource: &Resource) {
        let mut functions = self.lock();
        functions.entry(Name::of(resource)).or_default().needs(resource, Vec::new());
    }

    /// Deploys again what served when the last run ended, if all of it is still there.
    fn restore(&self, resource: &Resource) {
        let Some(service) = resource.status.service_status.as_ref().filter(|_| !resource.is_deleting())
        else {
            return;
        };
        let Some(version) = service.version.as_deref() else { return };
        let Some(recipe) = self.recipe(version) else { return };
        let name = Name::of(resource);
        let Ok(run) = self.run_of(&name, resource, &recipe) else { return };
        let wanted = hash::version(resource, &recipe.artifact) == version;
        let deployed = Deployed {
            version: version.into(),
            content: self.content(&recipe.artifact),
            artifact: recipe.artifact.as_str().into(),
            generation: if wanted { resource.metadata.generation } else { 0 },
            scaling: service.scaling.unwrap_or(resource.spec.scaling),
            since: (self.now)(),
            run: Ok(run),
            // It has answered before; that it still does is not asked for.
            asking: false,
        };
        self.tell_fleet(&name, &deployed);
        self.lock().entry(name).or_default().deployed.push(deployed);
    }

    /// What happens to processes is a reason to observe, and to go on with what waits for one.
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

    /// The artifact of this hash, if it is there.
    fn made(&self, hash: &str) -> Option<Arc<Made>> {
        if let Some(made) = self.made.lock().get(hash) {
            return Some(made.clone());
        }
        let made = Arc::new(Made::read(&self.options.folder.join("made"), hash)?);
        self.made.lock().insert(hash.to_owned(), made.clone());
        Some(made)
    }

    fn note_made(&self, hash: &str, artifact: klambda_build::Artifact) -> io::Result<()> {
        let made = Made::of(artifact);
        made.write(&self.options.folder.join("made"), hash)?;
        self.made.lock().insert(hash.to_owned(), Arc::new(made));
        Ok(())
    }

    /// Nothing of the function runs any more.
    fn forget(&self, name: &Name) {
        self.lock().remove(name);
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

    fn logs(&self, name: &Name, past: usize) -> Option<Box<dyn Logs>> {
        Some(Box::new(self.fleet.logs(name.as_str())?.follow(past)))
    }

    fn builds_waiting(&self) -> usize {
        self.workshop.waiting()
    }

    fn stop(&self) -> Pending<'_, ()> {
        Box::pin(self.fleet.shutdown(STOP_WITHIN))
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

/// Ends what the commands of builds leave behind.
fn tender(tender: process::Tender) -> klambda_build::Tender {
    let begin = move || -> Box<dyn klambda_build::Tended> { Box::new(OfBuild(tender.tend())) };
    klambda_build::Tender(Arc::new(begin))
}

struct OfBuild(process::Tended);

impl klambda_build::Tended for OfBuild {
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

/// Builds are ended with this program as functions are.
fn launcher(options: &Options) -> Vec<std::ffi::OsString> {
    let words = crate::child::launch_words(std::process::id(), true);
    options.helper.iter().cloned().chain(words).chain(["--".into()]).collect()
}
