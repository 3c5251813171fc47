//! Subscriptions.

use super::operation::{JSON, Operation, Shape, delete, get, post, put};
use super::schemas::{DryRun, at, by_hand, document, either};
use klambda_dispatch::views::{Page, Subscription, SubscriptionSpec};
use serde_json::json;

by_hand! {
    /// A subscription in a request.
    Document "SubscriptionDocument" |generator| document(
        json!({ "createdAt": {} }), at::<SubscriptionSpec>(generator), &["apiVersion", "kind", "spec"]);
}

pub fn operations() -> Vec<Operation> {
    const ONE: &str = "/api/v1/subscriptions/{name}";
    let example = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": { "name": "orders" },
        "spec": { "target": { "url": "http://127.0.0.1:9000/" }, "ordering": "ordered" },
    });
    vec![
        get("/api/v1/subscriptions", "listSubscriptions", "Lists subscriptions by name.")
            .paged()
            .gives::<Page<Subscription>>(200, "A page."),
        get(ONE, "getSubscription", "Returns a subscription.")
            .gives::<Subscription>(200, "The subscription."),
        put(ONE, "putSubscription", "Creates or changes a subscription.")
            .takes::<Document>(example)
            .flag("discard", "A change of ordering drops the pending events of parked lanes.")
            .flag("dryRun", "Check the change and make none.")
            .only_new()
            .gives::<Subscription>(201, "It is created.")
            .answer(
                Some(200),
                "It is changed, or this is a dry run.",
                vec![(
                    JSON,
                    Shape::Of(|generator| {
                        either(at::<Subscription>(generator), at::<DryRun<Subscription>>(generator))
                    }),
                )],
            )
            .problems(&["invalid-subscription", "conflict", "lanes-parked", "immutable", "limit-reached"]),
        delete(ONE, "deleteSubscription", "Deletes a subscription.")
            .flag("drain", "Deliver pending events first.")
            .flag("discard", "Drop pending events and dead letters.")
            .gives::<Subscription>(200, "It is deleted. The subscription as it was.")
            .gives::<Subscription>(202, "It is deleted when its events are delivered.")
            .problems(&["events-waiting", "conflict"]),
        post("/api/v1/subscriptions/{name}/{action}", "actOnSubscription", "Pauses or resumes deliveries.")
            .words("action", &["pause", "resume"])
            .gives::<Subscription>(200, "The subscription.")
            .problems(&["conflict"]),
    ]
}
