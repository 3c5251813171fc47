//! `LambdaFunction` and `LambdaAgent`: the same structure, parsed strictly. An agent may be applied before it has a source.

pub mod source;
mod spec;
mod status;

pub use source::*;
pub use spec::*;
pub use status::*;

use crate::scalar::Time;
use crate::{check, defaults, validate};
use klambda_core::fault::Fault;
use klambda_core::schema::first_of_each_place;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

pub use klambda_core::schema::API_VERSION;
/// The first API group of agents. It is still accepted.
pub const AGENT_API_VERSION: &str = "lambda.knative.dev/v1alpha1";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ResourceKind {
    #[default]
    LambdaFunction,
    LambdaAgent,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Resource {
    pub kind: ResourceKind,
    pub metadata: Metadata,
    pub spec: Spec,
    pub status: Status,
    /// Not shown to users.
    #[serde(skip)]
    pub counters: Counters,
}

/// A resource in its stored form, with its counters.
#[derive(Serialize, Deserialize)]
struct Kept<R> {
    resource: R,
    counters: Counters,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Counts changes of the spec.
    pub generation: u64,
    /// Changes with every write.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
}

/// The required parts of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A file: kind and name are required.
    Manifest,
    /// The body of a request whose URL implies the kind. The name is optional.
    Body(ResourceKind),
}

impl ResourceKind {
    pub const ALL: [ResourceKind; 2] = [ResourceKind::LambdaFunction, ResourceKind::LambdaAgent];

    pub fn name(self) -> &'static str {
        match self {
            ResourceKind::LambdaFunction => "LambdaFunction",
            ResourceKind::LambdaAgent => "LambdaAgent",
        }
    }

    /// The user-facing name: `function` or `agent`.
    pub fn word(self) -> &'static str {
        match self {
            ResourceKind::LambdaFunction => "function",
            ResourceKind::LambdaAgent => "agent",
        }
    }

    pub fn parse(name: &str) -> Option<ResourceKind> {
        ResourceKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub fn takes_api_version(self, version: &str) -> bool {
        version == API_VERSION || (self == ResourceKind::LambdaAgent && version == AGENT_API_VERSION)
    }
}

impl Resource {
    /// Parses a document strictly, fills in defaults, and reports all faults together. A `status` in the document is ignored.
    pub fn parse(value: &Value, form: Form) -> Result<Resource, Vec<Fault>> {
        let (resource, mut faults) = check::read(value, form);
        validate::resource(&resource, value, form, &mut faults);
        let faults = first_of_each_place(faults);
        if faults.is_empty() { Ok(resource) } else { Err(faults) }
    }

    /// The stored form.
    pub fn to_stored(&self) -> Vec<u8> {
        let kept = Kept { resource: self, counters: self.counters };
        serde_json::to_vec(&kept).expect("all map keys are strings, so serialization cannot fail")
    }

    /// The stored form, if it fits into `bytes_max`. To fit, it drops the messages of the status. For a resource that is being
    /// deleted, it also drops the spec, which is no longer needed.
    pub fn to_stored_within(&mut self, bytes_max: usize) -> Option<Vec<u8>> {
        let smaller: [fn(&mut Resource); 3] =
            [|_| {}, |resource| resource.status.shorten(), Resource::drop_what_was_asked];
        smaller.into_iter().find_map(|make_smaller| {
            make_smaller(self);
            Some(self.to_stored()).filter(|content| content.len() <= bytes_max)
        })
    }

    fn drop_what_was_asked(&mut self) {
        if self.is_deleting() {
            self.spec = Spec::default();
            self.metadata.annotations.clear();
            self.metadata.labels.clear();
        }
    }

    /// Size of everything except the status, in bytes.
    pub fn asked_bytes(&self) -> usize {
        let bytes = |part: serde_json::Result<Vec<u8>>| part.map_or(0, |part| part.len());
        bytes(serde_json::to_vec(self)) - bytes(serde_json::to_vec(&self.status))
    }

    /// Reads the output of [`Resource::to_stored`].
    pub fn from_stored(bytes: &[u8]) -> Result<Resource, serde_json::Error> {
        let Kept { resource, counters } = serde_json::from_slice::<Kept<Resource>>(bytes)?;
        Ok(Resource { counters, ..resource })
    }

    /// The whole resource with all defaults. It contains no secrets.
    pub fn to_json(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["apiVersion"] = API_VERSION.into();
        value
    }

    /// The name of the subscription for its triggers.
    pub fn subscription_name(&self) -> String {
        format!("lambda.{}.{}", self.metadata.namespace, self.metadata.name)
    }

    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata {
            name: String::new(),
            namespace: defaults::NAMESPACE.to_owned(),
            uid: String::new(),
            generation: 0,
            resource_version: String::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            creation_timestamp: None,
            deletion_timestamp: None,
        }
    }
}
