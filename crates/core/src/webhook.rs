//! Webhook endpoints: external systems that receive events in order per workflow.
//!
//! An endpoint is a subscription whose key is the workflow and whose target is [`Spec`]. The subscription contains the
//! whole specification, so there is one document, and everything that holds for lanes holds for workflows.

pub mod acknowledgement;
pub mod event_id;
pub mod payload;
mod spec;
mod tls;

pub use event_id::EventId;
pub use spec::*;
pub use tls::{Ca, ClientCertificate, Tls};

use crate::fault::Fault;
use crate::filter::Filter;
use crate::namespace;
use crate::schema::{self, API_VERSION, Schema, form};
use crate::subscription::{self, Ordering, OrderingPolicy, Target};
use serde_json::{Value, json};
use std::sync::LazyLock;

pub const KIND: &str = "WebhookEndpoint";

/// The name prefix of the subscription of an endpoint: `webhook.<name>`.
pub const PREFIX: &str = "webhook.";

static SPEC: LazyLock<Schema> = LazyLock::new(Schema::of::<Spec>);
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let metadata = json!({
        "namespace": { "type": "string", "pattern": form::LABEL },
        "name": { "type": "string", "pattern": form::LABEL },
    });
    Schema::document(KIND, metadata, &SPEC, &["apiVersion", "kind", "metadata", "spec"])
});

/// The schema of `spec`.
pub fn spec_schema() -> &'static Schema {
    &SPEC
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub namespace: String,
    pub name: String,
    pub spec: Spec,
}

impl Document {
    /// Parses a document strictly and reports all faults together.
    pub fn parse(value: &Value) -> Result<Document, Vec<Fault>> {
        let mut read = SCHEMA.read(value, spec::check)?;
        let spec: Spec = schema::typed(&mut read, "spec")?;
        let text = |name: &str| read["metadata"][name].as_str().map(str::to_owned);
        let namespace = text("namespace").unwrap_or_else(|| namespace::DEFAULT.to_owned());
        Ok(Document { namespace, name: text("name").unwrap_or_default(), spec })
    }

    /// The endpoint of a subscription; `None` if the subscription has another target.
    pub fn of(subscription: &subscription::Document) -> Option<Document> {
        let spec = subscription.spec.target.endpoint()?.clone();
        let name = subscription.name.strip_prefix(PREFIX)?.to_owned();
        Some(Document { namespace: subscription.namespace.clone(), name, spec })
    }

    pub fn to_json(&self) -> Value {
        let metadata = json!({ "namespace": self.namespace, "name": self.name });
        let mut spec = json!(self.spec);
        if let (Ordering::Unordered, Value::Object(fields)) = (self.spec.ordering, &mut spec) {
            fields.remove("orderingPolicy");
        }
        json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec })
    }

    /// The subscription that delivers to this endpoint.
    pub fn subscription(&self) -> subscription::Document {
        let spec = &self.spec;
        let policy = OrderingPolicy {
            key: spec.workflow_key.clone(),
            sequence: spec.policy.sequence.clone(),
            strict: spec.policy.strict,
            gap: spec.policy.gap,
            buffer: spec.policy.buffer,
            ..OrderingPolicy::default()
        };
        let longest_ms = spec.retry.schedule.iter().map(|delay| delay.ms).max().unwrap_or(0);
        let retry = subscription::Retry {
            attempts: Some(u32::try_from(spec.retry.schedule.len()).unwrap_or(u32::MAX)),
            backoff_ms: 1,
            max_backoff_ms: longest_ms.max(1),
            timeout_ms: spec.retry.timeout_ms,
        };
        subscription::Document {
            namespace: self.namespace.clone(),
            name: format!("{PREFIX}{}", self.name),
            spec: subscription::Spec {
                filters: filters(spec),
                target: Target::Endpoint(Box::new(spec.clone())),
                from: subscription::From::Latest,
                ordering: spec.ordering,
                policy: if spec.ordering == Ordering::Ordered { policy } else { OrderingPolicy::default() },
                retry,
                concurrency: spec.concurrency,
                idempotency: subscription::Idempotency::default(),
                sequence_ttl_ms: subscription::sequence_ttl_ms(),
                backlog: subscription::Backlog::default(),
                dead_letters: subscription::DeadLetters::default(),
                paused: spec.paused,
            },
        }
    }
}

/// Types of events of this system. They tell of functions and other endpoints, so external systems get them only if
/// someone asks for it.
const PLATFORM: &str = "lambda.";

/// The types as one filter, before the other filters.
pub(crate) fn filters(spec: &Spec) -> Vec<Filter> {
    let one = |pattern: &String| match pattern.strip_suffix('*') {
        Some(prefix) => Filter::Prefix(vec![("type".into(), prefix.into())]),
        None => Filter::Exact(vec![("type".into(), pattern.clone())]),
    };
    let is_all = spec.types.iter().any(|pattern| pattern == "*");
    let types = match spec.types.as_slice() {
        [] => Some(Filter::Not(Box::new(one(&format!("{PLATFORM}*"))))),
        _ if is_all => None,
        [pattern] => Some(one(pattern)),
        patterns => Some(Filter::Any(patterns.iter().map(one).collect())),
    };
    types.into_iter().chain(spec.filters.iter().cloned()).collect()
}

#[cfg(test)]
mod tests;
