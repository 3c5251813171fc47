//! Views of subscriptions: their documents and their status.

use super::{Page, Time, counted};
use crate::engine::Engine;
use crate::subscription::{self, Phase, Reading};
use klambda_core::breaker;
use klambda_core::lane::State;
use klambda_core::namespace::{self, Within};
use klambda_core::subscription::CONTROLLER;
use klambda_core::subscription::{API_VERSION, Document, KIND};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    api_version: &'static str,
    kind: &'static str,
    pub metadata: Metadata,
    #[schemars(with = "super::SubscriptionSpec")]
    pub spec: Value,
    pub status: Status,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SubscriptionMetadata")]
pub struct Metadata {
    pub namespace: String,
    pub name: String,
    created_at: Time,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SubscriptionStatus")]
pub struct Status {
    #[schemars(extend("enum" = ["active", "paused", "disabled", "behind", "catchingUp", "draining", "retired"]))]
    pub phase: &'static str,
    pub waiting: u64,
    pub waiting_bytes: u64,
    /// Part of `waiting`: accepted while the subscription was full or read the log, and in no lane yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<Unread>,
    pub in_flight: u32,
    pub parked: u64,
    pub dead_letters: u64,
    pub oldest: Option<Time>,
    pub lanes: Lanes,
    pub breaker: Breaker,
    pub delivered: u64,
    pub messages: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Unread {
    pub events: u64,
    pub bytes: u64,
    /// None of them was accepted before this time.
    pub oldest: Time,
}

/// Lanes with pending events, and paused lanes, by state.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "LaneCounts")]
pub struct Lanes {
    pub open: u64,
    pub running: u64,
    pub retrying: u64,
    pub gap: u64,
    pub parked: u64,
    pub paused: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Breaker {
    #[schemars(extend("enum" = ["closed", "open", "half-open"]))]
    pub state: &'static str,
    pub next_probe: Option<Time>,
}

impl Engine {
    pub fn view_subscription(&self, name: &str) -> Option<Subscription> {
        let id = self.subscriptions.named(name)?;
        self.subscriptions.get(id).map(|subscription| self.subscription_view(subscription))
    }

    /// The status alone, which takes a fraction of the time of the whole view.
    pub fn view_subscription_status(&self, name: &str) -> Option<Status> {
        let id = self.subscriptions.named(name)?;
        self.subscriptions.get(id).map(|subscription| self.subscription_status(subscription))
    }

    /// The latest document, including secrets.
    pub fn subscription_document(&self, name: &str) -> Option<Document> {
        let subscription = self.subscriptions.get(self.subscriptions.named(name)?)?;
        Some(subscription.next_rules.document.as_ref().unwrap_or(&subscription.document).clone())
    }

    /// Subscriptions by full name, after `after`.
    pub fn view_subscriptions(
        &self,
        within: &Within,
        after: Option<&str>,
        limit: usize,
    ) -> Page<Subscription> {
        let mut names: Vec<&str> = self.subscriptions.names().collect();
        names.retain(|full_name| {
            let (inside, name) = namespace::split(full_name);
            name != CONTROLLER && within.has(inside) && after.is_none_or(|after| *full_name > after)
        });
        names.sort_unstable();
        let next =
            (names.len() > limit).then(|| names[..limit].last().map(|name| (*name).to_owned())).flatten();
        let items = names.iter().take(limit).filter_map(|name| self.view_subscription(name)).collect();
        Page { items, next }
    }

    fn subscription_view(&self, subscription: &subscription::Subscription) -> Subscription {
        // The latest document, even while events drain under the previous rules.
        let document = subscription.next_rules.document.as_ref().unwrap_or(&subscription.document);
        let mut spec = document.to_json()["spec"].take();
        spec["paused"] = subscription.document.spec.paused.into();
        Subscription {
            api_version: API_VERSION,
            kind: KIND,
            metadata: Metadata {
                namespace: document.namespace.clone(),
                name: document.name.clone(),
                created_at: Time(subscription.life.created),
            },
            spec,
            status: self.subscription_status(subscription),
        }
    }

