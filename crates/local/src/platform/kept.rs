//! The files of a backup: artifacts, and the files that describe how to start them.

use super::Machine;
use super::built_artifact::BuiltArtifact;
use klambda_functions::platform::Files;
use klambda_functions::resource::Resource;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the machine's folder in the data folder.
const NAME: &str = "functions";
/// Lists the artifacts that have responded once. They need no test start after a restore.
const PROVEN: &str = "fleet/good-artifacts";

impl Machine {
    pub(super) fn files_of(&self, resources: &[Arc<Resource>]) -> Files {
        let mut paths = BTreeSet::new();
        for resource in resources {
            let mut artifacts = named_artifacts(resource);
            let service = resource.status.service_status.as_ref();
            if let Some(version) = service.and_then(|service| service.version.as_deref())
                && let Some(recipe) = self.recipe(version)
            {
                paths.insert(Path::new("versions").join(format!("{version}.json")));
                artifacts.insert(recipe.artifact);
            }
            for hash in artifacts {
                if let Some(made) = self.built(&hash) {
                    paths.insert(Path::new("made").join(format!("{hash}.json")));
                    paths.extend(parts_of(&made, &self.options.folder));
                }
            }
        }
        if !paths.is_empty() {
            paths.insert(PROVEN.into());
        }
        Files { folder: self.options.folder.clone(), name: NAME.into(), paths }
    }
}

/// Hashes of the artifacts that the resource names.
fn named_artifacts(resource: &Resource) -> BTreeSet<String> {
    let status = &resource.status;
    let builds = [&status.build_status, &status.restored].into_iter().flatten();
    let built = builds.filter_map(|build| build.hash.clone());
    built.chain(status.all_revisions().map(|revision| revision.artifact.clone())).collect()
}

/// The folder of an artifact, and the folder of the wrapper that starts it (`runtimes/HASH`).
fn parts_of(made: &BuiltArtifact, home: &Path) -> BTreeSet<PathBuf> {
    let inside = |path: &Path| path.strip_prefix(home).ok().map(Path::to_path_buf);
    let wrappers = made.command.iter().filter_map(|word| {
        let inside = inside(Path::new(word))?;
        inside.starts_with("runtimes").then(|| inside.components().take(2).collect::<PathBuf>())
    });
    wrappers.chain(inside(&made.folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_comes_with_its_wrapper_and_moves_with_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        let made = BuiltArtifact {
            content: "c".into(),
            folder: old.join("artifacts/c"),
            command: vec![
                "/usr/bin/node".into(),
                old.join("runtimes/h/nodejs/main.js").display().to_string(),
            ],
            environment: vec![("KLAMBDA_CODE".into(), old.join("artifacts/c/code").display().to_string())],
        };
        let parts: Vec<PathBuf> = parts_of(&made, &old).into_iter().collect();
        assert_eq!(parts, [PathBuf::from("artifacts/c"), PathBuf::from("runtimes/h")]);
        for place in ["made", "artifacts/c"] {
            std::fs::create_dir_all(new.join(place)).expect("a folder");
        }
        made.write(&new.join("made"), "hash").expect("written");
        let moved = BuiltArtifact::read(&new.join("made"), "hash").expect("it is there");
        assert_eq!(moved.folder, new.join("artifacts/c"));
        let main = new.join("runtimes/h/nodejs/main.js").display().to_string();
        assert_eq!(moved.command, ["/usr/bin/node".to_owned(), main]);
        assert_eq!(moved.environment[0].1, new.join("artifacts/c/code").display().to_string());
    }
}
