//! `POST …/{action}`: enables, disables, pauses or resumes an endpoint.

use super::{add_messages, find, view};
use crate::api::Api;
use crate::extract::{Json, Path};
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::request_body::{self, Faults, Members};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::Uri;
use klambda_core::fault::unknown;
use klambda_core::time::Millis;
use klambda_dispatch::Engine;
use klambda_dispatch::operate::Refused;
use std::time::Duration;
use tokio::time::Instant;

/// How long unread events may take to become readable, and how often they are looked at.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub async fn act(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path((name, action)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let action = Action::parse(&action)?;
    if let Some(from) = enable_from(&body)? {
        if !matches!(action, Action::Enable) {
            return Err(Problem::invalid_body("from is only for enable"));
        }
        skip_before(&api, &namespace, &name, from).await?;
    }
    let done = move |engine: &mut Engine| {
        let subscription = find(engine, &namespace, &name)?;
        match action {
            Action::Enable => engine.set_endpoint_enabled(&subscription, true).map(drop)?,
            Action::Disable => engine.set_endpoint_enabled(&subscription, false).map(drop)?,
            Action::Pause => engine.pause_subscription(&subscription, true)?,
            Action::Resume => engine.pause_subscription(&subscription, false)?,
        }
        view(engine, &namespace, &name)
    };
    let mut shown = api.command(done).await??;
    add_messages(&api.secrets.vault, &mut shown);
    Ok(Json(shown).into_response())
}

/// The time from which an endpoint is enabled, if the body names one.
fn enable_from(body: &Bytes) -> Result<Option<Millis>, Problem> {
    if body.is_empty() {
        return Ok(None);
    }
    let body = request_body::parse(body)?;
    let faults = Faults::default();
    let from = Members::of(&body, &["from"], &faults).parsed("from", crate::dead_letters::time);
    faults.finish(Problem::invalid_body)?;
    Ok(from)
}

/// Skips older events in parts, so that other requests run in between.
async fn skip_before(api: &Api, namespace: &Namespace, name: &str, from: Millis) -> Result<(), Problem> {
    let mut deadline = Instant::now() + PATIENCE;
    loop {
        let (namespace, name) = (namespace.clone(), name.to_owned());
        let skip = move |engine: &mut Engine| {
            let subscription = find(engine, &namespace, &name)?;
            if !engine.is_endpoint_disabled(&subscription)? {
                let detail =
                    "the endpoint is enabled, so there is no time to enable it from; disable it first";
                return Err(Refused::Conflict(detail.to_owned()));
            }
            engine.skip_before(&subscription, from)
        };
        match api.command(skip).await?? {
            (_, false) => return Ok(()),
            // Unread events are read when there is room in the log.
            (0, true) if Instant::now() >= deadline => {
                let detail = "some events of this endpoint cannot be read at the moment; try again later";
                return Err(Problem::conflict(detail));
            }
            (0, true) => tokio::time::sleep(LOOK_EVERY).await,
            (_, true) => deadline = Instant::now() + PATIENCE,
        }
    }
}

enum Action {
    Enable,
    Disable,
    Pause,
    Resume,
}

impl Action {
    fn parse(word: &str) -> Result<Action, Problem> {
        match word {
            "enable" => Ok(Action::Enable),
            "disable" => Ok(Action::Disable),
            "pause" => Ok(Action::Pause),
            "resume" => Ok(Action::Resume),
            other => {
                let known =
                    ["enable", "disable", "pause", "resume", "rotate", "test", "resend", "recover", "link"];
                Err(Problem::not_found(unknown("action", other, &known)))
            }
        }
    }
}
