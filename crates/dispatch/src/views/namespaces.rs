//! Views of namespaces: their documents and their contents.

use super::{Page, Time};
use crate::engine::Engine;
use klambda_core::ids::NamespaceId;
use klambda_core::namespace::KIND;
use klambda_core::subscription::API_VERSION;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    #[schemars(with = "super::NamespaceSpec")]
    spec: Value,
    pub status: Status,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "NamespaceMetadata")]
struct Metadata {
    name: String,
    /// `None` for the default namespace, which always exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Time>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "NamespaceStatus")]
pub struct Status {
    pub subscriptions: u64,
    pub waiting: u64,
    pub dead_letters: u64,
}

impl Namespace {
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl Engine {
    pub fn view_namespace(&self, name: &str) -> Option<Namespace> {
        self.namespaces.named(name).and_then(|id| self.namespace_view(id))
    }

    /// Namespaces by name, after `after`, for which `is_shown` is true.
    pub fn view_namespaces(
        &self,
        is_shown: impl Fn(&str) -> bool,
        after: Option<&str>,
        limit: usize,
    ) -> Page<Namespace> {
        let all = self.namespaces.values().map(|namespace| namespace.name.as_str());
        let is_after = |name: &&str| after.is_none_or(|after| *name > after);
        let mut names: Vec<&str> = all.filter(is_after).filter(|name| is_shown(name)).collect();
        names.sort_unstable();
        let last = names.get(..limit).filter(|page| page.len() < names.len()).and_then(|page| page.last());
        let next = last.map(|name| (*name).to_owned());
        let items = names.iter().take(limit).filter_map(|name| self.view_namespace(name)).collect();
        Page { items, next }
    }

    fn namespace_view(&self, id: NamespaceId) -> Option<Namespace> {
        let namespace = self.namespaces.get(id)?;
        let mut status = Status::default();
        for subscription in self.subscriptions.values().filter(|s| s.namespace == id) {
            let is_shown = !subscription.is_retired() && !subscription.document.is_controller();
            status.subscriptions += u64::from(is_shown);
            status.waiting += subscription.tally.owed();
            status.dead_letters += subscription.tally.dead + subscription.tally.held;
        }
        let mut document = namespace.document().to_json();
        let created_at = (id != NamespaceId(0)).then_some(Time(namespace.created));
        Some(Namespace {
            api_version: API_VERSION,
            kind: KIND,
            metadata: Metadata { name: namespace.name.clone(), created_at },
            spec: document["spec"].take(),
            status,
        })
    }
}
