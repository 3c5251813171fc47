//! What a write makes of a resource: created, merged, applied or marked for deletion. Storing it, and the next
//! `resourceVersion`, are the store's.

use crate::resource::{Form, Metadata, Resource, SourceType};
use crate::scalar::Time;
use crate::{merge, name};
use klambda_core::fault::Fault;
use klambda_core::time::Millis;
use serde_json::{Value, json};

/// The document that was applied last, as it was written.
pub const LAST_APPLIED: &str = "lambda.knative.io/last-applied";

/// What only the caller can give: a clock and chance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Birth {
    pub uid: String,
    pub random: u64,
    pub now: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Created,
    /// The spec: there is a new generation.
    Spec,
    /// Labels or annotations.
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
        "it was changed by someone else: the resourceVersion given is {given}, but it is {current} now. Read it again, and repeat the change"
    )]
    Conflict { given: String, current: String },
    #[error("it is being deleted: wait until it is gone, then create it again")]
    Deleting,
}

/// Whether a writer has seen what it is about to change. Saying nothing means: whatever it is now.
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

/// A file applied: created, or merged three ways against what was applied last. The same file twice changes nothing.
pub fn apply(live: Option<&Resource>, value: &Value, form: Form, birth: Birth) -> Result<Written, Refused> {
    let written = as_written(value);
    let Some(live) = live else {
        let mut resource = create(value, form, birth).map_err(Refused::Invalid)?;
        resource.metadata.annotations.insert(LAST_APPLIED.to_owned(), written.to_string());
        return Ok(Written { resource, change: Change::Created });
    };
    // Faults are told of the file itself, not of what it is merged with.
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

/// What of a file is its author's: not what the server adds.
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

/// A partial document (`{"spec": {"scaling": {"maxReplicas": 20}}}`) merged in, by PUT or PATCH.
pub fn update(live: &Resource, body: &Value) -> Result<Written, Refused> {
    if !body.is_object() {
        let message = "must be an object with the parts of metadata and spec that are to change";
        return Err(Refused::Invalid(vec![Fault::new("", message)]));
    }
    check_version(live, body.pointer("/metadata/resourceVersion").and_then(Value::as_str))?;
    let mut document = live.to_json();
    merge::patch(&mut document, body);
    keep_one_source(&mut document, body);
    finish(live, &document)
}

/// A source of another type replaces the one before: the members of the old type need not be taken out by hand.
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
        .map(|(path, ..)| Fault::new(path, "cannot be changed: create another and delete this one"))
        .collect()
}

/// Marks it for deletion. Asking twice is the same as once.
pub fn delete(live: &Resource, now: Millis) -> Resource {
    let mut resource = live.clone();
    resource.metadata.deletion_timestamp.get_or_insert(Time(now));
    resource
}
