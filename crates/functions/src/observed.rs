//! The observed state of one function. Plain data, filled in the same way by every platform.

use crate::conditions::Saying;
use crate::failure::Failure;
use crate::resource::Scaling;
use crate::secrets::Revisions;
use klambda_core::time::Millis;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The last requested fetch.
    pub source: Option<Fetch>,
    /// The last requested build.
    pub build: Option<BuildRun>,
    /// Existing artifacts, including those that other functions built.
    pub artifacts: Vec<Artifact>,
    /// Every version that was deployed and not yet retired.
    pub versions: Vec<Version>,
    /// The digests of images that were started, by name.
    pub image_digests: BTreeMap<String, String>,
    pub subscription: Option<Subscription>,
    /// Conditions of the platform itself. `None` means ready.
    pub broker: Option<Saying>,
    pub dead_letters: Option<Saying>,
    pub agent: Option<Saying>,
    pub secrets: Revisions,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Fetch {
    /// Hash of the inputs that it was requested with.
    pub inputs: String,
    pub number: u64,
    pub state: FetchState,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FetchState {
    /// Waits behind others and has not started. The timeout does not count yet.
    Waiting {
        before: usize,
    },
    Running,
    /// The digest of the fetched source, and its commit if it came from git.
    Done {
        digest: String,
        commit: Option<String>,
    },
    Failed(Failure),
}

#[derive(Clone, Debug, PartialEq)]
pub struct BuildRun {
    /// Hash of the inputs that it was requested with.
    pub inputs: String,
    /// The content hash of the artifact.
    pub hash: String,
    pub number: u64,
    pub state: BuildState,
}

#[derive(Clone, Debug, PartialEq)]
pub enum BuildState {
    /// Waits behind others and has not started. The timeout does not count yet.
    Waiting {
        before: usize,
    },
    Running,
    /// The artifact is in [`Observed::artifacts`].
    Done,
    Failed(Failure),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub hash: String,
    /// The image or the folder.
    pub uri: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    pub version: String,
    /// Generation of the deployed spec. The highest is the newest.
    pub generation: u64,
    pub state: VersionState,
    pub replicas: u32,
    pub url: Option<String>,
    /// The URL where it runs, if not on this platform. Events go there.
    pub elsewhere: Option<String>,
    /// The last scaling settings that it received.
    pub scaling: Scaling,
}

#[derive(Clone, Debug, PartialEq)]
pub enum VersionState {
    /// It has not responded yet.
    Starting { since: Millis },
    /// It has responded and can be called, even with no replica, because one can be started.
    Serving,
    /// It fails to start, or stopped working.
    Failed(Failure),
    /// Retired; finishing open requests.
    Retiring,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Subscription {
    /// [`crate::hash::of`] the document that created it.
    pub hash: String,
    /// Pending events.
    pub waiting: u64,
    /// It accepts no new events.
    pub draining: bool,
    /// Whether the engine knows it. A cluster stores it before a dispatcher reads it.
    pub taken: bool,
    /// Why the engine rejected the last document.
    pub fault: Option<String>,
}

impl FetchState {
    /// Whether it has not finished.
    pub fn is_open(&self) -> bool {
        matches!(self, FetchState::Waiting { .. } | FetchState::Running)
    }
}

impl BuildState {
    /// Whether it has not finished.
    pub fn is_open(&self) -> bool {
        matches!(self, BuildState::Waiting { .. } | BuildState::Running)
    }
}

impl Version {
    pub fn is_serving(&self) -> bool {
        self.state == VersionState::Serving
    }

    pub fn is_retiring(&self) -> bool {
        self.state == VersionState::Retiring
    }
}

impl Observed {
    pub fn artifact(&self, hash: &str) -> Option<&Artifact> {
        self.artifacts.iter().find(|artifact| artifact.hash == hash)
    }

    pub fn version(&self, version: &str) -> Option<&Version> {
        self.versions.iter().find(|known| known.version == version)
    }

    /// The newest version that serves.
    pub fn serving(&self) -> Option<&Version> {
        self.versions.iter().filter(|version| version.is_serving()).max_by_key(|version| version.generation)
    }
}
