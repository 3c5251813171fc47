//! The hold of a request on a replica, from before it is sent until it has ended.

use super::failure::{End, Failure};
use super::function::{Entered, Grant};
use super::replica::{Replica, Stage};
use super::{Endpoint, Error, Fleet, Shared, State};
use klambda_core::address::ReplicaAddress;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Dropping it ends the request.
pub struct Lease {
    shared: Arc<Shared>,
    function: Arc<str>,
    grant: Grant,
    answered: bool,
}

impl Lease {
    pub fn endpoint(&self) -> &Endpoint {
        &self.grant.endpoint
    }

    /// The address of a replica on this machine.
    pub fn address(&self) -> Option<&ReplicaAddress> {
        self.grant.endpoint.address()
    }

    pub fn replica(&self) -> u64 {
        self.grant.replica
    }

    /// Whether the replica is still starting. A request that is sent to it waits until it has started.
    pub fn is_starting(&self) -> bool {
        if !self.grant.early {
            return false;
        }
        let starts = |replica: &Replica| replica.id == self.grant.replica && replica.stage == Stage::Starting;
        let state = self.shared.lock();
        state.functions.get(&self.function).is_some_and(|function| function.replicas.iter().any(starts))
    }

    /// Reports that the replica responded, with any status, so it works.
    pub fn answered(&mut self) {
        self.answered = true;
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Lease").field("function", &self.function).field("grant", &self.grant).finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.release(&self.function, self.grant.replica, self.answered);
    }
}

impl Fleet {
    /// A replica for one request. If all are full, waits for one, in order of arrival and with a time limit. Does not wait
    /// for a replica to start: its socket does.
    pub async fn acquire(&self, function: &str) -> Result<Lease, Error> {
        match self.begin(function)? {
            Begun::Granted(lease) => Ok(lease),
            Begun::Queued(waiting) => waiting.lease().await,
        }
    }

    /// The same without waiting: a replica, or a place in the queue.
    pub fn begin(&self, function: &str) -> Result<Begun, Error> {
        let shared = self.shared.clone();
        Ok(match self.enter(function)? {
            (function, Entered::Granted(grant)) => {
                Begun::Granted(Lease { shared, function, grant, answered: false })
            }
            (function, Entered::Queued { ticket, answer, wait }) => {
                Begun::Queued(Waiting { shared, function, ticket, answer: Some(answer), wait })
            }
        })
    }

    fn enter(&self, name: &str) -> Result<(Arc<str>, Entered), Error> {
        let mut state = self.shared.lock();
        let State { functions, scheduler, .. } = &mut *state;
        let Some(function) = functions.get_mut(name) else { return Err(Error::Unknown(name.into())) };
        let entered = function.enter(&self.shared, scheduler, Instant::now())?;
        Ok((function.name.clone(), entered))
    }
}

pub enum Begun {
    Granted(Lease),
    Queued(Waiting),
}

/// A place in the queue. If the caller drops it, the place and a replica that was just granted are given back.
pub struct Waiting {
    shared: Arc<Shared>,
    function: Arc<str>,
    ticket: u64,
    answer: Option<oneshot::Receiver<Result<Grant, Error>>>,
    wait: Duration,
}

impl Waiting {
    pub async fn lease(mut self) -> Result<Lease, Error> {
        let Some(answer) = self.answer.as_mut() else { return Err(Error::Ended) };
        let answered = tokio::time::timeout(self.wait, answer).await;
        let grant = answered.map_err(|_| Error::NoRoom(self.wait))?;
        self.answer = None;
        let (shared, function) = (self.shared.clone(), self.function.clone());
        Ok(Lease { shared, function, grant: grant.map_err(|_| Error::Ended)??, answered: false })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(mut answer) = self.answer.take() else { return };
        self.shared.with(&self.function, |function, _, _| function.leave(self.ticket));
        if let Ok(Ok(grant)) = answer.try_recv() {
            self.shared.release(&self.function, grant.replica, false);
        }
    }
}

/// Events of replicas, reported by their tasks.
impl Shared {
    pub fn release(self: &Arc<Self>, function: &str, replica: u64, answered: bool) {
        self.with(function, |function, scheduler, now| {
            function.release(replica, answered, self, scheduler, now)
        });
    }

    pub fn became_ready(self: &Arc<Self>, function: &str, replica: u64) {
        self.with(function, |function, scheduler, now| function.became_ready(replica, self, scheduler, now));
    }

    pub fn opened(self: &Arc<Self>, function: &str, replica: u64, endpoint: Endpoint) {
        self.with(function, |function, scheduler, now| {
            function.opened(replica, endpoint, self, scheduler, now)
        });
    }

    pub fn ended(self: &Arc<Self>, function: &str, replica: u64, end: End) {
        let failure = Failure::of(end);
        self.with(function, |function, scheduler, now| {
            function.ended(replica, failure, self, scheduler, now)
        });
    }
}
