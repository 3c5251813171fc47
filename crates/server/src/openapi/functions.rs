//! Functions and agents: the same resources under two paths.

use super::operation::{JSON, Operation, STREAM, Shape, delete, get, patch, post, put};
use super::schemas::{DryRun, Function, FunctionDocument, FunctionPatch, FunctionSpec, at, by_hand, either};
use crate::functions::Summary;
use crate::functions::metrics::FunctionMetrics;
use klambda_dispatch::views::Page;
use klambda_functions::logs::Line;
use serde_json::json;

by_hand! {
    /// A version that served.
    Revision "Revision" |generator| json!({
        "type": "object",
        "required": ["number", "generation", "serving", "version", "artifact", "spec"],
        "properties": {
            "number": { "type": "integer" },
            "generation": { "type": "integer" },
            "serving": { "type": "boolean" },
            "createdAt": { "type": ["string", "null"], "format": "date-time" },
            "appliedBy": { "type": ["string", "null"] },
            "version": { "type": "string" },
            "artifact": { "type": "string" },
            "imageURI": { "type": ["string", "null"] },
            "sourceDigest": { "type": ["string", "null"] },
            "commit": { "type": ["string", "null"] },
            "spec": at::<FunctionSpec>(generator),
        },
    });
    Rollback "Rollback" |generator| json!({
        "type": "object",
        "required": ["revision"],
        "properties": { "revision": { "type": "integer", "minimum": 1, "maximum": u64::MAX } },
        "additionalProperties": false,
    });
}

pub fn operations() -> Vec<Operation> {
    let mut all = of_kind(
        "Function",
        "function",
        "hello",
        [
            "/api/v1/lambda/functions",
            "/api/v1/lambda/functions/{name}",
            "/api/v1/lambda/functions/{name}/rebuild",
            "/api/v1/lambda/functions/{name}/revisions",
            "/api/v1/lambda/functions/{name}/rollback",
            "/api/v1/lambda/functions/{name}/logs",
            "/api/v1/lambda/functions/{name}/metrics",
            "/api/v1/lambda/functions/{name}/invoke",
        ],
    );
    all.extend(of_kind(
        "Agent",
        "agent",
        "assistant",
        [
            "/api/v1/lambda/agents",
            "/api/v1/lambda/agents/{name}",
            "/api/v1/lambda/agents/{name}/rebuild",
            "/api/v1/lambda/agents/{name}/revisions",
            "/api/v1/lambda/agents/{name}/rollback",
            "/api/v1/lambda/agents/{name}/logs",
            "/api/v1/lambda/agents/{name}/metrics",
            "/api/v1/lambda/agents/{name}/invoke",
        ],
    ));
    all
}

fn of_kind(kind: &str, word: &str, name: &'static str, paths: [&'static str; 8]) -> Vec<Operation> {
    let [all, one, rebuild, history, rollback, log, numbers, invoke] = paths;
    let document = json!({
        "metadata": { "name": name },
        "spec": { "source": { "type": "folder", "folder": { "path": "/srv/hello" } }, "runtime": { "language": "nodejs" } },
    });
    let part = || json!({ "spec": { "scaling": { "maxReplicas": 20 } } });
    let changed = ["invalid-function", "conflict", "limit-reached"];
    let operations = vec![
        get(all, format!("list{kind}s"), format!("Lists {word}s by name."))
            .paged()
            .gives::<Page<Function>>(200, "A page."),
        post(all, format!("create{kind}"), format!("Creates {}.", a(word)))
            .takes::<FunctionDocument>(document)
            .gives::<Summary>(202, "It is stored. The build or the deployment starts.")
            .problems(&changed),
        get(one, format!("get{kind}"), format!("Returns {} with its status.", a(word)))
            .gives::<Function>(200, "The resource."),
        put(one, format!("put{kind}"), format!("Merges a document into {}, or applies a manifest.", a(word)))
            .takes::<FunctionPatch>(part())
            .flag("apply", "The body is a whole manifest: a three-way merge with the last one.")
            .flag("dryRun", "With `apply`: check the change and make none.")
            .answer(
                Some(200),
                "It is changed, or this is a dry run.",
                vec![(
                    JSON,
                    Shape::Of(|generator| {
                        either(at::<Summary>(generator), at::<DryRun<Function>>(generator))
                    }),
                )],
            )
            .gives::<Summary>(202, "It is created.")
            .problems(&changed),
        patch(one, format!("patch{kind}"), format!("Merges a document into {}.", a(word)))
            .takes::<FunctionPatch>(part())
            .gives::<Summary>(200, "It is changed.")
            .problems(&changed),
        delete(one, format!("delete{kind}"), format!("Deletes {}.", a(word)))
            .query("resourceVersion", json!({ "type": "string" }), "Only if it has not changed since.")
            .gives::<Summary>(202, "The deletion has begun.")
            .problems(&["conflict"]),
        post(rebuild, format!("rebuild{kind}"), "Fetches and builds again.")
            .gives::<Summary>(202, "The build starts.")
            .problems(&changed),
        get(history, format!("list{kind}Revisions"), "Lists revisions, the oldest first.")
            .paged()
            .gives::<Page<Revision>>(200, "A page."),
        post(rollback, format!("rollback{kind}"), "Serves a revision again.")
            .takes::<Rollback>(json!({ "revision": 1 }))
            .gives::<Summary>(202, "The deployment starts.")
            .problems(&changed)
            .problems(&["invalid-body"]),
        logs(log, kind),
        get(
            numbers,
            format!("get{kind}Metrics"),
            "Returns calls, errors, durations, replicas and cold starts.",
        )
        .gives::<FunctionMetrics>(200, "The counts since the server started."),
        post(invoke, format!("invoke{kind}"), "Calls the handler with the body.")
            .body(
                false,
                vec![(JSON, Shape::Is(json!({}))), ("application/cloudevents+json", Shape::Is(json!({})))],
                Some(json!({ "hello": "world" })),
            )
            .answer(
                None,
                "The answer of the handler: its status, content type and body.",
                vec![("*/*", Shape::Is(json!({})))],
            )
            .problems(&[
                "function-broken",
                "function-unavailable",
                "function-timeout",
                "unsupported-media-type",
            ]),
    ];
    operations.into_iter().map(|operation| operation.example("name", name)).collect()
}

fn a(word: &str) -> String {
    if word.starts_with('a') { format!("an {word}") } else { format!("a {word}") }
}

fn logs(path: &'static str, kind: &str) -> Operation {
    let number = || json!({ "type": "integer", "minimum": 0 });
    let text = || json!({ "type": "string" });
    get(path, format!("get{kind}Logs"), "Returns log lines, or follows them.")
        .query("tail", number(), "The number of lines from the end.")
        .flag("follow", "Continue with new lines, as a stream.")
        .query("since", text(), "A duration before now, such as `10m`, or a time.")
        .flag("build", "The output of the last build.")
        .flag("previous", "The lines of the last replica that has ended.")
        .query("generation", number(), "Lines of this generation.")
        .query("eventId", text(), "Lines about this event.")
        .answer(
            Some(200),
            "The lines, or with `follow` or `Accept: text/event-stream` a stream.",
            vec![(JSON, Shape::of::<Page<Line>>()), (STREAM, Shape::Is(text()))],
        )
        .problems(&["function-unavailable", "limit-reached"])
}
