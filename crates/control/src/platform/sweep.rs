//! What nobody needs any more is removed when the platform is opened: nothing runs then.

use super::Platform;
use super::deploy::Recipe;
use super::made::Made;
use crate::names::Name;
use klambda_functions::resource::Resource;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

impl Platform {
    /// Keeps what these resources have built and what of it serves.
    pub fn sweep(&self, resources: &[Arc<Resource>]) {
        let service = |resource: &Arc<Resource>| resource.status.service_status.as_ref()?.version.clone();
        let build = |resource: &Arc<Resource>| resource.status.build_status.as_ref()?.hash.clone();
        let versions: HashSet<String> = resources.iter().filter_map(service).collect();
        let recipes: Vec<Recipe> = versions.iter().filter_map(|version| self.recipe(version)).collect();
        let mut hashes: HashSet<String> = resources.iter().filter_map(build).collect();
        hashes.extend(recipes.into_iter().map(|recipe| recipe.artifact));
        let made = self.folder.join("made");
        let contents: HashSet<String> =
            hashes.iter().filter_map(|hash| Made::read(&made, hash)).map(|made| made.content).collect();
        let names: HashSet<String> =
            resources.iter().map(|resource| Name::of(resource).as_str().replace('/', ".")).collect();
        keep(&made, &hashes);
        keep(&self.folder.join("versions"), &versions);
        keep(&self.folder.join("work"), &names);
        for gone in keep(&self.folder.join("artifacts"), &contents) {
            self.fleet.forget(&gone);
        }
    }
}

/// Removes what is not among these, by its name without `.json`; answers what went.
fn keep(folder: &Path, kept: &HashSet<String>) -> Vec<String> {
    let mut gone = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(file) = entry.file_name().into_string() else { continue };
        let name = file.strip_suffix(".json").unwrap_or(&file);
        if kept.contains(name) {
            continue;
        }
        let path = entry.path();
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Ok(()) => gone.push(name.to_owned()),
            Err(error) => tracing::warn!(%error, path = %path.display(), "What nobody needs is not removed."),
        }
    }
    gone
}
