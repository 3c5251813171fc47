//! `POST /api/v1/lambda/functions/{name}/invoke`: the body goes to the handler, its answer comes back.

use super::{kind_of, namespace};
use crate::answer::Answer;
use crate::api::Api;
use crate::extract::Path;
use crate::params::Params;
use crate::problem::Problem;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri};
use klambda_control::{Invocation, InvokeError, Name};
use klambda_functions::resource::Kind;

/// The long way: requests that are not plain enough for the short one.
pub async fn call(
    api: Api,
    uri: Uri,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["namespace"]);
    let namespace = namespace(&params);
    params.finish()?;
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let invocation = read(&api, kind_of(&uri), &namespace, &name, headers, body)?;
    Ok(answer(&api, invocation).await?.into())
}

pub fn read<'a>(
    api: &Api,
    kind: Kind,
    namespace: &str,
    name: &str,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    body: Bytes,
) -> Result<Invocation, Problem> {
    Ok(api.control.prepare(kind, Name::new(namespace, name), headers, body)?)
}

pub async fn answer(api: &Api, invocation: Invocation) -> Result<Answer, Problem> {
    let answer = api.control.invoke(invocation).await?;
    let status = StatusCode::from_u16(answer.status)
        .map_err(|_| Problem::function_broken(format!("its answer has the status {}", answer.status)))?;
    let content_type = answer.content_type.map(Into::into);
    Ok(Answer { status, content_type, retry_after: None, body: answer.body })
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
