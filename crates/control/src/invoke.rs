//! Calling a function directly: its body in, its answer out.

use crate::control::Control;
use crate::elsewhere;
use crate::names::Name;
use crate::platform::timeout_ms;
use crate::pool::Connection;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use klambda_core::ids::uuid;
use klambda_functions::resource::{Aspect, Kind, Resource, Truth};
use klambda_local::fleet::{self, Endpoint, Lease};
use std::net::SocketAddr;
use std::time::Duration;

/// Longer answers are refused.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;
/// When a caller may try again.
const RETRY: Duration = Duration::from_secs(1);
pub(crate) const FAILED_RETRY: Duration = Duration::from_secs(30);
const EVENT_TYPE: &str = "lambda.function.invoked";
const FORM: &str = "application/x-www-form-urlencoded";

/// What a client sent.
#[derive(Debug)]
pub struct Call {
    pub headers: HeaderMap,
    pub body: Bytes,
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub content_type: Option<HeaderValue>,
    pub body: Bytes,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    NotFound(String),
    #[error("{why}")]
    Unavailable { why: String, retry_after: Duration },
    #[error("the function did not answer within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Broken(String),
    #[error("{0}")]
    BadRequest(String),
}

impl Control {
    pub async fn invoke(&self, kind: Kind, name: &Name, call: Call) -> Result<Answer, Error> {
        let resource = self.find(kind, name).map_err(|error| Error::NotFound(error.to_string()))?;
        let headers = event_headers(name, &resource, &call, &self.new_id(), self.clock.now())?;
        let mut lease = self.lease(name, &resource).await?;
        let within = Duration::from_millis(timeout_ms(&resource)) + self.options.start_timeout;
        let answered = tokio::time::timeout(within, self.send(&lease, headers, call.body)).await;
        let answer = answered.map_err(|_| Error::Timeout(within))??;
        lease.answered();
        Ok(answer)
    }

    async fn lease(&self, name: &Name, resource: &Resource) -> Result<Lease, Error> {
        let Some(platform) = self.running() else { return Err(not_ready(resource)) };
        match platform.fleet.acquire(name.as_str()).await {
            Ok(lease) => Ok(lease),
            Err(fleet::Error::Unknown(_)) => Err(not_ready(resource)),
            Err(fleet::Error::Failed(failure)) => {
                Err(Error::Unavailable { why: failure.to_string(), retry_after: FAILED_RETRY })
            }
            Err(other) => Err(Error::Unavailable { why: other.to_string(), retry_after: RETRY }),
        }
    }

    async fn send(&self, lease: &Lease, headers: HeaderMap, body: Bytes) -> Result<Answer, Error> {
        match lease.endpoint() {
            Endpoint::Local(address) => self.send_to(*address, headers, body).await,
            Endpoint::Url(url) => elsewhere::send(url, headers, body).await,
        }
    }

    async fn send_to(&self, address: SocketAddr, headers: HeaderMap, body: Bytes) -> Result<Answer, Error> {
        let broken =
            |error: std::io::Error| Error::Broken(format!("the function cannot be reached: {error}"));
        let mut headers = headers;
        headers.insert(HOST, HeaderValue::from_static("function"));
        if let Some(mut connection) = self.pool.take(address) {
            match connection.send(request(headers, body)).await {
                Ok(response) => return self.read(address, connection, response).await,
                // It was closed while it waited: the function has seen nothing of this call.
                Err(mut refused) => match refused.take_message() {
                    Some(again) => {
                        let connection = self.pool.connect(address).await.map_err(broken)?;
                        return self.send_on(address, connection, again).await;
                    }
                    None => return Err(Error::Broken(ended(refused.error()))),
                },
            }
        }
        let connection = self.pool.connect(address).await.map_err(broken)?;
        self.send_on(address, connection, request(headers, body)).await
    }

