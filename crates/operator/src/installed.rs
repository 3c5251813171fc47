//! Which kinds the cluster has, by its custom resource definitions.

use crate::cache::Cache;
use crate::watch::Change;
use futures_util::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Follows the names of the definitions. Tells when they are known and when they change.
pub async fn run(client: Client, cache: Arc<Cache>, changes: mpsc::Sender<Change>) {
    let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
    let stream = kube::runtime::watcher(api, watcher::Config::default()).default_backoff();
    let mut stream = pin!(stream);
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut is_listed = false;
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => {
                names.clear();
                is_listed = false;
            }
            Ok(Event::InitApply(definition)) => {
                names.insert(definition.name_any());
            }
            Ok(Event::InitDone) => is_listed = true,
            Ok(Event::Apply(definition)) => {
                names.insert(definition.name_any());
            }
            Ok(Event::Delete(definition)) => {
                names.remove(&definition.name_any());
            }
            Err(error) => {
                tracing::warn!(%error, "Could not watch the custom resource definitions; retrying");
                continue;
            }
        }
        if is_listed && *cache.installed() != names {
            cache.install(names.clone());
            let _ = changes.send(Change::Everything).await;
        }
    }
}
