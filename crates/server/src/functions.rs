//! `/api/v1/lambda/functions` and `/api/v1/lambda/agents`: functions and agents with their status.

pub mod invoke;
pub mod limits;
pub mod logs;
pub mod metrics;
pub mod revisions;
pub mod watch;

use crate::api::Api;
use crate::auth::Who;
use crate::extract::{Json, Path};
use crate::namespace::{Namespace, Scope};
use crate::params::Params;
use crate::problem::Problem;
use crate::redact::redact;
use crate::request_body;
use crate::routes::may_read_files;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, Uri, header};
use klambda_access::{Reach, Role};
use klambda_control::{Applied, Error, Name};
use klambda_core::fault::Fault;
use klambda_dispatch::documents;
use klambda_functions::resource::{Resource, ResourceKind, source};
use klambda_functions::write::{Change, LAST_APPLIED};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

const AGENTS: &str = "/api/v1/lambda/agents";

/// The kind of resource of a path.
pub fn kind_of(uri: &Uri) -> ResourceKind {
    if uri.path().starts_with(AGENTS) { ResourceKind::LambdaAgent } else { ResourceKind::LambdaFunction }
}

#[derive(Serialize)]
struct Page {
    items: Vec<Value>,
    next: Option<String>,
}

pub async fn list(api: Api, who: Who, uri: Uri, scope: Scope) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (kind, limit) = (kind_of(&uri), params.limit());
    let after = params.parsed("cursor", |text| match text.split_once('/') {
        Some((namespace, name)) => Ok(Name::new(namespace, name)),
        None => Err("must be the value of `next` of the previous page".to_owned()),
    });
    params.finish()?;
    let asked = scope.clone();
    api.query(move |engine| asked.must_be_there(engine)).await??;
    let within = scope.within();
    let is_wanted = |resource: &Resource| resource.kind == kind && within.has(&resource.metadata.namespace);
    let (found, more) = api.control.list(after.as_ref(), limit, is_wanted);
    let last = found.last().filter(|_| more);
    let next = last.map(|last| format!("{}/{}", last.metadata.namespace, last.metadata.name));
    let items = found.iter().map(|resource| shown(resource, &who)).collect();
    Ok(Json(Page { items, next }).into_response())
}

fn shown(resource: &Resource, who: &Who) -> Value {
    let mut document = resource.to_json();
    redact(&mut document["spec"], &resource.metadata.namespace, who);
    // The manifest that was applied last has the same values.
    if !who.allows(Role::Developer, Reach::In(&resource.metadata.namespace))
        && let Some(annotations) = document["metadata"]["annotations"].as_object_mut()
    {
        annotations.remove(LAST_APPLIED);
    }
    document
}

pub async fn show(
    api: Api,
    who: Who,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let name = Name::new(&namespace, &name);
    Ok(Json(shown(&*api.control.find(kind_of(&uri), &name)?, &who)).into_response())
}

pub async fn create(
    api: Api,
    who: Who,
    uri: Uri,
    namespace: Namespace,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let document = placed(allowed(&body, &who)?, &[("namespace", &namespace)])?;
    let applied = api.control.create(&document, kind_of(&uri)).await?;
    Ok(accepted(&uri, &applied))
}

/// Parses the body, if the caller may let the server read the files that it names.
fn allowed(body: &Bytes, who: &Who) -> Result<Value, Problem> {
    let document = request_body::parse(body)?;
    if let Some(folder) = source::folder_of(&document) {
        may_read_files(who, &format!("the folder {folder}"))?;
    }
    Ok(document)
}

