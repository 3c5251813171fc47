//! Webhook endpoints: beside plain subscriptions, beside endpoints that fail, idle, their feeds, and many
//! events in them.

mod feed;
mod idle;
mod isolation;
mod retained;
mod signed;

pub use feed::run as run_feed;
pub use idle::run as run_idle;
pub use isolation::run as run_isolation;
pub use retained::run as run_retained;
pub use signed::run as run_signed;

use serde_json::{Value, json};

/// An endpoint for the events that `filters` select. Its workflows are the keys of the load.
fn endpoint(name: &str, url: &str, concurrency: u32, filters: &Value) -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1",
        "kind": "WebhookEndpoint",
        "metadata": {"name": name},
        "spec": {
            "url": url,
            "workflowKey": {"attribute": "partitionkey"},
            "filters": filters,
            "concurrency": concurrency,
        },
    })
}
