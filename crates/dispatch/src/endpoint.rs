//! Delivery endpoints. Subscriptions of a namespace with the same target share one breaker. A webhook endpoint has a
//! breaker of its own, so that one that shares its host cannot affect it.

pub mod health;
mod notice;

use hashbrown::HashMap;
use klambda_core::breaker::{Breaker, Limits, State};
use klambda_core::ids::NamespaceId;
use klambda_core::subscription::{Document, Target};
use klambda_core::time::Millis;
use std::collections::{BTreeMap, BTreeSet};

/// Ids are never reused, so that a late outcome is not attributed to another endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(u64);

pub struct Endpoints {
    limits: Limits,
    by_authority: HashMap<(NamespaceId, String), EndpointId>,
    all: BTreeMap<EndpointId, Endpoint>,
    /// Endpoints whose breakers are not closed.
    troubled: BTreeSet<EndpointId>,
    next: u64,
}

struct Endpoint {
    name: (NamespaceId, String),
    breaker: Breaker,
    /// The number of subscriptions that use it.
    users: usize,
}

impl Endpoints {
    pub fn new(limits: Limits) -> Endpoints {
        let (all, troubled) = (BTreeMap::new(), BTreeSet::new());
        Endpoints { limits, by_authority: HashMap::new(), all, troubled, next: 1 }
    }

    /// Adds a subscription to the endpoint of its target: scheme, host and port. Endpoints are separate per namespace.
    pub fn join(&mut self, namespace: NamespaceId, document: &Document) -> EndpointId {
        let target = &document.spec.target;
        let name = match target {
            Target::Endpoint(_) => document.name.clone(),
            Target::Url(_) | Target::Function(_) => authority(&target.address()).to_owned(),
        };
        let name = (namespace, name);
        if let Some(id) = self.by_authority.get(&name)
            && let Some(endpoint) = self.all.get_mut(id)
        {
            endpoint.users += 1;
            return *id;
        }
        let id = EndpointId(self.next);
        self.next += 1;
        self.by_authority.insert(name.clone(), id);
        self.all.insert(id, Endpoint { name, breaker: Breaker::new(self.limits), users: 1 });
        id
    }

    /// Removes a subscription from its endpoint. An endpoint that no subscription uses is forgotten.
    pub fn leave(&mut self, id: EndpointId) {
        let Some(endpoint) = self.all.get_mut(&id) else { return };
        endpoint.users -= 1;
        if endpoint.users == 0 {
            self.by_authority.remove(&endpoint.name);
            self.all.remove(&id);
            self.troubled.remove(&id);
        }
    }

    /// `None` if the endpoint was forgotten.
    pub fn breaker(&self, endpoint: EndpointId) -> Option<&Breaker> {
        self.all.get(&endpoint).map(|endpoint| &endpoint.breaker)
    }

    /// Updates the breaker of an endpoint. Does nothing if the endpoint was forgotten.
    pub fn tell<T>(&mut self, endpoint: EndpointId, what: impl FnOnce(&mut Breaker) -> T) -> Option<T> {
        let breaker = &mut self.all.get_mut(&endpoint)?.breaker;
        let told = what(breaker);
        match breaker.is_closed() {
            true => self.troubled.remove(&endpoint),
            false => self.troubled.insert(endpoint),
        };
        Some(told)
    }

    /// Closed if the endpoint was forgotten.
    pub fn state(&self, endpoint: EndpointId) -> State {
        self.breaker(endpoint).map_or(State::Closed, Breaker::state)
    }

    /// The next time an open breaker allows a probe.
    pub fn next_probe(&self) -> Option<Millis> {
        let probes = self.troubled.iter().filter_map(|endpoint| match self.state(*endpoint) {
            State::Open { probe_at } => Some(probe_at),
            _ => None,
        });
        probes.min()
    }
}

fn authority(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    &url[..end]
}
