//! Applies changes of subscriptions: create, update, pause, delete.

use crate::endpoint::health::Disabled;
use crate::engine::{Engine, Failure};
use crate::lanes::Slot;
use crate::rows;
use crate::subscription::{Phase, Reading, Subscription, Tally};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::planted::{self, Bug};
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::address::LogAddress;
use klambda_store::record::Change;

impl Engine {
    pub(super) fn apply_change(
        &mut self,
        at: LogAddress,
        time: Millis,
        id: SubscriptionId,
        change: &Change<'_>,
        position: Position,
    ) -> Result<(), Failure> {
        if let Change::Drain | Change::Retire { .. } | Change::Remove = change {
            self.subscriptions.parted.note(id, time);
        }
        match change {
            Change::Put { document } => {
                let parsed = serde_json::from_str(document).ok().and_then(|json| Document::parse(&json).ok());
                let document = parsed.ok_or(Malformed("subscription document"))?;
                self.apply_put(at, time, id, document, position)
            }
            Change::Pause | Change::Resume => {
                let paused = *change == Change::Pause;
                self.change_document(id, |document| document.spec.paused = paused);
                let next = self.subscriptions.get_mut(id).and_then(|s| s.next_rules.document.as_mut());
                if let Some(next) = next {
                    next.spec.paused = paused;
                }
                Ok(())
            }
            Change::Drain => {
                self.leave(id, Phase::Draining, Reading::Draining);
                Ok(())
            }
            Change::Retire { until } => {
                let until = *until;
                self.leave(id, Phase::Retiring { until }, Reading::Retiring { until });
                Ok(())
            }
            Change::Retired => {
                self.apply_retired(id);
                Ok(())
            }
            Change::Remove => {
                self.remove_subscription(id);
                Ok(())
            }
            Change::Caught { up_to } => {
                self.apply_caught(id, time, *up_to, position);
                Ok(())
            }
            Change::Disabled { why } => {
                self.apply_disabled(id, Some(Disabled { since: time, why: *why }));
                Ok(())
            }
            Change::Enabled => {
                self.apply_disabled(id, None);
                Ok(())
            }
        }
    }

    pub(super) fn apply_put(
        &mut self,
        at: LogAddress,
        time: Millis,
        id: SubscriptionId,
        document: Document,
        next_position: Position,
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else {
            let namespace = self.namespaces.named(&document.namespace).ok_or(Malformed("namespace"))?;
            let (phase, began_late) = self.first_phase(&document, at, next_position);
            let mut subscription = Subscription::new(id, namespace, document, time, phase);
            subscription.life.began = next_position;
            subscription.unread.from = Position(next_position.0 - 1);
            subscription.tally = Tally::new(self.config.log.segment_bytes);
            subscription.decide_on_ages();
            subscription.notes.began_late = began_late;
            subscription.flow.endpoint = self.calls.endpoints.join(namespace, &subscription.document);
            self.subscriptions.add(subscription);
            return Ok(());
        };
        let differs = subscription.document.epoch_differs(&document);
        let at_once = !differs || subscription.is_drained();
        let is_live = subscription.phase == Phase::Live;
        if subscription.document.spec.filters != document.spec.filters {
            self.subscriptions.parted.note(id, time);
        }
        if at_once {
            if differs {
                self.begin_epoch(id);
            }
            let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
            // The latest document wins over rules that have not taken effect yet.
            subscription.next_rules.document = None;
            subscription.tally.later_old = 0;
            self.change_document(id, |old| {
                let target = planted::is_on(Bug::OldTarget).then(|| old.spec.target.clone());
                *old = document;
                if let Some(target) = target {
                    old.spec.target = target;
                }
            });
        } else {
            // Pending and unread events drain under the old rules. The subscription reads newer events afterwards.
            if is_live {
                self.fall_behind(id, at, next_position);
            }
            let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
            if subscription.next_rules.document.is_none() {
                let is_behind = subscription.is_behind();
                subscription.next_rules.from = if is_behind { next_position } else { Position(0) };
                subscription.tally.later_old = if is_behind { subscription.tally.later } else { 0 };
            }
            let meanwhile = document.ordered_as(&subscription.document);
            subscription.next_rules.document = Some(document);
            self.change_document(id, |old| *old = meanwhile);
        }
        Ok(())
    }

    /// Stops accepting new events. A lagging subscription first reads everything that it accepted.
    fn leave(&mut self, id: SubscriptionId, at_once: Phase, reading: Reading) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        match &mut subscription.phase {
            Phase::CatchingUp { why, .. } => *why = reading,
            phase => *phase = at_once,
        }
    }

    /// Starts an epoch with other rules for keys or sequences. Nothing is pending at this point, and the sequences
    /// that lanes expect no longer apply. Lanes on disk enter the epoch when they are loaded.
    fn begin_epoch(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        subscription.life.epochs += 1;
        // These positions belong to events that are gone.
        subscription.unordered.ready.clear();
        let epoch = subscription.life.epochs;
        for (_, resident) in self.lanes.iter_mut().filter(|(_, resident)| resident.subscription == id) {
            resident.enter(epoch);
        }
        self.replays.plan_again();
    }

    pub(crate) fn change_document(&mut self, id: SubscriptionId, change: impl FnOnce(&mut Document)) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        let mut document = (*subscription.document).clone();
        change(&mut document);
        let before = std::mem::replace(
            &mut subscription.flow.endpoint,
            self.calls.endpoints.join(subscription.namespace, &document),
        );
        self.subscriptions.set_document(id, document);
        self.rouse(id);
        self.calls.endpoints.leave(before);
    }

    pub(crate) fn remove_subscription(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.subscriptions.remove(id) else { return };
        // A new subscription may have the same name by now.
        if self.subscriptions.named(subscription.name()).is_none() {
            self.metrics.forget(subscription.name());
        }
        self.calls.endpoints.leave(subscription.flow.endpoint);
        self.replays.forget(id);
        let slots: Vec<Slot> = self
            .lanes
            .iter()
            .filter(|(_, resident)| resident.subscription == id)
            .map(|(slot, _)| slot)
            .collect();
        slots.into_iter().for_each(|slot| {
            self.lanes.remove(slot);
        });
        self.store.rows.delete(&rows::of_subscription(rows::SUBSCRIPTION, id));
        if planted::is_on(Bug::SubscriptionReused) {
            self.subscriptions.set_next(id);
        }
    }
}
