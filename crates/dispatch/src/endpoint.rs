//! The places subscriptions deliver to. Subscriptions with the same target share one breaker.

use hashbrown::HashMap;
use klambda_core::breaker::{Breaker, Limits, State};
use klambda_core::subscription::Target;
use klambda_core::time::Millis;

pub struct Endpoints {
    limits: Limits,
    by_authority: HashMap<String, usize>,
    breakers: Vec<(String, Breaker)>,
}

impl Endpoints {
    pub fn new(limits: Limits) -> Endpoints {
        Endpoints { limits, by_authority: HashMap::new(), breakers: Vec::new() }
    }

    /// The endpoint of a target: its scheme, host and port.
    pub fn of(&mut self, target: &Target) -> usize {
        let authority = authority(&target.url);
        if let Some(index) = self.by_authority.get(authority) {
            return *index;
        }
        self.breakers.push((authority.to_owned(), Breaker::new(self.limits)));
        self.by_authority.insert(authority.to_owned(), self.breakers.len() - 1);
        self.breakers.len() - 1
    }

    pub fn breaker(&self, endpoint: usize) -> &Breaker {
        &self.breakers[endpoint].1
    }

    pub fn breaker_mut(&mut self, endpoint: usize) -> &mut Breaker {
        &mut self.breakers[endpoint].1
    }

    /// The next time an open breaker lets a probe through.
    pub fn next_probe(&self) -> Option<Millis> {
        let probes = self.breakers.iter().filter_map(|(_, breaker)| match breaker.state() {
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
