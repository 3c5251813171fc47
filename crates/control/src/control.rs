//! The control plane as a whole: loading, and what its parts share.

use crate::counts::{Counting, Counts};
use crate::gone::Gone;
use crate::invoke::{Ids, caller};
use crate::names::Name;
use crate::options::Options;
use crate::platform::Platform;
use crate::state::{Entry, State, Subscription};
use klambda_core::time::Millis;
use klambda_crash::{Guard, Lock};
use klambda_dispatch::client::Caller;
use klambda_dispatch::documents::Stored;
use klambda_dispatch::runner::{Clock, Handle, Stopped};
use klambda_dispatch::{Engine, Failure};
use klambda_functions::resource::{Aspect, Phase, Resource};
use klambda_functions::{hash, triggers};
use klambda_local::process::logs::Logs;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, OnceCell};

/// The kind of the documents that resources are.
pub(crate) const DOCUMENTS: &str = "lambda";
const PAGE: usize = 500;

/// A clone is the same one.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

pub struct Shared {
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    handle: OnceLock<Handle>,
    state: Lock<State>,
    /// For the task that plans: there is something to do, or something to do sooner.
    pub(crate) changed: Notify,
    platform: OnceCell<Platform>,
    pub(crate) caller: Caller,
    pub(crate) ids: Ids,
    pub(crate) counting: Counting,
    /// Whether received events come here.
    pub(crate) listening: OnceCell<()>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("functions cannot be read back: {0}")]
    Store(#[from] Failure),
    #[error("function {key} cannot be read back: {source}")]
    Malformed { key: String, source: serde_json::Error },
}

impl std::ops::Deref for Control {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Control {
    /// Knows no functions before [`Control::load`].
    pub fn new(options: Options, clock: Clock) -> Control {
        let counting = Counting::new(options.named_max);
        let shared = Shared {
            options,
            ids: Ids::new(clock.now()),
            clock,
            handle: OnceLock::new(),
            state: Lock::default(),
            changed: Notify::new(),
            platform: OnceCell::new(),
            caller: caller(),
            counting,
            listening: OnceCell::new(),
        };
        Control { shared: Arc::new(shared) }
    }

    /// Takes up what there is, before the engine runs.
    pub fn load(&self, engine: &Engine) -> Result<(), Error> {
        let mut state = self.lock();
        state.gone = Gone::load(engine)?;
        for (name, mut entry) in load(engine)? {
            let is_known = engine.subscription_id(&name.subscription()).is_ok();
            entry.subscription = subscription_of(&entry.resource, is_known);
            state.functions.insert(name, entry);
        }
        Ok(())
    }

    /// Begins to plan. Nothing else is started before there is a function.
    pub async fn start(&self, handle: Handle) {
        // A second start changes nothing: the first engine is the one that runs.
        let _ = self.handle.set(handle);
        let any = !self.lock().functions.is_empty();
        if any {
            self.restore().await;
        }
        tokio::spawn(self.clone().reconcile());
    }

    pub(crate) async fn platform(&self) -> Option<&Platform> {
        let opened = self
            .platform
            .get_or_try_init(|| async {
                let resources = self.lock().functions.values().map(|entry| entry.resource.clone()).collect();
                let platform = Platform::open(&self.options, resources).await?;
                tokio::spawn(self.clone().watch_fleet(platform.fleet.changes()));
                Ok::<Platform, crate::platform::OpenError>(platform)
            })
            .await;
        opened.inspect_err(|error| tracing::error!(%error, "Functions cannot be run.")).ok()
    }

    /// What was deployed when the last run ended is so again, before it is planned.
    async fn restore(&self) {
        let Some(platform) = self.platform().await else { return };
        let now = self.clock.now();
        let mut state = self.lock();
        let names: Vec<Name> = state.functions.keys().cloned().collect();
        for name in names {
            if let Some(entry) = state.functions.get_mut(&name) {
                platform.restore(&name, entry, &self.options, now);
            }
            state.enqueue(&name);
        }
    }

