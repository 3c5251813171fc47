//! Reads a custom resource with the rules of all other documents. The schema of the API server is only a part of them.

use klambda_core::fault::Fault;
use klambda_functions::defaults::{LIMIT_CPU, LIMIT_MEMORY, REQUEST_CPU, REQUEST_MEMORY};
use klambda_functions::resource::{Counters, Form, Metadata, Resource, ResourceKind, Status};
use serde_json::{Value, json};

/// A resource, and its faults. A faulty resource has no spec.
pub struct Read {
    pub resource: Resource,
    pub faults: Vec<Fault>,
}

pub fn read(object: &Value) -> Read {
    let metadata = metadata(object);
    let document = json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": { "name": metadata.name, "namespace": metadata.namespace },
        "spec": spec(&object["spec"]),
    });
    let (mut resource, faults) = match Resource::parse(&document, Form::Manifest) {
        Ok(resource) => (resource, Vec::new()),
        // A function that is being deleted needs no valid spec.
        Err(_) if metadata.deletion_timestamp.is_some() => (Resource::default(), Vec::new()),
        Err(faults) => (Resource::default(), faults),
    };
    resource.kind = object["kind"].as_str().and_then(ResourceKind::parse).unwrap_or_default();
    resource.metadata = metadata;
    resource.counters = counters(&object["status"]["counters"]);
    resource.status = part::<Status>(&object["status"]);
    Read { resource, faults }
}

/// The API server fills in every amount by itself. A default must not contradict an amount that the user wrote, so it is
/// left out here: `defaults::amounts` fills in one that fits.
fn spec(given: &Value) -> Value {
    let mut spec = given.clone();
    let defaults = [
        ("requests", json!({ "memory": REQUEST_MEMORY, "cpu": REQUEST_CPU })),
        ("limits", json!({ "memory": LIMIT_MEMORY, "cpu": LIMIT_CPU })),
    ];
    for (part, defaults) in defaults {
        if let Some(amounts) = spec["resources"].get_mut(part).and_then(Value::as_object_mut) {
            amounts.retain(|name, amount| *amount != defaults[name.as_str()]);
        }
    }
    spec
}

/// A part that this version cannot read counts as missing: it is computed again.
fn part<T: serde::de::DeserializeOwned + Default>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_default()
}

const METADATA: [&str; 9] = [
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
];

fn metadata(object: &Value) -> Metadata {
    let given = &object["metadata"];
    let known = METADATA.into_iter().filter(|name| !given[*name].is_null());
    let known = known.map(|name| (name.to_owned(), given[name].clone())).collect();
    part(&Value::Object(known))
}

/// Counters are texts in a custom resource, because an API server has no integers of 64 bits without a sign.
fn counters(texts: &Value) -> Counters {
    let number = |text: &Value| text.as_str().and_then(|text| text.parse::<u64>().ok());
    let texts = texts.as_object().into_iter().flatten();
    let numbers = texts.filter_map(|(name, text)| Some((name.clone(), number(text)?.into()))).collect();
    part(&Value::Object(numbers))
}

/// The status as the custom resource has it: with the counters that are not zero.
pub fn status_json(status: &Status, counters: &Counters) -> Value {
    let mut json = serde_json::to_value(status).unwrap_or_default();
    let counters = serde_json::to_value(counters).unwrap_or_default();
    let known = counters.as_object().into_iter().flatten().filter(|(_, number)| **number != 0);
    let texts = known.map(|(name, number)| (name.clone(), Value::String(number.to_string())));
    json["counters"] = Value::Object(texts.collect());
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_of_the_api_server_does_not_contradict_the_user() {
        let object = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaAgent", "metadata": { "name": "a" },
            "spec": { "resources": { "requests": { "memory": "128Mi", "cpu": "25m" }, "limits": { "memory": "64Mi", "cpu": "10m" } } },
        });
        let read = read(&object);
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        let amounts = klambda_functions::defaults::amounts(&read.resource.spec.resources);
        assert_eq!((amounts.limit_memory.bytes, amounts.request_cpu.millis), (128 << 20, 10));
    }

    #[test]
    fn a_custom_resource_is_read_with_its_status_and_counters() {
        let mut object = json!({
            "apiVersion": "lambda.knative.dev/v1alpha1", "kind": "LambdaAgent",
            "metadata": { "name": "a", "namespace": "team", "uid": "u", "generation": 3, "finalizers": ["x"],
                "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": { "k": "v" } },
            "spec": { "source": { "type": "image", "image": { "uri": "ghcr.io/a/b:1" } } },
        });
        let first = read(&object);
        assert!(first.faults.is_empty(), "{:?}", first.faults);
        assert_eq!(first.resource.metadata.generation, 3);
        let mut status = first.resource.status.clone();
        status.observed_generation = 3;
        let counters = Counters { transitions: 7, source_secrets: u64::MAX, ..Counters::default() };
        object["status"] = status_json(&status, &counters);
        let again = read(&object).resource;
        assert_eq!((again.counters, again.status), (counters, status));
        object["spec"]["source"]["git"] = json!({ "url": "https://e.example/r.git" });
        let faulty = read(&object);
        assert_eq!(faulty.faults[0].path, "spec.source.git");
        object["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
        assert!(read(&object).faults.is_empty());
    }
}
