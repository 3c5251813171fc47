//! Whether a webhook endpoint is disabled, and since when it fails.

use crate::engine::{Engine, Failure};
use crate::operate::Refused;
use klambda_core::ids::SubscriptionId;
use klambda_core::outcome::CallOutcome;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use klambda_store::record::WhyDisabled;
use serde::{Deserialize, Serialize};

/// Survives a restart: it follows from the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Health {
    pub disabled: Option<Disabled>,
    /// The first failure since the last success.
    pub failing_since: Option<Millis>,
    pub last_success: Option<Millis>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disabled {
    pub since: Millis,
    pub why: WhyDisabled,
}

impl Health {
    pub(crate) fn succeeded(&mut self, time: Millis) {
        self.failing_since = None;
        self.last_success = Some(time);
    }

    pub(crate) fn failed(&mut self, time: Millis) {
        self.failing_since.get_or_insert(time);
    }
}

impl Engine {
    /// Disables an endpoint, or enables it. Returns false if nothing changed.
    pub fn set_endpoint_enabled(&mut self, name: &str, enabled: bool) -> Result<bool, Refused> {
        let id = self.subscription_id(name)?;
        self.must_write()?;
        let is_enabled = self.subscriptions.get(id).is_some_and(|s| s.life.health.disabled.is_none());
        if is_enabled == enabled {
            return Ok(false);
        }
        let changed = self.change_endpoint(id, (!enabled).then_some(WhyDisabled::Request));
        if let Err(failure) = changed {
            let refused = Refused::Unavailable(failure.to_string());
            self.note(Err(failure));
            return Err(refused);
        }
        Ok(true)
    }

    pub(crate) fn apply_disabled(&mut self, id: SubscriptionId, disabled: Option<Disabled>) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        subscription.life.health.disabled = disabled;
        // Enabling gives the endpoint its full time again.
        subscription.life.health.failing_since = None;
        if let (true, Some(disabled)) = (self.condition.live, disabled) {
            let name = subscription.name();
            tracing::warn!(subscription = %name, why = disabled.why.word(), "Webhook endpoint disabled");
        }
        self.rouse(id);
    }

    /// Disables the endpoint if it answered that it is gone, or if it has failed for too long.
    pub(crate) fn judge_health(&mut self, id: SubscriptionId, outcome: &CallOutcome) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let Some(endpoint) = subscription.document.spec.target.endpoint() else { return Ok(()) };
        let health = subscription.life.health;
        if health.disabled.is_some() {
            return Ok(());
        }
        let is_over = |since: Millis| self.now.since(since) >= endpoint.disable_after_ms;
        let why = match outcome {
            CallOutcome::Status { code: 410, .. } if !planted::is_on(Bug::GoneIgnored) => WhyDisabled::Gone,
            _ if health.failing_since.is_some_and(is_over) => WhyDisabled::NoSuccess,
            _ => return Ok(()),
        };
        self.change_endpoint(id, Some(why))
    }
}
