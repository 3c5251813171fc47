//! What a platform sees of one function. Plain data: a machine and a cluster fill it in alike.

use crate::conditions::Saying;
use crate::failure::Failure;
use crate::resource::Scaling;
use klambda_core::time::Millis;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The last fetch that was asked for.
    pub source: Option<Fetch>,
    /// The last build that was asked for.
    pub build: Option<BuildRun>,
    /// Artifacts that are there, whoever had them built.
    pub artifacts: Vec<Artifact>,
    /// Every version that was deployed and not yet retired.
    pub versions: Vec<Version>,
    pub subscription: Option<Subscription>,
    /// What the platform says of its own parts; nothing said is taken as well.
    pub broker: Option<Saying>,
    pub dead_letters: Option<Saying>,
    pub agent: Option<Saying>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Fetch {
    /// What it was asked for with.
    pub inputs: String,
    pub number: u64,
    pub state: FetchState,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FetchState {
    /// Others are before it, and it has not begun. Its time is not counted yet.
    Waiting {
        before: usize,
    },
    Running,
    /// The hash of what was fetched: a commit, a checksum.
    Done {
        digest: String,
    },
    Failed(Failure),
}

#[derive(Clone, Debug, PartialEq)]
pub struct BuildRun {
    /// What it was asked for with.
    pub inputs: String,
    /// The artifact's content hash.
    pub hash: String,
    pub number: u64,
    pub state: BuildState,
}

#[derive(Clone, Debug, PartialEq)]
pub enum BuildState {
    /// Others are before it, and it has not begun. Its time is not counted yet.
    Waiting {
        before: usize,
    },
    Running,
    /// Its artifact is among [`Observed::artifacts`].
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
    /// Of the spec it was deployed for; the highest is the newest.
    pub generation: u64,
    pub state: VersionState,
    pub replicas: u32,
    pub url: Option<String>,
    /// Where it runs if not here: events go there.
    pub elsewhere: Option<String>,
    /// What it was last told.
    pub scaling: Scaling,
}

#[derive(Clone, Debug, PartialEq)]
pub enum VersionState {
    /// It has not answered yet.
    Starting { since: Millis },
    /// It has answered, and does when called: also with no replica, when one can be started.
    Serving,
    /// It does not start, or no longer does.
    Failed(Failure),
    /// Told to go; finishing what is open.
    Retiring,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Subscription {
    /// [`crate::hash::of`] the document it was made with.
    pub hash: String,
    /// Events that wait to be delivered.
    pub waiting: u64,
    /// It takes no more events.
    pub draining: bool,
    /// Why the engine did not take the last document.
    pub fault: Option<String>,
}

impl FetchState {
    /// Whether it has not come to an end.
    pub fn is_open(&self) -> bool {
        matches!(self, FetchState::Waiting { .. } | FetchState::Running)
    }
}

impl BuildState {
    /// Whether it has not come to an end.
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
