//! Webhook endpoints and their feed.

use super::operation::{JSON, Operation, STREAM, Shape, delete, get, post, put};
use super::schemas::{DryRun, NewEndpoint, at, by_hand, document, either};
use crate::webhooks::acknowledge::Acknowledged;
use crate::webhooks::link::Link;
use crate::webhooks::resend::Shown as Resent;
use crate::webhooks::trial::Trial;
use klambda_dispatch::deliveries::Delivery;
use klambda_dispatch::views::{CloudEvent, Endpoint, EndpointSpec, Page, Replay};
use serde_json::{Value, json};

by_hand! {
    /// An endpoint in a request.
    Document "WebhookEndpointDocument" |generator| document(
        json!({ "createdAt": {} }), at::<EndpointSpec>(generator), &["apiVersion", "kind", "spec"]);
    /// An endpoint with what is shown once.
    Shown "WebhookEndpointCreated" |generator| with_keys(Endpoint::json_schema(generator).to_value());
    /// An endpoint with its new key.
    Rotated "WebhookEndpointRotated" |generator| {
        let mut schema = with_keys(Endpoint::json_schema(generator).to_value());
        schema["properties"]["previousUntil"] = json!({ "type": ["string", "null"], "format": "date-time" });
        schema
    };
    /// A page of the feed.
    Feed "WebhookFeed" |generator| json!({
        "type": "object",
        "required": ["items", "next"],
        "properties": {
            "items": { "type": "array", "items": { "type": "object", "description": "An event as it is pushed." } },
            "next": { "type": "string", "description": "Continue here, now or later." },
        },
    });
    Acknowledge "WebhookAck" |generator| json!({
        "type": "object",
        "required": ["through"],
        "properties": {
            "through": { "type": "string", "description": "The `eventId` of the last event that the receiver has." },
            "workflowId": { "type": "string", "description": "Only events of this workflow." },
        },
        "additionalProperties": false,
    });
}

by_hand! {
    Enable "EnableWebhookEndpoint" |generator| json!({
        "type": "object",
        "properties": {
            "from": { "type": "string", "format": "date-time", "description": "Only for `enable`: skip older events." },
        },
        "additionalProperties": false,
    });
    Resend "WebhookResend" |generator| json!({
        "type": "object",
        "required": ["eventId"],
        "properties": { "eventId": { "type": "string" } },
        "additionalProperties": false,
    });
    Recover "WebhookRecover" |generator| json!({
        "type": "object",
        "required": ["since"],
        "properties": {
            "since": { "type": "string", "format": "date-time" },
            "until": { "type": "string", "format": "date-time" },
            "workflowId": { "type": "string" },
            "dryRun": { "type": "boolean", "description": "Count and change nothing." },
        },
        "additionalProperties": false,
    });
}

fn with_keys(mut endpoint: Value) -> Value {
    let members = [
        ("secret", "The signing secret, shown only now."),
        ("publicKey", "The public key, if the signature is `ed25519`."),
        ("token", "A token for the receiver, if the server requires tokens. Shown only now."),
    ];
    for (name, about) in members {
        endpoint["properties"][name] = json!({ "type": "string", "description": about });
    }
    endpoint
}

