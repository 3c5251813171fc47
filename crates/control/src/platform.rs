//! The platform of one machine: sources, artifacts and processes, in a folder of their own.

mod ask;
pub mod cache;
mod deploy;
mod jobs;
mod made;
mod sweep;
mod work;

pub use deploy::timeout_ms;
pub use sweep::Sweeps;

use crate::names::Name;
use crate::options::Options;
use crate::state::{Deployed, Entry};
use jobs::Jobs;
use klambda_build::{Slots, Workshop};
use klambda_core::time::Millis;
use klambda_crash::Lock;
use klambda_functions::hash;
use klambda_functions::resource::Resource;
use klambda_local::fleet::{self, Fleet};
use klambda_local::process::{self, Spawner, limits::Groups};
use made::Made;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

pub struct Platform {
    pub fleet: Fleet,
    workshop: Workshop,
    folder: PathBuf,
    made: Lock<HashMap<String, Arc<Made>>>,
    fetches: Jobs,
    builds: Jobs,
    /// Fetches that run at the same time.
    slots: Slots,
}

#[derive(Clone)]
pub struct Fetched {
    digest: String,
    folder: Arc<TempDir>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Workshop(#[from] klambda_build::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Platform {
    /// Ends what an earlier run left first, and removes what these resources do not need.
    pub async fn open(options: &Options, resources: Vec<Arc<Resource>>) -> Result<Platform, OpenError> {
        let options = options.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let platform = Platform::open_now(&options)?;
            platform.sweep(&resources, &[], None);
            Ok(platform)
        })
        .await;
        opened.map_err(io::Error::other)?
    }

    fn open_now(options: &Options) -> Result<Platform, OpenError> {
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
        workshop.launcher = launcher(options);
        workshop.tender = Some(tender(spawner.tender()));
        Ok(Platform {
            fleet: Fleet::start(fleet, spawner)?,
            workshop: Workshop::open(workshop)?,
            folder,
            made: Lock::default(),
            fetches: Jobs::default(),
            builds: Jobs::default(),
            slots: Slots::new(options.builds_max),
        })
    }

    /// Builds that wait for their turn.
    pub fn builds_waiting(&self) -> usize {
        self.workshop.waiting()
    }

    /// The artifact of this hash, if it is there.
    pub fn made(&self, hash: &str) -> Option<Arc<Made>> {
        let mut known = self.made.lock();
        if let Some(made) = known.get(hash) {
            return Some(made.clone());
        }
        let made = Arc::new(Made::read(&self.folder.join("made"), hash)?);
        known.insert(hash.to_owned(), made.clone());
        Some(made)
    }

    fn note_made(&self, hash: &str, artifact: klambda_build::Artifact) -> io::Result<()> {
        let made = Made::of(artifact);
        made.write(&self.folder.join("made"), hash)?;
        self.made.lock().insert(hash.to_owned(), Arc::new(made));
        Ok(())
    }

    /// Deploys again what served when the last run ended, if all of it is still there.
    pub fn restore(&self, name: &Name, entry: &mut Entry, options: &Options, now: Millis) {
        let resource = entry.resource.clone();
        let Some(service) = resource.status.service_status.as_ref().filter(|_| !resource.is_deleting())
        else {
            return;
        };
        let Some(version) = service.version.as_deref() else { return };
        let Some(recipe) = self.recipe(version) else { return };
        let Ok(run) = self.run_of(name, &resource, &recipe, options) else { return };
        let wanted = hash::version(&resource, &recipe.artifact) == version;
        let deployed = Deployed {
            version: version.into(),
            artifact: recipe.artifact.as_str().into(),
            generation: if wanted { resource.metadata.generation } else { 0 },
            scaling: service.scaling.unwrap_or(resource.spec.scaling),
            since: now,
            run: Ok(run),
            // It has answered before; that it still does is not asked for.
            asking: false,
        };
        self.tell_fleet(name, &deployed, options);
        entry.deployed.push(deployed);
    }

    /// Nothing of the function runs any more.
    pub fn forget(&self, name: &Name) {
        let _ = std::fs::remove_dir_all(self.work_folder(name));
    }

    fn work_folder(&self, name: &Name) -> PathBuf {
        self.folder.join("work").join(name.as_str().replace('/', "."))
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
    let words = klambda_local::child::launch_words(std::process::id(), true);
    options.helper.iter().cloned().chain(words).chain(["--".into()]).collect()
}
