//! The state of each function, and the queue of functions to plan.

use crate::deleted::DeletedNames;
use klambda_core::time::Millis;
use klambda_crash::Point;
use klambda_functions::name::Name;
use klambda_functions::resource::Resource;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

pub struct State {
    /// Sorted by name, which is the order of lists.
    pub functions: BTreeMap<Name, Entry>,
    pub deleted: DeletedNames,
    /// Changes that the engine has stored and this state has not applied yet.
    stored: Receiver<Stored>,
    queue: VecDeque<Name>,
    /// When to plan a function even if nothing changes. A function that was planned earlier leaves a stale entry here.
    wakes: BinaryHeap<Reverse<(Millis, Name)>>,
}

pub struct Entry {
    pub resource: Arc<Resource>,
    /// Version of the document.
    pub version: u64,
    pub queued: bool,
    pub wake_at: Option<Millis>,
    pub subscription: Option<Subscription>,
    /// The version that was deployed last, and when.
    pub deployed: Option<(String, Millis)>,
}

/// A change that a step of the engine stored. Changes arrive in the order of the steps.
pub enum Stored {
    /// A caller wrote the resource. It is planned next.
    Written {
        resource: Arc<Resource>,
        version: u64,
    },
    /// A plan stored a new status.
    Planned {
        resource: Arc<Resource>,
        version: u64,
    },
    Removed(Name),
    /// A secret was written or deleted.
    Secret {
        namespace: String,
        name: String,
    },
}

pub struct Subscription {
    /// Hash of the last document sent to the engine.
    pub hash: String,
    pub fault: Option<String>,
    /// The subscription is being deleted. Deletion is complete when the engine no longer has it.
    pub leaving: bool,
    pub waiting: u64,
}

impl Entry {
    pub fn new(resource: Arc<Resource>, version: u64) -> Entry {
        Entry { resource, version, queued: false, wake_at: None, subscription: None, deployed: None }
    }
}

impl State {
    pub fn new(stored: Receiver<Stored>) -> State {
        let (functions, deleted) = (BTreeMap::new(), DeletedNames::default());
        State { functions, deleted, stored, queue: VecDeque::new(), wakes: BinaryHeap::new() }
    }

    /// Applies all changes that the engine stored since the last call.
    pub fn catch_up(&mut self) {
        while let Ok(stored) = self.stored.try_recv() {
            match stored {
                Stored::Written { resource, version } => {
                    let name = Name::of(&resource);
                    self.deleted.take(&name);
                    self.store(&name, resource, version);
                    self.enqueue(&name);
                }
                Stored::Planned { resource, version } => {
                    Point::SharedLock.pass();
                    self.store(&Name::of(&resource), resource, version);
                }
                Stored::Removed(name) => {
                    self.functions.remove(&name);
                    self.deleted.add(name);
                }
                Stored::Secret { namespace, name } => self.enqueue_users(&namespace, &name),
            }
        }
    }

    fn store(&mut self, name: &Name, resource: Arc<Resource>, version: u64) {
        match self.functions.get_mut(name) {
            Some(entry) => (entry.resource, entry.version) = (resource, version),
            None => drop(self.functions.insert(name.clone(), Entry::new(resource, version))),
        }
    }

    /// Returns false if the function was already queued.
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

    /// The next functions to plan, first in, first out.
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
