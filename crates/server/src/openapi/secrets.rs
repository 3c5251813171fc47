//! Secrets.

use super::operation::{Operation, delete, get, patch, post, put};
use super::schemas::by_hand;
use crate::secrets::{Report, View};
use klambda_dispatch::views::Page;
use serde_json::{Value, json};

by_hand! {
    Values "SecretValues" |generator| values(json!({ "type": "string" }));
    Patch "SecretPatch" |generator| values(json!({ "type": ["string", "null"] }));
}

/// `data` or `binaryData`, or both.
fn values(value: Value) -> Value {
    let map = |about: &str| json!({ "type": "object", "additionalProperties": value, "description": about });
    json!({
        "type": "object",
        "properties": { "data": map("Values as text."), "binaryData": map("Values as base64.") },
        "minProperties": 1,
        "additionalProperties": false,
    })
}

pub fn operations() -> Vec<Operation> {
    const ONE: &str = "/api/v1/secrets/{name}";
    let example = || json!({ "data": { "password": "hush" } });
    let named = |operation: Operation| operation.example("name", "db");
    let changed = ["invalid-body", "conflict", "limit-reached"];
    vec![
        get("/api/v1/secrets", "listSecrets", "Lists secrets, without their values.")
            .paged()
            .gives::<Page<View>>(200, "A page."),
        post("/api/v1/secrets/rekey", "rekeySecrets", "Encrypts all secrets with a new key.")
            .gives::<Report>(200, "All secrets are encrypted with the new key.")
            .problems(&["conflict", "too-large", "not-found", "limit-reached"]),
        named(get(ONE, "getSecret", "Returns a secret, without its values."))
            .gives::<View>(200, "The secret.")
            .problems(&["conflict"]),
        named(put(ONE, "putSecret", "Creates or replaces a secret."))
            .takes::<Values>(example())
            .only_new()
            .gives::<View>(201, "It is created.")
            .gives::<View>(200, "It is replaced, or has these values already.")
            .problems(&changed),
        named(patch(ONE, "patchSecret", "Sets or, with `null`, removes values of a secret."))
            .takes::<Patch>(example())
            .gives::<View>(201, "It is created.")
            .gives::<View>(200, "It is changed, or has these values already.")
            .problems(&changed),
        named(delete(ONE, "deleteSecret", "Deletes a secret."))
            .flag("force", "Even if functions use it.")
            .gives::<View>(200, "The deleted secret.")
            .problems(&["conflict"]),
    ]
}
