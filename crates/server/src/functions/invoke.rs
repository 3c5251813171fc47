//! `POST /api/v1/lambda/functions/{name}/invoke`: the body goes to the handler, its answer comes back.

use super::{kind_of, name_of};
use crate::api::Api;
use crate::extract::Path;
use crate::params::Params;
use crate::problem::Problem;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Uri, header};
use klambda_control::{Call, InvokeError};

pub async fn call(
    api: Api,
    uri: Uri,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["namespace"]);
    let name = name_of(&params, &name);
    params.finish()?;
    let answer = api.control.invoke(kind_of(&uri), &name, Call { headers, body }).await?;
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = answer.status;
    if let Some(content_type) = answer.content_type {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    }
    Ok(response)
}

impl From<InvokeError> for Problem {
    fn from(error: InvokeError) -> Problem {
        let detail = error.to_string();
        match error {
            InvokeError::NotFound(_) => Problem::not_found(detail),
            InvokeError::Unavailable { retry_after, .. } => {
                Problem::function_unavailable(detail).retry_after(retry_after)
            }
            InvokeError::Timeout(_) => Problem::function_timeout(detail),
            InvokeError::Broken(_) => Problem::function_broken(detail),
            InvokeError::BadRequest(_) => Problem::unsupported_media_type(detail),
        }
    }
}
