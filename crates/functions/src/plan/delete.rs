//! Deletion: deliver pending events for a limited time, then stop all versions, then remove the resource.

use super::{Action, Planner};
use crate::conditions::Saying;
use crate::observed::Subscription;
use crate::platform::Task;
use crate::resource::{Aspect, Phase};
use klambda_core::kinds::EventKind;
use klambda_core::time::Millis;

const GONE: &str = "Removed";

impl Planner<'_> {
    pub(super) fn delete(&mut self) {
        self.set_phase(Phase::Deleting);
        self.abandon();
        let since = self.desired.metadata.deletion_timestamp.map_or(self.now, |time| time.0);
        match &self.observed.subscription {
            Some(subscription) => self.drain(subscription, since + self.limits.drain_ms_max),
            None => self.end_versions(),
        }
    }

    /// Waits for pending events only while a version serves.
    fn drain(&mut self, subscription: &Subscription, until: Millis) {
        let done = subscription.draining && subscription.waiting == 0;
        if done || self.now >= until || self.observed.serving().is_none() {
            return self.act(Action::Unsubscribe);
        }
        if !subscription.draining {
            self.act(Action::Drain { until });
        }
        self.wake(until);
    }

    fn end_versions(&mut self) {
        let observed = self.observed;
        for version in observed.versions.iter().filter(|version| !version.is_retiring()) {
            self.act(Task::Retire { version: version.version.clone() });
        }
        if observed.versions.is_empty() {
            self.remove();
        }
    }

    /// Emits its events once, even if a crash delays the removal of the resource.
    fn remove(&mut self) {
        self.act(Action::Remove);
        let known = self.status.condition(Aspect::ServiceReady).is_some_and(|known| known.reason == GONE);
        if known {
            return;
        }
        self.say(Aspect::ServiceReady, Saying::no(GONE, "Deleted"));
        if self.status.service_status.is_some() {
            self.tell_service(EventKind::ServiceDeleted);
            self.status.service_status = None;
        }
        // `FunctionDeleted` is the last event about a function.
        self.tell_status(EventKind::StatusUpdated);
        self.changed = false;
        self.tell_function(EventKind::FunctionDeleted);
    }
}
