//! What nobody needs any more is removed: at once when the machine is opened, since nothing runs then; later when it was
//! not needed the time before either, so that what is being replaced may still end.

use super::made::Made;
use super::{Machine, cache};
use klambda_functions::platform::News;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// From something that was done to the next look, and from there to the removal.
const SWEEP_AFTER: Duration = Duration::from_secs(600);
/// When builds run, their artifacts are nobody's yet.
const AGAIN: Duration = Duration::from_secs(10);

impl Machine {
    pub(super) async fn sweep_at_times(self) {
        // Longer than what was replaced may take to end.
        let after = SWEEP_AFTER.max(self.options.drain.saturating_mul(2));
        // Not needed at the last look.
        let mut condemned = HashSet::new();
        loop {
            if condemned.is_empty() {
                self.worked.notified().await;
            }
            tokio::time::sleep(after).await;
            condemned = self.sweep_alone(condemned).await;
        }
    }

    /// Nobody observes or acts meanwhile, so nothing is removed that somebody has just seen; and no build begins.
    async fn sweep_alone(&self, condemned: HashSet<PathBuf>) -> HashSet<PathBuf> {
        let _alone = loop {
            let alone = self.gate.write().await;
            if self.builds.is_empty() {
                break alone;
            }
            drop(alone);
            tokio::time::sleep(AGAIN).await;
        };
        let machine = self.clone();
        let swept = tokio::task::spawn_blocking(move || {
            machine.sweep_cache();
            machine.sweep(Some(&condemned))
        });
        swept.await.unwrap_or_default()
    }

    fn sweep_cache(&self) {
        let folder = self.options.folder.join("cache");
        for reason in cache::sweep(&folder, self.options.cache, std::time::SystemTime::now()) {
            tracing::info!(reason, "A part of the build cache was emptied.");
            (self.tell)(News::CacheEmptied(reason));
        }
    }
}

/// Names in the folders of the machine.
struct Needed {
    made: HashSet<String>,
    versions: HashSet<String>,
    work: HashSet<String>,
    artifacts: HashSet<String>,
}

impl Machine {
    /// Keeps what functions need and what is deployed. Of what is not needed that goes which was condemned before, or
    /// all; answers what stays.
    pub(super) fn sweep(&self, condemned: Option<&HashSet<PathBuf>>) -> HashSet<PathBuf> {
        let unneeded = self.unneeded(&self.needed());
        let (going, staying): (Vec<PathBuf>, Vec<PathBuf>) =
            unneeded.into_iter().partition(|path| condemned.is_none_or(|condemned| condemned.contains(path)));
        going.iter().for_each(|path| self.remove(path));
        staying.into_iter().collect()
    }

    fn needed(&self) -> Needed {
        let (mut made, mut versions, mut work) = (HashSet::new(), HashSet::new(), HashSet::new());
        for (name, function) in self.lock().iter() {
            work.insert(name.as_str().replace('/', "."));
            made.extend(function.artifacts.iter().cloned());
            versions.extend(function.version.clone());
            for deployed in &function.deployed {
                made.insert(deployed.artifact.to_string());
                versions.insert(deployed.version.to_string());
            }
        }
        let recipes = versions.iter().filter_map(|version| self.recipe(version));
        made.extend(recipes.map(|recipe| recipe.artifact));
        let folder = self.options.folder.join("made");
        let artifacts =
            made.iter().filter_map(|hash| Made::read(&folder, hash)).map(|made| made.content).collect();
        Needed { made, versions, work, artifacts }
    }

    fn unneeded(&self, needed: &Needed) -> Vec<PathBuf> {
        let Needed { made, versions, work, artifacts } = needed;
        let folders = [("made", made), ("versions", versions), ("work", work), ("artifacts", artifacts)];
        let unneeded = |(folder, kept)| entries_beside(&self.options.folder.join(folder), kept);
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
    use super::super::Options;
    use super::super::function::Deployed;
    use super::*;
    use crate::fleet::Run;
    use klambda_core::time::Millis;
    use klambda_functions::name::Name;
    use klambda_functions::platform::Home;
    use klambda_functions::resource::{BuildStatus, Resource, Scaling};
    use std::sync::Arc;

    fn function(hash: &str) -> Resource {
        let mut resource = Resource::default();
        "f".clone_into(&mut resource.metadata.name);
        let build = BuildStatus { hash: Some(hash.to_owned()), ..BuildStatus::default() };
        resource.status.build_status = Some(Box::new(build));
        resource
    }

    /// As a build leaves it.
    fn make(machine: &Machine, hash: &str) {
        let folder = machine.options.folder.join("artifacts").join(format!("content-{hash}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        let content = format!("content-{hash}");
        let made = Made { content, folder, command: Vec::new(), environment: Vec::new() };
        made.write(&machine.options.folder.join("made"), hash).expect("written");
    }

    fn there(machine: &Machine, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = entries_beside(&machine.options.folder.join(folder), &HashSet::new())
            .iter()
            .map(|path| name_of(path))
            .collect();
        names.sort();
        names
    }

    fn deploy(machine: &Machine, hashes: &[&str]) {
        let deployed = |hash: &&str| Deployed {
            version: format!("version-{hash}").into(),
            artifact: (*hash).into(),
            content: (*hash).into(),
            generation: 1,
            scaling: Scaling::default(),
            since: Millis(1),
            run: Ok(Run::Remote("".into())),
            asking: false,
        };
        let name = Name::new("default", "f");
        machine.lock().entry(name).or_default().deployed = hashes.iter().map(deployed).collect();
    }

    #[tokio::test]
    async fn what_was_not_needed_twice_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options::new(folder.path().join("functions"), vec!["/bin/true".into()]);
        let home = Home { resources: Vec::new(), tell: Arc::new(|_| {}), now: Arc::new(|| Millis(1)) };
        let machine = Machine::open(options, home).await.expect("a machine");
        ["asked", "deployed", "replaced", "late"].iter().for_each(|hash| make(&machine, hash));
        assert!(machine.made("replaced").is_some());
        machine.adopt(&function("asked"));
        deploy(&machine, &["deployed", "late"]);
        let first = machine.sweep(Some(&HashSet::new()));
        assert_eq!(there(&machine, "made"), ["asked", "deployed", "late", "replaced"], "only looked at");
        assert_eq!(first.len(), 2, "{first:?}");
        deploy(&machine, &["deployed"]);
        let second = machine.sweep(Some(&first));
        assert_eq!(there(&machine, "made"), ["asked", "deployed", "late"]);
        assert_eq!(there(&machine, "artifacts"), ["content-asked", "content-deployed", "content-late"]);
        assert!(machine.made("replaced").is_none());
        // Asked for again meanwhile.
        machine.adopt(&function("late"));
        let third = machine.sweep(Some(&second));
        assert_eq!(there(&machine, "made"), ["asked", "deployed", "late"]);
        deploy(&machine, &[]);
        machine.sweep(Some(&third));
        assert_eq!(there(&machine, "made"), ["deployed", "late"]);
    }
}
