//! An overview of some namespaces: traffic, backlog, lanes, and what needs manual action.

use super::subscriptions::Lanes;
use super::{Time, counted};
use crate::engine::Engine;
use crate::metrics::Histogram;
use crate::subscription::Subscription;
use klambda_core::breaker;
use klambda_core::namespace::{self, Within};
use klambda_core::time::Millis;
use klambda_core::webhook::PREFIX;
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "EngineOverview")]
pub struct Overview {
    pub at: Time,
    pub subscriptions: u64,
    /// Events accepted since the server started.
    pub accepted: u64,
    /// Deliveries of the current subscriptions since the server started.
    pub delivered: u64,
    /// Time from acceptance to delivery.
    pub latency: Latency,
    pub waiting: u64,
    pub waiting_bytes: u64,
    pub in_flight: u64,
    pub oldest: Option<Time>,
    pub dead_letters: u64,
    pub lanes: Lanes,
    pub endpoints: Endpoints,
    /// What needs manual action, at most 100 items.
    pub attention: Vec<Attention>,
}

/// Durations since the server started.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Latency {
    pub count: u64,
    pub sum_ms: u64,
    pub buckets: Vec<Bucket>,
}

/// The number of durations of at most `max_ms`.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "LatencyBucket")]
pub struct Bucket {
    pub max_ms: u64,
    pub count: u64,
}

/// Webhook endpoints by health.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "EndpointCounts")]
pub struct Endpoints {
    pub ready: u64,
    pub failing: u64,
    pub disabled: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attention {
    #[schemars(extend("enum" = ["storeFailed", "storeFull", "lanesParked", "breakerOpen", "endpointDisabled",
        "endpointFailing", "functionFailed", "behind", "deadLetters"]))]
    pub kind: &'static str,
    /// `None` if it concerns the whole server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The subscription, endpoint or function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Maximum number of items in `attention`.
pub const ATTENTION_MAX: usize = 100;

impl Engine {
    pub fn view_overview(&self, within: &Within) -> Overview {
        let mut overview = Overview::new(self.now);
        let namespaces = self.namespaces.values().filter(|known| within.has(&known.name));
        overview.accepted = namespaces.map(|known| known.accepted).sum();
        let mut latency = Histogram::default();
        for subscription in self.subscriptions.values() {
            if within.has(namespace::split(subscription.name()).0) {
                self.add_subscription(&mut overview, subscription);
                let calls = self.metrics.calls_of(subscription.name());
                calls.for_each(|done| latency.merge(&done.delivered_after_ms));
            }
        }
        overview.delivered = latency.count;
        overview.latency = Latency::of(&latency);
        overview.attention.sort_by_key(|item| (rank(item.kind), item.since));
        overview.attention.truncate(ATTENTION_MAX);
        overview
    }

    fn add_subscription(&self, overview: &mut Overview, subscription: &Subscription) {
        let tally = &subscription.tally;
        overview.subscriptions +=
            u64::from(!subscription.is_retired() && !subscription.document.is_controller());
        overview.waiting += tally.owed();
        overview.waiting_bytes += tally.owed_bytes();
        overview.in_flight += u64::from(subscription.flow.in_flight);
        overview.dead_letters += tally.dead + tally.held;
        let oldest = tally.oldest_owed().map(Time);
        overview.oldest = overview.oldest.into_iter().chain(oldest).min();
        overview.lanes.add(Lanes::of(subscription));
        overview.add_endpoint(subscription);
        self.add_attention(overview, subscription);
    }

    fn add_attention(&self, overview: &mut Overview, subscription: &Subscription) {
        let (tally, health) = (&subscription.tally, &subscription.life.health);
        let oldest = tally.oldest_owed();
        let parked = Lanes::of(subscription).parked;
        if parked > 0 {
            let message = format!("{} parked: manual action needed", counted(parked, "lane"));
            overview.needs("lanesParked", subscription, message, oldest);
        }
        let is_endpoint = subscription.document.spec.target.endpoint().is_some();
        if let Some(disabled) = health.disabled {
            let message = format!("disabled; {} pending", counted(tally.owed(), "event"));
            overview.needs("endpointDisabled", subscription, message, Some(disabled.since));
        } else if let (Some(since), true) = (health.failing_since, is_endpoint) {
            let message = format!("calls fail; {} pending", counted(tally.owed(), "event"));
            overview.needs("endpointFailing", subscription, message, Some(since));
        }
        if let breaker::State::Open { .. } = self.calls.endpoints.state(subscription.flow.endpoint) {
            let message = "the breaker is open: the target fails and is called rarely".to_owned();
            overview.needs("breakerOpen", subscription, message, None);
        }
        if tally.later > 0 && subscription.is_behind() {
            let message = format!("behind: {} not read from the log yet", counted(tally.later, "event"));
            overview.needs("behind", subscription, message, Some(tally.later_since));
        }
        let letters = tally.dead + tally.held;
        if letters > 0 {
            overview.needs("deadLetters", subscription, counted(letters, "dead letter"), None);
        }
    }
}

/// The most urgent kind first.
pub fn rank(kind: &str) -> usize {
    const ORDER: [&str; 8] = [
        "storeFailed",
        "storeFull",
        "lanesParked",
        "breakerOpen",
        "endpointDisabled",
        "endpointFailing",
        "functionFailed",
        "behind",
    ];
    ORDER.iter().position(|known| *known == kind).unwrap_or(ORDER.len())
}

impl Overview {
    fn new(now: Millis) -> Overview {
        Overview {
            at: Time(now),
            subscriptions: 0,
            accepted: 0,
            delivered: 0,
            latency: Latency::default(),
            waiting: 0,
            waiting_bytes: 0,
            in_flight: 0,
            oldest: None,
            dead_letters: 0,
            lanes: Lanes::default(),
            endpoints: Endpoints::default(),
            attention: Vec::new(),
        }
    }

    fn add_endpoint(&mut self, subscription: &Subscription) {
        if subscription.document.spec.target.endpoint().is_none() || subscription.is_retired() {
            return;
        }
        let (health, endpoints) = (&subscription.life.health, &mut self.endpoints);
        match (health.disabled, health.failing_since) {
            (Some(_), _) => endpoints.disabled += 1,
            (None, Some(_)) => endpoints.failing += 1,
            (None, None) => endpoints.ready += 1,
        }
    }

    fn needs(
        &mut self,
        kind: &'static str,
        subscription: &Subscription,
        message: String,
        since: Option<Millis>,
    ) {
        let (namespace, name) = namespace::split(subscription.name());
        let is_of_endpoint = kind.starts_with("endpoint");
        let name = if is_of_endpoint { name.strip_prefix(PREFIX).unwrap_or(name) } else { name };
        self.attention.push(Attention {
            kind,
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            message,
            since: since.map(Time),
        });
    }
}

impl Latency {
    pub fn of(histogram: &Histogram) -> Latency {
        let buckets = histogram.cumulative().map(|(max_ms, count)| Bucket { max_ms, count }).collect();
        Latency { count: histogram.count, sum_ms: histogram.sum, buckets }
    }
}
