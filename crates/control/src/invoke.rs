//! Calls a function directly and returns its response.

use crate::control::Control;
use crate::remote;
use bytes::Bytes;
use klambda_core::address::ReplicaAddress;
use klambda_core::ids::uuid;
use klambda_core::outcome::CallOutcome;
use klambda_core::time::Millis;
use klambda_core::trace::{Context, Kind, Span, Subject, TRACEPARENT, TRACESTATE};
use klambda_dispatch::client::{self, Call, Caller};
use klambda_dispatch::traces::Tracer;
use klambda_functions::name::Name;
use klambda_functions::platform::{Acquired, Endpoint, Lease, Unavailable};
use klambda_functions::resource::{Aspect, Resource, ResourceKind, Truth};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Longer responses are rejected.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;
/// The Retry-After of temporary failures.
const RETRY: Duration = Duration::from_secs(1);
pub(crate) const FAILED_RETRY: Duration = Duration::from_secs(30);
/// How often to check whether the replica that a call waits for has started.
const LOOK: Duration = Duration::from_millis(20);
/// The wrapper enforces the same timeout and sends a better message, so wait a little longer for it.
const LATE: Duration = Duration::from_millis(100);
/// Time limit for forwarding a long response, from its first to its last byte.
const PASSED_ON_WITHIN: Duration = Duration::from_secs(300);
const EVENT_TYPE: &str = "lambda.function.invoked";
/// The attributes of the event that a call becomes. The first one tells an event from other requests.
const OWN: [&str; 5] = ["ce-specversion", "ce-id", "ce-type", "ce-source", "ce-time"];
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// A call that was parsed and not yet sent.
#[derive(Debug)]
pub struct Invocation {
    name: Name,
    resource: Arc<Resource>,
    call: Call,
    /// If the server exports traces: the context of the call, and of the request.
    trace: Option<(Context, Option<Context>)>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    NotFound(String),
    #[error("{why}")]
    Unavailable { why: String, retry_after: Duration },
    #[error("the function timed out after {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Broken(String),
    #[error("{0}")]
    BadRequest(String),
}

/// The response of a function.
#[derive(Debug)]
pub struct FunctionResponse {
    pub status: u16,
    pub content_type: Option<String>,
    /// The whole body, or the beginning of a long one.
    pub body: Vec<u8>,
    pub rest: Option<Rest>,
}

/// The rest of a long response, read from the function on demand.
pub struct Rest {
    source: Source,
    until: Instant,
    /// Keeps the replica running until the response is complete.
    _lease: Box<dyn Lease>,
}

pub(crate) enum Source {
    Replica(client::Rest),
    Url(remote::Rest),
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rest").field("length", &self.length()).finish_non_exhaustive()
    }
}

impl Rest {
    /// Remaining length, if known.
    pub fn length(&self) -> Option<u64> {
        match &self.source {
            Source::Replica(rest) => rest.length(),
            Source::Url(rest) => rest.length(),
        }
    }

    /// The next part, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        match &mut self.source {
            Source::Replica(rest) => rest.next(self.until.into()).await,
            Source::Url(rest) => {
                let next = tokio::time::timeout_at(self.until.into(), rest.next()).await;
                next.unwrap_or_else(|_| Err("the response took too long".to_owned()))
            }
        }
    }
}

/// Ids of the events that calls become: a random start value, then a counter.
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

    /// Ids must be unique; they need not be hard to guess.
    fn next(&self) -> String {
        // The lower bits of a UUID carry no meaning, so they can count.
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        uuid(self.first.wrapping_add(u128::from(number)).to_be_bytes())
    }
}

pub(crate) fn caller() -> Caller {
    Caller::new(client::Options { answer_bytes_max: ANSWER_BYTES_MAX, ..client::Options::default() })
}

