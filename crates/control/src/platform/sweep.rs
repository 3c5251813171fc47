//! What nobody needs any more is removed: at once when the platform is opened, since nothing runs then; later when it was
//! not needed the time before either, so that what is being replaced may still end.

use super::Platform;
use super::cache;
use super::deploy::Recipe;
use super::made::Made;
use crate::control::Control;
use crate::names::Name;
use crate::state::Deployed;
use klambda_core::time::Millis;
use klambda_functions::resource::Resource;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// From something that was done to the next look, and from there to the removal.
const SWEEP_AFTER_MS: u64 = 600_000;
/// When builds run, their artifacts are nobody's yet.
const AGAIN_MS: u64 = 10_000;

/// What the task that plans keeps of it. It sweeps between plans, so that nothing is removed between what a plan has seen
/// and what it asks for.
#[derive(Default)]
pub struct Sweeps {
    due: Option<Millis>,
    /// Not needed at the last look.
    condemned: HashSet<PathBuf>,
}

impl Sweeps {
    pub fn due(&self) -> Option<Millis> {
        self.due
    }

    /// Something was begun or ended: there may be something to remove.
    pub fn note(&mut self, control: &Control) {
        self.due.get_or_insert(control.clock.now() + control.sweep_after_ms());
    }

    pub async fn run(&mut self, control: &Control) {
        let now = control.clock.now();
        let Some(platform) = control.running().filter(|_| self.due.is_some_and(|due| due <= now)) else {
            return;
        };
        if !platform.builds.is_empty() {
            self.due = Some(now + AGAIN_MS);
            return;
        }
        let (control, condemned) = (control.clone(), std::mem::take(&mut self.condemned));
        let after_ms = control.sweep_after_ms();
        let swept = tokio::task::spawn_blocking(move || {
            let (resources, deployed) = control.in_use();
            control.sweep_cache();
            control.running().map(|platform| platform.sweep(&resources, &deployed, Some(&condemned)))
        });
        self.condemned = swept.await.ok().flatten().unwrap_or_default();
        self.due = (!self.condemned.is_empty()).then_some(now + after_ms);
    }
}

impl Control {
    /// Longer than what was replaced may take to end.
    fn sweep_after_ms(&self) -> u64 {
        SWEEP_AFTER_MS.max(self.options.limits.drain_ms_max.saturating_mul(2))
    }

    /// Only while nothing is built: called by the task that would begin a build.
    fn sweep_cache(&self) {
        let folder = self.options.folder.join("cache");
        for reason in cache::sweep(&folder, self.options.cache, std::time::SystemTime::now()) {
            tracing::info!(reason, "A part of the build cache was emptied.");
            self.counting.cache_emptied(reason);
        }
    }

    fn in_use(&self) -> (Vec<Arc<Resource>>, Vec<Deployed>) {
        let state = self.lock();
        let resources = state.functions.values().map(|entry| entry.resource.clone()).collect();
        (resources, state.functions.values().flat_map(|entry| entry.deployed.iter().cloned()).collect())
    }
}

/// Names in the folders of the platform.
struct Needed {
    made: HashSet<String>,
    versions: HashSet<String>,
    work: HashSet<String>,
    artifacts: HashSet<String>,
}

impl Platform {
    /// Keeps what these resources have built and what of it serves or is deployed. Of what is not needed that goes which was
    /// condemned before, or all; answers what stays.
    pub fn sweep(
        &self,
        resources: &[Arc<Resource>],
        deployed: &[Deployed],
        condemned: Option<&HashSet<PathBuf>>,
    ) -> HashSet<PathBuf> {
        let unneeded = self.unneeded(&self.needed(resources, deployed));
        let (going, staying): (Vec<PathBuf>, Vec<PathBuf>) =
            unneeded.into_iter().partition(|path| condemned.is_none_or(|condemned| condemned.contains(path)));
        going.iter().for_each(|path| self.remove(path));
        staying.into_iter().collect()
    }

