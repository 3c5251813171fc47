//! The control plane: loads the functions at startup and owns the state that its parts share.

use crate::counts::{Calls, Counting, Counts};
use crate::deleted::DeletedNames;
use crate::invoke::{Ids, caller};
use crate::options::Options;
use crate::shared_state::{Held, SharedState, rules};
use crate::state::{Entry, Subscription};
use klambda_core::time::Millis;
use klambda_dispatch::client::Caller;
use klambda_dispatch::documents::Stored;
use klambda_dispatch::runner::{Clock, Handle, Stopped};
use klambda_dispatch::{Engine, Failure};
use klambda_functions::logs::Query;
use klambda_functions::name::Name;
use klambda_functions::platform::{Home, Logs, News, Open, Platform};
use klambda_functions::resource::{Aspect, Phase, Resource};
use klambda_functions::{hash, triggers};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, OnceCell, RwLock};

/// The document kind under which the engine stores resources.
pub(crate) const DOCUMENTS: &str = "lambda";
const PAGE: usize = 500;

/// Clones share the same state.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

pub struct Shared {
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    handle: OnceLock<Handle>,
    state: SharedState,
    /// Number of functions. Only steps of the engine change this number, so the limit is exact.
    pub(crate) functions_count: AtomicUsize,
    /// Wakes the planning task when a function is due, or is due earlier than before.
    pub(crate) changed: Notify,
    open: Open,
    platform: OnceCell<Arc<dyn Platform>>,
    pub(crate) caller: Caller,
    pub(crate) ids: Ids,
    /// True when the server requires no tokens, so every caller may do everything.
    pub(crate) is_open: AtomicBool,
    pub(crate) counting: Counting,
    /// Steps of the engine share it until their changes are durable. A backup takes it exclusively for a moment.
    pub(crate) steps: RwLock<()>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not load functions: {0}")]
    Store(#[from] Failure),
    #[error(
        "could not load function {key}: {source}. If an earlier version of klambda stored this function, start with another \
         data folder (--data) and apply the functions again"
    )]
    Malformed { key: String, source: serde_json::Error },
}

impl std::ops::Deref for Control {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Control {
    /// Knows no functions until [`Control::load`] is called.
    pub fn new(options: Options, clock: Clock, open: Open) -> Control {
        let counting = Counting::new(options.named_max);
        let shared = Shared {
            options,
            ids: Ids::new(clock.now()),
            is_open: AtomicBool::new(true),
            clock,
            handle: OnceLock::new(),
            state: SharedState::new(),
            functions_count: AtomicUsize::new(0),
            changed: Notify::new(),
            open,
            platform: OnceCell::new(),
            caller: caller(),
            counting,
            steps: RwLock::new(()),
        };
        Control { shared: Arc::new(shared) }
    }

    /// Turns access control on: from now on the sender of a command matters.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    /// Loads the stored functions. Call this before the engine runs.
    pub fn load(&self, engine: &Engine) -> Result<(), Error> {
        let deleted = DeletedNames::load(engine)?;
        let mut entries = load(engine)?;
        for (name, entry) in &mut entries {
            let is_known = engine.subscription_id(&name.subscription()).is_ok();
            entry.subscription = subscription_of(&entry.resource, is_known);
        }
        self.functions_count.store(entries.len(), Ordering::Relaxed);
        let mut state = self.lock();
        state.deleted = deleted;
        state.functions.extend(entries);
        Ok(())
    }

    /// Starts planning. The platform is opened when the first function exists.
    pub async fn start(&self, handle: Handle) {
        // A second call to `start` has no effect: the first engine stays in use.
        let _ = self.handle.set(handle);
        let names: Vec<Name> = self.lock().functions.keys().cloned().collect();
        if !names.is_empty() {
            self.platform().await;
        }
        names.iter().for_each(|name| self.enqueue(name));
        tokio::spawn(self.clone().reconcile());
    }

    pub(crate) async fn platform(&self) -> Option<&Arc<dyn Platform>> {
        let opened = self.platform.get_or_try_init(|| (self.open)(self.home())).await;
        opened.inspect_err(|error| tracing::error!(%error, "Could not open the function platform")).ok()
    }

