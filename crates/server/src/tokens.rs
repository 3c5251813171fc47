//! `/api/v1/tokens`: tokens and their roles. A token is shown once, when it is created.
//!
//! Admins see and create tokens for the namespaces in which they are admins.

use crate::api::Api;
use crate::auth::{Access, Refused, Who};
use crate::extract::{Json, Path};
use crate::params::Params;
use crate::problem::Problem;
use crate::request_body::{self, Faults, Members};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, Uri, header};
use klambda_access::{Grant, Namespaces, Reach, Role, Secret, Token};
use klambda_core::fault::unknown;
use klambda_core::quantity::parse_duration_ms;
use klambda_core::time::Millis;
use klambda_dispatch::runner::Handle;
use klambda_dispatch::{audit, documents};
use klambda_functions::name::{RULE, is_label};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The roles that a token can have.
pub const ROLES: [Role; 7] = [
    Role::Viewer,
    Role::Operator,
    Role::Producer,
    Role::Developer,
    Role::Admin,
    Role::Endpoint,
    Role::EndpointAdmin,
];
const NAMESPACES_MAX: usize = 100;
const STORE_USES_EVERY: Duration = Duration::from_secs(60);

pub async fn list(api: Api, who: Who, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (limit, after) = (params.limit(), params.owned("cursor"));
    params.finish()?;
    let (found, more) = api.access.issued()?.list(after.as_deref(), limit, |token| may_manage(&who, token));
    let next = found.last().filter(|_| more).map(|last| last.name.clone());
    let items: Vec<Value> = found.iter().map(Token::to_json).collect();
    Ok(Json(json!({ "items": items, "next": next })).into_response())
}

pub async fn show(api: Api, who: Who, uri: Uri, Path(name): Path<String>) -> Result<Response, Problem> {
    Params::none(&uri)?;
    Ok(Json(find(&api, &who, &name)?.to_json()).into_response())
}

pub async fn create(api: Api, who: Who, uri: Uri, body: Bytes) -> Result<Response, Problem> {
    Params::none(&uri)?;
    if api.access.is_open() {
        return Err(Problem::conflict(
            "this server requires no tokens, so every client may do everything: start it with a token \
             file (--token-file) first",
        ));
    }
    let secret = Secret::new(random()?);
    let token = read(&request_body::parse(&body)?, &secret, &who, api.clock.now())?;
    if !may_manage(&who, &token) {
        let (namespaces, grant) = (&token.grant.namespaces, &who.grant);
        let detail = format!("this requires the role admin in {namespaces}; {} is {grant}", who.name);
        return Err(Problem::forbidden(detail));
    }
    let mut shown = token.to_json();
    let access = Arc::clone(&api.access);
    let created = token.clone();
    audit::named(&token.name);
    api.command(move |engine| Ok::<_, Problem>(access.issued()?.create(engine, created)?)).await??;
    tracing::info!(token = token.name, by = %who.name, "Token created");
    shown["token"] = secret.reveal().into();
    let headers = [
        (header::LOCATION, format!("/api/v1/tokens/{}", token.name)),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    Ok((StatusCode::CREATED, headers, Json(shown)).into_response())
}

pub async fn delete(api: Api, who: Who, uri: Uri, Path(name): Path<String>) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let token = find(&api, &who, &name)?;
    let access = Arc::clone(&api.access);
    api.command(move |engine| Ok::<_, Problem>(access.issued()?.delete(engine, &name)?)).await??;
    tracing::info!(token = token.name, by = %who.name, "Token deleted");
    Ok(Json(token.to_json()).into_response())
}

/// A token that the caller may not see counts as missing.
fn find(api: &Api, who: &Who, name: &str) -> Result<Token, Problem> {
    let found = api.access.issued()?.get(name).filter(|token| may_manage(who, token));
    found.ok_or_else(|| Refused::NotFound(name.to_owned()).into())
}

fn may_manage(who: &Who, token: &Token) -> bool {
    who.allows(Role::Admin, Reach::Somewhere) && who.grant.namespaces.include(&token.grant.namespaces)
}

pub fn random() -> Result<[u8; 32], Problem> {
    let mut random = [0; 32];
    getrandom::fill(&mut random)
        .map_err(|error| Problem::internal(format!("no random source available: {error}")))?;
    Ok(random)
}

