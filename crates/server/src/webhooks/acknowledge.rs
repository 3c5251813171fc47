//! `POST /api/v1/webhooks/ack`: the receiver has every event of the feed up to one, so it needs no more calls for them.

use super::feed::resolve;
use crate::api::Api;
use crate::auth::Who;
use crate::extract::Json;
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::request_body::{self, Faults, Members};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::Uri;
use klambda_core::webhook::EventId;
use klambda_dispatch::operate::Refused;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// How long open calls may take to end, and how often they are looked at.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "WebhookAcknowledged")]
pub struct Acknowledged {
    /// The event, as the request named it.
    through: String,
    /// How many events were pending.
    events: u64,
}

pub async fn create(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    body: Bytes,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["endpoint"]);
    params.finish()?;
    let (through, workflow) = read(&request_body::parse(&body)?)?;
    let name = resolve(&api, &who, &namespace, params.owned("endpoint")).await?;
    let deadline = Instant::now() + PATIENCE;
    let mut events = 0;
    loop {
        let (more, busy) = acknowledge(&api, &name, through, workflow.as_deref()).await?;
        events += more;
        if busy == 0 {
            return Ok(Json(Acknowledged { through: through.to_string(), events }).into_response());
        }
        if Instant::now() >= deadline {
            let detail = format!(
                "{busy} calls of events up to this one are still open; events before them are acknowledged; \
                 repeat the request when the calls have ended"
            );
            return Err(Problem::conflict(detail));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Once through all workflows, in parts, so that other requests run in between.
async fn acknowledge(
    api: &Api,
    name: &str,
    through: EventId,
    workflow: Option<&str>,
) -> Result<(u64, u64), Problem> {
    let (mut events, mut busy, mut from) = (0, 0, String::new());
    loop {
        let (name, workflow, at) = (name.to_owned(), workflow.map(str::to_owned), from);
        let part =
            api.command(move |engine| engine.acknowledge_part(&name, through, workflow.as_deref(), &at));
        let part = part.await?.map_err(|refused| match refused {
            Refused::Invalid(faults) => Problem::invalid_body("the request is not valid").faults(faults),
            other => other.into(),
        })?;
        (events, busy) = (events + part.events, busy + part.busy);
        match part.next {
            Some(next) => from = next,
            None => return Ok((events, busy)),
        }
    }
}

fn read(body: &Value) -> Result<(EventId, Option<String>), Problem> {
    let faults = Faults::default();
    let members = Members::of(body, &["through", "workflowId"], &faults);
    if !members.has("through") {
        members.fault("through", "is missing");
    }
    let through = members.parsed("through", |text| {
        text.parse::<EventId>().map_err(|_| format!("`{text}` must be an eventId"))
    });
    let workflow = members.parsed("workflowId", |text| Ok(text.to_owned()));
    faults.finish(Problem::invalid_body)?;
    // A missing member is a fault, so this cannot happen.
    let through = through.ok_or_else(|| Problem::internal("a fault was lost"))?;
    Ok((through, workflow))
}
