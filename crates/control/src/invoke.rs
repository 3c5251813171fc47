//! Calling a function directly: its body in, its answer out.

use crate::control::Control;
use crate::elsewhere;
use crate::names::Name;
use crate::platform::timeout_ms;
use bytes::Bytes;
use klambda_core::ids::uuid;
use klambda_core::outcome::Outcome;
use klambda_core::time::Millis;
use klambda_dispatch::client::{self, Answer, Call, Caller};
use klambda_functions::resource::{Aspect, Kind, Resource, Truth};
use klambda_local::fleet::{self, Endpoint, Lease};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longer answers are refused.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;
/// When a caller may try again.
const RETRY: Duration = Duration::from_secs(1);
pub(crate) const FAILED_RETRY: Duration = Duration::from_secs(30);
const EVENT_TYPE: &str = "lambda.function.invoked";
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// A call that was read and not yet made.
#[derive(Debug)]
pub struct Invocation {
    name: Name,
    resource: Arc<Resource>,
    call: Call,
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

/// Ids of events that calls become: random once, and counted from there.
pub(crate) struct Ids {
    first: u128,
    given: AtomicU64,
}

impl Ids {
    pub(crate) fn new(now: Millis) -> Ids {
        let mut bytes = [0; 16];
        if getrandom::fill(&mut bytes).is_err() {
            bytes[..8].copy_from_slice(&now.0.to_be_bytes());
        }
        Ids { first: u128::from_be_bytes(bytes), given: AtomicU64::new(0) }
    }

    /// Not guessed by anybody is no promise that is needed here; given once is.
    fn next(&self) -> String {
        // The lower bits of a UUID are free.
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        uuid(self.first.wrapping_add(u128::from(number)).to_be_bytes())
    }
}

pub(crate) fn caller() -> Caller {
    Caller::new(client::Options { answer_bytes_max: ANSWER_BYTES_MAX, ..client::Options::default() })
}

impl Control {
    /// Makes a call of a request. Its headers are needed no longer than this takes.
    pub fn prepare<'h>(
        &self,
        kind: Kind,
        name: Name,
        headers: impl Iterator<Item = (&'h str, &'h [u8])>,
        body: Bytes,
    ) -> Result<Invocation, Error> {
        let resource = self.find(kind, &name).map_err(|error| Error::NotFound(error.to_string()))?;
        let headers = self.event_headers(kind, &name, headers, &body)?;
        Ok(Invocation { name, resource, call: Call { headers, body } })
    }

    pub async fn invoke(&self, invocation: Invocation) -> Result<Answer, Error> {
        let Invocation { name, resource, call } = invocation;
        let mut lease = self.lease(&name, &resource).await?;
        let within = Duration::from_millis(timeout_ms(&resource)) + self.options.start_timeout;
        let answer = match lease.endpoint() {
            Endpoint::Local(address) => {
                let called = self.caller.call(address, &call, within).await;
                called.map_err(|outcome| failed(outcome, within))?
            }
            Endpoint::Url(url) => {
                let called = tokio::time::timeout(within, elsewhere::send(url, call)).await;
                called.map_err(|_| Error::Timeout(within))??
            }
        };
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

    /// A CloudEvent goes as it is; anything else becomes the data of one.
    fn event_headers<'h>(
        &self,
        kind: Kind,
        name: &Name,
        given: impl Iterator<Item = (&'h str, &'h [u8])>,
        body: &Bytes,
    ) -> Result<Vec<u8>, Error> {
        let mut headers = Vec::with_capacity(384);
        let (mut content_type, mut is_event) = (None, false);
        for (header, value) in given {
            if header.eq_ignore_ascii_case("content-type") {
                content_type = std::str::from_utf8(value).ok();
            } else if is_passed(header) {
                is_event |= header.eq_ignore_ascii_case("ce-specversion");
                write(&mut headers, header, value);
            }
        }
        let media = content_type.unwrap_or_default();
        if begins(media, "application/cloudevents-batch") {
            return Err(Error::BadRequest("a function is invoked with one event, not a batch".into()));
        }
        if is_event || begins(media, "application/cloudevents+json") {
            content_type.iter().for_each(|media| write(&mut headers, "content-type", media.as_bytes()));
            return Ok(headers);
        }
        let source = format!("/lambda/{}s/{name}/invoke", kind.word());
        let (id, time) = (self.ids.next(), self.clock.now().rfc3339());
        for (header, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", &id),
            ("ce-type", EVENT_TYPE),
            ("ce-source", &source),
            ("ce-time", &time),
        ] {
            write(&mut headers, header, value.as_bytes());
        }
        if !body.is_empty() {
            write(&mut headers, "content-type", data_type(content_type, body).as_bytes());
        }
        Ok(headers)
    }
}

fn is_passed(header: &str) -> bool {
    begins(header, "ce-")
        || header.eq_ignore_ascii_case("traceparent")
        || header.eq_ignore_ascii_case("tracestate")
}

fn begins(text: &str, start: &str) -> bool {
    text.as_bytes().get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start.as_bytes()))
}

fn write(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

fn failed(outcome: Outcome, within: Duration) -> Error {
    match outcome {
        Outcome::Timeout => Error::Timeout(within),
        Outcome::Refused(why) | Outcome::Unusable(why) => {
            Error::Broken(format!("the function cannot be reached: {why}"))
        }
        Outcome::Broken(why) => Error::Broken(format!("the function did not answer: {why}")),
        other => Error::Broken(format!("the function did not answer: {other:?}")),
    }
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

/// Bodies that come without a type, or with the one that tools send when they are told nothing, are JSON if they can be.
fn data_type<'t>(given: Option<&'t str>, body: &Bytes) -> &'t str {
    match given {
        Some(given) if !begins(given, FORM) => given,
        _ if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok() => JSON,
        Some(given) => given,
        None if std::str::from_utf8(body).is_ok() => "text/plain; charset=utf-8",
        None => "application/octet-stream",
    }
}
