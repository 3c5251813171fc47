//! `/ui/sign-in` and `/ui/callback`: signing in to the page at an identity provider. The first sends the browser there, the
//! second is where it comes back to.

use super::POLICY;
use crate::api::Api;
use crate::auth::oidc::{ATTEMPT_AGE_MAX, CALLBACK, Error, Oidc, Returned};
use crate::auth::session::{self, AGE_MAX, Origin};
use crate::params::Params;
use crate::problem::Problem;
use crate::tokens::random;
use axum::response::{Html, IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use std::time::Duration;

/// The cookie of a sign-in that is under way. The provider is another site, so the cookie cannot be `SameSite=Strict`.
const COOKIE: &str = "klambda-sign-in";

pub async fn start(api: Api, uri: Uri, headers: HeaderMap) -> Response {
    shown(begin(&api, &uri).await, &headers)
}

pub async fn callback(api: Api, uri: Uri, headers: HeaderMap) -> Response {
    shown(complete(&api, &uri, &headers).await, &headers)
}

async fn begin(api: &Api, uri: &Uri) -> Result<Response, Problem> {
    Params::none(uri)?;
    let oidc = provider(api)?;
    let start = oidc.start(random()?).await?;
    Ok(redirect(&start.location, &[attempt(oidc, &start.cookie, ATTEMPT_AGE_MAX)]))
}

async fn complete(api: &Api, uri: &Uri, headers: &HeaderMap) -> Result<Response, Problem> {
    let oidc = provider(api)?;
    let unverified = oidc.finish(session::cookie_named(headers, COOKIE), read(uri)?).await?;
    let signed_in = api.access.sign_in(&unverified).await?;
    let age = signed_in.valid_for.min(AGE_MAX);
    let id = api.access.sessions().open(&unverified.id_token, Origin::IdToken, age, random()?);
    tracing::info!(user = %signed_in.identity.name, "Signed in to the page");
    let cookies = [super::session::cookie_of(api, &id, age), attempt(oidc, "", Duration::ZERO)];
    Ok(redirect("/ui", &cookies))
}

fn provider(api: &Api) -> Result<&Oidc, Problem> {
    let missing = || Problem::not_found("this server has no sign-in at an identity provider (auth.oidc)");
    api.access.oidc().ok_or_else(missing)
}

/// Providers add parameters of their own, which do not matter here.
fn read(uri: &Uri) -> Result<Returned, Problem> {
    let known = ["code", "state", "iss", "error", "error_description"];
    let query = uri.query().unwrap_or_default().split('&');
    let ours = query.filter(|pair| known.contains(&pair.split('=').next().unwrap_or_default()));
    let ours = ours.collect::<Vec<_>>().join("&");
    let form = |text: &str| format!("/?{}", text.replace('+', "%20")).parse::<Uri>();
    let uri = form(&ours).map_err(|_| Problem::bad_request("the query is not valid"))?;
    let params = Params::read(&uri, &known);
    let returned = Returned {
        code: params.owned("code"),
        state: params.owned("state"),
        issuer: params.owned("iss"),
        error: params.owned("error"),
        error_description: params.owned("error_description"),
    };
    params.finish()?;
    Ok(returned)
}

fn attempt(oidc: &Oidc, value: &str, age: Duration) -> String {
    let secure = if oidc.is_https() { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path={CALLBACK}; Max-Age={}; HttpOnly; SameSite=Lax{secure}", age.as_secs())
}

fn redirect(location: &str, cookies: &[String]) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::from_str(location) {
        headers.insert(header::LOCATION, location);
    }
    for cookie in cookies.iter().filter_map(|cookie| HeaderValue::from_str(cookie).ok()) {
        headers.append(header::SET_COOKIE, cookie);
    }
    response
}

/// A problem as a document for programs, and as a page for people. No answer may be stored, and no address of it be sent on:
/// it contains the code of the provider.
fn shown(result: Result<Response, Problem>, headers: &HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut response = match result {
        Ok(response) => response,
        Err(problem) if accepts.contains("text/html") => {
            (problem.status(), Html(page(&problem))).into_response()
        }
        Err(problem) => problem.into_response(),
    };
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn page(problem: &Problem) -> String {
    let (title, detail) = (escaped(problem.kind().title), escaped(problem.detail()));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title} – klambda</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"stylesheet\" href=\"/ui/app.css\">\n</head>\n<body>\n<main class=\"signin\">\n\
         <h1>Could not sign in</h1>\n<p class=\"error\" role=\"alert\"><strong>{title}:</strong> {detail}</p>\n\
         <p><a class=\"button\" href=\"/ui\">Back to the page</a></p>\n</main>\n</body>\n</html>\n"
    )
}

/// The detail can contain words of the provider.
fn escaped(text: &str) -> String {
    let replaced = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        '\'' => "&#39;".to_owned(),
        other => other.to_string(),
    };
    text.chars().map(replaced).collect()
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let text = error.to_string();
        match error {
            Error::OtherAttempt | Error::Incomplete(_) => Problem::bad_request(text),
            Error::Denied(_) => Problem::forbidden(text),
            Error::Busy => Problem::limit_reached(text).retry_after(Duration::from_secs(1)),
            Error::Provider { .. } => Problem::identity_provider(text),
            Error::Secret(_) => {
                tracing::error!(error = text, "A user could not sign in");
                Problem::internal("the client secret of this server cannot be read; see its log")
            }
        }
    }
}