    fn needed(&self, resources: &[Arc<Resource>], deployed: &[Deployed]) -> Needed {
        let service = |resource: &Arc<Resource>| resource.status.service_status.as_ref()?.version.clone();
        let build = |resource: &Arc<Resource>| resource.status.build_status.as_ref()?.hash.clone();
        let mut versions: HashSet<String> = resources.iter().filter_map(service).collect();
        versions.extend(deployed.iter().map(|deployed| deployed.version.to_string()));
        let recipes: Vec<Recipe> = versions.iter().filter_map(|version| self.recipe(version)).collect();
        let mut made: HashSet<String> = resources.iter().filter_map(build).collect();
        made.extend(recipes.into_iter().map(|recipe| recipe.artifact));
        made.extend(deployed.iter().map(|deployed| deployed.artifact.to_string()));
        let folder = self.folder.join("made");
        let artifacts =
            made.iter().filter_map(|hash| Made::read(&folder, hash)).map(|made| made.content).collect();
        let work = resources.iter().map(|resource| Name::of(resource).as_str().replace('/', ".")).collect();
        Needed { made, versions, work, artifacts }
    }

    fn unneeded(&self, needed: &Needed) -> Vec<PathBuf> {
        let Needed { made, versions, work, artifacts } = needed;
        let folders = [("made", made), ("versions", versions), ("work", work), ("artifacts", artifacts)];
        let unneeded = |(folder, kept)| entries_beside(&self.folder.join(folder), kept);
        folders.into_iter().flat_map(unneeded).collect()
    }

    fn remove(&self, path: &Path) {
        // What is no longer there must not be found in memory while it goes.
        let (folder, name) = (path.parent().and_then(Path::file_name), name_of(path));
        match folder.and_then(|folder| folder.to_str()) {
            Some("made") => drop(self.made.lock().remove(&name)),
            Some("artifacts") => self.fleet.forget(&name),
            _ => {}
        }
        let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        if let Err(error) = removed {
            tracing::warn!(%error, path = %path.display(), "What nobody needs is not removed.");
        }
    }
}

/// What is in a folder beside what is kept, by its name.
fn entries_beside(folder: &Path, kept: &HashSet<String>) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| !kept.contains(&name_of(path))).collect()
}

/// The name without `.json`.
fn name_of(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    file.strip_suffix(".json").unwrap_or(&file).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use klambda_functions::resource::{BuildStatus, Scaling};
    use klambda_local::fleet::Run;

    fn function(name: &str, hash: &str) -> Arc<Resource> {
        let mut resource = Resource::default();
        name.clone_into(&mut resource.metadata.name);
        let build = BuildStatus { hash: Some(hash.to_owned()), ..BuildStatus::default() };
        resource.status.build_status = Some(Box::new(build));
        Arc::new(resource)
    }

    /// As a build leaves it.
    fn make(platform: &Platform, hash: &str) {
        let folder = platform.folder.join("artifacts").join(format!("content-{hash}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        let content = format!("content-{hash}");
        let made = Made { content, folder, command: Vec::new(), environment: Vec::new() };
        made.write(&platform.folder.join("made"), hash).expect("written");
    }

    fn there(platform: &Platform, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = entries_beside(&platform.folder.join(folder), &HashSet::new())
            .iter()
            .map(|path| name_of(path))
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn what_was_not_needed_twice_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options::new(folder.path().join("functions"), vec!["/bin/true".into()]);
        let platform = Platform::open(&options, Vec::new()).await.expect("a platform");
        ["asked", "deployed", "replaced", "late"].iter().for_each(|hash| make(&platform, hash));
        assert!(platform.made("replaced").is_some());
        let resources = [function("f", "asked")];
        let deployed = |hash: &str| Deployed {
            version: format!("version-{hash}").into(),
            artifact: hash.into(),
            generation: 1,
            scaling: Scaling::default(),
            since: Millis(1),
            run: Ok(Run::Remote("".into())),
            asking: false,
        };
        let first =
            platform.sweep(&resources, &[deployed("deployed"), deployed("late")], Some(&HashSet::new()));
        assert_eq!(there(&platform, "made"), ["asked", "deployed", "late", "replaced"], "only looked at");
        assert_eq!(first.len(), 2, "{first:?}");
        let second = platform.sweep(&resources, &[deployed("deployed")], Some(&first));
        assert_eq!(there(&platform, "made"), ["asked", "deployed", "late"]);
        assert_eq!(there(&platform, "artifacts"), ["content-asked", "content-deployed", "content-late"]);
        assert!(platform.made("replaced").is_none());
        // Asked for again meanwhile.
        let third = platform.sweep(&[function("f", "late")], &[deployed("deployed")], Some(&second));
        assert_eq!(there(&platform, "made"), ["asked", "deployed", "late"]);
        platform.sweep(&[function("f", "late")], &[], Some(&third));
        assert_eq!(there(&platform, "made"), ["deployed", "late"]);
    }
}
