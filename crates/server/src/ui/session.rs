//! `/ui/session`: signing in to the page with a token, and signing out.

use crate::api::Api;
use crate::auth::session::{AGE_MAX, COOKIE, cookie, is_from_page};
use crate::problem::Problem;
use crate::request_body::{self, Faults, Members};
use crate::tokens::random;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use zeroize::Zeroizing;

pub async fn create(api: Api, headers: HeaderMap, body: Bytes) -> Result<Response, Problem> {
    must_be_from_page(&headers)?;
    if api.access.is_open() {
        return Err(Problem::conflict("this server requires no tokens, so there is no need to sign in"));
    }
    let token = read(&body)?;
    let authorization = Zeroizing::new(format!("Bearer {}", *token));
    api.access.check(authorization.as_bytes())?;
    let id = api.access.sessions().open(&token, random()?);
    Ok(with_cookie(&api, &id, AGE_MAX.as_secs()))
}

pub async fn delete(api: Api, headers: HeaderMap) -> Result<Response, Problem> {
    must_be_from_page(&headers)?;
    if let Some(id) = cookie(&headers) {
        api.access.sessions().close(id);
    }
    Ok(with_cookie(&api, "", 0))
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

fn with_cookie(api: &Api, id: &str, seconds: u64) -> Response {
    let secure = if api.about.url.starts_with("https:") { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={id}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    let headers = [(header::SET_COOKIE, cookie), (header::CACHE_CONTROL, "no-store".to_owned())];
    (StatusCode::NO_CONTENT, headers).into_response()
}