pub fn operations() -> Vec<Operation> {
    const ALL: &str = "/api/v1/webhooks/endpoints";
    const ONE: &str = "/api/v1/webhooks/endpoints/{name}";
    const RECOVER: &str = "/api/v1/webhooks/endpoints/{name}/recover";
    const RECOVERY: &str = "/api/v1/webhooks/endpoints/{name}/recover/{id}";
    let (flat, manifest) = examples();
    let named = |operation: Operation| operation.example("name", "partner");
    let changed = ["invalid-endpoint", "conflict", "lanes-parked", "immutable", "limit-reached"];
    vec![
        get(ALL, "listWebhookEndpoints", "Lists endpoints by name.")
            .paged()
            .gives::<Page<Endpoint>>(200, "A page."),
        post(ALL, "createWebhookEndpoint", "Creates an endpoint.")
            .takes::<NewEndpoint>(flat)
            .gives::<Shown>(201, "The endpoint, with what is shown only once.")
            .problems(&changed)
            .problems(&["exists"]),
        named(get(ONE, "getWebhookEndpoint", "Returns an endpoint, without its secret."))
            .gives::<Endpoint>(200, "The endpoint."),
        named(put(ONE, "putWebhookEndpoint", "Creates or changes an endpoint."))
            .takes::<Document>(manifest)
            .flag("discard", "A change of ordering drops the pending events of parked workflows.")
            .flag("dryRun", "Check the change and make none.")
            .only_new()
            .gives::<Shown>(201, "It is created.")
            .answer(
                Some(200),
                "It is changed, or this is a dry run.",
                vec![(
                    JSON,
                    Shape::Of(|generator| either(at::<Shown>(generator), at::<DryRun<Endpoint>>(generator))),
                )],
            )
            .problems(&changed),
        named(delete(ONE, "deleteWebhookEndpoint", "Deletes an endpoint, its secret and its tokens."))
            .flag("drain", "Deliver pending events first.")
            .flag("discard", "Drop pending events and dead letters.")
            .gives::<Endpoint>(200, "It is deleted. The endpoint as it was.")
            .gives::<Endpoint>(202, "It is deleted when its events are delivered.")
            .problems(&["events-waiting", "conflict"]),
        named(post(
            "/api/v1/webhooks/endpoints/{name}/rotate",
            "rotateWebhookSecret",
            "Creates a new signing key.",
        ))
        .query(
            "overlap",
            json!({ "type": "string" }),
            "How long the previous key signs too: `24h`, at most `30d`.",
        )
        .gives::<Rotated>(200, "The endpoint with its new key.")
        .problems(&["conflict", "limit-reached"]),
        named(post(
            "/api/v1/webhooks/endpoints/{name}/test",
            "testWebhookEndpoint",
            "Calls the endpoint once.",
        ))
        .gives::<Trial>(200, "What the endpoint answered.")
        .problems(&["limit-reached"]),
        named(post(
            "/api/v1/webhooks/endpoints/{name}/{action}",
            "actOnWebhookEndpoint",
            "Enables, disables, pauses or resumes.",
        ))
        .words("action", &["enable", "disable", "pause", "resume"])
        .body(false, vec![(JSON, Shape::of::<Enable>())], None)
        .gives::<Endpoint>(200, "The endpoint.")
        .problems(&["conflict", "invalid-body"]),
        named(deliveries()),
        named(post(
            "/api/v1/webhooks/endpoints/{name}/resend",
            "resendWebhookEvent",
            "Sends one event to the endpoint again.",
        ))
        .takes::<Resend>(json!({ "eventId": "00000000-0000-5000-8000-000000000000" }))
        .gives::<Resent>(200, "What the endpoint answered.")
        .gives::<Resent>(202, "The event is a dead letter, and is replayed in its place.")
        .problems(&["invalid-body", "conflict", "gone", "limit-reached"]),
        named(post(
            RECOVER,
            "recoverWebhookEvents",
            "Sends again what the endpoint did not get since a time.",
        ))
        .takes::<Recover>(json!({ "since": "2026-01-01T00:00:00Z", "dryRun": true }))
        .gives::<Replay>(202, "The recovery has begun.")
        .gives::<Replay>(200, "A dry run: what a recovery would do.")
        .problems(&["invalid-body", "conflict", "limit-reached"]),
        named(get(RECOVERY, "getWebhookRecovery", "Returns a recovery."))
            .example("id", "r1")
            .gives::<Replay>(200, "The recovery."),
        named(delete(RECOVERY, "stopWebhookRecovery", "Stops a recovery."))
            .example("id", "r1")
            .gives::<Replay>(200, "The recovery.")
            .problems(&["conflict"]),
        named(post(
            "/api/v1/webhooks/endpoints/{name}/link",
            "createWebhookLink",
            "Creates a token for the people behind the endpoint.",
        ))
        .query("expires", json!({ "type": "string" }), "How long the token is valid: `1h`, at most `24h`.")
        .gives::<Link>(201, "The token. It is shown only now.")
        .problems(&["conflict", "limit-reached"]),
        feed(),
        post("/api/v1/webhooks/ack", "acknowledgeWebhookEvents", "The receiver has every event up to one.")
            .query(
                "endpoint",
                json!({ "type": "string" }),
                "The endpoint; default: that of the token, or the only one.",
            )
            .takes::<Acknowledge>(json!({ "through": "00000000000000000000000000000000" }))
            .gives::<Acknowledged>(200, "How many events were pending.")
            .problems(&["invalid-body", "conflict", "gone"]),
    ]
}

fn deliveries() -> Operation {
    let text = || json!({ "type": "string" });
    let answers = vec![(JSON, Shape::of::<Page<Delivery>>()), (STREAM, Shape::Is(text()))];
    get(
        "/api/v1/webhooks/endpoints/{name}/deliveries",
        "listWebhookDeliveries",
        "Lists the attempts to call the endpoint, the newest first.",
    )
    .paged()
    .query("workflowId", text(), "Only of this workflow.")
    .query("status", json!({ "type": "string", "enum": ["ok", "failed"] }), "Only these.")
    .query("since", json!({ "type": "string", "format": "date-time" }), "Only at this time or later.")
    .query("eventId", text(), "Only of this event.")
    .header("Last-Event-ID", text(), "Where a stream continues.")
    .answer(Some(200), "A page, or a stream of new attempts if `Accept` asks for it.", answers)
    .problems(&["gone", "limit-reached"])
}

fn feed() -> Operation {
    let text = || json!({ "type": "string" });
    // Generated clients have one type for each status, so both forms in JSON have the same schema.
    let json = || {
        Shape::Of(|generator| {
            let batch = json!({ "type": "array", "items": at::<CloudEvent>(generator) });
            either(at::<Feed>(generator), batch)
        })
    };
    let answers =
        vec![(JSON, json()), ("application/cloudevents-batch+json", json()), (STREAM, Shape::Is(text()))];
    get("/api/v1/webhooks/events", "readWebhookFeed", "Reads the feed of an endpoint.")
        .query("endpoint", text(), "The endpoint; default: that of the token, or the only one.")
        .query("since", text(), "An `eventId`, or `next` of an earlier answer.")
        .query("workflowId", text(), "Only events of this workflow.")
        .query(
            "limit",
            json!({ "type": "integer", "minimum": 1, "maximum": 1000, "default": 100 }),
            "The maximum number of events.",
        )
        .query("timeout", text(), "Wait for events this long, at most `60s`.")
        .header("Last-Event-ID", text(), "Where a stream continues.")
        .answer(Some(200), "A page, or what `Accept` asks for.", answers)
        .problems(&["gone", "limit-reached", "storage-failed", "disk-full"])
}

fn examples() -> (Value, Value) {
    let flat = json!({ "name": "partner", "url": "http://127.0.0.1:9000/hooks", "types": ["order.*"] });
    let manifest = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "WebhookEndpoint", "metadata": { "name": "partner" },
        "spec": { "url": "http://127.0.0.1:9000/hooks", "types": ["order.*"] },
    });
    (flat, manifest)
}
