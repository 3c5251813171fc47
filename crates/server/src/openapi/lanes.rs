//! Lanes.

use super::operation::{JSON, Operation, Shape, get, post};
use super::schemas::{at, by_hand, either};
use crate::lanes::List;
use klambda_core::key::SEQUENCE_MAX;
use klambda_core::lane::State;
use klambda_dispatch::views::Lane;
use serde_json::json;

by_hand! {
    /// The body of an action.
    Action "LaneAction" |generator| json!({
        "description": "`reset` requires `expected`. Other actions take no members.",
        "type": "object",
        "properties": { "expected": {
            "type": "integer", "minimum": 0, "maximum": SEQUENCE_MAX, "description": "The next expected sequence.",
        } },
        "additionalProperties": false,
    });
}

const ACTIONS: [&str; 5] = ["pause", "resume", "skip", "purge", "reset"];

pub fn operations() -> Vec<Operation> {
    let text = || json!({ "type": "string" });
    let states = json!({ "type": "string", "enum": State::ALL.map(State::name) });
    let acted = |operation: Operation| {
        operation
            .words("action", &ACTIONS)
            .body(false, vec![(JSON, Shape::of::<Action>())], None)
            .gives::<Lane>(200, "The lane.")
            .problems(&["conflict", "invalid-body", "invalid-selector"])
    };
    vec![
        get("/api/v1/lanes", "listLanes", "Lists lanes, or returns the lane of `subscription` and `key`.")
            .query("subscription", text(), "Only lanes of this subscription.")
            .query("key", text(), "Returns this lane, for keys that a path cannot contain.")
            .query("state", states, "Only lanes in this state.")
            .query(
                "sort",
                json!({ "type": "string", "enum": ["depth", "age", "rate"] }),
                "The first 100 in this order.",
            )
            .paged()
            .answer(
                Some(200),
                "A page, or with `key` the lane.",
                vec![(JSON, Shape::Of(|generator| either(at::<List>(generator), at::<Lane>(generator))))],
            ),
        acted(
            post(
                "/api/v1/lanes/{action}",
                "actOnLaneByQuery",
                "Acts on a lane whose key a path cannot contain.",
            )
            .query("subscription", text(), "The subscription.")
            .query("key", text(), "The key.")
            .required("subscription")
            .required("key")
            .example("subscription", "orders")
            .example("key", "order-42"),
        ),
        get("/api/v1/lanes/{subscription}/{key}", "getLane", "Returns a lane with its last steps.")
            .gives::<Lane>(200, "The lane."),
        acted(post("/api/v1/lanes/{subscription}/{key}/{action}", "actOnLane", "Acts on a lane.")),
    ]
}
