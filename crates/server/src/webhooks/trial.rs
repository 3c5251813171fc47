//! A test call of an endpoint: signed like any other, beside its lanes, without a number.

use super::{not_found, subscription_of};
use crate::api::Api;
use crate::extract::{Json, Path};
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
use http::Uri;
use klambda_core::event::{Attribute, Data, Event, Form, Value as Attr};
use klambda_core::event_codec::EventView;
use klambda_core::subscription::Document;
use klambda_dispatch::client::webhook::Beside;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

pub const KIND: &str = "webhook.test";
const SOURCE: &str = "/klambda/webhooks";

/// What a test call came to.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "WebhookTest")]
pub struct Trial {
    endpoint: String,
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    duration_ms: u64,
    succeeded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The beginning of the response's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// Why there was no response.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub async fn test(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let subscription = subscription_of(&namespace, &name);
    let _turn = api.turns.trials.turn(&subscription)?;
    let document = api.query(move |engine| engine.subscription_document(&subscription)).await?;
    let is_endpoint = |document: &Document| document.spec.target.endpoint().is_some();
    let document = document.filter(is_endpoint).ok_or_else(|| not_found(&name))?;
    let now = api.clock.now();
    let event = event(&name, &now.rfc3339())?;
    let started = Instant::now();
    let mut encoded = Vec::new();
    event.encode(&mut encoded);
    let view = EventView::decode(&encoded).map_err(|error| Problem::internal(error.to_string()))?;
    let tried = api.connections.outgoing.try_endpoint(Arc::new(document), &view, Beside::Test, now).await;
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (status, body, error) = match tried {
        Ok(tried) => (Some(tried.status), Some(String::from_utf8_lossy(&tried.body).into_owned()), None),
        Err(outcome) => (None, None, Some(outcome.describe())),
    };
    let succeeded = status.is_some_and(|status| (200..300).contains(&status));
    let trial =
        Trial { endpoint: name, kind: KIND, id: event.id, duration_ms, succeeded, status, body, error };
    Ok(Json(trial).into_response())
}

fn event(endpoint: &str, time: &str) -> Result<Event, Problem> {
    let random = crate::tokens::random()?;
    let id: String = random.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let text = |name: &str, value: &str| Attribute { name: name.into(), value: Attr::String(value.into()) };
    let data = json!({ "endpoint": endpoint, "message": "This is a test call." });
    Ok(Event {
        id,
        source: SOURCE.to_owned(),
        kind: KIND.to_owned(),
        attributes: vec![text("datacontenttype", "application/json"), text("time", time)],
        data: Some(Data { bytes: data.to_string().into_bytes().into(), form: Form::Json }),
    })
}
