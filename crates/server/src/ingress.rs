//! The single entry point for events. It decides whether a sender may send commands, and checks schemas.

use crate::api::Api;
use crate::problem::Problem;
use crate::routes::demand;
use klambda_access::{Identity, Reach, Role};
use klambda_core::binding::Rejected;
use klambda_core::event::Event;
use klambda_core::namespace::{self, SchemaCheck};
use klambda_core::subscription::CONTROLLER;
use klambda_dispatch::{EventResult, Sender};

/// The rights of a sender in a namespace: a command in an event needs the same role as the REST request.
pub fn sender(who: &Identity, namespace: &str) -> Sender {
    Sender {
        namespace: (namespace != namespace::DEFAULT).then(|| namespace.into()),
        may_command: who.allows(Role::Developer, Reach::In(namespace)),
    }
}

/// Whether a caller may run the commands in a subscription again. They are in the subscription of the control plane.
pub fn may_act_on(who: &Identity, namespace: &str, subscription: &str) -> Result<(), Problem> {
    match subscription == CONTROLLER {
        true => demand(who, Role::Developer, Reach::In(namespace)),
        false => Ok(()),
    }
}

/// Returns when the accepted events are durable.
pub async fn take(
    api: &Api,
    sender: Sender,
    events: Vec<Result<Event, Rejected>>,
) -> Result<Vec<EventResult>, Problem> {
    if sender.may_command && events.iter().flatten().any(|event| klambda_control::is_command(&event.kind)) {
        api.control.listen(sender.namespace.as_deref().unwrap_or(namespace::DEFAULT)).await?;
    }
    let events = checked(api, sender.namespace.as_deref().unwrap_or(namespace::DEFAULT), events).await?;
    api.handle.accept(sender, events).await.map_err(|_| api.stopped())
}

/// The events with the verdicts of the schema check, if the namespace has one.
async fn checked(
    api: &Api,
    namespace: &str,
    events: Vec<Result<Event, Rejected>>,
) -> Result<Vec<Result<Event, Rejected>>, Problem> {
    match api.intake.types.check_of(namespace) {
        SchemaCheck::Off => Ok(events),
        // Boxed to keep the future of other requests small.
        check => Box::pin(api.intake.types.check(namespace, check, events)).await,
    }
}
