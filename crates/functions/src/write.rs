//! Computes the effect of a write on a resource: create, merge, apply or mark for deletion. The store saves it and assigns
//! the next `resourceVersion`.

use crate::resource::{Form, Metadata, Resource, SourceType};
use crate::scalar::Time;
use crate::{merge, name};
use klambda_core::fault::Fault;
use klambda_core::time::Millis;
use serde_json::{Value, json};

/// The last applied document, as written.
pub const LAST_APPLIED: &str = "lambda.knative.io/last-applied";

/// Values that only the caller can provide: the time and randomness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Birth {
    pub uid: String,
    pub random: u64,
    pub now: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Created,
    /// The spec changed: there is a new generation.
    Spec,
    /// Labels or annotations changed.
    Metadata,
    Nothing,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    pub resource: Resource,
    pub change: Change,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the document is not valid")]
    Invalid(Vec<Fault>),
    #[error(
        "the resource has changed: you sent resourceVersion {given}, the current one is {current}. Get the resource again and repeat the change"
    )]
    Conflict { given: String, current: String },
    #[error("the resource is being deleted: wait until the deletion completes, then create it again")]
    Deleting,
}

/// Checks the version that the writer has seen. Without a version, any is accepted.
pub fn check_version(live: &Resource, given: Option<&str>) -> Result<(), Refused> {
    let current = &live.metadata.resource_version;
    match given.filter(|given| !given.is_empty() && given != current) {
        Some(given) => Err(Refused::Conflict { given: given.to_owned(), current: current.clone() }),
        None => Ok(()),
    }
}

pub fn create(value: &Value, form: Form, birth: Birth) -> Result<Resource, Vec<Fault>> {
    let mut resource = Resource::parse(value, form)?;
    if resource.metadata.name.is_empty() {
        resource.metadata.name = name::derive(resource.kind, &resource.spec, birth.random);
    }
    let given = std::mem::take(&mut resource.metadata);
    resource.metadata = Metadata {
        uid: birth.uid,
        generation: 1,
        resource_version: String::new(),
        creation_timestamp: Some(Time(birth.now)),
        deletion_timestamp: None,
        ..given
    };
    Ok(resource)
}

/// Applies a file: creates the resource, or merges with the last applied document. Applying a file twice changes nothing.
pub fn apply(live: Option<&Resource>, value: &Value, form: Form, birth: Birth) -> Result<Written, Refused> {
    let written = as_written(value);
    let Some(live) = live else {
        let mut resource = create(value, form, birth).map_err(Refused::Invalid)?;
        resource.metadata.annotations.insert(LAST_APPLIED.to_owned(), written.to_string());
        return Ok(Written { resource, change: Change::Created });
    };
    // Report the faults of the file itself, not of the merged document.
    Resource::parse(value, form).map_err(Refused::Invalid)?;
    check_version(live, value.pointer("/metadata/resourceVersion").and_then(Value::as_str))?;
    let last = live.metadata.annotations.get(LAST_APPLIED);
    let last = last.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
    let mut document = live.to_json();
    merge::three_way(&last, &mut document, &written);
    keep_one_source(&mut document, value);
    document["metadata"]["annotations"][LAST_APPLIED] = written.to_string().into();
    finish(live, &document)
}

/// The part of a file that its author controls, without fields that the server sets.
fn as_written(value: &Value) -> Value {
    let mut metadata = json!({});
    for name in ["labels", "annotations"] {
        if let Some(given @ Value::Object(_)) = value.pointer(&format!("/metadata/{name}")) {
            metadata[name] = given.clone();
        }
    }
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.remove(LAST_APPLIED);
    }
    json!({ "metadata": metadata, "spec": value["spec"] })
}

/// Merges a partial document such as `{"spec": {"scaling": {"maxReplicas": 20}}}`, for PUT and PATCH.
pub fn update(live: &Resource, body: &Value) -> Result<Written, Refused> {
    if !body.is_object() {
        let message = "must be an object with the parts of metadata and spec to change";
        return Err(Refused::Invalid(vec![Fault::new("", message)]));
    }
    check_version(live, body.pointer("/metadata/resourceVersion").and_then(Value::as_str))?;
    let mut document = live.to_json();
    merge::patch(&mut document, body);
    keep_one_source(&mut document, body);
    finish(live, &document)
}

/// A source of another type replaces the old one, so that users need not remove the members of the old type.
fn keep_one_source(document: &mut Value, given: &Value) {
    let Some(Value::Object(said)) = given.pointer("/spec/source") else { return };
    let Some(Value::Object(source)) = document.pointer_mut("/spec/source") else { return };
    if said.get("type").is_some_and(Value::is_string) {
        let chosen = said["type"].clone();
        let is_member = |name: &str| SourceType::ALL.iter().any(|member| member.name() == name);
        source.retain(|name, _| !is_member(name) || said.contains_key(name) || chosen == name.as_str());
    }
}

fn finish(live: &Resource, document: &Value) -> Result<Written, Refused> {
    if live.is_deleting() {
        return Err(Refused::Deleting);
    }
    let merged = Resource::parse(document, Form::Body(live.kind)).map_err(Refused::Invalid)?;
    let moved = fixed(live, &merged);
    if !moved.is_empty() {
        return Err(Refused::Invalid(moved));
    }
    let mut resource = live.clone();
    resource.metadata.labels = merged.metadata.labels;
    resource.metadata.annotations = merged.metadata.annotations;
    resource.spec = merged.spec;
    let change = match (resource.spec == live.spec, resource.metadata == live.metadata) {
        (false, _) => Change::Spec,
        (true, false) => Change::Metadata,
        (true, true) => Change::Nothing,
    };
    if change == Change::Spec {
        resource.metadata.generation += 1;
    }
    Ok(Written { resource, change })
}

fn fixed(live: &Resource, merged: &Resource) -> Vec<Fault> {
    let pairs = [
        ("metadata.name", &live.metadata.name, &merged.metadata.name),
        ("metadata.namespace", &live.metadata.namespace, &merged.metadata.namespace),
    ];
    let moved = pairs.into_iter().filter(|(_, before, after)| before != after);
    moved
        .map(|(path, ..)| Fault::new(path, "cannot be changed: create a new resource and delete this one"))
        .collect()
}

/// Marks the resource for deletion. Repeating it has no effect.
pub fn delete(live: &Resource, now: Millis) -> Resource {
    let mut resource = live.clone();
    resource.metadata.deletion_timestamp.get_or_insert(Time(now));
    resource
}
