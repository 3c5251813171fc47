//! Extractors for handlers. A failed extraction is reported as a problem, not as plain text.

use crate::problem::Problem;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A JSON body of a request or response.
pub struct Json<T>(pub T);

/// The query parameters.
pub struct Query<T>(pub T);

/// The path parameters, percent-decoded.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Json<T>, Problem> {
        check_json(request.headers())?;
        let body = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
        serde_json::from_slice(&body).map(Json).map_err(|error| {
            Problem::bad_request(format!("the body is not valid JSON for this request: {error}"))
        })
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => Problem::internal(format!("could not write the response: {error}")).into_response(),
        }
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Query<T>, Problem> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        query.map(|query| Query(query.0)).map_err(|rejection| Problem::bad_request(rejection.body_text()))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Problem> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|path| Path(path.0)).map_err(|rejection| Problem::bad_request(rejection.body_text()))
    }
}

/// Accepts `application/json`, any `+json`, or no content type.
fn check_json(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let media = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is_json = media.eq_ignore_ascii_case("application/json")
        || (media.len() > 5 && media.as_bytes()[media.len() - 5..].eq_ignore_ascii_case(b"+json"));
    if is_json {
        return Ok(());
    }
    Err(Problem::unsupported_media_type(format!("use content-type: application/json, not {media}")))
}
