//! The interface to the code that runs functions: a delivery to a function acquires a replica here.

use crate::engine::Delivery;
use klambda_core::address::ReplicaAddress;
use klambda_core::outcome::CallOutcome;
use std::future::Future;
use std::pin::Pin;

/// Provides replicas of functions.
pub trait Functions: Send + Sync {
    /// Acquires a replica for one call. Waiting is not an attempt and has its own timeout only.
    fn acquire(&self, namespace: &str, name: &str) -> Acquired;

    /// Handles the event directly if the function is part of this process; otherwise returns `None`.
    fn handle(&self, _namespace: &str, _name: &str, _delivery: &Delivery) -> Option<Handling> {
        None
    }
}

pub type Handling = Pin<Box<dyn Future<Output = CallOutcome> + Send>>;

pub enum Acquired {
    Ready(Lease),
    /// A replica is being started.
    Soon(Pin<Box<dyn Future<Output = Result<Lease, Unavailable>> + Send>>),
    Unavailable(Unavailable),
}

/// A replica that is not stopped while the lease exists, that is, until the response is read.
pub struct Lease {
    pub address: ReplicaAddress,
    /// Dropped when the call ends.
    pub held: Box<dyn Hold>,
}

/// Reserves a replica for one call.
pub trait Hold: Send {
    /// The replica answered with any status, so it works.
    fn answered(&mut self) {}
}

/// No replica can be called. Events wait without using an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    pub why: String,
    pub retry_after_ms: u64,
}

/// For a server without functions.
pub struct NoFunctions;

impl Functions for NoFunctions {
    fn acquire(&self, _: &str, _: &str) -> Acquired {
        let why = "this server does not run functions".to_owned();
        Acquired::Unavailable(Unavailable { why, retry_after_ms: 60_000 })
    }
}

impl Acquired {
    pub(crate) async fn wait(self) -> Result<Lease, Unavailable> {
        match self {
            Acquired::Ready(lease) => Ok(lease),
            Acquired::Soon(lease) => lease.await,
            Acquired::Unavailable(unavailable) => Err(unavailable),
        }
    }
}
