//! The schemas of the resources, generated from their types, with CEL rules next to the fields that they check.

use crate::resource::{Metadata, ResourceKind, Spec, Status};
use klambda_core::schema::Schema;
use serde_json::{Value, json};
use std::sync::LazyLock;

static METADATA: LazyLock<Schema> = LazyLock::new(Schema::of::<Metadata>);
static SPEC: LazyLock<Schema> = LazyLock::new(Schema::of::<Spec>);
static STATUS: LazyLock<Schema> = LazyLock::new(Schema::of::<Status>);

/// The schema of `metadata`.
pub fn metadata_schema() -> Value {
    METADATA.published()
}

/// The schema of `spec` that forbids unknown members.
pub fn closed_spec() -> Value {
    SPEC.closed()
}

/// The schema of `status`.
pub fn status_schema() -> Value {
    STATUS.published()
}

/// The `openAPIV3Schema` of a kind.
pub fn open_api(kind: ResourceKind) -> Value {
    let mut spec = SPEC.published();
    if kind == ResourceKind::LambdaFunction {
        spec["required"] = json!(["source"]);
    }
    json!({ "type": "object", "required": ["spec"], "properties": { "spec": spec, "status": STATUS.published() } })
}

pub(crate) fn metadata() -> &'static Schema {
    &METADATA
}

pub(crate) fn spec() -> &'static Schema {
    &SPEC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_defaults_are_in_the_schema() {
        let schema = open_api(ResourceKind::LambdaFunction);
        let spec = |pointer: &str| {
            let place = pointer.replace('/', "/properties/");
            schema.pointer(&format!("/properties/spec{place}/default")).cloned().unwrap_or_default()
        };
        assert_eq!(spec("/source/type"), "minio");
        assert_eq!(spec("/source/minio/endpoint"), "minio.minio.svc.cluster.local:9000");
        assert_eq!(spec("/source/s3/region"), "us-east-1");
        assert_eq!(spec("/runtime/handler"), "index.handler");
        assert_eq!(spec("/scaling/minReplicas"), 0);
        assert_eq!(spec("/scaling/maxReplicas"), 50);
        assert_eq!(spec("/scaling/targetConcurrency"), 10);
        assert_eq!(spec("/scaling/scaleToZeroGracePeriod"), "30s");
        assert_eq!(spec("/resources/requests/memory"), "32Mi");
        assert_eq!(spec("/resources/requests/cpu"), "25m");
        assert_eq!(spec("/resources/limits/memory"), "64Mi");
        assert_eq!(spec("/resources/limits/cpu"), "50m");
        assert_eq!(spec("/build/timeout"), "30m");
        assert_eq!(spec("/ordering"), "unordered");
        assert_eq!(spec("/runtime/language"), Value::Null);
        let rules = schema.pointer("/properties/spec/properties/scaling/x-kubernetes-validations/0/rule");
        assert_eq!(rules, Some(&json!("self.minReplicas <= self.maxReplicas")));
    }
}
