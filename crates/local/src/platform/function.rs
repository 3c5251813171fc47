//! What the machine knows of one function. A function at rest has no `work`.

use crate::fleet::Run;
use klambda_core::time::Millis;
use klambda_functions::failure::Failure;
use klambda_functions::observed::{BuildRun, Fetch};
use klambda_functions::resource::{Resource, Scaling};
use std::sync::Arc;
use tempfile::TempDir;

#[derive(Default)]
pub struct Function {
    pub work: Option<Box<Work>>,
    pub deployed: Vec<Deployed>,
    /// All of it is being ended.
    pub retiring: bool,
    /// The version that serves or did last, and artifacts that the next plan may ask for: not to be removed.
    pub version: Option<String>,
    pub artifacts: Vec<String>,
}

/// Fetches and builds.
#[derive(Default)]
pub struct Work {
    pub fetch: Option<Fetch>,
    pub build: Option<BuildRun>,
    /// What was fetched.
    pub folder: Option<Arc<TempDir>>,
}

/// A version that the fleet was told of, or that could not even be told.
#[derive(Clone)]
pub struct Deployed {
    pub version: Arc<str>,
    pub artifact: Arc<str>,
    /// The content of the artifact, which others may have built too.
    pub content: Arc<str>,
    pub generation: u64,
    pub scaling: Scaling,
    pub since: Millis,
    pub run: Result<Run, Failure>,
    /// It runs elsewhere and has not answered yet: the fleet is told of it when it has.
    pub asking: bool,
}

impl Deployed {
    /// Whether the fleet knows of it.
    pub fn is_told(&self) -> bool {
        self.run.is_ok() && !self.asking
    }
}

impl Function {
    pub fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    /// Notes what must stay for this resource, beside what is deployed.
    pub fn needs(&mut self, resource: &Resource, wanted: Vec<String>) {
        let status = &resource.status;
        self.version = status.service_status.as_ref().and_then(|service| service.version.clone());
        self.artifacts = wanted;
        self.artifacts.extend(status.build_status.as_ref().and_then(|build| build.hash.clone()));
    }
}
