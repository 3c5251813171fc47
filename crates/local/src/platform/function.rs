//! The state of one function on the machine. An idle function has no `work`.

use crate::fleet::Run;
use klambda_core::time::Millis;
use klambda_functions::failure::Failure;
use klambda_functions::logs::Build;
use klambda_functions::observed::{BuildRun, Fetch};
use klambda_functions::resource::{Resource, Scaling};
use std::sync::Arc;
use tempfile::TempDir;

#[derive(Default)]
pub struct Function {
    pub work: Option<Box<Work>>,
    pub deployed: Vec<Deployed>,
    /// All versions are being stopped.
    pub retiring: bool,
    /// The version that serves or served last, and the artifacts that the next plan may need. These must not be removed.
    pub version: Option<String>,
    pub artifacts: Vec<String>,
}

/// Fetches and builds.
#[derive(Default)]
pub struct Work {
    pub fetch: Option<Fetch>,
    pub build: Option<BuildRun>,
    pub build_log: Option<BuildLog>,
    /// The folder with the fetched source.
    pub folder: Option<Arc<TempDir>>,
}

/// Marks the log lines of a build.
#[derive(Clone)]
pub struct BuildLog {
    pub generation: u64,
    pub build: Build,
}

/// A version that was passed to the fleet, or that could not be.
#[derive(Clone)]
pub struct Deployed {
    pub version: Arc<str>,
    pub artifact: Arc<str>,
    /// The content hash of the artifact, which others may have built too.
    pub content: Arc<str>,
    /// Zero if it is not the version of the current spec.
    pub generation: u64,
    /// The generation of the spec that it was made from, for log lines.
    pub spec_generation: u64,
    pub scaling: Scaling,
    pub since: Millis,
    pub run: Result<Run, Failure>,
    /// It runs at a URL that has not responded yet. The fleet learns of it after the first response.
    pub asking: bool,
}

impl Deployed {
    /// Whether the fleet knows it.
    pub fn is_told(&self) -> bool {
        self.run.is_ok() && !self.asking
    }
}

impl Function {
    pub fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    /// Records what must be kept for this resource, besides the deployed versions.
    pub fn needs(&mut self, resource: &Resource, wanted: Vec<String>) {
        let status = &resource.status;
        self.version = status.service_status.as_ref().and_then(|service| service.version.clone());
        self.artifacts = wanted;
        let builds = [&status.build_status, &status.restored].into_iter().flatten();
        self.artifacts.extend(builds.filter_map(|build| build.hash.clone()));
        self.artifacts.extend(status.all_revisions().map(|revision| revision.artifact.clone()));
    }
}