    fn subscription_status(&self, subscription: &subscription::Subscription) -> Status {
        let tally = &subscription.tally;
        Status {
            phase: phase(subscription),
            waiting: tally.owed(),
            waiting_bytes: tally.owed_bytes(),
            unread: (tally.later > 0).then_some(Unread {
                events: tally.later,
                bytes: tally.later_bytes,
                oldest: Time(tally.later_since),
            }),
            in_flight: subscription.flow.in_flight,
            parked: tally.parked(),
            dead_letters: tally.dead + tally.held,
            oldest: tally.oldest_owed().map(Time),
            lanes: Lanes::of(subscription),
            breaker: Breaker::new(self.calls.endpoints.state(subscription.flow.endpoint)),
            delivered: tally.delivered,
            messages: self.messages(subscription),
        }
    }

    fn messages(&self, subscription: &subscription::Subscription) -> Vec<String> {
        let waiting = subscription.tally.owed();
        let mut messages = Vec::new();
        if let Some(at) = subscription.notes.began_late {
            messages.push(format!("started at {}: the log has no older events", at.rfc3339()));
        }
        match subscription.phase {
            Phase::Draining => {
                messages.push(format!(
                    "being deleted: no new events are accepted, {} to deliver",
                    counted(waiting, "event")
                ));
            }
            Phase::CatchingUp { .. } if subscription.next_rules.document.is_some() => {
                let waiting = subscription.tally.waiting + subscription.unread_under_rules();
                messages.push(format!(
                    "new ordering rules take effect when the events pending under the old \
                     rules are delivered ({waiting} left)"
                ));
            }
            Phase::CatchingUp { why: Reading::Draining | Reading::Retiring { .. }, .. } => {
                messages.push(format!(
                    "being deleted: no new events are accepted, {} to deliver",
                    counted(waiting, "event")
                ));
            }
            Phase::CatchingUp { done, why: Reading::Past, .. } => {
                let last = self.store.log.next_position().0 - 1;
                messages.push(format!("reading the log: position {done} of {last}"));
            }
            Phase::Retiring { until } => messages.push(format!(
                "being deleted: no new events are accepted, {} to deliver; undelivered events become dead letters at {}",
                counted(waiting, "event"),
                until.rfc3339()
            )),
            Phase::CatchingUp { .. } | Phase::Live | Phase::Retired => {}
        }
        messages.extend(self.backlog_messages(subscription));
        messages.extend(self.put_off_message(subscription));
        let without_key = subscription.notes.events_without_key;
        if without_key > 0 {
            messages.push(format!(
                "{} without partitionkey and subject: the source is used as the key, so all events of a source share \
                 one lane; set orderingPolicy.key to use another attribute",
                counted(without_key, "event")
            ));
        }
        messages
    }
}

fn phase(subscription: &subscription::Subscription) -> &'static str {
    match subscription.phase {
        Phase::Retired => "retired",
        _ if subscription.is_leaving() => "draining",
        _ if subscription.life.health.disabled.is_some() => "disabled",
        _ if subscription.is_paused() => "paused",
        Phase::CatchingUp { .. }
            if subscription.is_behind() && subscription.next_rules.document.is_none() =>
        {
            "behind"
        }
        Phase::CatchingUp { .. } => "catchingUp",
        _ => "active",
    }
}

impl Lanes {
    pub(super) fn add(&mut self, other: Lanes) {
        self.open += other.open;
        self.running += other.running;
        self.retrying += other.retrying;
        self.gap += other.gap;
        self.parked += other.parked;
        self.paused += other.paused;
    }

    /// In a paused subscription all lanes count as paused, except those with an open request.
    pub(super) fn of(subscription: &subscription::Subscription) -> Lanes {
        let counts = subscription.tally.lanes;
        let count = |state: State| counts[state as usize];
        if subscription.is_paused() {
            let running = count(State::Running);
            let paused = counts.iter().sum::<u64>() - running;
            return Lanes { open: 0, running, retrying: 0, gap: 0, parked: 0, paused };
        }
        Lanes {
            open: count(State::Open),
            running: count(State::Running),
            retrying: count(State::Retrying),
            gap: count(State::Gap),
            parked: count(State::Parked),
            paused: count(State::Paused),
        }
    }
}

impl Breaker {
    fn new(state: breaker::State) -> Breaker {
        let (state, next_probe) = match state {
            breaker::State::Closed => ("closed", None),
            breaker::State::Open { probe_at } => ("open", Some(Time(probe_at))),
            breaker::State::HalfOpen => ("half-open", None),
        };
        Breaker { state, next_probe }
    }
}
