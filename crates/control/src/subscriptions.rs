//! Triggers, kept as subscriptions of the engine.

use crate::control::Control;
use crate::state::Subscription;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_dispatch::Engine;
use klambda_dispatch::operate::Refused;
use klambda_dispatch::runner::Stopped;
use klambda_functions::name::Name;
use klambda_functions::{hash, observed};
use serde_json::Value;

/// How often a subscription that is to go is looked at.
const LOOK_MS: u64 = 50;
/// When something that may pass is tried again.
const AGAIN_MS: u64 = 500;

/// What is asked of the engine for one function.
pub enum Wish {
    Put(Value),
    /// What still waits then becomes dead letters.
    Leave {
        until: Millis,
    },
}

enum Met {
    Taken(String),
    Faulty(String, String),
    Leaves,
    Gone,
    NotYet,
}

impl Control {
    /// All of them in one step.
    pub(crate) async fn meet(&self, wishes: Vec<(Name, Wish)>) -> Result<(), Stopped> {
        if wishes.is_empty() {
            return Ok(());
        }
        let now = self.clock.now();
        let met = move |engine: &mut Engine| -> Vec<(Name, Met)> {
            wishes.into_iter().map(|(name, wish)| meet(engine, name, wish, now)).collect()
        };
        for (name, met) in self.step(met).await? {
            self.note(&name, met);
        }
        Ok(())
    }

    /// As the plan wants it.
    pub(crate) fn subscription_of(&self, name: &Name) -> Option<observed::Subscription> {
        let state = self.lock();
        state.functions.get(name)?.subscription.as_ref().map(|known| observed::Subscription {
            hash: known.hash.clone(),
            waiting: known.waiting,
            draining: known.leaving,
            fault: known.fault.clone(),
        })
    }

    fn note(&self, name: &Name, met: Met) {
        let mut state = self.lock();
        let Some(entry) = state.functions.get_mut(name) else { return };
        let waiting = entry.subscription.as_ref().map_or(0, |known| known.waiting);
        let mut next = Some(self.clock.now());
        entry.subscription = match met {
            Met::Taken(hash) => Some(Subscription { hash, fault: None, leaving: false, waiting }),
            Met::Faulty(hash, fault) => {
                Some(Subscription { hash, fault: Some(fault), leaving: false, waiting })
            }
            Met::Leaves => {
                let hash = entry.subscription.take().map(|known| known.hash).unwrap_or_default();
                Some(Subscription { hash, fault: None, leaving: true, waiting })
            }
            Met::Gone => None,
            Met::NotYet => {
                next = Some(self.clock.now() + AGAIN_MS);
                entry.subscription.take()
            }
        };
        if let Some(at) = next {
            state.wake(name, at);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Whether those that are to go are gone.
    pub(crate) async fn look_at_leaving(&self, names: &[Name]) -> Result<(), Stopped> {
        let is_leaving = |state: &crate::state::State, name: &&Name| {
            let entry = state.functions.get(*name);
            entry.and_then(|entry| entry.subscription.as_ref()).is_some_and(|known| known.leaving)
        };
        let leaving: Vec<Name> = {
            let state = self.lock();
            names.iter().filter(|name| is_leaving(&state, name)).cloned().collect()
        };
        if leaving.is_empty() {
            return Ok(());
        }
        let look = move |engine: &Engine| -> Vec<(Name, Option<u64>)> {
            let waiting = |name: &Name| Some(engine.view_subscription(&name.subscription())?.status.waiting);
            leaving.into_iter().map(|name| (name.clone(), waiting(&name))).collect()
        };
        let seen = self.look(look).await?;
        let mut state = self.lock();
        for (name, waiting) in seen {
            let Some(entry) = state.functions.get_mut(&name) else { continue };
            match (waiting, entry.subscription.as_mut()) {
                (Some(waiting), Some(known)) => {
                    known.waiting = waiting;
                    state.wake(&name, self.clock.now() + LOOK_MS);
                }
                _ => entry.subscription = None,
            }
        }
        Ok(())
    }
}

fn meet(engine: &mut Engine, name: Name, wish: Wish, now: Millis) -> (Name, Met) {
    let met = match wish {
        Wish::Put(document) => put(engine, &document),
        Wish::Leave { until } => leave(engine, &name.subscription(), until.since(now)),
    };
    (name, met)
}

fn put(engine: &mut Engine, document: &Value) -> Met {
    let hash = hash::of(document);
    let parsed = match Document::parse(document) {
        Ok(parsed) => parsed,
        Err(faults) => {
            let fault = faults.first().map(ToString::to_string).unwrap_or_default();
            return Met::Faulty(hash, fault);
        }
    };
    match engine.put_subscription(parsed, false) {
        Ok(_) => Met::Taken(hash),
        Err(Refused::DiskFull | Refused::Unavailable(_) | Refused::Conflict(_)) => Met::NotYet,
        Err(refused) => Met::Faulty(hash, refused.to_string()),
    }
}

fn leave(engine: &mut Engine, subscription: &str, grace_ms: u64) -> Met {
    match engine.retire_subscription(subscription, grace_ms) {
        Ok(()) => Met::Leaves,
        Err(Refused::NotFound(_)) => Met::Gone,
        Err(_) => Met::NotYet,
    }
}
