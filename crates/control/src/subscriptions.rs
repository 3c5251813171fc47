//! Keeps the triggers of functions as subscriptions of the engine.

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

/// How often to check a subscription that is being deleted.
const LOOK_MS: u64 = 50;
/// Delay before a temporary failure is retried.
const AGAIN_MS: u64 = 500;

/// A change of the subscription of one function.
pub enum SubscriptionChange {
    Put(Value),
    /// Deletes the subscription. Events that are still pending at `until` become dead letters.
    Delete {
        until: Millis,
    },
}

enum ChangeResult {
    Accepted(String),
    Invalid(String, String),
    Deleting,
    Deleted,
    Retry,
}

impl Control {
    /// Applies all changes in one step.
    pub(crate) async fn change_subscriptions(
        &self,
        changes: Vec<(Name, SubscriptionChange)>,
    ) -> Result<(), Stopped> {
        if changes.is_empty() {
            return Ok(());
        }
        let now = self.clock.now();
        let result = move |engine: &mut Engine| -> Vec<(Name, ChangeResult)> {
            changes.into_iter().map(|(name, change)| change_subscription(engine, name, change, now)).collect()
        };
        for (name, result) in self.step(result).await? {
            self.note(&name, result);
        }
        Ok(())
    }

    /// The subscription in the form that the planner reads.
    pub(crate) fn subscription_of(&self, name: &Name) -> Option<observed::Subscription> {
        let state = self.lock();
        state.functions.get(name)?.subscription.as_ref().map(|known| observed::Subscription {
            hash: known.hash.clone(),
            waiting: known.waiting,
            draining: known.leaving,
            taken: true,
            fault: known.fault.clone(),
        })
    }

    fn note(&self, name: &Name, result: ChangeResult) {
        let mut state = self.lock();
        let Some(entry) = state.functions.get_mut(name) else { return };
        let waiting = entry.subscription.as_ref().map_or(0, |known| known.waiting);
        let mut next = Some(self.clock.now());
        entry.subscription = match result {
            ChangeResult::Accepted(hash) => Some(Subscription { hash, fault: None, leaving: false, waiting }),
            ChangeResult::Invalid(hash, fault) => {
                Some(Subscription { hash, fault: Some(fault), leaving: false, waiting })
            }
            ChangeResult::Deleting => {
                let hash = entry.subscription.take().map(|known| known.hash).unwrap_or_default();
                Some(Subscription { hash, fault: None, leaving: true, waiting })
            }
            ChangeResult::Deleted => None,
            ChangeResult::Retry => {
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

    /// Checks whether the subscriptions that are being deleted are gone.
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

fn change_subscription(
    engine: &mut Engine,
    name: Name,
    change: SubscriptionChange,
    now: Millis,
) -> (Name, ChangeResult) {
    let result = match change {
        SubscriptionChange::Put(document) => put(engine, &document),
        SubscriptionChange::Delete { until } => leave(engine, &name.subscription(), until.since(now)),
    };
    (name, result)
}

fn put(engine: &mut Engine, document: &Value) -> ChangeResult {
    let hash = hash::of(document);
    let parsed = match Document::parse(document) {
        Ok(parsed) => parsed,
        Err(faults) => {
            let fault = faults.first().map(ToString::to_string).unwrap_or_default();
            return ChangeResult::Invalid(hash, fault);
        }
    };
    match engine.put_subscription(parsed, false) {
        Ok(_) => ChangeResult::Accepted(hash),
        Err(Refused::DiskFull | Refused::Unavailable(_) | Refused::Conflict(_)) => ChangeResult::Retry,
        Err(refused) => ChangeResult::Invalid(hash, refused.to_string()),
    }
}

fn leave(engine: &mut Engine, subscription: &str, grace_ms: u64) -> ChangeResult {
    match engine.retire_subscription(subscription, grace_ms) {
        Ok(()) => ChangeResult::Deleting,
        Err(Refused::NotFound(_)) => ChangeResult::Deleted,
        Err(_) => ChangeResult::Retry,
    }
}
