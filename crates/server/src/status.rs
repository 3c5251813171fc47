//! `/api/v1/status` and `/readyz`: the state of the server.

use crate::api::Api;
use crate::extract::Json;
use crate::params::Params;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
use http::Uri;
use klambda_dispatch::views;
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ServerStatus")]
pub struct Status {
    version: &'static str,
    uptime_seconds: u64,
    data_folder: String,
    listening: String,
    #[serde(flatten)]
    engine: views::Status,
}

pub async fn show(api: Api, uri: Uri) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let engine = api.query(|engine| engine.view_status()).await?;
    let status = Status {
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: api.about.started.elapsed().as_secs(),
        data_folder: api.about.data_folder.clone(),
        listening: api.about.url.clone(),
        engine,
    };
    Ok(Json(status).into_response())
}

/// Ready while events are accepted and requests are answered.
pub async fn ready(api: Api) -> Result<Response, Problem> {
    if api.shutdown.is_requested() {
        return Err(Problem::shutting_down("the server is shutting down"));
    }
    match api.query(|engine| engine.failure().map(str::to_owned)).await? {
        None => Ok("ready\n".into_response()),
        Some(why) => Err(Problem::storage_failed(format!(
            "no events are accepted until the server is restarted: {why}"
        ))),
    }
}
