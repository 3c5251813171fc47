//! What is held of each function, and which of them are to be planned.

use crate::gone::Gone;
use klambda_core::time::Millis;
use klambda_crash::Point;
use klambda_functions::name::Name;
use klambda_functions::resource::Resource;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

pub struct State {
    /// By name, so that lists have an order.
    pub functions: BTreeMap<Name, Entry>,
    pub gone: Gone,
    /// What the engine stored and is not yet taken over here.
    stored: Receiver<Stored>,
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
    pub subscription: Option<Subscription>,
    /// The version that was deployed last, and when.
    pub deployed: Option<(String, Millis)>,
}

/// What a step of the engine stored, in the order of the steps.
pub enum Stored {
    /// Somebody wrote it: it is planned next.
    Written {
        resource: Arc<Resource>,
        version: u64,
    },
    /// Its status is new.
    Planned {
        resource: Arc<Resource>,
        version: u64,
    },
    Removed(Name),
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
    pub fn new(resource: Arc<Resource>, version: u64) -> Entry {
        Entry { resource, version, queued: false, wake_at: None, subscription: None, deployed: None }
    }
}

impl State {
    pub fn new(stored: Receiver<Stored>) -> State {
        let (functions, gone) = (BTreeMap::new(), Gone::default());
        State { functions, gone, stored, queue: VecDeque::new(), wakes: BinaryHeap::new() }
    }

    /// Takes over what the engine stored since the last look.
    pub fn catch_up(&mut self) {
        while let Ok(stored) = self.stored.try_recv() {
            match stored {
                Stored::Written { resource, version } => {
                    let name = Name::of(&resource);
                    self.gone.take(&name);
                    self.store(&name, resource, version);
                    self.enqueue(&name);
                }
                Stored::Planned { resource, version } => {
                    Point::SharedLock.pass();
                    self.store(&Name::of(&resource), resource, version);
                }
                Stored::Removed(name) => {
                    self.functions.remove(&name);
                    self.gone.add(name);
                }
            }
        }
    }

    fn store(&mut self, name: &Name, resource: Arc<Resource>, version: u64) {
        match self.functions.get_mut(name) {
            Some(entry) => (entry.resource, entry.version) = (resource, version),
            None => drop(self.functions.insert(name.clone(), Entry::new(resource, version))),
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
