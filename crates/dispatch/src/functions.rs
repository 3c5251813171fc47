//! The seam to whoever runs functions: a delivery to a function asks here for a replica to call.

use crate::engine::Delivery;
use klambda_core::address::Address;
use klambda_core::outcome::Outcome;
use std::future::Future;
use std::pin::Pin;

/// Knows where functions run.
pub trait Functions: Send + Sync {
    /// A replica to make one call to. Waiting for it is no attempt and has no timeout but its own.
    fn acquire(&self, namespace: &str, name: &str) -> Acquired;

    /// For a function that is part of this process: handles the event here, and nobody is called.
    fn handle(&self, _namespace: &str, _name: &str, _delivery: &Delivery) -> Option<Handling> {
        None
    }
}

pub type Handling = Pin<Box<dyn Future<Output = Outcome> + Send>>;

pub enum Acquired {
    Ready(Lease),
    /// One is being started.
    Soon(Pin<Box<dyn Future<Output = Result<Lease, Unavailable>> + Send>>),
    Unavailable(Unavailable),
}

/// A replica that will not be stopped while this is held: until the answer is read.
pub struct Lease {
    pub address: Address,
    /// Dropped when the call is over.
    pub held: Box<dyn Hold>,
}

/// Keeps a replica for one call.
pub trait Hold: Send {
    /// The replica gave an answer, whatever it said: it works.
    fn answered(&mut self) {}
}

/// There is nobody to call, and events wait without an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    pub why: String,
    pub retry_after_ms: u64,
}

/// For a server without functions.
pub struct NoFunctions;

impl Functions for NoFunctions {
    fn acquire(&self, _: &str, _: &str) -> Acquired {
        let why = "this server runs no functions".to_owned();
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
