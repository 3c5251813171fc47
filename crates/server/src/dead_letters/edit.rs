//! `PUT /api/v1/dlq/{id}/event`: what the next delivery of a dead letter sends.

use super::{shown, view};
use crate::api::Api;
use crate::auth::Who;
use crate::extract::Path;
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::refusal;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Uri, header};
use klambda_core::binding::{self, Limits};
use klambda_core::event::Event;
use klambda_core::ids::plain_number;
use klambda_dispatch::operate::Refused;
use klambda_dispatch::{Engine, Rejection};

const STRUCTURED: &str = "application/cloudevents+json";

/// The body is the whole event, in the JSON format of CloudEvents.
pub async fn put(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let seen = seen(&headers)?;
    let event = read(body, &api.intake.limits)?;
    let (id, by) = (namespace.full_name(&id), who.name.to_string());
    let _turn = api.turns.shows.acquire().await;
    let done = move |engine: &mut Engine| {
        engine.edit_dead_letter(&id, &event, &by, seen)?;
        view(engine, &id)
    };
    match api.command(done).await? {
        Ok(letter) => Ok(shown(letter)),
        Err(Refused::Invalid(faults)) => {
            let detail = "an edit must keep the id, the source and the place of the event";
            Err(Problem::invalid_body(detail).faults(faults))
        }
        Err(refused) => Err(refused.into()),
    }
}

/// The number of edits in `If-Match`.
fn seen(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH).filter(|value| value.as_bytes() != b"*") else {
        return Ok(None);
    };
    let tag = value.to_str().ok().and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
    let number = tag.and_then(plain_number).ok_or_else(|| {
        Problem::bad_request("If-Match must be the ETag of the dead letter, such as \"0\", or *")
    })?;
    Ok(Some(number))
}

fn read(body: Bytes, limits: &Limits) -> Result<Event, Problem> {
    let parsed = binding::parse(Some(STRUCTURED), std::iter::empty(), body, limits);
    let mut parsed = parsed.map_err(|refused| refusal::refusal(refused, false))?;
    let event = parsed.events.pop().ok_or_else(|| Problem::invalid_event("the body contains no event"))?;
    event.map_err(|rejected| {
        let (faults, cause) = (rejected.faults, rejected.cause);
        refusal::rejection(&Rejection::Invalid { faults, cause })
    })
}
