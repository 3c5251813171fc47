//! `/ui/session`: the ways to sign in, signing in with a token, and signing out.

use crate::api::Api;
use crate::auth::session::{AGE_MAX, COOKIE, Origin, cookie, is_from_page};
use crate::extract::Json;
use crate::problem::Problem;
use crate::request_body::{self, Faults, Members};
use crate::tokens::random;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde_json::json;
use std::time::Duration;
use zeroize::Zeroizing;

/// What the page offers to somebody who is not signed in.
pub async fn show(api: Api) -> Response {
    let provider = api.access.oidc().map(|oidc| oidc.provider_name());
    ([(header::CACHE_CONTROL, "no-store")], Json(json!({ "provider": provider }))).into_response()
}

pub async fn create(api: Api, headers: HeaderMap, body: Bytes) -> Result<Response, Problem> {
    must_be_from_page(&headers)?;
    if api.access.is_open() {
        return Err(Problem::conflict("this server requires no tokens, so there is no need to sign in"));
    }
    let token = read(&body)?;
    let authorization = Zeroizing::new(format!("Bearer {}", *token));
    api.access.check(authorization.as_bytes())?;
    let id = api.access.sessions().open(&token, Origin::Token, AGE_MAX, random()?);
    Ok(with_cookie(&api, &id, AGE_MAX))
}

pub async fn delete(api: Api, headers: HeaderMap) -> Result<Response, Problem> {
    must_be_from_page(&headers)?;
    if let Some(id) = cookie(&headers) {
        api.access.sessions().close(id);
    }
    Ok(with_cookie(&api, "", Duration::ZERO))
}

fn must_be_from_page(headers: &HeaderMap) -> Result<(), Problem> {
    if is_from_page(headers) {
        return Ok(());
    }
    Err(Problem::bad_request("only the page of this server can sign in: the header klambda-page is missing"))
}

fn read(body: &Bytes) -> Result<Zeroizing<String>, Problem> {
    let parsed = request_body::parse(body)?;
    let faults = Faults::default();
    let members = Members::of(&parsed, &["token"], &faults);
    let token = members.text("token").unwrap_or_default().trim().to_owned();
    if token.is_empty() {
        members.fault("token", "is missing");
    }
    faults.finish(Problem::invalid_body)?;
    Ok(Zeroizing::new(token))
}

fn with_cookie(api: &Api, id: &str, age: Duration) -> Response {
    let headers =
        [(header::SET_COOKIE, cookie_of(api, id, age)), (header::CACHE_CONTROL, "no-store".to_owned())];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// The cookie of a session. A proxy in front of this server can provide the encryption.
pub(super) fn cookie_of(api: &Api, id: &str, age: Duration) -> String {
    let is_https =
        api.about.url.starts_with("https:") || api.access.oidc().is_some_and(|oidc| oidc.is_https());
    let secure = if is_https { "; Secure" } else { "" };
    format!("{COOKIE}={id}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{secure}", age.as_secs())
}
