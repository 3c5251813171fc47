//! Views of webhook endpoints: their documents, their health, and the status of the subscription behind each.

use super::subscriptions::{Breaker, Lanes, Metadata, Status};
use super::{Page, Time};
use crate::deliveries::Statistics;
use crate::endpoint::health::Health;
use crate::engine::{Engine, Failure};
use klambda_core::namespace::{self, Within};
use klambda_core::schema::API_VERSION;
use klambda_core::webhook::{Document, KIND, PREFIX};
use klambda_store::record::WhyDisabled;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "WebhookEndpoint")]
pub struct Endpoint {
    api_version: &'static str,
    kind: &'static str,
    pub metadata: Metadata,
    #[schemars(with = "super::EndpointSpec")]
    pub spec: Value,
    pub status: EndpointStatus,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "WebhookEndpointStatus")]
pub struct EndpointStatus {
    #[schemars(extend("enum" = ["Ready", "Failing", "Paused", "Disabled", "Draining"]))]
    pub phase: &'static str,
    pub disabled: Option<DisabledView>,
    /// The first failure since the last success.
    pub failing_since: Option<Time>,
    pub last_success_at: Option<Time>,
    pub waiting: u64,
    pub waiting_bytes: u64,
    pub in_flight: u32,
    pub parked: u64,
    pub dead_letters: u64,
    pub oldest: Option<Time>,
    pub lanes: Lanes,
    pub breaker: Breaker,
    pub delivered: u64,
    /// Of the latest calls. Lists leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
    pub messages: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Disabled")]
pub struct DisabledView {
    pub since: Time,
    #[schemars(with = "String", extend("enum" = ["request", "gone", "noSuccess"]))]
    pub reason: WhyDisabled,
}

impl Engine {
    /// `name` is the full name of the subscription of the endpoint.
    pub fn view_endpoint(&self, name: &str) -> Option<Endpoint> {
        let stored = self.subscriptions.get(self.subscriptions.named(name)?)?;
        let document = self.endpoint_document(name)?;
        let subscription = self.view_subscription(name)?;
        let mut metadata = subscription.metadata;
        metadata.name = document.name.clone();
        let mut spec = document.to_json()["spec"].take();
        spec["paused"] = subscription.spec["paused"].clone();
        let mut status = EndpointStatus::new(subscription.status, stored.life.health);
        if let Some(held) = &stored.flow.suspension {
            status.messages.push(format!("no call is made: {}", held.why));
        }
        Some(Endpoint { api_version: API_VERSION, kind: KIND, metadata, spec, status })
    }

    /// The same, with statistics of its latest calls.
    pub fn view_endpoint_fully(&self, name: &str) -> Result<Option<Endpoint>, Failure> {
        let Some(mut endpoint) = self.view_endpoint(name) else { return Ok(None) };
        if let Some(id) = self.subscriptions.named(name) {
            endpoint.status.statistics = Some(self.statistics(id)?);
        }
        Ok(Some(endpoint))
    }

    /// The latest document of an endpoint.
    pub fn endpoint_document(&self, name: &str) -> Option<Document> {
        Document::of(&self.subscription_document(name)?)
    }

    /// Endpoints by the full names of their subscriptions, after `after`.
    pub fn view_endpoints(&self, within: &Within, after: Option<&str>, limit: usize) -> Page<Endpoint> {
        let mut names = self.endpoint_names(within);
        names.retain(|name| after.is_none_or(|after| name.as_str() > after));
        let next = (names.len() > limit).then(|| names[limit - 1].clone());
        let items = names.iter().take(limit).filter_map(|name| self.view_endpoint(name)).collect();
        Page { items, next }
    }

    fn is_endpoint(&self, name: &str) -> bool {
        let subscription = self.subscriptions.named(name).and_then(|id| self.subscriptions.get(id));
        subscription.is_some_and(|subscription| subscription.document.spec.target.endpoint().is_some())
    }

    /// The full names of the subscriptions of all endpoints in these namespaces, in order.
    pub fn endpoint_names(&self, within: &Within) -> Vec<String> {
        let is_endpoint = |full_name: &&str| {
            let (inside, name) = namespace::split(full_name);
            name.starts_with(PREFIX) && within.has(inside) && self.is_endpoint(full_name)
        };
        let mut names: Vec<String> =
            self.subscriptions.names().filter(is_endpoint).map(str::to_owned).collect();
        names.sort_unstable();
        names
    }
}

impl EndpointStatus {
    fn new(status: Status, health: Health) -> EndpointStatus {
        let phase = match status.phase {
            "draining" => "Draining",
            _ if health.disabled.is_some() => "Disabled",
            "paused" => "Paused",
            _ if health.failing_since.is_some() => "Failing",
            _ => "Ready",
        };
        EndpointStatus {
            phase,
            disabled: health.disabled.map(|why| DisabledView { since: Time(why.since), reason: why.why }),
            failing_since: health.failing_since.map(Time),
            last_success_at: health.last_success.map(Time),
            waiting: status.waiting,
            waiting_bytes: status.waiting_bytes,
            in_flight: status.in_flight,
            parked: status.parked,
            dead_letters: status.dead_letters,
            oldest: status.oldest,
            lanes: status.lanes,
            breaker: status.breaker,
            delivered: status.delivered,
            statistics: None,
            messages: status.messages,
        }
    }
}
