//! The Subscription of a function with triggers. The dispatcher delivers by it.

use super::Owned;
use crate::child::Child;
use crate::config::Config;
use crate::kinds::Kind;
use crate::names;
use crate::snapshot::Snapshot;
use klambda_functions::{hash, triggers};
use serde_json::{Value, json};

/// The document that the planner compares with. A function runs at its own address of the cluster, so `function` as the
/// target becomes that address.
pub(super) fn subscription(owned: &Owned<'_>, snapshot: &Snapshot, config: &Config) -> Option<Child> {
    if !snapshot.has(Kind::Subscription) {
        return None;
    }
    let document = triggers::subscription(owned.resource, owned.resource.spec.url())?;
    let mut spec = document["spec"].clone();
    if spec["target"].get("function").is_some() {
        spec["target"] = json!({ "url": address(owned, config) });
    }
    let annotations = json!({ names::DOCUMENT: hash::of(&document) });
    Some(owned.child(Kind::Subscription, &name(&document), annotations, json!({ "spec": spec })))
}

fn name(document: &Value) -> String {
    document["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The address of the Knative Service inside the cluster.
fn address(owned: &Owned<'_>, config: &Config) -> String {
    format!("http://{}.{}.svc.{}", owned.name(), owned.namespace(), config.cluster_domain)
}
