//! Custom resource definitions, made from the same schemas that check what is read.

use crate::resource::{API_VERSION, Kind};
use crate::schema;
use serde_json::{Value, json};

/// `apiextensions.k8s.io/v1`, as `kubectl apply` takes it.
pub fn definition(kind: Kind) -> Value {
    let (group, version) = API_VERSION.split_once('/').unwrap_or((API_VERSION, ""));
    let singular = kind.name().to_lowercase();
    let plural = format!("{singular}s");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name(),
                "listKind": format!("{}List", kind.name()),
                "plural": plural,
                "singular": singular,
                "shortNames": short_names(kind),
                "categories": ["lambda"],
            },
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns(),
                "schema": { "openAPIV3Schema": schema::open_api(kind) },
            }],
        },
    })
}

pub fn definitions() -> Vec<Value> {
    Kind::ALL.into_iter().map(definition).collect()
}

fn short_names(kind: Kind) -> [&'static str; 2] {
    match kind {
        Kind::LambdaFunction => ["lf", "lfunc"],
        Kind::LambdaAgent => ["la", "lagent"],
    }
}

/// What `kubectl get` shows.
fn columns() -> Value {
    json!([
        { "name": "Phase", "type": "string", "jsonPath": ".status.phase" },
        { "name": "Ready", "type": "boolean", "jsonPath": ".status.serviceStatus.ready" },
        { "name": "Replicas", "type": "integer", "jsonPath": ".status.serviceStatus.replicas" },
        { "name": "URL", "type": "string", "jsonPath": ".status.serviceStatus.url", "priority": 1 },
        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
    ])
}
