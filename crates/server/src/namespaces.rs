//! `/api/v1/namespaces`: what there is, and what each may have.

use crate::api::Api;
use crate::auth::Who;
use crate::extract::{Json, Path};
use crate::members;
use crate::params::Params;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use klambda_access::{Reach, Role};
use klambda_core::fault::Fault;
use klambda_core::namespace::Document;
use klambda_dispatch::Engine;
use klambda_dispatch::operate::{Put, Refused};
use klambda_dispatch::views::Namespace;
use serde_json::{Value, json};
use std::sync::Arc;

/// Those in which the caller has a role.
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
    let unknown = || Refused::NotFound(format!("there is no namespace {name:?}"));
    engine.view_namespace(name).ok_or_else(unknown)
}

pub async fn put(
    api: Api,
    uri: Uri,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let document = read(&name, members::parse(&body)?)?;
    let only_new = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == b"*");
    let done = move |engine: &mut Engine| {
        if only_new && engine.view_namespace(&name).is_some() {
            return Err(Problem::exists(format!("there is a namespace {name:?} already")));
        }
        Ok((engine.put_namespace(&document)?, view(engine, &name)?))
    };
    let (put, shown) = api.command(done).await??;
    if put != Put::Created {
        return Ok(Json(shown).into_response());
    }
    let location = [(header::LOCATION, format!("/api/v1/namespaces/{}", shown.name()))];
    Ok((StatusCode::CREATED, location, Json(shown)).into_response())
}

/// What the address says may be left out of the document.
fn read(name: &str, mut body: Value) -> Result<Document, Problem> {
    let mut faults = Vec::new();
    if let Some(members) = body.as_object_mut() {
        let metadata = members.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            let said = metadata.entry("name").or_insert_with(|| name.into());
            if said.as_str().is_some_and(|said| said != name) {
                faults
                    .push(Fault::new("metadata.name", format!("is {said}, but the request is for `{name}`")));
            }
        }
        for (member, value) in
            [("apiVersion", klambda_core::subscription::API_VERSION), ("kind", "Namespace")]
        {
            members.entry(member).or_insert_with(|| value.into());
        }
    }
    match Document::parse(&body) {
        Ok(document) if faults.is_empty() => Ok(document),
        Ok(_) => Err(invalid(faults)),
        Err(more) => Err(invalid(faults.into_iter().chain(more).collect())),
    }
}

fn invalid(faults: Vec<Fault>) -> Problem {
    let detail = match faults.as_slice() {
        [one] => one.to_string(),
        many => format!("{} things are wrong with the namespace", many.len()),
    };
    Problem::invalid_body(detail).faults(faults)
}

/// Only an empty one goes.
pub async fn delete(api: Api, uri: Uri, Path(name): Path<String>) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let access = Arc::clone(&api.access);
    let done = move |engine: &mut Engine| {
        let shown = view(engine, &name)?;
        if klambda_control::has_functions(engine, &name)? {
            let detail = format!("namespace {name:?} has functions or agents; delete them first");
            return Err(Problem::conflict(detail));
        }
        if let Some(token) = access.issued()?.naming(&name) {
            let detail = format!("token {token} is for namespace {name:?}; delete the token first");
            return Err(Problem::conflict(detail));
        }
        engine.delete_namespace(&name)?;
        Ok(shown)
    };
    Ok(Json(api.command(done).await??).into_response())
}
