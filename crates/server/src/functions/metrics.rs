//! `GET /api/v1/lambda/functions/{name}/metrics`: the calls of one function.

use super::kind_of;
use crate::api::Api;
use crate::extract::{Json, Path};
use crate::metrics::calls::Totals;
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
use http::Uri;
use klambda_control::Name;
use klambda_core::time::Millis;
use klambda_dispatch::views::{Latency, Time};
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionMetrics {
    at: Time,
    /// Ready replicas.
    replicas: u32,
    /// Finished calls since the server started, for events and invocations.
    calls: u64,
    /// Calls without a response, or with a status other than 2xx.
    errors: u64,
    /// Calls that waited for a replica to start.
    cold_starts: u64,
    /// Durations of calls, including cold starts.
    duration: Latency,
}

pub async fn show(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let name = Name::new(&namespace, &name);
    let resource = api.control.find(kind_of(&uri), &name)?;
    let subscription = name.subscription();
    let reading = api.query(move |engine| {
        let mut totals = Totals::default();
        totals.add_events(engine.metrics(), &subscription);
        totals
    });
    let mut totals = reading.await?;
    totals.add_calls(&api.control.calls(&name));
    let now: Millis = api.clock.now();
    Ok(Json(FunctionMetrics {
        at: Time(now),
        replicas: resource.status.service_status.as_ref().map_or(0, |seen| seen.replicas),
        calls: totals.calls,
        errors: totals.errors,
        cold_starts: totals.cold_starts,
        duration: Latency::of(&totals.took_ms),
    })
    .into_response())
}