    async fn send_on(
        &self,
        address: SocketAddr,
        mut connection: Connection,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, Error> {
        let response =
            connection.send(request).await.map_err(|refused| Error::Broken(ended(refused.error())))?;
        self.read(address, connection, response).await
    }

    async fn read(
        &self,
        address: SocketAddr,
        mut connection: Connection,
        response: Response<Incoming>,
    ) -> Result<Answer, Error> {
        let (mut head, body) = response.into_parts();
        let collected = connection.until(Limited::new(body, ANSWER_BYTES_MAX).collect()).await;
        let body = collected.map_err(|error| Error::Broken(format!("its answer cannot be read: {error}")))?;
        self.pool.give_back(address, connection);
        let content_type = head.headers.remove(CONTENT_TYPE);
        Ok(Answer { status: head.status, content_type, body: body.to_bytes() })
    }

    pub(crate) fn new_id(&self) -> String {
        let mut bytes = [0; 16];
        if getrandom::fill(&mut bytes).is_err() {
            bytes[..8].copy_from_slice(&self.clock.now().0.to_be_bytes());
        }
        uuid(bytes)
    }
}

fn ended(error: &hyper::Error) -> String {
    format!("the function ended before it answered: {error}")
}

fn request(headers: HeaderMap, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("/");
    *request.headers_mut() = headers;
    request
}

/// Why it does not serve, in the words of its conditions.
fn not_ready(resource: &Resource) -> Error {
    let said = |aspect: Aspect, truth: Truth| {
        let condition = resource.status.condition(aspect).filter(|said| said.status == truth);
        condition.map(|said| said.message.clone())
    };
    let order = [Aspect::SourceReady, Aspect::BuildReady, Aspect::DeployReady, Aspect::ServiceReady];
    let failed = order.into_iter().find_map(|aspect| said(aspect, Truth::False));
    let retry_after = if failed.is_some() { FAILED_RETRY } else { RETRY };
    let waits = || order.into_iter().find_map(|aspect| said(aspect, Truth::Unknown));
    let why = failed.or_else(waits).unwrap_or_else(|| "it was just applied".into());
    let word = resource.kind.word();
    Error::Unavailable { why: format!("the {word} cannot serve yet: {why}"), retry_after }
}

/// A CloudEvent goes as it is; anything else becomes the data of one.
fn event_headers(
    name: &Name,
    resource: &Resource,
    call: &Call,
    id: &str,
    now: klambda_core::time::Millis,
) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::with_capacity(8);
    let content_type = call.headers.get(CONTENT_TYPE);
    let media = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    if media.starts_with("application/cloudevents-batch") {
        return Err(Error::BadRequest("a function is invoked with one event, not a batch".into()));
    }
    for (header, value) in &call.headers {
        let text = header.as_str();
        if text.starts_with("ce-") || matches!(text, "traceparent" | "tracestate") {
            headers.append(header.clone(), value.clone());
        }
    }
    if media.starts_with("application/cloudevents+json") || call.headers.contains_key("ce-specversion") {
        headers.extend(content_type.map(|value| (CONTENT_TYPE, value.clone())));
        return Ok(headers);
    }
    let source = format!("/lambda/{}s/{}/{}/invoke", resource.kind.word(), name.namespace(), name.name());
    let own = [("ce-specversion", "1.0"), ("ce-id", id), ("ce-type", EVENT_TYPE)];
    for (header, value) in
        own.into_iter().chain([("ce-source", source.as_str()), ("ce-time", &now.rfc3339())])
    {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(header), value);
        }
    }
    if !call.body.is_empty() {
        headers.insert(CONTENT_TYPE, data_type(content_type, &media, &call.body));
    }
    Ok(headers)
}

/// Bodies that come without a type, or with the one that tools send when they are told nothing, are JSON if they can be.
fn data_type(given: Option<&HeaderValue>, media: &str, body: &Bytes) -> HeaderValue {
    let json = HeaderValue::from_static("application/json");
    match given {
        Some(given) if !media.starts_with(FORM) => given.clone(),
        _ if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok() => json,
        Some(given) => given.clone(),
        None if std::str::from_utf8(body).is_ok() => HeaderValue::from_static("text/plain; charset=utf-8"),
        None => HeaderValue::from_static("application/octet-stream"),
    }
}
