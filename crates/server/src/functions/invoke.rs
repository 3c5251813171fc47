//! `POST /api/v1/lambda/functions/{name}/invoke`: the body goes to the handler, its answer comes back.

use super::kind_of;
use crate::answer::Answer;
use crate::api::{Api, go_on};
use crate::extract::Path;
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::stream::{ByteStream, Pieces};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri};
use klambda_control::{Invocation, InvokeError, Name, Rest};
use klambda_functions::resource::Kind;
use std::io;

/// The long way: requests that are not plain enough for the short one.
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
    let rest = answer.rest.map(|rest| {
        let length = rest.length();
        let (pieces, stream) = ByteStream::new(&api.held.answers);
        go_on(pass_on(rest, pieces));
        Box::new(stream.of_length(length))
    });
    Ok(Answer { status, content_type, retry_after: None, body: answer.body, rest })
}

/// Of a long answer so much is read at a time, more or less.
const PART_BYTES: usize = 128 << 10;

/// A long answer stays with the function, but for the piece that its client reads.
async fn pass_on(mut rest: Rest, pieces: Pieces) {
    loop {
        let next = async {
            let room = pieces.room(PART_BYTES).await;
            (rest.next().await, room)
        };
        let (next, room) = tokio::select! {
            next = next => next,
            () = pieces.closed() => return,
        };
        match next {
            Ok(Some(piece)) => {
                if pieces.send(piece, room).await.is_none() {
                    return;
                }
            }
            Ok(None) => return,
            Err(why) => {
                tracing::debug!(why, "The answer of a function broke off.");
                return pieces.fail(io::Error::other(why)).await;
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
