//! `/api/v1/lambda/functions` and `/api/v1/lambda/agents`: what is to run, and what became of it.

pub mod invoke;
pub mod limits;
pub mod logs;
pub mod watch;

use crate::api::Api;
use crate::extract::{Json, Path};
use crate::members;
use crate::namespace::{Namespace, Scope};
use crate::params::Params;
use crate::problem::Problem;
use crate::subscriptions;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, Uri, header};
use klambda_control::{Applied, Error, Name};
use klambda_core::fault::Fault;
use klambda_dispatch::documents;
use klambda_functions::resource::{Kind, Resource};
use klambda_functions::write::Change;
use serde::Serialize;
use serde_json::{Value, json};

const AGENTS: &str = "/api/v1/lambda/agents";

/// Which kind an address is of.
pub fn kind_of(uri: &Uri) -> Kind {
    if uri.path().starts_with(AGENTS) { Kind::LambdaAgent } else { Kind::LambdaFunction }
}

#[derive(Serialize)]
struct Page {
    items: Vec<Value>,
    next: Option<String>,
}

pub async fn list(api: Api, uri: Uri, scope: Scope) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (kind, limit) = (kind_of(&uri), params.limit());
    let after = params.parsed("cursor", |text| match text.split_once('/') {
        Some((namespace, name)) => Ok(Name::new(namespace, name)),
        None => Err("should be what `next` of the last page said".to_owned()),
    });
    params.finish()?;
    let asked = scope.clone();
    api.query(move |engine| subscriptions::check(engine, &asked)).await??;
    let is_wanted = |resource: &Resource| resource.kind == kind && scope.has(&resource.metadata.namespace);
    let (found, more) = api.control.list(after.as_ref(), limit, is_wanted);
    let last = found.last().filter(|_| more);
    let next = last.map(|last| format!("{}/{}", last.metadata.namespace, last.metadata.name));
    let items = found.iter().map(|resource| resource.to_json()).collect();
    Ok(Json(Page { items, next }).into_response())
}

pub async fn show(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let name = Name::new(&namespace, &name);
    Ok(Json(api.control.find(kind_of(&uri), &name)?.to_json()).into_response())
}

pub async fn create(api: Api, uri: Uri, namespace: Namespace, body: Bytes) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let mut document = members::parse(&body)?;
    place(&mut document, &namespace, None)?;
    let applied = api.control.create(&document, kind_of(&uri)).await?;
    Ok(accepted(&uri, &applied))
}

pub async fn put(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["apply"]);
    let apply = params.flag("apply");
    params.finish()?;
    if !apply {
        return change(api, uri, &namespace, &name, body).await;
    }
    let mut document = members::parse(&body)?;
    place(&mut document, &namespace, Some(&name))?;
    let applied = api.control.apply(&Name::new(&namespace, &name), &document, kind_of(&uri)).await?;
    Ok(match applied.change {
        Change::Created => accepted(&uri, &applied),
        _ => Json(summary(&applied)).into_response(),
    })
}

pub async fn patch(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    change(api, uri, &namespace, &name, body).await
}

async fn change(api: Api, uri: Uri, namespace: &str, name: &str, body: Bytes) -> Result<Response, Problem> {
    let document = members::parse(&body)?;
    let applied = api.control.update(kind_of(&uri), &Name::new(namespace, name), &document).await?;
    Ok(Json(summary(&applied)).into_response())
}

pub async fn delete(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["resourceVersion"]);
    let (name, version) = (Name::new(&namespace, &name), params.owned("resourceVersion"));
    params.finish()?;
    let applied = api.control.delete(kind_of(&uri), &name, version.as_deref()).await?;
    Ok((StatusCode::ACCEPTED, Json(summary(&applied))).into_response())
}

pub async fn rebuild(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let applied = api.control.rebuild(kind_of(&uri), &Name::new(&namespace, &name)).await?;
    Ok((StatusCode::ACCEPTED, Json(summary(&applied))).into_response())
}

/// What the address says is put into the document; where both say something, they must agree.
fn place(document: &mut Value, namespace: &str, name: Option<&str>) -> Result<(), Problem> {
    let mut faults = Vec::new();
    if let Value::Object(members) = document {
        let metadata = members.entry("metadata").or_insert_with(|| json!({}));
        if let Value::Object(metadata) = metadata {
            for (member, given) in [("namespace", Some(namespace)), ("name", name)] {
                let Some(given) = given else { continue };
                let said = metadata.entry(member).or_insert_with(|| given.into());
                if said.as_str().is_some_and(|said| said != given) {
                    let message = format!("is {said}, but the request is for `{given}`");
                    faults.push(Fault::new(format!("metadata.{member}"), message));
                }
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(invalid(faults)) }
}

fn accepted(uri: &Uri, applied: &Applied) -> Response {
    let metadata = &applied.resource.metadata;
    let kinds = if kind_of(uri) == Kind::LambdaAgent { "agents" } else { "functions" };
    let location = format!("/api/v1/lambda/{kinds}/{}?namespace={}", metadata.name, metadata.namespace);
    (StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(summary(applied))).into_response()
}

fn summary(applied: &Applied) -> Value {
    let Resource { kind, metadata, spec, status, .. } = &*applied.resource;
    let is_built = spec.source.as_ref().is_some_and(|source| source.kind.is_built());
    let next = if is_built { "build" } else { "deployment" };
    let (change, message) = match (metadata.deletion_timestamp, applied.change) {
        (Some(_), _) => ("deleted", "deletion initiated".to_owned()),
        (None, Change::Created) => ("created", format!("created, {next} starting")),
        (None, Change::Nothing) => ("unchanged", "is unchanged".to_owned()),
        (None, _) => ("configured", "updated successfully".to_owned()),
    };
    json!({
        "name": metadata.name,
        "namespace": metadata.namespace,
        "status": if metadata.deletion_timestamp.is_some() { "Deleting" } else { status.phase.name() },
        "message": format!("{} {message}", kind.name()),
        "change": change,
        "generation": metadata.generation,
        "resourceVersion": metadata.resource_version,
    })
}

fn invalid(faults: Vec<Fault>) -> Problem {
    let detail = match faults.as_slice() {
        [one] => one.to_string(),
        many => format!("{} things are wrong with the document", many.len()),
    };
    Problem::invalid_function(detail).faults(faults)
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let detail = error.to_string();
        match error {
            Error::NotFound { .. } => Problem::not_found(detail),
            Error::Exists { .. } | Error::Conflict(_) | Error::Deleting => Problem::conflict(detail),
            Error::Invalid(faults) => invalid(faults),
            Error::Limit(_) | Error::NamespaceLimit { .. } => Problem::limit_reached(detail),
            Error::Store(documents::Error::Refused(refused)) => refused.into(),
            Error::Store(documents::Error::Conflict { .. }) => Problem::conflict(detail),
            Error::Store(documents::Error::Invalid(_)) => Problem::too_large(detail),
            Error::Stopped(_) => Problem::shutting_down(detail),
        }
    }
}
