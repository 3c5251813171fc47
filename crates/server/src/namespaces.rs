//! `/api/v1/namespaces`: namespaces and their limits.

use crate::api::Api;
use crate::auth::Who;
use crate::extract::{Json, Path};
use crate::params::Params;
use crate::problem::Problem;
use crate::request_body;
use crate::subscriptions::tried;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use klambda_access::{Reach, Role};
use klambda_core::fault::Fault;
use klambda_core::namespace::{Document, KIND};
use klambda_core::subscription::API_VERSION;
use klambda_dispatch::Engine;
use klambda_dispatch::operate::{Put, Refused};
use klambda_dispatch::views::Namespace;
use serde_json::Value;
use std::sync::Arc;

/// Lists the namespaces in which the caller has a role.
pub async fn list(api: Api, who: Who, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (limit, cursor) = (params.limit(), params.owned("cursor"));
    params.finish()?;
    let is_shown = move |name: &str| who.allows(Role::Viewer, Reach::In(name));
    let page = api.query(move |engine| engine.view_namespaces(is_shown, cursor.as_deref(), limit)).await?;
    Ok(Json(page).into_response())
}

pub async fn show(api: Api, uri: Uri, Path(name): Path<String>) -> Result<Response, Problem> {
    Params::none(&uri)?;
    Ok(Json(api.query(move |engine| view(engine, &name)).await??).into_response())
}

fn view(engine: &Engine, name: &str) -> Result<Namespace, Refused> {
    let unknown = || Refused::NotFound(format!("namespace {name:?} not found"));
    engine.view_namespace(name).ok_or_else(unknown)
}

pub async fn put(
    api: Api,
    uri: Uri,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["dryRun"]);
    let dry_run = params.flag("dryRun");
    params.finish()?;
    let document = read(&name, request_body::parse(&body)?)?;
    if dry_run {
        let after = document.to_json();
        let put = api.query(move |engine| engine.check_put_namespace(&document)).await??;
        return Ok(tried(put, after));
    }
    let only_new = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == b"*");
    let types = Arc::clone(&api.intake.types);
    let done = move |engine: &mut Engine| {
        if only_new && engine.view_namespace(&name).is_some() {
            return Err(Problem::exists(format!("namespace {name:?} already exists")));
        }
        let put = engine.put_namespace(&document)?;
        types.set_check(&name, document.schema_check);
        Ok((put, view(engine, &name)?))
    };
    let (put, shown) = api.command(done).await??;
    if put != Put::Created {
        return Ok(Json(shown).into_response());
    }
    let location = [(header::LOCATION, format!("/api/v1/namespaces/{}", shown.name()))];
    Ok((StatusCode::CREATED, location, Json(shown)).into_response())
}

/// The document may omit fields that the URL contains.
fn read(name: &str, mut body: Value) -> Result<Document, Problem> {
    let mut faults = request_body::place(&mut body, &[("name", name)]);
    if let Some(members) = body.as_object_mut() {
        for (member, value) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            members.entry(member).or_insert_with(|| value.into());
        }
    }
    let parsed = Document::parse(&body);
    faults.extend(parsed.as_ref().err().cloned().unwrap_or_default());
    match parsed {
        Ok(document) if faults.is_empty() => Ok(document),
        _ => Err(invalid(faults)),
    }
}

fn invalid(faults: Vec<Fault>) -> Problem {
    let detail = match faults.as_slice() {
        [one] => one.to_string(),
        many => format!("the namespace has {} errors", many.len()),
    };
    Problem::invalid_body(detail).faults(faults)
}

/// Deletes an empty namespace.
pub async fn delete(api: Api, uri: Uri, Path(name): Path<String>) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let (access, vault) = (Arc::clone(&api.access), Arc::clone(&api.secrets.vault));
    let types = Arc::clone(&api.intake.types);
    let done = move |engine: &mut Engine| {
        let shown = view(engine, &name)?;
        if klambda_control::has_functions(engine, &name)? {
            let detail = format!("namespace {name:?} has functions or agents; delete them first");
            return Err(Problem::conflict(detail));
        }
        if let Some(secret) = vault.any_of(&name) {
            let detail = format!("namespace {name:?} has secrets, such as {secret}; delete them first");
            return Err(Problem::conflict(detail));
        }
        if let Some(kind) = types.any_of(&name) {
            let detail = format!("namespace {name:?} has event types, such as {kind}; delete them first");
            return Err(Problem::conflict(detail));
        }
        if let Some(token) = access.issued()?.naming(&name) {
            let detail = format!("token {token} refers to namespace {name:?}; delete the token first");
            return Err(Problem::conflict(detail));
        }
        engine.delete_namespace(&name)?;
        types.forget(&name);
        Ok(shown)
    };
    Ok(Json(api.command(done).await??).into_response())
}
