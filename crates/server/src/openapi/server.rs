//! The server itself: tokens, namespaces, the audit log, health, metrics, backups, and this description.

use super::operation::{JSON, Operation, STREAM, Shape, delete, get, post, put};
use super::schemas::{DryRun, at, by_hand, document, either};
use crate::audit::Item;
use crate::cost::Cost;
use crate::overview::Overview;
use crate::status::Status;
use crate::tokens::ROLES;
use crate::whoami::Whoami;
use klambda_access::Role;
use klambda_dispatch::views::{Namespace, NamespaceSpec, Page};
use serde_json::{Value, json};

by_hand! {
    /// A token without its secret value.
    Token "Token" |generator| token();
    /// A token as it is created.
    NewToken "TokenCreated" |generator| {
        let mut created = token();
        created["properties"]["token"] = json!({ "type": "string", "description": "Shown only now." });
        created
    };
    TokenRequest "TokenRequest" |generator| json!({
        "type": "object",
        "required": ["name", "role", "namespaces"],
        "properties": {
            "name": { "type": "string" },
            "role": { "type": "string", "enum": ROLES.map(Role::name) },
            "namespaces": namespaces(),
            "endpoint": { "type": "string", "description": "For the roles `endpoint` and `endpoint-admin`." },
            "expires": { "type": "string", "description": "A duration from now, or a time." },
        },
        "additionalProperties": false,
    });
    NamespaceDocument "NamespaceDocument" |generator| document(
        json!({ "createdAt": {} }), at::<NamespaceSpec>(generator), &[]);
    /// This description.
    OpenApi "OpenApi" |generator| json!({
        "type": "object",
        "required": ["openapi", "info", "paths"],
        "properties": { "openapi": { "type": "string" }, "info": { "type": "object" }, "paths": { "type": "object" } },
    });
}

