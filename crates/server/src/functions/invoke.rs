//! `POST /api/v1/lambda/functions/{name}/invoke`: sends the body to the handler and returns its response.

use super::kind_of;
use crate::api::{Api, go_on};
use crate::extract::Path;
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::raw_response::RawResponse;
use crate::stream::{ByteStream, ChunkSender};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri};
use klambda_control::{Invocation, InvokeError, Name, Rest};
use klambda_functions::resource::ResourceKind;
use std::io;

/// The slow path, for requests that the fast path does not handle.
pub async fn call(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let invocation = read(&api, kind_of(&uri), &namespace, &name, headers, body)?;
    Ok(answer(&api, invocation).await?.into_response())
}

pub fn read<'a>(
    api: &Api,
    kind: ResourceKind,
    namespace: &str,
    name: &str,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    body: Bytes,
) -> Result<Invocation, Problem> {
    Ok(api.control.prepare(kind, Name::new(namespace, name), headers, body)?)
}

pub async fn answer(api: &Api, invocation: Invocation) -> Result<RawResponse, Problem> {
    let answer = api.control.invoke(invocation).await?;
    let status = StatusCode::from_u16(answer.status).map_err(|_| {
        Problem::function_broken(format!("the function returned the invalid status {}", answer.status))
    })?;
    let content_type = answer.content_type.map(Into::into);
    let rest = answer.rest.map(|rest| {
        let length = rest.length();
        let (chunks, stream) = ByteStream::new(&api.connections.held.answers);
        go_on(pass_on(rest, chunks));
        Box::new(stream.of_length(length))
    });
    Ok(RawResponse { status, content_type, retry_after: None, body: answer.body, rest })
}

/// How much of a long response is read at a time, approximately.
const PART_BYTES: usize = 128 << 10;

/// Forwards a long response. The server holds only the part that the client reads.
async fn pass_on(mut rest: Rest, chunks: ChunkSender) {
    loop {
        let next = async {
            let room = chunks.room(PART_BYTES).await;
            (rest.next().await, room)
        };
        let (next, room) = tokio::select! {
            next = next => next,
            () = chunks.closed() => return,
        };
        match next {
            Ok(Some(chunk)) => {
                if chunks.send(chunk, room).await.is_none() {
                    return;
                }
            }
            Ok(None) => return,
            Err(why) => {
                tracing::debug!(why, "Response of a function was aborted");
                return chunks.fail(io::Error::other(why)).await;
            }
        }
    }
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
