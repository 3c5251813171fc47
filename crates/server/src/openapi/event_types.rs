//! Event types.

use super::operation::{JSON, Operation, Shape, delete, get, post, put};
use super::schemas::{DryRun, at, by_hand, document, either};
use crate::event_types::View;
use klambda_dispatch::views::{EventTypeSpec, Page};
use serde_json::{Value, json};

by_hand! {
    /// An event type in a request.
    Document "EventTypeDocument" |generator| document(
        json!({ "createdAt": {} }), at::<EventTypeSpec>(generator), &["apiVersion", "kind"]);
}

fn example(name: &str) -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "EventType", "metadata": { "name": name },
        "spec": {
            "description": "A customer placed an order.",
            "schema": { "type": "object", "required": ["total"], "properties": { "total": { "type": "number" } } },
            "example": { "total": 7 },
        },
    })
}

/// The event type, or the answer to a dry run.
fn written(operation: Operation, about: &'static str) -> Operation {
    let shape = Shape::Of(|generator| either(at::<View>(generator), at::<DryRun<View>>(generator)));
    operation
        .flag("dryRun", "Check the change and make none.")
        .gives::<View>(201, "It is created.")
        .answer(Some(200), about, vec![(JSON, shape)])
        .problems(&["invalid-event-type", "conflict", "limit-reached"])
}

pub fn operations() -> Vec<Operation> {
    const ALL: &str = "/api/v1/event-types";
    const ONE: &str = "/api/v1/event-types/{name}";
    let named = |operation: Operation| operation.example("name", "order.placed");
    let create =
        post(ALL, "createEventType", "Creates an event type.").takes::<Document>(example("order.paid"));
    let change = named(put(ONE, "putEventType", "Creates or changes an event type."))
        .takes::<Document>(example("order.placed"))
        .only_new();
    vec![
        get(ALL, "listEventTypes", "Lists event types by name.").paged().gives::<Page<View>>(200, "A page."),
        written(create, "This is a dry run."),
        named(get(ONE, "getEventType", "Returns an event type.")).gives::<View>(200, "The event type."),
        written(change, "It is changed, or this is a dry run."),
        named(delete(ONE, "deleteEventType", "Deletes an event type."))
            .gives::<View>(200, "The deleted event type."),
    ]
}
