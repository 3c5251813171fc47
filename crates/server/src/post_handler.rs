//! The POST requests of the fast path: events and calls of functions.

use crate::api::Gate;
use crate::auth::Who;
use crate::events::accept::{self, Accepting};
use crate::functions::invoke;
use crate::ingress;
use crate::problem::Problem;
use crate::raw_response::RawResponse;
use bytes::Bytes;
use klambda_control::Invocation;
use klambda_dispatch::Sender;
use klambda_dispatch::traces::Tracer;
use klambda_functions::resource::ResourceKind;
use std::future::Future;

/// The target of a POST request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostTarget<'a> {
    Events { namespace: &'a str },
    Function { kind: ResourceKind, namespace: &'a str, name: &'a str },
}

impl<'a> PostTarget<'a> {
    pub fn namespace(self) -> &'a str {
        match self {
            PostTarget::Events { namespace } | PostTarget::Function { namespace, .. } => namespace,
        }
    }
}

/// Handles POST requests in two steps, so that the headers need not outlive the first. The caller has checked that the
/// sender may post in the namespace.
pub trait PostHandler: Send + Sync + 'static {
    type Read: Send;

    /// Parses the request, or returns the error response.
    fn read<'a>(
        &self,
        place: PostTarget<'_>,
        who: &Who,
        content_type: Option<&str>,
        headers: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
        body: Bytes,
    ) -> Result<Self::Read, RawResponse>;

    /// Records requests, if the server exports traces.
    fn tracer(&self) -> Option<&Tracer>;

    /// Returns when the events are committed, or when the function has responded.
    fn answer(&self, read: Self::Read) -> impl Future<Output = RawResponse> + Send;
}

pub enum Read {
    Events(Sender, Accepting),
    Call(Box<Invocation>),
}

impl PostHandler for Gate {
    type Read = Read;

    fn read<'a>(
        &self,
        place: PostTarget<'_>,
        who: &Who,
        content_type: Option<&str>,
        headers: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
        body: Bytes,
    ) -> Result<Read, RawResponse> {
        let api = self.api().map_err(Problem::into_raw_response)?;
        match place {
            PostTarget::Events { namespace } => {
                let events = accept::read(api, content_type, headers, body)?;
                Ok(Read::Events(ingress::sender(who, namespace), events))
            }
            PostTarget::Function { kind, namespace, name } => {
                let read = invoke::read(api, kind, namespace, name, headers, body);
                read.map(|invocation| Read::Call(Box::new(invocation))).map_err(Problem::into_raw_response)
            }
        }
    }

    fn tracer(&self) -> Option<&Tracer> {
        self.api().ok()?.tracer()
    }

    async fn answer(&self, read: Read) -> RawResponse {
        match (self.api(), read) {
            (Ok(api), Read::Events(sender, events)) => accept::commit(api, sender, events).await,
            // Boxed to keep the future of a connection as small as the hot path needs.
            (Ok(api), Read::Call(invocation)) => {
                Box::pin(invoke::answer(api, *invocation)).await.unwrap_or_else(Problem::into_raw_response)
            }
            (Err(problem), _) => problem.into_raw_response(),
        }
    }
}