fn read(body: &Value, secret: &Secret, who: &Who, now: Millis) -> Result<Token, Problem> {
    let faults = Faults::default();
    let members = Members::of(body, &["name", "role", "namespaces", "endpoint", "expires"], &faults);
    for wanted in ["name", "role", "namespaces"] {
        if !members.has(wanted) {
            members.fault(wanted, "is missing");
        }
    }
    let name = members.parsed("name", |name| match is_label(name) {
        true => Ok(name.to_owned()),
        false => Err(format!("a name {RULE}")),
    });
    let role = members.parsed("role", |role| {
        let known = ROLES.into_iter().find(|known| known.name() == role);
        known.ok_or_else(|| unknown("role", role, &ROLES.map(Role::name)))
    });
    let namespaces = read_namespaces(&members, body);
    let namespaces = read_endpoint(&members, namespaces, role);
    let expires = members.parsed("expires", |text| expiry(text, now));
    faults.finish(Problem::invalid_body)?;
    // Missing members are faults, so this cannot happen.
    let (Some(name), Some(role)) = (name, role) else { return Err(Problem::internal("a fault was lost")) };
    Ok(Token {
        name,
        grant: Grant { role, namespaces },
        hash: secret.hash(),
        created: now,
        created_by: who.name.to_string(),
        expires,
        last_used: None,
    })
}

/// `"*"`, or a list of names.
fn read_namespaces(members: &Members<'_>, body: &Value) -> Namespaces {
    if body["namespaces"] == "*" {
        return Namespaces::All;
    }
    let names: BTreeSet<String> = members.texts("namespaces").into_iter().collect();
    if names.len() > NAMESPACES_MAX {
        members.fault("namespaces", format!("must be at most {NAMESPACES_MAX}"));
    }
    if members.has("namespaces") && body["namespaces"].as_array().is_some_and(Vec::is_empty) {
        members.fault("namespaces", "must name at least one, or be \"*\" for all");
    }
    if let Some(wrong) = names.iter().find(|name| !is_label(name)) {
        members.fault("namespaces", format!("`{wrong}` is not a namespace: its name {RULE}"));
    }
    Namespaces::Named(names)
}

/// The roles of an endpoint require one endpoint in one namespace; other roles have none.
fn read_endpoint(members: &Members<'_>, namespaces: Namespaces, role: Option<Role>) -> Namespaces {
    let is_wanted = role.is_some_and(Role::is_of_endpoint);
    let Some(name) = members.text("endpoint") else {
        if is_wanted {
            members.fault(
                "endpoint",
                "is missing: the roles endpoint and endpoint-admin are for one webhook endpoint",
            );
        }
        return namespaces;
    };
    if role.is_some() && !is_wanted {
        members.fault("endpoint", "requires the role endpoint or endpoint-admin");
    }
    if !is_label(name) {
        members.fault("endpoint", format!("`{name}` is not a webhook endpoint: its name {RULE}"));
    }
    match &namespaces {
        Namespaces::Named(names) if names.len() == 1 => {
            let namespace = names.first().cloned().unwrap_or_default();
            Namespaces::Endpoint { namespace, name: name.to_owned() }
        }
        _ => {
            members.fault("namespaces", "must be the one namespace of the endpoint");
            namespaces
        }
    }
}

/// A duration from now, or a time.
fn expiry(text: &str, now: Millis) -> Result<Millis, String> {
    let at = match Millis::parse_rfc3339(text) {
        Some(at) => at,
        None => {
            let ms = parse_duration_ms(text).map_err(|_| {
                format!("`{text}` must be a duration, such as 90d, or a time, such as 2030-01-31T00:00:00Z")
            })?;
            Millis(now.0.saturating_add(ms))
        }
    };
    if at > now { Ok(at) } else { Err(format!("`{text}` is not in the future")) }
}

// ---- last use -------------------------------------------------------------------------------------------------

/// Periodically stores the last use of tokens while the server runs. A crash loses at most the uses since the last time.
pub async fn keep_uses(api: Api) {
    loop {
        tokio::select! {
            () = api.shutdown.requested() => return,
            () = tokio::time::sleep(STORE_USES_EVERY) => store_uses(&api.access, &api.handle).await,
        }
    }
}

pub async fn store_uses(access: &Arc<Access>, handle: &Handle) {
    while access.issued().is_ok_and(|issued| issued.has_unstored_uses()) {
        let shared = Arc::clone(access);
        let stored =
            handle.command(move |engine| shared.issued().ok().map(|issued| issued.store_uses(engine)));
        match stored.await {
            Ok(Some(Ok(true))) => {}
            Ok(Some(Ok(false)) | None) | Err(_) => return,
            Ok(Some(Err(error))) => {
                return tracing::warn!(%error, "Could not save the last use of tokens; retrying");
            }
        }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        let detail = refused.to_string();
        match refused {
            Refused::Exists(_) => Problem::conflict(detail),
            Refused::NotFound(_) => Problem::not_found(detail),
            Refused::Limit(_) => Problem::limit_reached(detail),
            Refused::Namespace(refused) => refused.into(),
            Refused::Store(documents::Error::Refused(refused)) => refused.into(),
            Refused::Store(documents::Error::Conflict { .. }) => Problem::conflict(detail),
            Refused::Store(documents::Error::Invalid(_)) => Problem::too_large(detail),
        }
    }
}
