//! What handlers take out of a request; what cannot be taken is answered with a problem, not with plain text.

use crate::problem::Problem;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A JSON body, in or out.
pub struct Json<T>(pub T);

/// The query's parameters.
pub struct Query<T>(pub T);

/// The parameters in the path, percent-decoded.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Json<T>, Problem> {
        check_json(request.headers())?;
        let body = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
        serde_json::from_slice(&body)
            .map(Json)
            .map_err(|error| Problem::bad_request(format!("the body is not the JSON this needs: {error}")))
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => {
                Problem::internal(format!("the answer could not be written: {error}")).into_response()
            }
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

/// `application/json` or any `+json`; nothing said is taken for JSON.
fn check_json(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let media = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is_json = media.eq_ignore_ascii_case("application/json")
        || (media.len() > 5 && media.as_bytes()[media.len() - 5..].eq_ignore_ascii_case(b"+json"));
    if is_json {
        return Ok(());
    }
    Err(Problem::unsupported_media_type(format!("send content-type: application/json, not {media}")))
}
