//! Removes unused files. At startup they are removed immediately, because nothing runs. Later they are removed only if they
//! were also unused at the check before, so that replaced versions can finish.

use super::built_artifact::BuiltArtifact;
use super::{Machine, cache};
use klambda_functions::platform::News;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Delay from the last work to the next check, and from there to the removal.
const SWEEP_AFTER: Duration = Duration::from_secs(600);
/// The build cache ages even if there is no work.
const CACHE_EVERY: Duration = Duration::from_secs(3600);
/// Delay while builds run, because their artifacts have no owner yet.
const AGAIN: Duration = Duration::from_secs(10);

impl Machine {
    pub(super) async fn sweep_at_times(self) {
        // Longer than a replaced version may take to stop.
        let after = SWEEP_AFTER.max(self.options.drain.saturating_mul(2));
        // Unused at the last check.
        let mut condemned = HashSet::new();
        loop {
            // Also soon after a start: the cache aged while the server was down.
            tokio::time::sleep(after).await;
            condemned = self.sweep_alone(condemned).await;
            if condemned.is_empty() {
                let _ = tokio::time::timeout(CACHE_EVERY, self.worked.notified()).await;
            }
        }
    }

    /// Runs while nobody observes or acts, so nothing is removed that was just seen, and no build starts.
    async fn sweep_alone(&self, condemned: HashSet<PathBuf>) -> HashSet<PathBuf> {
        let _alone = loop {
            let alone = self.gate.write().await;
            // Do not wait for a backup under the gate: observations would wait as well.
            match self.pinned.try_write() {
                Ok(unpinned) if self.builds.is_empty() => break (alone, unpinned),
                _ => drop(alone),
            }
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
            tracing::info!(reason, "Removed part of the build cache");
            (self.tell)(News::CacheEmptied(reason));
        }
    }
}

/// The names to keep in the folders of the machine.
struct Needed {
    built: HashSet<String>,
    versions: HashSet<String>,
    work: HashSet<String>,
    artifacts: HashSet<String>,
}

impl Machine {
    /// Keeps files that functions need and deployed versions. Removes the unused files that are in `condemned`, or all if it
    /// is `None`. Returns the unused files that remain.
    pub(super) fn sweep(&self, condemned: Option<&HashSet<PathBuf>>) -> HashSet<PathBuf> {
        let unneeded = self.unneeded(&self.needed());
        let (going, staying): (Vec<PathBuf>, Vec<PathBuf>) =
            unneeded.into_iter().partition(|path| condemned.is_none_or(|condemned| condemned.contains(path)));
        going.iter().for_each(|path| self.remove(path));
        staying.into_iter().collect()
    }

    fn needed(&self) -> Needed {
        let (mut built, mut versions, mut work) = (HashSet::new(), HashSet::new(), HashSet::new());
        for (name, function) in self.lock().iter() {
            work.insert(name.as_str().replace('/', "."));
            built.extend(function.artifacts.iter().cloned());
            versions.extend(function.version.clone());
            for deployed in &function.deployed {
                built.insert(deployed.artifact.to_string());
                versions.insert(deployed.version.to_string());
            }
        }
        let recipes = versions.iter().filter_map(|version| self.recipe(version));
        built.extend(recipes.map(|recipe| recipe.artifact));
        let folder = self.options.folder.join("made");
        let artifacts = built
            .iter()
            .filter_map(|hash| BuiltArtifact::read(&folder, hash))
            .map(|built| built.content)
            .collect();
        Needed { built, versions, work, artifacts }
    }

    fn unneeded(&self, needed: &Needed) -> Vec<PathBuf> {
        let Needed { built, versions, work, artifacts } = needed;
        let folders = [("made", built), ("versions", versions), ("work", work), ("artifacts", artifacts)];
        let unneeded = |(folder, kept)| entries_beside(&self.options.folder.join(folder), kept);
        folders.into_iter().flat_map(unneeded).collect()
    }