    /// Nothing more is started, and all that runs is ended.
    pub async fn stop(&self) {
        if let Some(platform) = self.platform.get() {
            platform.fleet.shutdown(std::time::Duration::from_secs(5)).await;
        }
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn running(&self) -> Option<&Platform> {
        self.platform.get()
    }

    pub(crate) fn handle(&self) -> Result<&Handle, Stopped> {
        self.handle.get().ok_or(Stopped)
    }

    pub(crate) fn enqueue(&self, name: &Name) {
        if self.lock().enqueue(name) {
            self.changed.notify_one();
        }
    }

    pub(crate) fn wake(&self, name: &Name, at: Millis) {
        self.lock().wake(name, at);
        self.changed.notify_one();
    }

    pub fn counts(&self) -> Counts {
        self.counting.read()
    }

    /// Builds that wait for a slot.
    pub fn builds_waiting(&self) -> usize {
        self.running().map_or(0, Platform::builds_waiting)
    }

    /// How many functions and agents there are, by namespace and by whether a version of them can be called. Namespaces
    /// beyond the limit on labels are counted under none.
    pub fn services(&self) -> BTreeMap<(String, &'static str), u64> {
        let state = self.lock();
        let mut counts: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
        let mut namespaces: HashSet<&str> = HashSet::new();
        for (name, entry) in &state.functions {
            let is_named = namespaces.len() < self.options.named_max || namespaces.contains(name.namespace());
            let namespace = if is_named { name.namespace() } else { "" };
            namespaces.insert(namespace);
            let status = &entry.resource.status;
            let status = match (&status.service_status, status.phase) {
                (Some(service), _) if service.ready => "ready",
                (_, Phase::Failed) => "failed",
                _ => "pending",
            };
            *counts.entry((namespace.to_owned(), status)).or_default() += 1;
        }
        counts
    }

    /// What the function printed, if anything of it was ever deployed.
    pub fn logs(&self, name: &Name) -> Option<Arc<Logs>> {
        self.running()?.fleet.logs(name.as_str())
    }

    /// One resource as it is now.
    pub fn get(&self, name: &Name) -> Option<Arc<Resource>> {
        self.lock().functions.get(name).map(|entry| entry.resource.clone())
    }

    /// Resources that are wanted, by name, from the one after `after` on; and whether there are more.
    pub fn list(
        &self,
        after: Option<&Name>,
        limit: usize,
        wanted: impl Fn(&Resource) -> bool,
    ) -> (Vec<Arc<Resource>>, bool) {
        let state = self.lock();
        let from = match after {
            Some(after) => std::ops::Bound::Excluded(after),
            None => std::ops::Bound::Unbounded,
        };
        let range = state.functions.range::<Name, _>((from, std::ops::Bound::Unbounded));
        let mut found: Vec<Arc<Resource>> = range
            .filter(|(_, entry)| wanted(&entry.resource))
            .take(limit + 1)
            .map(|(_, entry)| entry.resource.clone())
            .collect();
        let more = found.len() > limit;
        found.truncate(limit);
        (found, more)
    }
}

fn load(engine: &Engine) -> Result<Vec<(Name, Entry)>, Error> {
    let mut entries: Vec<(Name, Entry)> = Vec::new();
    loop {
        let after = entries.last().map(|(name, _)| name.as_str().to_owned());
        let page = engine.documents(DOCUMENTS, after.as_deref(), PAGE)?;
        let done = page.len() < PAGE;
        for stored in page {
            let key = stored.key.clone();
            entries.push(read(stored).map_err(|source| Error::Malformed { key, source })?);
        }
        if done {
            return Ok(entries);
        }
    }
}

fn read(stored: Stored) -> Result<(Name, Entry), serde_json::Error> {
    let mut resource = Resource::from_stored(&stored.content)?;
    resource.metadata.resource_version = stored.version.to_string();
    Ok((Name::from_text(&stored.key), Entry::new(resource, stored.version)))
}

/// What is known of the subscription after a restart: the document that was tried last, if its condition says that the
/// engine took it; else it is tried again, which changes nothing if it is the same.
fn subscription_of(resource: &Resource, is_known: bool) -> Option<Subscription> {
    if !is_known {
        return None;
    }
    let said = resource.status.condition(Aspect::TriggersReady);
    let taken = said.is_some_and(|said| matches!(said.reason.as_str(), "Subscribed" | "MatchesNothing"));
    let is_current = taken && resource.status.observed_generation == resource.metadata.generation;
    let document = is_current.then(|| triggers::subscription(resource, resource.spec.url())).flatten();
    let hash = document.map(|document| hash::of(&document)).unwrap_or_default();
    Some(Subscription { hash, fault: None, leaving: false, waiting: 0 })
}
