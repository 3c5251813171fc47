//! Requests to the issuer of JWTs and ID tokens. The operator chose its address, and may choose a local one.

use klambda_outbound::Reach;
use klambda_outbound::client::cause;
use reqwest::{Method, RequestBuilder, StatusCode};
use std::time::Duration;

const BYTES_MAX: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

pub async fn fetch(url: &str) -> Result<Vec<u8>, String> {
    match send(request(Method::GET, url)?).await? {
        (StatusCode::OK, text) => Ok(text),
        (status, _) => Err(format!("the response status is {status}")),
    }
}

pub fn request(method: Method, url: &str) -> Result<RequestBuilder, String> {
    let client = Reach::ANYWHERE.client().map_err(|error| cause(&error))?;
    client.request(method, url).map_err(|error| error.to_string())
}

/// The status and the whole body.
pub async fn send(request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), String> {
    let told = |error: reqwest::Error| cause(&error);
    let mut response = request.timeout(TIMEOUT).send().await.map_err(told)?;
    let mut text = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(told)? {
        if text.len() + piece.len() > BYTES_MAX {
            return Err(format!("the response is longer than {BYTES_MAX} bytes"));
        }
        text.extend_from_slice(&piece);
    }
    Ok((response.status(), text))
}
