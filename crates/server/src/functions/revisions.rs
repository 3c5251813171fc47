//! `GET /api/v1/lambda/functions/{name}/revisions` and `POST …/rollback`: revisions and rollbacks.

use super::{kind_of, summary};
use crate::api::Api;
use crate::auth::Who;
use crate::extract::{Json, Path};

use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::redact::redact;
use crate::request_body::{self, Faults, Members};
use crate::routes::may_read_files;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, Uri};
use klambda_control::Name;
use klambda_functions::resource::{Resource, Source};
use klambda_functions::revision::Revision;
use serde_json::{Value, json};

pub async fn list(
    api: Api,
    who: Who,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (limit, after) = (params.limit(), params.number("cursor").unwrap_or(0));
    params.finish()?;
    let page = api.control.revisions(kind_of(&uri), &Name::new(&namespace, &name), after, limit).await?;
    let shown = |(revision, is_serving): &(Revision, bool)| {
        let mut document = revision.to_json(*is_serving);
        redact(&mut document["spec"], &namespace, &who);
        document
    };
    let items: Vec<Value> = page.items.iter().map(shown).collect();
    Ok(Json(json!({ "items": items, "next": page.next.map(|next| next.to_string()) })).into_response())
}

pub async fn rollback(
    api: Api,
    who: Who,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let number = number(&body)?;
    let (kind, name) = (kind_of(&uri), Name::new(&namespace, &name));
    let revision = api.control.revision(kind, &name, number).await?;
    let live = api.control.find(kind, &name)?;
    if let Some(folder) = folder_to_read(&live, &revision) {
        may_read_files(&who, &format!("the folder {folder}"))?;
    }
    let applied = api.control.rollback(kind, &name, number).await?;
    Ok((StatusCode::ACCEPTED, Json(summary(&applied))).into_response())
}

fn number(body: &Bytes) -> Result<u64, Problem> {
    let body = request_body::parse(body)?;
    let faults = Faults::default();
    let members = Members::of(&body, &["revision"], &faults);
    if !members.has("revision") {
        members.fault("revision", "is missing: the number of the revision to roll back to");
    }
    let number = members.number("revision", 1..=u64::MAX).unwrap_or_default();
    faults.finish(Problem::invalid_body)?;
    Ok(number)
}

/// The folder that a later build of the revision reads, unless the current spec names it already.
fn folder_to_read<'a>(live: &Resource, revision: &'a Revision) -> Option<&'a str> {
    let folder = |source: &'a Option<Source>| Some(source.as_ref()?.folder.as_ref()?.path.as_str());
    let known = live.spec.source.as_ref().and_then(|source| source.folder.as_ref());
    folder(&revision.spec.source).filter(|path| known.is_none_or(|known| known.path != *path))
}
