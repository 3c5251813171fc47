//! Custom resource definitions, generated from the same schemas that validate documents.

mod rules;

use crate::resource::{AGENT_API_VERSION, API_VERSION, ResourceKind};
use crate::schema;
use klambda_core::{event_type, subscription, webhook};
use serde_json::{Value, json};

/// An `apiextensions.k8s.io/v1` definition for `kubectl apply`.
fn definition(kind: &str, short_names: &[&str], columns: Value, schema: Value) -> Value {
    definition_in(API_VERSION, kind, short_names, columns, schema)
}

fn definition_in(
    api_version: &str,
    kind: &str,
    short_names: &[&str],
    columns: Value,
    schema: Value,
) -> Value {
    let (group, version) = api_version.split_once('/').unwrap_or((api_version, ""));
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": singular,
                "shortNames": short_names,
                "categories": ["lambda"],
            },
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns,
                "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}

pub fn definitions() -> Vec<Value> {
    let functions = ResourceKind::ALL.into_iter().map(of_functions);
    functions.chain([of_subscriptions(), of_webhooks(), of_event_types(), of_agents_of_old()]).collect()
}

fn of_functions(kind: ResourceKind) -> Value {
    match kind {
        ResourceKind::LambdaFunction => functions_in(API_VERSION, kind, &["lf", "lfunc"]),
        ResourceKind::LambdaAgent => functions_in(API_VERSION, kind, &["la", "lagent"]),
    }
}

/// Agents in their first API group. Short names belong to the other group, so that they are not ambiguous.
fn of_agents_of_old() -> Value {
    functions_in(AGENT_API_VERSION, ResourceKind::LambdaAgent, &[])
}

fn functions_in(api_version: &str, kind: ResourceKind, short_names: &[&str]) -> Value {
    // The columns of `kubectl get`.
    let columns = json!([
        { "name": "Phase", "type": "string", "jsonPath": ".status.phase" },
        { "name": "Ready", "type": "boolean", "jsonPath": ".status.serviceStatus.ready" },
        { "name": "Replicas", "type": "integer", "jsonPath": ".status.serviceStatus.replicas" },
        { "name": "URL", "type": "string", "jsonPath": ".status.serviceStatus.url", "priority": 1 },
        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
    ]);
    let mut schema = schema::open_api(kind);
    rules::of_functions(&mut schema);
    // A cluster has no other place that changes together with the status.
    schema["properties"]["status"]["properties"]["counters"] = json!({
        "type": "object",
        "description": "Counters of the operator. They number events and builds.",
        "additionalProperties": { "type": "string" },
    });
    let mut definition = definition_in(api_version, kind.name(), short_names, columns, schema);
    // `kubectl scale` sets the minimum number of replicas.
    definition["spec"]["versions"][0]["subresources"]["scale"] = json!({
        "specReplicasPath": ".spec.scaling.minReplicas",
        "statusReplicasPath": ".status.serviceStatus.replicas",
    });
    definition
}

fn of_subscriptions() -> Value {
    let columns = json!([
        { "name": "Phase", "type": "string", "jsonPath": ".status.phase" },
        { "name": "Ordering", "type": "string", "jsonPath": ".spec.ordering" },
        { "name": "Waiting", "type": "integer", "jsonPath": ".status.waiting" },
        { "name": "Dead letters", "type": "integer", "jsonPath": ".status.deadLetters" },
        { "name": "URL", "type": "string", "jsonPath": ".spec.target.url", "priority": 1 },
        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
    ]);
    // The engine reports more than this. Only stable fields are part of the schema.
    let status = json!({
        "type": "object",
        "properties": {
            "phase": { "type": "string" },
            "waiting": { "type": "integer", "description": "Events that are accepted and not yet delivered." },
            "deadLetters": { "type": "integer" },
        },
        "x-kubernetes-preserve-unknown-fields": true,
    });
    let spec = subscription::spec_schema().published();
    let mut schema =
        json!({ "type": "object", "required": ["spec"], "properties": { "spec": spec, "status": status } });
    rules::of_subscriptions(&mut schema);
    definition(subscription::KIND, &["lsub"], columns, schema)
}

fn of_webhooks() -> Value {
    let columns = json!([
        { "name": "Phase", "type": "string", "jsonPath": ".status.phase" },
        { "name": "Waiting", "type": "integer", "jsonPath": ".status.waiting" },
        { "name": "Dead letters", "type": "integer", "jsonPath": ".status.deadLetters" },
        { "name": "URL", "type": "string", "jsonPath": ".spec.url", "priority": 1 },
        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
    ]);
    let status = json!({
        "type": "object",
        "properties": {
            "phase": { "type": "string", "description": "Ready, Failing, Paused, Disabled or Draining." },
            "waiting": { "type": "integer", "description": "Events that are accepted and not yet delivered." },
            "deadLetters": { "type": "integer" },
        },
        "x-kubernetes-preserve-unknown-fields": true,
    });
    let spec = webhook::spec_schema().published();
    let mut schema =
        json!({ "type": "object", "required": ["spec"], "properties": { "spec": spec, "status": status } });
    rules::of_webhooks(&mut schema);
    definition(webhook::KIND, &["wh"], columns, schema)
}

fn of_event_types() -> Value {
    let columns = json!([
        { "name": "Type", "type": "string", "jsonPath": ".spec.type" },
        { "name": "Description", "type": "string", "jsonPath": ".spec.description" },
        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
    ]);
    let spec = event_type::spec_schema().published();
    let status = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let schema = json!({ "type": "object", "properties": { "spec": spec, "status": status } });
    definition(event_type::KIND, &["et"], columns, schema)
}
