//! Events.

use super::operation::{JSON, Operation, STREAM, Shape, get, post};
use super::schemas::{at, by_hand};
use crate::events::Traced;
use crate::router::EVENTS;
use klambda_dispatch::views::CloudEvent;
use serde_json::json;

by_hand! {
    /// An event in a request. The version may be missing.
    NewEvent "NewCloudEvent" |generator| json!({
        "type": "object",
        "required": ["id", "source", "type"],
        "properties": {
            "specversion": { "type": "string", "const": "1.0" },
            "id": { "type": "string", "minLength": 1 },
            "source": { "type": "string", "minLength": 1 },
            "type": { "type": "string", "minLength": 1 },
            "data": {},
        },
    });
    /// What became of each event.
    Results "EventResults" |generator| json!({
        "type": "object",
        "required": ["results"],
        "properties": { "results": { "type": "array", "items": {
            "type": "object",
            "required": ["id", "source", "status"],
            "properties": {
                "id": { "type": ["string", "null"] },
                "source": { "type": ["string", "null"] },
                "status": { "type": "string", "enum": ["accepted", "skipped", "rejected"] },
                "position": { "type": "integer", "description": "Of an accepted event." },
                "reason": { "type": "string", "enum": ["duplicate", "watermark"], "description": "Of a skipped event." },
                "problem": at::<super::schemas::Problem>(generator),
            },
        } } },
    });
    /// A page of the log.
    Log "EventPage" |generator| json!({
        "type": "object",
        "required": ["items", "next"],
        "properties": {
            "items": { "type": "array", "items": {
                "type": "object",
                "required": ["position", "acceptedAt", "event"],
                "properties": {
                    "namespace": { "type": ["string", "null"], "description": "Only in a list of all namespaces." },
                    "position": { "type": "integer" },
                    "acceptedAt": { "type": "string", "format": "date-time" },
                    "event": at::<CloudEvent>(generator),
                },
            } },
            "next": { "type": ["string", "null"] },
        },
    });
}

pub fn operations() -> Vec<Operation> {
    let position = || json!({ "type": "integer", "minimum": 0 });
    let event = json!({ "specversion": "1.0", "type": "order.placed", "source": "/shop", "id": "e1",
        "partitionkey": "order-42", "data": { "total": 7 } });
    let forms = vec![
        ("application/cloudevents+json", Shape::of::<NewEvent>()),
        (
            "application/cloudevents-batch+json",
            Shape::Of(|generator| json!({ "type": "array", "items": at::<NewEvent>(generator) })),
        ),
    ];
    vec![
        post(EVENTS, "sendEvents", "Accepts CloudEvents.")
            .about("Structured or batched, or binary with any other content type and `ce-` headers.")
            .body(true, forms, Some(event))
            .gives::<Results>(202, "At least one event is accepted.")
            .gives::<Results>(200, "No event is accepted, and at least one was there before.")
            .problems(&[
                "invalid-event",
                "invalid-batch",
                "unsupported-media-type",
                "backlog-full",
                "limit-reached",
                "schema-mismatch",
            ]),
        get(EVENTS, "listEvents", "Returns the log, or follows it.")
            .query("after", position(), "Start after this position.")
            .query("before", position(), "With `order=desc`: end before this position.")
            .query("order", json!({ "type": "string", "enum": ["asc", "desc"] }), "`desc`: the newest first.")
            .query("type", json!({ "type": "string" }), "A type, or a prefix followed by a star.")
            .query(
                "limit",
                json!({ "type": "integer", "minimum": 1, "maximum": 1000 }),
                "The maximum number of events.",
            )
            .header("Last-Event-ID", json!({ "type": "string" }), "Where a stream continues.")
            .answer(
                Some(200),
                "A page, or with `Accept: text/event-stream` a stream.",
                vec![(JSON, Shape::of::<Log>()), (STREAM, Shape::Is(json!({ "type": "string" })))],
            )
            .problems(&["gone", "limit-reached"]),
        get("/api/v1/events/{id}", "getEvent", "Returns an event and its state in every subscription.")
            .query("source", json!({ "type": "string" }), "The source, if several use this id.")
            .gives::<Traced>(200, "The event."),
    ]
}
