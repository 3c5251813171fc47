//! `POST …/resend`: sends one event to its endpoint again. The call is made beside the lanes, with the same body and a
//! new signature. A dead letter is replayed in its place instead.

use super::subscription_of;
use crate::api::Api;
use crate::extract::{Json, Path};
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::request_body::{self, Faults, Members};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, Uri};
use klambda_core::event_codec::EventView;
use klambda_core::webhook::EventId;
use klambda_core::webhook::payload::Place;
use klambda_dispatch::Engine;
use klambda_dispatch::client::webhook::Beside;
use klambda_dispatch::feed::{FeedEntry, Resend, ResendCall, Resent};
use klambda_store::record::event_of;
use schemars::JsonSchema;
use serde::Serialize;
use std::borrow::Cow;
use std::time::Instant;

/// What a resend came to: a replay, or a call.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "WebhookResent")]
pub struct Shown {
    endpoint: String,
    event_id: String,
    /// The replay, if the event is a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<String>,
    #[serde(flatten)]
    call: Option<Call>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Call {
    succeeded: bool,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The beginning of the response's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// Why there was no response.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Call {
    fn new(resent: &Resent) -> Call {
        Call {
            succeeded: resent.succeeded(),
            duration_ms: resent.duration_ms,
            status: resent.status,
            body: resent.status.map(|_| resent.answer.clone()),
            error: resent.error.clone(),
        }
    }
}

pub async fn create(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let event = read(&body)?;
    let subscription = subscription_of(&namespace, &name);
    let _turn = api.turns.trials.turn(&subscription)?;
    let own = name.clone();
    let begun = move |engine: &mut Engine| {
        super::find(engine, &namespace, &own)?;
        engine.begin_resend(&subscription, event)
    };
    let begun = api.command(begun).await??;
    let mut shown = Shown { endpoint: name, event_id: event.to_string(), replay: None, call: None };
    let call = match begun {
        Resend::Call(call) => call,
        Resend::Replay(id) => {
            shown.replay = Some(format!("r{id}"));
            return Ok((StatusCode::ACCEPTED, Json(shown)).into_response());
        }
    };
    let resent = send(&api, &call).await?;
    shown.call = Some(Call::new(&resent));
    let noted = move |engine: &mut Engine| engine.note_resend(&call, &resent);
    api.command(noted).await??;
    Ok(Json(shown).into_response())
}

fn read(body: &Bytes) -> Result<EventId, Problem> {
    let body = request_body::parse(body)?;
    let faults = Faults::default();
    let members = Members::of(&body, &["eventId"], &faults);
    if !members.has("eventId") {
        members.fault("eventId", "is missing");
    }
    let event = members.parsed("eventId", |text| {
        text.parse::<EventId>().map_err(|_| format!("`{text}` must be an eventId"))
    });
    faults.finish(Problem::invalid_body)?;
    // A missing member is a fault, so this cannot happen.
    event.ok_or_else(|| Problem::internal("a fault was lost"))
}

async fn send(api: &Api, call: &ResendCall) -> Result<Resent, Problem> {
    let unreadable =
        |error: &dyn std::fmt::Display| Problem::internal(format!("could not read the event: {error}"));
    let event = event_of(&call.record).map_err(|error| unreadable(&error))?;
    let event = EventView::decode(event).map_err(|error| unreadable(&error))?;
    let (started, now) = (Instant::now(), api.clock.now());
    let beside = Beside::Resend(place(&call.entry));
    let tried = api.connections.outgoing.try_endpoint(call.document.clone(), &event, beside, now).await;
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(match tried {
        Ok(tried) => {
            let answer = tried.line();
            Resent { status: Some(tried.status), duration_ms, answer, error: None }
        }
        Err(outcome) => {
            let error = Some(outcome.describe());
            Resent { status: None, duration_ms, answer: String::new(), error }
        }
    })
}

/// Events of an unordered endpoint have no number.
pub fn place(entry: &FeedEntry) -> Option<Place<'_>> {
    (entry.number.0 > 0).then(|| Place {
        workflow: Cow::Borrowed(&*entry.workflow),
        number: entry.number.0,
        previous: entry.previous.map(|id| id.to_string().into()),
        flag: entry.flag,
    })
}