impl Control {
    /// Turns a request into a call. The headers are borrowed only during this function.
    pub fn prepare<'h>(
        &self,
        kind: ResourceKind,
        name: Name,
        headers: impl Iterator<Item = (&'h str, &'h [u8])>,
        body: Bytes,
    ) -> Result<Invocation, Error> {
        let resource = self.find(kind, &name).map_err(|error| Error::NotFound(error.to_string()))?;
        let mut given = RequestHeaders::read(headers)?;
        let trace = self.options.tracer.as_ref().map(|tracer| given.begin_trace(tracer));
        let headers = match given.is_event {
            true => given.into_headers(),
            false => given.wrapped(kind, &name, &body, &self.ids.next(), self.clock.now()),
        };
        Ok(Invocation { name, resource, call: Call { headers, body }, trace })
    }

    pub async fn invoke(&self, invocation: Invocation) -> Result<FunctionResponse, Error> {
        let lease = self.lease(&invocation.name, &invocation.resource).await?;
        if lease.is_starting() {
            self.counting.cold_start(&invocation.name);
        }
        let (name, began, trace) = (invocation.name.clone(), Instant::now(), invocation.trace);
        let response = self.call(invocation, lease).await;
        let succeeded = response.as_ref().is_ok_and(|response| (200..300).contains(&response.status));
        self.counting.called(&name, succeeded, began.elapsed());
        if let (Some(tracer), Some((context, parent))) = (&self.options.tracer, trace)
            && context.is_sampled
        {
            tracer.record(span(&name, context, parent, began.elapsed(), &response));
        }
        response
    }

    async fn call(
        &self,
        invocation: Invocation,
        mut lease: Box<dyn Lease>,
    ) -> Result<FunctionResponse, Error> {
        let Invocation { resource, call, .. } = invocation;
        let within = Duration::from_millis(resource.spec.call_timeout().ms);
        let answer = match lease.endpoint() {
            Endpoint::Local(address) => {
                let called = match lease.is_starting() {
                    false => self.caller.call(address, &call, within + LATE).await,
                    true => self.call_early(&*lease, address, &call, within + LATE).await,
                };
                let client::CallResponse { status, content_type, body, rest } =
                    called.map_err(|outcome| failed(outcome, within))?;
                (status, content_type, body, rest.map(Source::Replica))
            }
            Endpoint::Url(url) => {
                let reach = self.options.outbound.reach(&resource.metadata.namespace);
                let called = tokio::time::timeout(within, remote::send(&reach, url, call)).await;
                let (status, content_type, body, rest) = called.map_err(|_| Error::Timeout(within))??;
                (status, content_type, body, rest.map(Source::Url))
            }
        };
        lease.answered();
        let (status, content_type, body, rest) = answer;
        let until = Instant::now() + PASSED_ON_WITHIN;
        let rest = rest.map(|source| Rest { source, until, _lease: lease });
        passable(FunctionResponse { status, content_type, body, rest })
    }

    /// Calls a replica that is still starting. The time that the call waits for the replica does not count toward the timeout.
    async fn call_early(
        &self,
        lease: &dyn Lease,
        address: &ReplicaAddress,
        call: &Call,
        within: Duration,
    ) -> Result<client::CallResponse, CallOutcome> {
        let time = async {
            while lease.is_starting() {
                tokio::time::sleep(LOOK).await;
            }
            tokio::time::sleep(within).await;
        };
        tokio::select! {
            called = self.caller.call(address, call, within + self.options.start_timeout) => called,
            () = time => Err(CallOutcome::Timeout),
        }
    }

    async fn lease(&self, name: &Name, resource: &Resource) -> Result<Box<dyn Lease>, Error> {
        let Some(platform) = self.running() else { return Err(not_ready(resource)) };
        let acquired = match platform.acquire(name) {
            Acquired::Ready(lease) => Ok(lease),
            Acquired::Soon(waiting) => waiting.await,
            Acquired::Unavailable(why) => Err(why),
        };
        acquired.map_err(|unavailable| match unavailable {
            Unavailable::NotDeployed(_) => not_ready(resource),
            Unavailable::Failed(why) => Error::Unavailable { why, retry_after: FAILED_RETRY },
            Unavailable::Busy(why) | Unavailable::Ending(why) => {
                Error::Unavailable { why, retry_after: RETRY }
            }
        })
    }
}

fn span(
    name: &Name,
    context: Context,
    parent: Option<Context>,
    took: Duration,
    response: &Result<FunctionResponse, Error>,
) -> Span {
    let mut attributes =
        vec![("function.name", name.name().into()), ("function.namespace", name.namespace().into())];
    if let Ok(response) = response {
        attributes.push(("http.response.status_code", u64::from(response.status).into()));
    }
    Span {
        name: "operator.api.handle",
        kind: Kind::Server,
        context,
        parent: parent.map(|parent| parent.span),
        links: Vec::new(),
        start: SystemTime::now() - took,
        took,
        attributes,
        error: response.as_ref().err().map(Error::to_string),
        subject: Subject::Other,
    }
}

