//! Calls functions that run at a URL, with or without TLS.

use crate::invoke::{ANSWER_BYTES_MAX, Error};
use http::header::CONTENT_TYPE;
use klambda_dispatch::client::Call;
use klambda_outbound::client::forbidden;
use klambda_outbound::{Forbidden, Reach};
use reqwest::Method;
use std::time::Duration;

/// How much of a long response is held in memory at a time.
const PART_BYTES: usize = 64 << 10;
/// The name of the URL may get another address.
const FORBIDDEN_RETRY: Duration = Duration::from_secs(30);

/// Status, content type, body, and the rest if the body holds only the beginning of a long response.
type Answered = (u16, Option<String>, Vec<u8>, Option<Rest>);

pub async fn send(reach: &Reach, url: &str, call: Call) -> Result<Answered, Error> {
    let refused = |why: &Forbidden| Error::Unavailable { why: why.to_string(), retry_after: FORBIDDEN_RETRY };
    let broken = |error: reqwest::Error| match forbidden(&error) {
        Some(why) => refused(why),
        None => Error::Broken(format!("{url} did not respond: {error}")),
    };
    let mut request =
        reach.client().map_err(broken)?.request(Method::POST, url).map_err(|why| refused(&why))?;
    for line in call.headers.split(|byte| *byte == b'\n') {
        if let Some(colon) = line.iter().position(|byte| *byte == b':') {
            request = request.header(&line[..colon], line[colon + 1..].trim_ascii());
        }
    }
    let response = request.body(call.body).send().await.map_err(broken)?;
    let status = response.status().as_u16();
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.map(str::to_owned);
    let length = response.content_length();
    let mut rest = Rest { response, length, bytes: 0, url: url.to_owned() };
    let mut body = Vec::new();
    while body.len() < PART_BYTES {
        match rest.next().await.map_err(Error::Broken)? {
            Some(piece) => body.extend_from_slice(&piece),
            None => return Ok((status, content_type, body, None)),
        }
    }
    Ok((status, content_type, body, Some(rest)))
}

/// The rest of a long response, read on demand.
#[derive(Debug)]
pub struct Rest {
    response: reqwest::Response,
    /// Length of the whole response, if the server announced it.
    length: Option<u64>,
    bytes: usize,
    url: String,
}

impl Rest {
    /// Remaining length, if known.
    pub fn length(&self) -> Option<u64> {
        self.length?.checked_sub(self.bytes as u64)
    }

    /// The next part, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        let url = &self.url;
        let piece = self.response.chunk().await.map_err(|error| format!("{url} did not respond: {error}"))?;
        self.bytes += piece.as_ref().map_or(0, |piece| piece.len());
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(format!("the response of {url} is longer than {ANSWER_BYTES_MAX} bytes"));
        }
        Ok(piece.map(Vec::from))
    }
}
