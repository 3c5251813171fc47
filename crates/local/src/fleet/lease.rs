//! A request's hold on a replica, from before it is sent until it has ended.

use super::failure::{End, Failure};
use super::function::{Entered, Grant};
use super::replica::{Replica, Stage};
use super::{Endpoint, Error, Fleet, Shared, State};
use klambda_core::address::Address;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Letting go of it ends the request.
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

    /// Of what runs on this machine.
    pub fn address(&self) -> Option<&Address> {
        self.grant.endpoint.address()
    }

    pub fn replica(&self) -> u64 {
        self.grant.replica
    }

    /// Whether the replica has yet to come up; what is sent to it waits until it has.
    pub fn is_starting(&self) -> bool {
        if !self.grant.early {
            return false;
        }
        let starts = |replica: &Replica| replica.id == self.grant.replica && replica.stage == Stage::Starting;
        let state = self.shared.lock();
        state.functions.get(&self.function).is_some_and(|function| function.replicas.iter().any(starts))
    }

    /// The replica gave an answer, whatever it said: it works.
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
    /// A replica for one request. Waits for one where all are full, in the order of coming and not for ever; never for
    /// one to start, which its socket does.
    pub async fn acquire(&self, function: &str) -> Result<Lease, Error> {
        let (function, ticket, answer, wait) = match self.enter(function)? {
            (function, Entered::Granted(grant)) => return Ok(self.lease(function, grant)),
            (function, Entered::Queued { ticket, answer, wait }) => (function, ticket, answer, wait),
        };
        let mut waiting = Waiting { shared: self.shared.clone(), function, ticket, answer: Some(answer) };
        let answered = match waiting.answer.as_mut() {
            Some(answer) => tokio::time::timeout(wait, answer).await,
            None => return Err(Error::Ended),
        };
        match answered {
            Ok(answered) => {
                waiting.answer = None;
                Ok(self.lease(waiting.function.clone(), answered.map_err(|_| Error::Ended)??))
            }
            Err(_) => Err(Error::NoRoom(wait)),
        }
    }

    fn enter(&self, name: &str) -> Result<(Arc<str>, Entered), Error> {
        let mut state = self.shared.lock();
        let State { functions, desk, .. } = &mut *state;
        let Some(function) = functions.get_mut(name) else { return Err(Error::Unknown(name.into())) };
        let entered = function.enter(&self.shared, desk, Instant::now())?;
        Ok((function.name.clone(), entered))
    }

    fn lease(&self, function: Arc<str>, grant: Grant) -> Lease {
        Lease { shared: self.shared.clone(), function, grant, answered: false }
    }
}

/// A place in the queue. Given up when the caller goes away, with what it was just given.
struct Waiting {
    shared: Arc<Shared>,
    function: Arc<str>,
    ticket: u64,
    answer: Option<oneshot::Receiver<Result<Grant, Error>>>,
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

/// What happens to replicas, told by those who see it.
impl Shared {
    pub fn release(self: &Arc<Self>, function: &str, replica: u64, answered: bool) {
        self.with(function, |function, desk, now| function.release(replica, answered, self, desk, now));
    }

    pub fn became_ready(self: &Arc<Self>, function: &str, replica: u64) {
        self.with(function, |function, desk, now| function.became_ready(replica, self, desk, now));
    }

    pub fn opened(self: &Arc<Self>, function: &str, replica: u64, endpoint: Endpoint) {
        self.with(function, |function, desk, now| function.opened(replica, endpoint, self, desk, now));
    }

    pub fn ended(self: &Arc<Self>, function: &str, replica: u64, end: End) {
        let failure = Failure::of(end);
        self.with(function, |function, desk, now| function.ended(replica, failure, self, desk, now));
    }
}
