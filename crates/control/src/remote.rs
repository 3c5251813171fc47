//! Calls functions that run at a URL, with or without TLS.

use crate::invoke::{ANSWER_BYTES_MAX, Error};
use http::header::CONTENT_TYPE;
use klambda_dispatch::client::Call;
use std::sync::OnceLock;

/// How much of a long response is held in memory at a time.
const PART_BYTES: usize = 64 << 10;

/// One client for all calls, so that connections are reused.
fn client() -> Result<&'static reqwest::Client, Error> {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    // The client uses the crypto provider of the process. An error means that the same provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let built = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
    let client =
        built.map_err(|error| Error::Broken(format!("could not create the HTTP client: {error}")))?;
    Ok(CLIENT.get_or_init(|| client))
}

/// Status, content type, body, and the rest if the body holds only the beginning of a long response.
type Answered = (u16, Option<String>, Vec<u8>, Option<Rest>);

pub async fn send(url: &str, call: Call) -> Result<Answered, Error> {
    let broken = |error: reqwest::Error| Error::Broken(format!("{url} did not respond: {error}"));
    let mut request = client()?.post(url);
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