    fn remove(&self, path: &Path) {
        // Remove it from memory first, so that nobody finds it while it is deleted.
        let (folder, name) = (path.parent().and_then(Path::file_name), name_of(path));
        match folder.and_then(|folder| folder.to_str()) {
            Some("made") => drop(self.built.lock().remove(&name)),
            Some("artifacts") => self.fleet.forget(&name),
            _ => {}
        }
        let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        if let Err(error) = removed {
            tracing::warn!(%error, path = %path.display(), "Could not remove an unused file");
        }
    }
}

/// The entries of a folder that are not in `kept`.
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
    use klambda_functions::resource::{BuildStatus, Resource, RevisionRef, Scaling};
    use std::sync::Arc;

    fn function(hash: &str) -> Resource {
        let mut resource = Resource::default();
        "f".clone_into(&mut resource.metadata.name);
        let build = BuildStatus { hash: Some(hash.to_owned()), ..BuildStatus::default() };
        resource.status.build_status = Some(Box::new(build));
        resource
    }

    /// Creates the files that a build leaves.
    fn make(machine: &Machine, hash: &str) {
        let folder = machine.options.folder.join("artifacts").join(format!("content-{hash}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        let content = format!("content-{hash}");
        let built = BuiltArtifact { content, folder, command: Vec::new(), environment: Vec::new() };
        built.write(&machine.options.folder.join("made"), hash).expect("written");
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
            spec_generation: 1,
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
        assert!(machine.built("replaced").is_some());
        machine.adopt(&function("asked"));
        deploy(&machine, &["deployed", "late"]);
        let first = machine.sweep(Some(&HashSet::new()));
        assert_eq!(
            there(&machine, "made"),
            ["asked", "deployed", "late", "replaced"],
            "the first sweep only marks"
        );
        assert_eq!(first.len(), 2, "{first:?}");
        deploy(&machine, &["deployed"]);
        let second = machine.sweep(Some(&first));
        assert_eq!(there(&machine, "made"), ["asked", "deployed", "late"]);
        assert_eq!(there(&machine, "artifacts"), ["content-asked", "content-deployed", "content-late"]);
        assert!(machine.built("replaced").is_none());
        // Needed again meanwhile.
        machine.adopt(&function("late"));
        let third = machine.sweep(Some(&second));
        assert_eq!(there(&machine, "made"), ["asked", "deployed", "late"]);
        deploy(&machine, &[]);
        machine.sweep(Some(&third));
        assert_eq!(there(&machine, "made"), ["deployed", "late"]);
    }

    #[tokio::test]
    async fn artifacts_of_revisions_stay_and_a_backup_holds_a_sweep_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options::new(folder.path().join("functions"), vec!["/bin/true".into()]);
        let home = Home { resources: Vec::new(), tell: Arc::new(|_| {}), now: Arc::new(|| Millis(1)) };
        let machine = Machine::open(options, home).await.expect("a machine");
        ["kept", "candidate", "asked", "old"].iter().for_each(|hash| make(&machine, hash));
        let mut resource = function("asked");
        let of = |artifact: &str| RevisionRef { artifact: artifact.to_owned(), ..RevisionRef::default() };
        resource.status.revisions = vec![of("kept")];
        resource.status.candidate = Some(Box::new(of("candidate")));
        machine.adopt(&resource);
        let condemned = machine.sweep(Some(&HashSet::new()));
        let pinned = machine.pinned.clone().read_owned().await;
        let sweep = machine.sweep_alone(condemned.clone());
        assert!(tokio::time::timeout(Duration::from_millis(50), sweep).await.is_err());
        assert!(there(&machine, "made").contains(&"old".to_owned()));
        drop(pinned);
        machine.sweep_alone(condemned).await;
        assert_eq!(there(&machine, "made"), ["asked", "candidate", "kept"]);
        let files = machine.files_of(&[Arc::new(resource)]);
        let made = files.paths.iter().filter(|path| path.starts_with("made")).count();
        assert_eq!((made, files.paths.len()), (3, 7), "{files:?}");
    }
}
