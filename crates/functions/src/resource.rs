//! `LambdaFunction` and `LambdaAgent`: the same shape, read strictly. An agent may be applied before it has a source.

mod delivery;
mod source;
mod spec;
mod status;

pub use delivery::*;
pub use source::*;
pub use spec::*;
pub use status::*;

use crate::scalar::Time;
use crate::{check, defaults, validate};
use klambda_core::fault::Fault;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

pub const API_VERSION: &str = "lambda.knative.io/v1alpha1";
/// Agents were first written under this group, and still may be.
pub const AGENT_API_VERSION: &str = "lambda.knative.dev/v1alpha1";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    #[default]
    LambdaFunction,
    LambdaAgent,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Resource {
    pub kind: Kind,
    pub metadata: Metadata,
    pub spec: Spec,
    pub status: Status,
    /// Not part of what is shown.
    #[serde(skip)]
    pub counters: Counters,
}

/// A resource as it is kept: with its counters.
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

/// How much of a document must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A file: it says what it is and has a name.
    Manifest,
    /// The body of a request to an address that says what it is; its name may be derived.
    Body(Kind),
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::LambdaFunction, Kind::LambdaAgent];

    pub fn name(self) -> &'static str {
        match self {
            Kind::LambdaFunction => "LambdaFunction",
            Kind::LambdaAgent => "LambdaAgent",
        }
    }

    /// What people call one: `function` or `agent`.
    pub fn word(self) -> &'static str {
        match self {
            Kind::LambdaFunction => "function",
            Kind::LambdaAgent => "agent",
        }
    }

    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub fn takes_api_version(self, version: &str) -> bool {
        version == API_VERSION || (self == Kind::LambdaAgent && version == AGENT_API_VERSION)
    }
}

impl Resource {
    /// Reads a document strictly, with all defaults; everything that is wrong with it is told at once.
    /// A `status` that comes with it is not read.
    pub fn parse(value: &Value, form: Form) -> Result<Resource, Vec<Fault>> {
        let (resource, mut faults) = check::read(value, form);
        validate::resource(&resource, form, &mut faults);
        let faults = first_of_each_place(faults);
        if faults.is_empty() { Ok(resource) } else { Err(faults) }
    }

    /// As it is kept.
    pub fn to_stored(&self) -> Vec<u8> {
        let kept = Kept { resource: self, counters: self.counters };
        serde_json::to_vec(&kept).expect("all of its maps have text for keys, so all of it is JSON")
    }

    /// As it is kept within so many bytes, if it can be. Where all of it does not fit, what explains its status goes; and of
    /// one that is being deleted all that it asked for, since nothing of that is needed any more.
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

    /// What of it is not its status, in bytes.
    pub fn asked_bytes(&self) -> usize {
        let bytes = |part: serde_json::Result<Vec<u8>>| part.map_or(0, |part| part.len());
        bytes(serde_json::to_vec(self)) - bytes(serde_json::to_vec(&self.status))
    }

    /// What [`Resource::to_stored`] wrote.
    pub fn from_stored(bytes: &[u8]) -> Result<Resource, serde_json::Error> {
        let Kept { resource, counters } = serde_json::from_slice::<Kept<Resource>>(bytes)?;
        Ok(Resource { counters, ..resource })
    }

    /// The whole resource, every default filled in. There are no secrets in it.
    pub fn to_json(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["apiVersion"] = API_VERSION.into();
        value
    }

    /// The subscription of the engine that its triggers are.
    pub fn subscription_name(&self) -> String {
        format!("lambda.{}.{}", self.metadata.namespace, self.metadata.name)
    }

    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

/// The shape and the meaning may be faulted at the same place; the first says what to mend.
fn first_of_each_place(faults: Vec<Fault>) -> Vec<Fault> {
    let mut kept: Vec<Fault> = Vec::with_capacity(faults.len());
    for fault in faults {
        if !kept.iter().any(|known| known.path == fault.path) {
            kept.push(fault);
        }
    }
    kept
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
