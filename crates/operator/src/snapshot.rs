//! What the caches know about one function, as JSON, and small readers for it.

use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Everything that belongs to one function.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub jobs: Vec<Arc<Value>>,
    pub pods: Vec<Arc<Value>>,
    pub config_maps: Vec<Arc<Value>>,
    pub service: Option<Arc<Value>>,
    pub revisions: Vec<Arc<Value>>,
    pub subscription: Option<Arc<Value>>,
    pub triggers: Vec<Arc<Value>>,
    /// Policies of the mesh.
    pub policies: Vec<Arc<Value>>,
    /// All Brokers of the namespace.
    pub brokers: Vec<Arc<Value>>,
    pub has_build_account: bool,
    /// Names of the custom resource definitions of the cluster.
    pub installed: Arc<BTreeSet<String>>,
}

pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub fn annotation<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object["metadata"]["annotations"][key].as_str()
}

pub fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The condition of this type.
pub fn condition<'v>(object: &'v Value, kind: &str) -> Option<&'v Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

pub fn is_condition(object: &Value, kind: &str, status: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == status)
}
