//! What is held of each function, and which of them are to be planned.

use crate::gone::Gone;
use crate::names::Name;
use klambda_core::time::Millis;
use klambda_functions::failure::Failure;
use klambda_functions::observed::{BuildRun, Fetch};
use klambda_functions::resource::{Resource, Scaling};
use klambda_local::fleet::Run;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use tempfile::TempDir;

#[derive(Default)]
pub struct State {
    /// By name, so that lists have an order.
    pub functions: BTreeMap<Name, Entry>,
    pub gone: Gone,
    queue: VecDeque<Name>,
    /// When to plan a function though nothing happened. One that was planned sooner leaves a stale entry behind.
    wakes: BinaryHeap<Reverse<(Millis, Name)>>,
}

pub struct Entry {
    pub resource: Arc<Resource>,
    /// Of its document.
    pub version: u64,
    pub queued: bool,
    pub wake_at: Option<Millis>,
    pub work: Option<Box<Work>>,
    pub deployed: Vec<Deployed>,
    /// All of it is being ended.
    pub retiring: bool,
    pub subscription: Option<Subscription>,
}

/// Fetches and builds; nothing of it is kept for a function that is at rest.
#[derive(Default)]
pub struct Work {
    pub fetch: Option<Fetch>,
    pub build: Option<BuildRun>,
    /// What was fetched.
    pub folder: Option<Arc<TempDir>>,
}

/// A version that the fleet was told of, or that could not even be told.
#[derive(Clone)]
pub struct Deployed {
    pub version: Arc<str>,
    pub artifact: Arc<str>,
    pub generation: u64,
    pub scaling: Scaling,
    pub since: Millis,
    pub run: Result<Run, Failure>,
    /// It runs elsewhere and has not answered yet: the fleet is told of it when it has.
    pub asking: bool,
}

impl Deployed {
    /// Whether the fleet knows of it.
    pub fn is_told(&self) -> bool {
        self.run.is_ok() && !self.asking
    }
}

pub struct Subscription {
    /// Of the last document that was tried.
    pub hash: String,
    pub fault: Option<String>,
    /// It is to go, and gone when the engine no longer has it.
    pub leaving: bool,
    pub waiting: u64,
}

impl Entry {
    pub fn new(resource: Resource, version: u64) -> Entry {
        Entry {
            resource: Arc::new(resource),
            version,
            queued: false,
            wake_at: None,
            work: None,
            deployed: Vec::new(),
            retiring: false,
            subscription: None,
        }
    }

    pub fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }
}

impl State {
    /// Puts a resource where it belongs, as the engine has it from now on.
    pub fn store(&mut self, mut resource: Resource, version: u64) {
        resource.metadata.resource_version = version.to_string();
        let name = Name::of(&resource);
        match self.functions.get_mut(&name) {
            Some(entry) => (entry.resource, entry.version) = (Arc::new(resource), version),
            None => drop(self.functions.insert(name, Entry::new(resource, version))),
        }
    }

    /// Whether it was not in the queue already.
    pub fn enqueue(&mut self, name: &Name) -> bool {
        let Some(entry) = self.functions.get_mut(name) else { return false };
        let added = !std::mem::replace(&mut entry.queued, true);
        if added {
            self.queue.push_back(name.clone());
        }
        added
    }

    pub fn wake(&mut self, name: &Name, at: Millis) {
        let Some(entry) = self.functions.get_mut(name) else { return };
        if entry.wake_at.is_none_or(|known| at < known) {
            entry.wake_at = Some(at);
            self.wakes.push(Reverse((at, name.clone())));
        }
    }

    pub fn next_wake(&self) -> Option<Millis> {
        self.wakes.peek().map(|Reverse((at, _))| *at)
    }

    /// The next functions to plan, in the order of coming.
    pub fn take(&mut self, most: usize, now: Millis) -> Vec<Name> {
        while let Some(Reverse((at, _))) = self.wakes.peek().filter(|Reverse((at, _))| *at <= now) {
            let at = *at;
            let Some(Reverse((_, name))) = self.wakes.pop() else { break };
            let Some(entry) = self.functions.get_mut(&name) else { continue };
            if entry.wake_at == Some(at) {
                entry.wake_at = None;
                self.enqueue(&name);
            }
        }
        let count = self.queue.len().min(most);
        let names: Vec<Name> = self.queue.drain(..count).collect();
        for name in &names {
            if let Some(entry) = self.functions.get_mut(name) {
                entry.queued = false;
            }
        }
        names
    }
}