/// The request headers that a function may see.
#[derive(Default)]
struct RequestHeaders<'h> {
    content_type: Option<&'h str>,
    /// The request is already a CloudEvent.
    is_event: bool,
    /// Headers with the names in `OWN`, and all other headers.
    own: Vec<u8>,
    others: Vec<u8>,
    /// Its name as it was sent, and its value.
    traceparent: Option<(&'h str, &'h [u8])>,
}

impl<'h> RequestHeaders<'h> {
    fn read(headers: impl Iterator<Item = (&'h str, &'h [u8])>) -> Result<RequestHeaders<'h>, Error> {
        let mut given = RequestHeaders::default();
        for (header, value) in headers {
            if header.eq_ignore_ascii_case("content-type") {
                given.content_type = std::str::from_utf8(value).ok();
            } else if OWN.iter().any(|own| header.eq_ignore_ascii_case(own)) {
                given.is_event |= header.eq_ignore_ascii_case(OWN[0]);
                write(&mut given.own, header, value);
            } else if header.eq_ignore_ascii_case(TRACEPARENT) {
                given.traceparent = Some((header, value));
            } else if is_passed(header) {
                write(&mut given.others, header, value);
            }
        }
        let media = given.content_type.unwrap_or_default();
        if begins(media, "application/cloudevents-batch") {
            return Err(Error::BadRequest("invoke accepts one event, not a batch".into()));
        }
        given.is_event |= begins(media, "application/cloudevents+json");
        Ok(given)
    }

    /// The function gets the context of the call instead of the request's.
    fn begin_trace(&mut self, tracer: &Tracer) -> (Context, Option<Context>) {
        let given = self.traceparent.take().and_then(|(_, value)| std::str::from_utf8(value).ok());
        let parent = given.and_then(Context::parse);
        let context = tracer.begin(parent.as_ref());
        write(&mut self.others, TRACEPARENT, context.header().as_str().as_bytes());
        (context, parent)
    }

    /// Passes a CloudEvent on unchanged.
    fn into_headers(mut self) -> Vec<u8> {
        self.pass_trace_on();
        let mut headers = self.own;
        headers.extend_from_slice(&self.others);
        self.content_type.iter().for_each(|media| write(&mut headers, "content-type", media.as_bytes()));
        headers
    }

    fn pass_trace_on(&mut self) {
        if let Some((name, value)) = self.traceparent.take() {
            write(&mut self.others, name, value);
        }
    }

    /// Makes the body the data of a new CloudEvent. The attributes in `OWN` are ours, whatever the request says.
    fn wrapped(mut self, kind: ResourceKind, name: &Name, body: &Bytes, id: &str, now: Millis) -> Vec<u8> {
        let source = format!("/lambda/{}s/{name}/invoke", kind.word());
        let mut headers = Vec::with_capacity(384);
        for (header, value) in OWN.iter().zip(["1.0", id, EVENT_TYPE, &source, &now.rfc3339()]) {
            write(&mut headers, header, value.as_bytes());
        }
        self.pass_trace_on();
        headers.extend_from_slice(&self.others);
        if !body.is_empty() {
            write(&mut headers, "content-type", data_type(self.content_type, body).as_bytes());
        }
        headers
    }
}

fn is_passed(header: &str) -> bool {
    begins(header, "ce-") || header.eq_ignore_ascii_case(TRACESTATE)
}

fn begins(text: &str, start: &str) -> bool {
    text.as_bytes().get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start.as_bytes()))
}

