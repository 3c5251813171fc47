//! Dead letters and replays.

use super::events::NewEvent;
use super::operation::{Operation, delete, get, post, put};
use super::schemas::by_hand;
use crate::dead_letters::Purged;
use klambda_core::outcome::Reason;
use klambda_dispatch::views::{DeadLetter, Page, Replay};
use serde_json::{Value, json};

by_hand! {
    /// Selects dead letters.
    Selector "DeadLetterSelector" |generator| json!({
        "description": "All given conditions must hold. `all` stands alone.",
        "type": "object",
        "properties": {
            "subscription": { "type": "string" },
            "key": { "type": "string" },
            "type": { "type": "string" },
            "reason": reasons(),
            "since": { "type": "string", "format": "date-time" },
            "until": { "type": "string", "format": "date-time" },
            "ids": { "type": "array", "items": { "type": "string" }, "maxItems": 1000 },
            "all": { "type": "boolean" },
        },
        "minProperties": 1,
        "additionalProperties": false,
    });
    Purge "DeadLetterPurge" |generator| json!({
        "type": "object",
        "required": ["selector"],
        "properties": {
            "selector": Selector::json_schema(generator),
            "holders": { "type": "boolean", "description": "Also those that block lanes." },
        },
        "additionalProperties": false,
    });
    NewReplay "NewReplay" |generator| json!({
        "type": "object",
        "required": ["selector"],
        "properties": {
            "selector": Selector::json_schema(generator),
            "dryRun": { "type": "boolean", "description": "Count and change nothing." },
            "ratePerSecond": { "type": "integer", "minimum": 1, "maximum": 1_000_000, "default": 100 },
            "parallelism": { "type": "integer", "minimum": 1, "maximum": 4096, "default": 16 },
        },
        "additionalProperties": false,
    });
}

fn reasons() -> Value {
    json!({ "type": "string", "enum": Reason::ALL.map(Reason::name) })
}

pub fn operations() -> Vec<Operation> {
    let (text, time) =
        (|| json!({ "type": "string" }), || json!({ "type": "string", "format": "date-time" }));
    let selector = || json!({ "selector": { "subscription": "orders" } });
    const REPLAY: &str = "/api/v1/dlq/replays/{id}";
    vec![
        get("/api/v1/dlq", "listDeadLetters", "Lists dead letters.")
            .query("subscription", text(), "Only of this subscription.")
            .query("key", text(), "Only of this lane.")
            .query("type", text(), "Only events of this type.")
            .query("reason", reasons(), "Only for this reason.")
            .query("since", time(), "Failed at this time or later.")
            .query("until", time(), "Failed before this time.")
            .paged()
            .gives::<Page<DeadLetter>>(200, "A page."),
        post("/api/v1/dlq/purge", "purgeDeadLetters", "Deletes dead letters.")
            .takes::<Purge>(selector())
            .gives::<Purged>(200, "How many are deleted.")
            .problems(&["invalid-selector"]),
        get("/api/v1/dlq/replays", "listReplays", "Lists replays, the newest first.")
            .paged()
            .gives::<Page<Replay>>(200, "A page."),
        post("/api/v1/dlq/replays", "createReplay", "Sends dead letters to their targets again.")
            .takes::<NewReplay>(selector())
            .gives::<Replay>(202, "The replay has begun.")
            .gives::<Replay>(200, "A dry run: what a replay would do.")
            .problems(&["invalid-selector", "conflict", "limit-reached"]),
        get(REPLAY, "getReplay", "Returns a replay.").example("id", "r1").gives::<Replay>(200, "The replay."),
        delete(REPLAY, "stopReplay", "Stops a replay.")
            .example("id", "r1")
            .gives::<Replay>(200, "The replay.")
            .problems(&["conflict"]),
        get("/api/v1/dlq/{id}", "getDeadLetter", "Returns a dead letter with its event.")
            .example("id", "orders.1")
            .gives::<DeadLetter>(200, "The dead letter."),
        put(
            "/api/v1/dlq/{id}/event",
            "editDeadLetter",
            "Changes what the next delivery of a dead letter sends.",
        )
        .example("id", "orders.1")
        .header("If-Match", text(), "The ETag of the dead letter: 412 if it was edited meanwhile.")
        .takes::<NewEvent>(
            json!({ "specversion": "1.0", "id": "e1", "source": "/shop", "type": "order.placed" }),
        )
        .gives::<DeadLetter>(200, "The dead letter.")
        .problems(&["invalid-event", "invalid-body", "conflict", "outdated", "limit-reached"]),
        delete("/api/v1/dlq/{id}", "deleteDeadLetter", "Deletes a dead letter.")
            .example("id", "orders.1")
            .gives::<DeadLetter>(200, "The deleted dead letter.")
            .problems(&["conflict"]),
    ]
}
