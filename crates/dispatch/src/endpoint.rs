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
    breakers: BTreeMap<EndpointId, Breaker>,
    /// Endpoints whose breakers are not closed.
    troubled: BTreeSet<EndpointId>,
    next: u64,
}

impl Endpoints {
    pub fn new(limits: Limits) -> Endpoints {
        let (breakers, troubled) = (BTreeMap::new(), BTreeSet::new());
        Endpoints { limits, by_authority: HashMap::new(), breakers, troubled, next: 1 }
    }

    /// The endpoint of a target: its scheme, host and port. Endpoints are separate per namespace.
    pub fn of(&mut self, namespace: NamespaceId, document: &Document) -> EndpointId {
        let target = &document.spec.target;
        let name = match target {
            Target::Endpoint(_) => document.name.clone(),
            Target::Url(_) | Target::Function(_) => authority(&target.address()).to_owned(),
        };
        let key = (namespace, name);
        if let Some(id) = self.by_authority.get(&key) {
            return *id;
        }
        let id = EndpointId(self.next);
        self.next += 1;
        self.by_authority.insert(key, id);
        self.breakers.insert(id, Breaker::new(self.limits));
        id
    }

    /// Forgets endpoints that no subscription uses.
    pub fn keep(&mut self, is_used: impl Fn(EndpointId) -> bool) {
        self.by_authority.retain(|_, id| is_used(*id));
        self.breakers.retain(|id, _| is_used(*id));
        self.troubled.retain(|id| is_used(*id));
    }

    /// `None` if the endpoint was forgotten.
    pub fn breaker(&self, endpoint: EndpointId) -> Option<&Breaker> {
        self.breakers.get(&endpoint)
    }

    /// Updates the breaker of an endpoint. Does nothing if the endpoint was forgotten.
    pub fn tell<T>(&mut self, endpoint: EndpointId, what: impl FnOnce(&mut Breaker) -> T) -> Option<T> {
        let breaker = self.breakers.get_mut(&endpoint)?;
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