fn write(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Accepts only final HTTP status codes. Another code, such as 101, would affect our own connection.
fn passable(answer: FunctionResponse) -> Result<FunctionResponse, Error> {
    match answer.status {
        200..=599 => Ok(answer),
        status => Err(Error::Broken(format!(
            "the function returned the invalid status {status} (expected 200 to 599)"
        ))),
    }
}

fn failed(outcome: CallOutcome, within: Duration) -> Error {
    match outcome {
        CallOutcome::Timeout => Error::Timeout(within),
        CallOutcome::Refused(why) | CallOutcome::Unusable(why) => {
            Error::Broken(format!("could not connect to the function: {why}"))
        }
        CallOutcome::Broken(why) => Error::Broken(format!("the function did not respond: {why}")),
        other => Error::Broken(format!("the function did not respond: {other:?}")),
    }
}

/// Explains with the messages of the conditions why the function cannot serve.
fn not_ready(resource: &Resource) -> Error {
    let said = |aspect: Aspect, truth: Truth| {
        let condition = resource.status.condition(aspect).filter(|said| said.status == truth);
        condition.map(|said| said.message.clone())
    };
    let order = [Aspect::SourceReady, Aspect::BuildReady, Aspect::DeployReady, Aspect::ServiceReady];
    let failed = order.into_iter().find_map(|aspect| said(aspect, Truth::False));
    let retry_after = if failed.is_some() { FAILED_RETRY } else { RETRY };
    let waits = || order.into_iter().find_map(|aspect| said(aspect, Truth::Unknown));
    let why = failed.or_else(waits).unwrap_or_else(|| "it was applied a moment ago".into());
    let word = resource.kind.word();
    Error::Unavailable { why: format!("the {word} is not ready: {why}"), retry_after }
}

/// Treats a body as JSON if it parses as JSON and has no content type, or the form type that tools like curl send by default.
fn data_type<'t>(given: Option<&'t str>, body: &Bytes) -> &'t str {
    match given {
        Some(given) if !begins(given, FORM) => given,
        _ if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok() => JSON,
        Some(given) => given,
        None if std::str::from_utf8(body).is_ok() => "text/plain; charset=utf-8",
        None => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers = [(&'static str, &'static [u8])];

    fn lines(headers: &Headers, body: &'static [u8]) -> Vec<String> {
        let name = Name::new("default", "hello");
        let body = Bytes::from_static(body);
        let given = RequestHeaders::read(headers.iter().copied()).expect("one event");
        let headers = match given.is_event {
            true => given.into_headers(),
            false => given.wrapped(ResourceKind::LambdaFunction, &name, &body, "1", Millis(0)),
        };
        let text = String::from_utf8(headers).expect("text");
        text.split_terminator("\r\n").map(str::to_owned).collect()
    }

    #[test]
    fn what_is_no_event_becomes_the_data_of_one_under_our_own_attributes() {
        let given: [(&str, &[u8]); 5] = [
            ("Ce-Type", b"forged"),
            ("ce-id", b"forged"),
            ("ce-subject", b"s"),
            ("Traceparent", b"00-1"),
            ("x-other", b"left out"),
        ];
        let expected = [
            "ce-specversion: 1.0",
            "ce-id: 1",
            "ce-type: lambda.function.invoked",
            "ce-source: /lambda/functions/default/hello/invoke",
            "ce-time: 1970-01-01T00:00:00Z",
            "ce-subject: s",
            "Traceparent: 00-1",
            "content-type: application/json",
        ];
        assert_eq!(lines(&given, b"{}"), expected);
        assert_eq!(lines(&[], b"").len(), 5, "an empty body has no content type");
        let form: [(&str, &[u8]); 1] = [("content-type", b"application/x-www-form-urlencoded")];
        assert_eq!(lines(&form, b"a=b")[5], "content-type: application/x-www-form-urlencoded");
        assert_eq!(lines(&form, b"[1]")[5], "content-type: application/json");
        assert_eq!(lines(&[], b"\xff")[5], "content-type: application/octet-stream");
    }

    #[test]
    fn an_event_goes_as_it_is_and_a_batch_not_at_all() {
        let binary: [(&str, &[u8]); 3] = [("CE-specversion", b"1.0"), ("ce-id", b"e"), ("x-other", b"y")];
        assert_eq!(lines(&binary, b"x"), ["CE-specversion: 1.0", "ce-id: e"]);
        let structured: [(&str, &[u8]); 1] = [("Content-Type", b"Application/CloudEvents+JSON")];
        assert_eq!(lines(&structured, b"{}"), ["content-type: Application/CloudEvents+JSON"]);
        let batch: [(&str, &[u8]); 1] = [("content-type", b"application/cloudevents-batch+json")];
        assert!(matches!(RequestHeaders::read(batch.iter().copied()), Err(Error::BadRequest(_))));
    }

    #[test]
    fn ids_are_given_once() {
        let ids = Ids::new(Millis(0));
        let given: std::collections::HashSet<String> = (0..1000).map(|_| ids.next()).collect();
        assert_eq!(given.len(), 1000);
    }
}