pub async fn put(
    api: Api,
    who: Who,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["apply", "dryRun"]);
    let (apply, dry_run) = (params.flag("apply"), params.flag("dryRun"));
    if dry_run && !apply {
        params.fault("dryRun", "needs apply=true");
    }
    params.finish()?;
    let body = allowed(&body, &who)?;
    if !apply {
        return change(api, uri, &namespace, &name, &body).await;
    }
    let document = placed(body, &[("namespace", &namespace), ("name", &name)])?;
    let (name, kind) = (Name::new(&namespace, &name), kind_of(&uri));
    if dry_run {
        let applied = api.control.try_apply(&name, &document, kind).await?;
        let document = shown(&applied.resource, &who);
        let answer = json!({ "dryRun": true, "change": word(&applied), "document": document });
        return Ok(Json(answer).into_response());
    }
    let applied = api.control.apply(&name, &document, kind).await?;
    Ok(match applied.change {
        Change::Created => accepted(&uri, &applied),
        _ => Json(summary(&applied)).into_response(),
    })
}

pub async fn patch(
    api: Api,
    who: Who,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    change(api, uri, &namespace, &name, &allowed(&body, &who)?).await
}

async fn change(api: Api, uri: Uri, namespace: &str, name: &str, body: &Value) -> Result<Response, Problem> {
    let applied = api.control.update(kind_of(&uri), &Name::new(namespace, name), body).await?;
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

fn placed(mut document: Value, address: &[(&str, &str)]) -> Result<Value, Problem> {
    let faults = request_body::place(&mut document, address);
    if faults.is_empty() { Ok(document) } else { Err(invalid(faults)) }
}

fn accepted(uri: &Uri, applied: &Applied) -> Response {
    let metadata = &applied.resource.metadata;
    let kinds = if kind_of(uri) == ResourceKind::LambdaAgent { "agents" } else { "functions" };
    let location = format!("/api/v1/lambda/{kinds}/{}?namespace={}", metadata.name, metadata.namespace);
    (StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(summary(applied))).into_response()
}

fn word(applied: &Applied) -> &'static str {
    match (applied.resource.metadata.deletion_timestamp, applied.change) {
        (Some(_), _) => "deleted",
        (None, Change::Created) => "created",
        (None, Change::Nothing) => "unchanged",
        (None, _) => "configured",
    }
}

/// The result of a write.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "FunctionChange")]
pub struct Summary {
    name: String,
    namespace: String,
    /// The phase.
    status: &'static str,
    message: String,
    #[schemars(extend("enum" = ["created", "configured", "unchanged", "deleted"]))]
    change: &'static str,
    generation: u64,
    resource_version: String,
}

fn summary(applied: &Applied) -> Summary {
    let Resource { kind, metadata, spec, status, .. } = &*applied.resource;
    let is_built = spec.source.as_ref().is_some_and(|source| source.kind.is_built());
    let next = if is_built { "build" } else { "deployment" };
    let change = word(applied);
    let message = match change {
        "deleted" => "deletion initiated".to_owned(),
        "created" => format!("created, {next} starting"),
        "unchanged" => "is unchanged".to_owned(),
        _ => "updated successfully".to_owned(),
    };
    Summary {
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        status: if metadata.deletion_timestamp.is_some() { "Deleting" } else { status.phase.name() },
        message: format!("{} {message}", kind.name()),
        change,
        generation: metadata.generation,
        resource_version: metadata.resource_version.clone(),
    }
}

fn invalid(faults: Vec<Fault>) -> Problem {
    let detail = match faults.as_slice() {
        [one] => one.to_string(),
        many => format!("the document has {} errors", many.len()),
    };
    Problem::invalid_function(detail).faults(faults)
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let detail = error.to_string();
        match error {
            Error::NotFound { .. } | Error::NoRevision { .. } => Problem::not_found(detail),
            Error::Exists { .. } | Error::Conflict(_) | Error::Deleting | Error::ArtifactGone { .. } => {
                Problem::conflict(detail)
            }
            Error::Damaged { .. } => Problem::internal(detail),
            Error::Invalid(faults) => invalid(faults),
            Error::Limit(_) | Error::NamespaceLimit { .. } => Problem::limit_reached(detail),
            Error::Store(documents::Error::Refused(refused)) => refused.into(),
            Error::Store(documents::Error::Conflict { .. }) => Problem::conflict(detail),
            Error::Store(documents::Error::Invalid(_)) => Problem::too_large(detail),
            Error::Stopped(_) => Problem::shutting_down(detail),
        }
    }
}
