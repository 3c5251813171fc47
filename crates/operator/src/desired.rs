//! Every object that should exist for a function. No client, no failure: the same resource and the same snapshot give the
//! same objects.

pub mod build;
pub mod mesh;
pub mod service;
pub mod subscription;
pub mod triggers;

use crate::child::Child;
use crate::config::Config;
use crate::kinds::Kind;
use crate::snapshot::Snapshot;
use klambda_functions::resource::Resource;
use serde_json::{Value, json};

/// The version to run: the image by its digest, or as given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub version: String,
    pub image: String,
}

/// All objects except those of builds, which exist only while a build runs.
pub fn children(
    resource: &Resource,
    api_version: &str,
    wanted: Option<&Wanted>,
    snapshot: &Snapshot,
    config: &Config,
) -> Vec<Child> {
    let owned = Owned { resource, api_version };
    let service = wanted.filter(|_| snapshot.has(Kind::Service));
    let mut children: Vec<Child> =
        service.map(|wanted| service::service(&owned, wanted, config)).into_iter().collect();
    children.extend(subscription::subscription(&owned, snapshot, config));
    if snapshot.has(Kind::Trigger) && !resource.spec.triggers.is_empty() {
        children.extend(triggers::missing_brokers(resource, snapshot, config));
        children.extend(triggers::triggers_of(&owned, snapshot, config));
    }
    if config.linkerd && service.is_some() && mesh::KINDS.iter().all(|kind| snapshot.has(*kind)) {
        children.extend(mesh::policies(&owned));
    }
    children
}

/// A function, as the owner of its objects.
pub struct Owned<'a> {
    pub resource: &'a Resource,
    pub api_version: &'a str,
}

impl Owned<'_> {
    pub fn name(&self) -> &str {
        &self.resource.metadata.name
    }

    pub fn namespace(&self) -> &str {
        &self.resource.metadata.namespace
    }

    /// An object of this function, which the garbage collector removes with it.
    fn child(&self, kind: Kind, name: &str, annotations: Value, content: Value) -> Child {
        let mut content = content;
        content["metadata"] = json!({
            "labels": crate::names::labels(self.name()),
            "annotations": annotations,
            "ownerReferences": crate::names::owner(self.resource, self.api_version),
        });
        Child::new(kind, self.namespace(), name, content)
    }
}

#[cfg(test)]
mod tests;
