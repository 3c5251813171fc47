//! The seam between the control plane and whatever builds and runs functions: one machine, or a cluster.
//!
//! Data flows one way. The control plane hands resources and [`Task`]s down; a platform answers what it sees when it is
//! asked, and tells [`News`] when asking again is worth it. A task has no result: what came of it is observed. So a lost
//! task, a restart and a slow cluster look the same to the control plane, and the next plan asks again.
//!
//! A platform knows resources, not how they are stored, who wrote them or which events tell of them. The control plane
//! knows no process, no folder of a build and no object of a cluster.

use crate::name::Name;
use crate::observed::Observed;
use crate::resource::{Outcome, Resource, Scaling};
use klambda_core::address::Address;
use klambda_core::time::Millis;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Builds and runs functions.
pub trait Platform: Send + Sync {
    /// What there is of a function now. May read files or ask others: called on a thread that may wait. The subscription
    /// is not the platform's, and is left out.
    fn observe(&self, resource: &Resource) -> Observed;

    /// Begins a task, unless it is under way or done already. Called on a thread that may wait, after the status that
    /// led to it is stored.
    fn act(&self, resource: &Arc<Resource>, task: Task);

    /// A replica for one call. Called for every delivery: must not wait for files or for others.
    fn acquire(&self, name: &Name) -> Acquired;

    /// What a function printed, from the last `past` lines on; nothing if none of it was ever started.
    fn logs(&self, name: &Name, past: usize) -> Option<Box<dyn Logs>>;

    /// Builds that wait for a slot.
    fn builds_waiting(&self) -> usize;

    /// Starts nothing more, and ends what cannot live without this process.
    fn stop(&self) -> Pending<'_, ()>;
}

/// Opens a platform when there is a function for it, which may be never.
pub type Open = Box<dyn Fn(Home) -> Pending<'static, Result<Arc<dyn Platform>, String>> + Send + Sync>;

/// What a platform is opened with.
pub struct Home {
    /// All functions and agents, as they were last stored. What served of them serves again; what belongs to none of
    /// them may be removed.
    pub resources: Vec<Arc<Resource>>,
    /// Never called while the platform holds a lock of its own.
    pub tell: Tell,
    /// The clock that plans go by.
    pub now: Arc<dyn Fn() -> Millis + Send + Sync>,
}

pub type Tell = Arc<dyn Fn(News) + Send + Sync>;

/// What a plan asks of the platform. Hashes and numbers name things: a platform ignores what it is already doing.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Bring the source here, or see what it is now. Answered in [`Observed::source`].
    Fetch { inputs: String, number: u64 },
    /// Make the artifact of what was fetched. Answered in [`Observed::build`] and [`Observed::artifacts`].
    Build { inputs: String, number: u64, hash: String },
    /// End fetches and builds that run for the function. `outcome` is what their end is called.
    CancelBuild { outcome: Outcome },
    /// Start a version beside what runs. `generation` is to be seen in [`Observed::versions`].
    Deploy { version: String, artifact: String, generation: u64 },
    /// Tell a version how to scale from now on; its processes stay.
    Scale { version: String, scaling: Scaling },
    /// Send nothing more to a version and end it when what is open is done.
    Retire { version: String },
    /// The function is gone, and nothing of it runs: remove what is left of it.
    Forget,
}

/// What a platform tells without being asked.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// An observation of this function would differ from the last one.
    Changed(Name),
    /// The same, and calls that wait for a replica may find one.
    Replicas(Name),
    BuildBegun(Name),
    /// `took` does not count the time that it waited for its turn.
    BuildEnded {
        name: Name,
        outcome: Outcome,
        took: Duration,
    },
    /// A part of the cache that builds share was emptied, and why.
    CacheEmptied(&'static str),
}

pub enum Acquired {
    Ready(Box<dyn Lease>),
    /// All replicas are busy, and this call waits for its turn.
    Soon(Pending<'static, Result<Box<dyn Lease>, Unavailable>>),
    Unavailable(Unavailable),
}

/// A replica that will not be stopped while this is held.
pub trait Lease: Send + Sync {
    fn endpoint(&self) -> &Endpoint;

    /// Whether the replica has yet to come up; a call that is sent to it waits until it has.
    fn is_starting(&self) -> bool;

    /// The replica gave an answer, whatever it said: it works.
    fn answered(&mut self);
}

/// Where a replica is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Local(Address),
    Url(Arc<str>),
}

impl Endpoint {
    /// Of what runs on this machine.
    pub fn address(&self) -> Option<&Address> {
        match self {
            Endpoint::Local(address) => Some(address),
            Endpoint::Url(_) => None,
        }
    }
}

/// Why there is no replica to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// No version of it is deployed.
    NotDeployed(String),
    /// Its version does not start.
    Failed(String),
    /// More calls wait than may, or one waited too long.
    Busy(String),
    /// It is on its way out.
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

/// Reads what a function prints.
pub trait Logs: Send {
    /// The lines that are there already.
    fn ready(&mut self) -> Vec<Line>;

    /// Waits for the next line; nothing once the function is gone.
    fn next(&mut self) -> Pending<'_, Option<Line>>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Counts from 0 for each function, without a hole. A reader that is too slow sees by it that it missed lines.
    pub number: u64,
    pub time: Millis,
    pub replica: u64,
    pub stream: Stream,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}
