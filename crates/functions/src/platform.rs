//! The interface between the control plane and a platform that builds and runs functions: one machine, or a cluster.
//!
//! Data flows one way. The control plane passes resources and [`Task`]s to the platform. The platform reports its state
//! when asked, and sends [`News`] when the state changed. A task returns no result: the next observation shows it. So a lost
//! task, a restart and a slow cluster look the same to the control plane, and the next plan requests the task again.
//!
//! A platform knows resources. It does not know how they are stored, who wrote them, or which events describe them. The
//! control plane knows no processes, no build folders and no objects of a cluster.

use crate::failure::Failure;
use crate::logs::{Line, Query};
use crate::name::Name;
use crate::observed::Observed;
use crate::resource::{BuildOutcome, Resource, Scaling};
use klambda_core::address::ReplicaAddress;
use klambda_core::time::Millis;
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Builds and runs functions.
pub trait Platform: Send + Sync {
    /// The current state of a function, without its subscription, which the control plane owns. May read files or call
    /// other services, so it is called on a thread that may block.
    fn observe(&self, resource: &Resource) -> Observed;

    /// Starts a task, unless it is in progress or done. Called on a thread that may block, after the status that led to
    /// the task is stored.
    fn act(&self, resource: &Arc<Resource>, task: Task);

    /// A replica for one call. Called for every delivery, so it must not block.
    fn acquire(&self, name: &Name) -> Acquired;

    /// The output of a function and of its builds.
    fn logs(&self, name: &Name, query: Query) -> Box<dyn Logs>;

    /// Log lines that were not stored since the start.
    fn log_lines_dropped(&self) -> u64;

    /// Builds that wait for a slot.
    fn builds_waiting(&self) -> usize;

    /// Whether a version of this artifact can be deployed without a build. May read files.
    fn has_artifact(&self, hash: &str) -> bool;

    /// Fetches the source of a resource and returns its digest, as in [`Observed::source`]. Keeps nothing.
    fn look(&self, resource: Arc<Resource>) -> Pending<'_, Result<String, Failure>>;

    /// Removes no file of a resource until the returned value is dropped.
    fn keep(&self) -> Pending<'_, Box<dyn Send>>;

    /// The files that another machine needs to serve the serving versions and the kept revisions. Reads files: called on
    /// a thread that may block.
    fn files_of(&self, resources: &[Arc<Resource>]) -> Files;

    /// Starts nothing new, and stops everything that cannot outlive this process.
    fn stop(&self) -> Pending<'_, ()>;
}

/// Files of a platform, for a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The folder on disk, and its name in the data folder.
    pub folder: PathBuf,
    pub name: PathBuf,
    /// Paths below the folder. A folder stands for everything in it.
    pub paths: BTreeSet<PathBuf>,
}

/// Opens a platform. Called when the first function exists, which may be never.
pub type Open = Box<dyn Fn(Home) -> Pending<'static, Result<Arc<dyn Platform>, String>> + Send + Sync>;

/// The arguments for opening a platform.
pub struct Home {
    /// All stored functions and agents. Versions that served before serve again. Files that belong to none of them may be
    /// removed.
    pub resources: Vec<Arc<Resource>>,
    /// Never called while the platform holds one of its locks.
    pub tell: Tell,
    /// The clock of the planner.
    pub now: Arc<dyn Fn() -> Millis + Send + Sync>,
}

pub type Tell = Arc<dyn Fn(News) + Send + Sync>;

/// A task that a plan gives to the platform. Hashes and numbers identify tasks: a platform ignores those in progress.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Fetch the source, or check its current state. The result appears in [`Observed::source`].
    Fetch { inputs: String, number: u64 },
    /// Build the artifact. The result appears in [`Observed::build`] and [`Observed::artifacts`].
    Build { inputs: String, number: u64, hash: String },
    /// Stop the fetches and builds of the function, and record this outcome.
    CancelBuild { outcome: BuildOutcome },
    /// Start a version beside the running ones. `generation` appears in [`Observed::versions`].
    Deploy { version: String, artifact: String, generation: u64 },
    /// Change the scaling of a version without restarting its processes.
    Scale { version: String, scaling: Scaling },
    /// Send no new requests to a version, and stop it when the open ones are done.
    Retire { version: String },
    /// The function is deleted and nothing of it runs: remove its files.
    Forget,
}

/// A notification from the platform.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// The observed state of this function changed.
    Changed(Name),
    /// The same, and waiting calls may now find a replica.
    Replicas(Name),
    BuildBegun(Name),
    /// `took` excludes the time that the build waited for a slot.
    BuildEnded {
        name: Name,
        outcome: BuildOutcome,
        took: Duration,
    },
    /// A part of the shared build cache was evicted, with the reason.
    CacheEmptied(&'static str),
}

pub enum Acquired {
    Ready(Box<dyn Lease>),
    /// All replicas are busy; this call waits for its turn.
    Soon(Pending<'static, Result<Box<dyn Lease>, Unavailable>>),
    Unavailable(Unavailable),
}

/// A replica that keeps running while this is held.
pub trait Lease: Send + Sync {
    fn endpoint(&self) -> &Endpoint;

    /// Whether the replica is still starting. A call that is sent to it waits until it has started.
    fn is_starting(&self) -> bool;

    /// Reports that the replica responded, with any status, so it works.
    fn answered(&mut self);
}

/// The address of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Local(ReplicaAddress),
    Url(Arc<str>),
}

impl Endpoint {
    /// The address of a replica on this machine.
    pub fn address(&self) -> Option<&ReplicaAddress> {
        match self {
            Endpoint::Local(address) => Some(address),
            Endpoint::Url(_) => None,
        }
    }
}

/// Why no replica can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// No version is deployed.
    NotDeployed(String),
    /// The version fails to start.
    Failed(String),
    /// Too many calls wait, or this one waited too long.
    Busy(String),
    /// The function is being deleted.
    Ending(String),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Unavailable::NotDeployed(why)
        | Unavailable::Failed(why)
        | Unavailable::Busy(why)
        | Unavailable::Ending(why)) = self;
        f.write_str(why)
    }
}

/// Reads the output of a function.
pub trait Logs: Send {
    /// The next lines, at most about 64 KiB. `None` at the end: all lines were read and they are not followed, or the
    /// function is deleted. Must be awaited to its end.
    fn next(&mut self) -> Pending<'_, Option<Vec<Line>>>;
}
