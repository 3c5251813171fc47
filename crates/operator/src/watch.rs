//! Watches all kinds that the cluster has, and tells which functions may have changed.

use crate::cache::{self, Cache, Key};
use crate::config::Config;
use crate::kinds::Kind;
use futures_util::StreamExt;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Changes that are not handled yet. A watch waits when this many are.
pub const CHANGES_MAX: usize = 4096;

/// What a watch tells.
#[derive(Debug)]
pub enum Change {
    Function(Key),
    /// A kind was listed for the first time.
    Listed(Kind, Option<String>),
    /// Something that may concern every function: a Broker, or a new kind in the cluster.
    Everything,
}

pub struct Watches {
    client: Client,
    cache: Arc<Cache>,
    config: Arc<Config>,
    changes: mpsc::Sender<Change>,
    running: HashSet<Kind>,
}

impl Watches {
    pub fn new(
        client: Client,
        cache: Arc<Cache>,
        config: Arc<Config>,
        changes: mpsc::Sender<Change>,
    ) -> Watches {
        Watches { client, cache, config, changes, running: HashSet::new() }
    }

    /// Starts the watches of kinds that the cluster has by now. A kind whose definition is removed keeps its watch, which
    /// waits until the definition is back.
    pub fn start(&mut self, stop: &watch::Receiver<bool>) {
        let installed = self.cache.installed();
        for kind in Kind::ALL.iter().copied() {
            let is_there = kind.definition().is_none_or(|definition| installed.contains(&definition));
            if !is_there || !self.running.insert(kind) {
                continue;
            }
            for api in self.apis(kind) {
                let watched = Watched {
                    kind,
                    namespace: api.namespace().map(str::to_owned),
                    cache: self.cache.clone(),
                    changes: self.changes.clone(),
                };
                let mut stop = stop.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = watched.run(api) => {}
                        _ = stop.wait_for(|stop| *stop) => {}
                    }
                });
            }
        }
    }

    /// How many lists must arrive before the caches are complete.
    pub fn lists(&self) -> usize {
        self.running.len() * self.config.namespaces.len().max(1)
    }

    fn apis(&self, kind: Kind) -> Vec<Api<DynamicObject>> {
        let resource = kind.resource();
        match self.config.namespaces.is_empty() {
            true => vec![Api::all_with(self.client.clone(), &resource)],
            false => {
                let of = |namespace: &String| Api::namespaced_with(self.client.clone(), namespace, &resource);
                self.config.namespaces.iter().map(of).collect()
            }
        }
    }
}

struct Watched {
    kind: Kind,
    /// `None` for all namespaces.
    namespace: Option<String>,
    cache: Arc<Cache>,
    changes: mpsc::Sender<Change>,
}

impl Watched {
    async fn run(self, api: Api<DynamicObject>) {
        let config = match self.kind.selector() {
            Some(selector) => watcher::Config::default().labels(selector),
            None => watcher::Config::default(),
        };
        let stream = kube::runtime::watcher(api, config).default_backoff();
        let mut stream = pin!(stream);
        let mut listed: Vec<Arc<Value>> = Vec::new();
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => listed.push(self.value(object)),
                Ok(Event::InitDone) => self.replace(std::mem::take(&mut listed)).await,
                Ok(Event::Apply(object)) => {
                    let object = self.value(object);
                    self.cache.put(self.kind, object.clone());
                    self.tell(&object).await;
                }
                Ok(Event::Delete(object)) => {
                    let object = self.value(object);
                    self.cache.remove(self.kind, &object);
                    self.tell(&object).await;
                }
                // The stream waits and lists again by itself.
                Err(error) => tracing::debug!(%error, kind = self.kind.name(), "Watch interrupted; retrying"),
            }
        }
    }

    /// Objects of lists have no kind.
    fn value(&self, object: DynamicObject) -> Arc<Value> {
        let mut value = serde_json::to_value(object).unwrap_or_default();
        value["apiVersion"] = self.kind.api_version().into();
        value["kind"] = self.kind.name().into();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        Arc::new(value)
    }

    async fn replace(&self, listed: Vec<Arc<Value>>) {
        let gone = self.cache.replace(self.kind, self.namespace.as_deref(), listed.clone());
        for object in listed.iter().chain(&gone) {
            self.tell(object).await;
        }
        let _ = self.changes.send(Change::Listed(self.kind, self.namespace.clone())).await;
    }

    async fn tell(&self, object: &Value) {
        if self.kind == Kind::Broker {
            let _ = self.changes.send(Change::Everything).await;
        }
        for key in cache::owners(self.kind, object) {
            let _ = self.changes.send(Change::Function(key)).await;
        }
    }
}
