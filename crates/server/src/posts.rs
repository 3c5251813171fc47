//! What is posted on the short way: events, and calls of functions.

use crate::answer::Answer;
use crate::api::Gate;
use crate::auth::Who;
use crate::events::accept::{self, Events};
use crate::functions::invoke;
use crate::ingress;
use crate::problem::Problem;
use bytes::Bytes;
use klambda_control::Invocation;
use klambda_dispatch::Sender;
use klambda_functions::resource::Kind;
use std::future::Future;

/// What a post is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    Events { namespace: &'a str },
    Function { kind: Kind, namespace: &'a str, name: &'a str },
}

impl<'a> Place<'a> {
    pub fn namespace(self) -> &'a str {
        match self {
            Place::Events { namespace } | Place::Function { namespace, .. } => namespace,
        }
    }
}

/// Takes posts, in two steps: the headers need not outlive the first. Whoever sends one may do so in the namespace of the
/// place.
pub trait Posts: Send + Sync + 'static {
    type Read: Send;

    /// Takes the request apart, or says why it cannot.
    fn read<'a>(
        &self,
        place: Place<'_>,
        who: &Who,
        content_type: Option<&str>,
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
        body: Bytes,
    ) -> Result<Self::Read, Answer>;

    /// Answers when the events are committed, or the function has answered.
    fn answer(&self, read: Self::Read) -> impl Future<Output = Answer> + Send;
}

pub enum Read {
    Events(Sender, Events),
    Call(Box<Invocation>),
}

impl Posts for Gate {
    type Read = Read;

    fn read<'a>(
        &self,
        place: Place<'_>,
        who: &Who,
        content_type: Option<&str>,
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
        body: Bytes,
    ) -> Result<Read, Answer> {
        let api = self.api().map_err(Problem::into_answer)?;
        match place {
            Place::Events { namespace } => {
                let events = accept::read(api, content_type, headers, body)?;
                Ok(Read::Events(ingress::sender(who, namespace), events))
            }
            Place::Function { kind, namespace, name } => {
                let read = invoke::read(api, kind, namespace, name, headers, body);
                read.map(|invocation| Read::Call(Box::new(invocation))).map_err(Problem::into_answer)
            }
        }
    }

    async fn answer(&self, read: Read) -> Answer {
        match (self.api(), read) {
            (Ok(api), Read::Events(sender, events)) => accept::commit(api, sender, events).await,
            // Boxed, since the future of a connection should be no larger than posting events needs.
            (Ok(api), Read::Call(invocation)) => {
                Box::pin(invoke::answer(api, *invocation)).await.unwrap_or_else(Problem::into_answer)
            }
            (Err(problem), _) => problem.into_answer(),
        }
    }
}