    fn home(&self) -> Home {
        let resources = self.lock().functions.values().map(|entry| entry.resource.clone()).collect();
        let (listener, clock) = (Arc::downgrade(&self.shared), self.clock);
        let tell = move |news| {
            if let Some(shared) = listener.upgrade() {
                shared.hear(news);
            }
        };
        Home { resources, tell: Arc::new(tell), now: Arc::new(move || clock.now()) }
    }

    /// Runs a change on the engine and returns when the change is durable.
    pub(crate) async fn step<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let step = move |engine: &mut Engine| {
            let _step = rules::mark_step();
            change(engine)
        };
        let _shared = self.steps.read().await;
        self.handle()?.command(step).await
    }

    /// Reads from the engine.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let step = move |engine: &mut Engine| {
            let _step = rules::mark_step();
            look(engine)
        };
        self.handle()?.query(step).await
    }

    /// Starts nothing new and stops everything that runs.
    pub async fn stop(&self) {
        if let Some(platform) = self.running() {
            platform.stop().await;
        }
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> Held<'_> {
        self.state.lock()
    }

    /// Do not call while holding the lock: the platform may read files.
    pub(crate) fn running(&self) -> Option<&Arc<dyn Platform>> {
        rules::assert_unlocked();
        self.platform.get()
    }

    /// Called in a step of the engine: makes the stored change visible in this state.
    pub(crate) fn stored(&self, stored: crate::state::Stored) {
        self.state.send(stored);
    }

    fn hear(&self, news: News) {
        match news {
            News::Changed(name) => self.enqueue(&name),
            News::Replicas(name) => {
                self.enqueue(&name);
                self.caller.sweep();
                if let Ok(handle) = self.handle() {
                    handle.function_ready(name.namespace(), name.name());
                }
            }
            News::BuildBegun(name) => self.counting.build_begun(&name),
            News::BuildEnded { name, outcome, took } => self.counting.build_ended(&name, outcome, took),
            News::CacheEmptied(reason) => self.counting.cache_emptied(reason),
        }
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

    /// Invocations of one function.
    pub fn calls(&self, name: &Name) -> Calls {
        self.counting.calls(name)
    }

    /// Builds that wait for a slot.
    pub fn builds_waiting(&self) -> usize {
        self.running().map_or(0, |platform| platform.builds_waiting())
    }

    /// Number of functions and agents by namespace and by status. Namespaces beyond the label limit are counted under an
    /// empty name.
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

    /// Number of replicas of each function and agent.
    pub fn replicas(&self) -> Vec<(Name, u32)> {
        let replicas =
            |entry: &Entry| entry.resource.status.service_status.as_ref().map(|seen| seen.replicas);
        let state = self.lock();
        state.functions.iter().map(|(name, entry)| (name.clone(), replicas(entry).unwrap_or(0))).collect()
    }

    /// The output of the function and its builds. `None` while the platform is not open.
    pub fn logs(&self, name: &Name, query: Query) -> Option<Box<dyn Logs>> {
        Some(self.running()?.logs(name, query))
    }

    /// Log lines that were not stored since the start.
    pub fn log_lines_dropped(&self) -> u64 {
        self.running().map_or(0, |platform| platform.log_lines_dropped())
    }

    pub fn get(&self, name: &Name) -> Option<Arc<Resource>> {
        self.lock().functions.get(name).map(|entry| entry.resource.clone())
    }

    /// Looks at every function and agent, without a copy.
    pub fn each(&self, mut look: impl FnMut(&Resource)) {
        self.lock().functions.values().for_each(|entry| look(&entry.resource));
    }

    /// A resource and the version of its document.
    pub(crate) fn live(&self, name: &Name) -> Option<(Arc<Resource>, u64)> {
        self.lock().functions.get(name).map(|entry| (entry.resource.clone(), entry.version))
    }

    /// Matching resources in name order, starting after `after`, and whether more follow.
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
    Ok((Name::from_text(&stored.key), Entry::new(Arc::new(resource), stored.version)))
}

/// Restores the state of the subscription after a restart. If the condition says that the engine accepted the current
/// document, its hash is restored; otherwise the document is sent again, which changes nothing when it is the same.
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
