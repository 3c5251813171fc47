//! The one way in for events, whoever brings them. Here it is decided whether those that ask for something are obeyed.

use crate::api::Api;
use crate::problem::Problem;
use crate::routes::demand;
use klambda_access::{Identity, Reach, Role};
use klambda_core::binding::Rejected;
use klambda_core::event::Event;
use klambda_core::namespace;
use klambda_core::subscription::CONTROLLER;
use klambda_dispatch::{Judged, Sender};

/// What somebody may do with events in a namespace: an event asks for no more than its sender could do over REST.
pub fn sender(who: &Identity, namespace: &str) -> Sender {
    Sender {
        namespace: (namespace != namespace::DEFAULT).then(|| namespace.into()),
        may_command: who.allows(Role::Developer, Reach::In(namespace)),
    }
}

/// Whether somebody may have the commands in a subscription carried out again: those are in the server's own.
pub fn may_act_on(who: &Identity, namespace: &str, subscription: &str) -> Result<(), Problem> {
    match subscription == CONTROLLER {
        true => demand(who, Role::Developer, Reach::In(namespace)),
        false => Ok(()),
    }
}

/// Answers when what was accepted is durable.
pub async fn take(
    api: &Api,
    sender: Sender,
    events: Vec<Result<Event, Rejected>>,
) -> Result<Vec<Judged>, Problem> {
    if sender.may_command && events.iter().flatten().any(|event| klambda_control::acts(&event.kind)) {
        api.control.listen(sender.namespace.as_deref().unwrap_or(namespace::DEFAULT)).await?;
    }
    api.handle.accept(sender, events).await.map_err(|_| api.stopped())
}