fn namespaces() -> Value {
    let names = json!({ "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 100 });
    either(json!({ "type": "string", "const": "*" }), names)
}

fn token() -> Value {
    let time = json!({ "type": ["string", "null"], "format": "date-time" });
    json!({
        "type": "object",
        "required": ["name", "role", "namespaces", "createdAt", "createdBy", "expiresAt", "lastUsedAt"],
        "properties": {
            "name": { "type": "string" },
            "role": { "type": "string", "enum": ROLES.map(Role::name) },
            "namespaces": namespaces(),
            "endpoint": { "type": "string" },
            "createdAt": { "type": "string", "format": "date-time" },
            "createdBy": { "type": "string" },
            "expiresAt": time,
            "lastUsedAt": time,
        },
    })
}

pub fn operations() -> Vec<Operation> {
    let mut all = vec![
        get("/healthz", "getHealth", "Answers while the process responds.").text("text/plain", "`ok`"),
        get("/health", "getHealthAlias", "The same as `/healthz`.").text("text/plain", "`ok`"),
        get("/readyz", "getReadiness", "Answers while the server accepts events.")
            .text("text/plain", "`ready`")
            .problems(&["storage-failed"]),
        get("/metrics", "getMetrics", "Returns all metrics.").answer(
            Some(200),
            "In the format of Prometheus, or what `Accept` asks for.",
            vec![
                ("text/plain", Shape::Is(json!({ "type": "string" }))),
                ("application/openmetrics-text", Shape::Is(json!({ "type": "string" }))),
            ],
        ),
        get("/api/v1/openapi.json", "getOpenApi", "Returns this description.")
            .header("If-None-Match", json!({ "type": "string" }), "The `ETag` of a copy.")
            .gives::<OpenApi>(200, "OpenAPI 3.1.")
            .answer(Some(304), "The copy is current.", Vec::new()),
        get("/api/v1/docs", "getDocs", "Returns this description as a page for people.")
            .header("If-None-Match", json!({ "type": "string" }), "The `ETag` of a copy.")
            .text("text/html", "The page.")
            .answer(Some(304), "The copy is current.", Vec::new()),
        get("/api/v1/status", "getStatus", "Returns the state of the server.")
            .gives::<Status>(200, "The state."),
        get(
            "/api/v1/cost",
            "getCost",
            "Returns costs since the start of the server, at the configured prices.",
        )
        .gives::<Cost>(200, "The costs."),
        post("/api/v1/backup", "createBackup", "Returns a copy of the data folder.")
            .flag("withKey", "With the key file of secrets.")
            .answer(Some(200), "An archive.", vec![("application/x-tar", Shape::Is(json!({})))])
            .problems(&["limit-reached"]),
        get("/api/v1/audit", "listAudit", "Lists who changed what, the newest first.")
            .paged()
            .gives::<Page<Item>>(200, "A page."),
    ];
    all.extend(of_callers());
    all.extend(of_tokens());
    all.extend(of_namespaces());
    all
}

fn of_callers() -> [Operation; 2] {
    [
        get("/api/v1/whoami", "getWhoami", "Returns the caller and its role.")
            .gives::<Whoami>(200, "The caller."),
        get(
            "/api/v1/overview",
            "getOverview",
            "Returns traffic, backlog, lanes and what needs manual action.",
        )
        .answer(
            Some(200),
            "The overview, or a stream with an overview every half second.",
            vec![(JSON, Shape::of::<Overview>()), (STREAM, Shape::Is(json!({ "type": "string" })))],
        )
        .problems(&["limit-reached"]),
    ]
}

fn of_tokens() -> [Operation; 4] {
    const ONE: &str = "/api/v1/tokens/{name}";
    let named = |operation: Operation| operation.example("name", "ci");
    [
        get("/api/v1/tokens", "listTokens", "Lists tokens, without their values.")
            .paged()
            .gives::<Page<Token>>(200, "A page."),
        post("/api/v1/tokens", "createToken", "Creates a token.")
            .takes::<TokenRequest>(
                json!({ "name": "ci", "role": "producer", "namespaces": ["default"], "expires": "90d" }),
            )
            .gives::<NewToken>(201, "The token, which is shown only now.")
            .problems(&["invalid-body", "conflict", "limit-reached", "not-found"]),
        named(get(ONE, "getToken", "Returns a token, without its value."))
            .gives::<Token>(200, "The token.")
            .problems(&["not-found"]),
        named(delete(ONE, "deleteToken", "Deletes a token."))
            .gives::<Token>(200, "The deleted token.")
            .problems(&["not-found", "conflict"]),
    ]
}

fn of_namespaces() -> [Operation; 4] {
    const ONE: &str = "/api/v1/namespaces/{name}";
    let named = |operation: Operation| operation.example("name", "default");
    [
        get("/api/v1/namespaces", "listNamespaces", "Lists the namespaces in which the token has a role.")
            .paged()
            .gives::<Page<Namespace>>(200, "A page."),
        named(get(ONE, "getNamespace", "Returns a namespace.")).gives::<Namespace>(200, "The namespace."),
        named(put(ONE, "putNamespace", "Creates or changes a namespace."))
            .takes::<NamespaceDocument>(json!({ "spec": { "limits": { "subscriptions": 10 } } }))
            .flag("dryRun", "Check the change and make none.")
            .only_new()
            .gives::<Namespace>(201, "It is created.")
            .answer(
                Some(200),
                "It is changed, or this is a dry run.",
                vec![(
                    JSON,
                    Shape::Of(|generator| {
                        either(at::<Namespace>(generator), at::<DryRun<Namespace>>(generator))
                    }),
                )],
            )
            .problems(&["invalid-body", "conflict", "limit-reached"]),
        named(delete(ONE, "deleteNamespace", "Deletes an empty namespace."))
            .gives::<Namespace>(200, "The namespace as it was.")
            .problems(&["not-found", "conflict"]),
    ]
}
