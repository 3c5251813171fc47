//! HTTP errors: problem documents (RFC 9457) with a stable `type`, the cause and the fix.
//!
//! [`KINDS`] is the table of all problems; the documentation quotes it. Each kind has one constructor, so that status and title
//! always agree.

use crate::body::Body;
use crate::raw_response::RawResponse;
use axum::response::IntoResponse;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
pub use klambda_core::fault::Fault;
use klambda_core::os_error::without_codes;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};
use std::time::Duration;

/// The base URL of problem types. A slug completes it.
pub const TYPE_BASE: &str = "https://knative-lambda.dev/problems/";
const CONTENT_TYPE: &str = "application/problem+json";

/// A kind of problem, with the status and title of all problems of this kind.
#[derive(Debug, PartialEq, Eq)]
pub struct ProblemKind {
    pub slug: &'static str,
    pub title: &'static str,
    pub status: StatusCode,
    /// The meaning and the fix in one sentence, for the reference.
    pub about: &'static str,
}

#[derive(Clone, Debug)]
pub struct Problem {
    kind: &'static ProblemKind,
    detail: String,
    faults: Vec<Fault>,
    extra: Map<String, Value>,
    retry_after: Option<Duration>,
}

macro_rules! kinds {
    ($($name:ident $status:ident $slug:literal $title:literal $about:literal;)+) => {
        mod kind {
            use super::ProblemKind;
            use http::StatusCode;
            $(#[allow(non_upper_case_globals)]
            pub(super) static $name: ProblemKind =
                ProblemKind { slug: $slug, title: $title, status: StatusCode::$status, about: $about };)+
        }

        /// Every kind of problem.
        pub static KINDS: &[&ProblemKind] = &[$(&kind::$name),+];

        impl Problem {
            $(#[doc = $about]
            pub fn $name(detail: impl Into<String>) -> Problem {
                Problem::new(&kind::$name, detail.into())
            })+
        }
    };
}

kinds! {
    bad_request BAD_REQUEST "bad-request" "Bad request"
        "The request is malformed: its first line, a header, a query parameter or the JSON is invalid.";
    invalid_event BAD_REQUEST "invalid-event" "Invalid event"
        "The event is not a valid CloudEvent; `faults` lists each invalid attribute.";
    invalid_batch BAD_REQUEST "invalid-batch" "Invalid batch"
        "The batch is not a JSON array of events, or has more events than `limits.batchEvents`.";
    unauthorized UNAUTHORIZED "unauthorized" "Missing or invalid token"
        "Send `Authorization: Bearer <token>` with a token that is valid on this server.";
    foreign_origin FORBIDDEN "foreign-origin" "Foreign origin"
        "A web page of another origin sent the request; `--allow-host` allows the host of the page.";
    forbidden FORBIDDEN "forbidden" "Forbidden"
        "The token lacks the required role in the namespace of the request; the detail names the required role and the roles of the token.";
    not_found NOT_FOUND "not-found" "Not found"
        "The resource does not exist.";
    method_not_allowed METHOD_NOT_ALLOWED "method-not-allowed" "Method not allowed"
        "The resource does not support this method; `Allow` lists the supported ones.";
    not_acceptable NOT_ACCEPTABLE "not-acceptable" "Not acceptable"
        "The resource supports none of the formats in `Accept`.";
    request_timeout REQUEST_TIMEOUT "request-timeout" "Request timed out"
        "The request was not complete within `limits.bodyTimeout`.";
    conflict CONFLICT "conflict" "Conflict"
        "The current state of the resource does not allow this.";
    events_waiting CONFLICT "events-waiting" "Events pending"
        "The subscription still has `waiting` pending events: set `drain=true` or `discard=true`.";
    exists PRECONDITION_FAILED "exists" "Already exists"
        "The request had `If-None-Match: *`, but the resource exists.";
    outdated PRECONDITION_FAILED "outdated" "Changed meanwhile"
        "The request had `If-Match`, but the resource has another version now; read it again.";
    gone GONE "gone" "No longer available"
        "Retention has removed these events; `oldest` is the first that is available: a position of the log, or an event id of a webhook feed.";
    lanes_parked CONFLICT "lanes-parked" "Lanes are parked"
        "Resolve the parked lanes before you change the ordering, or set `discard=true`.";
    too_large PAYLOAD_TOO_LARGE "too-large" "Too large"
        "The body or an event is larger than `limits.bodyBytes` or `limits.eventBytes`.";
    uri_too_long URI_TOO_LONG "uri-too-long" "URL too long"
        "The path with its query is too long.";
    unsupported_media_type UNSUPPORTED_MEDIA_TYPE "unsupported-media-type" "Unsupported media type"
        "The resource does not support this `Content-Type`.";
    foreign_host MISDIRECTED_REQUEST "foreign-host" "Foreign host"
        "`Host` is not a name of this server; `--allow-host` adds names.";
    invalid_subscription UNPROCESSABLE_ENTITY "invalid-subscription" "Invalid subscription"
        "The document is not a valid subscription; `faults` lists each invalid field. A target that the outbound guard forbids is one of them (`outbound.allow`).";
    invalid_endpoint UNPROCESSABLE_ENTITY "invalid-endpoint" "Invalid webhook endpoint"
        "The document is not a valid webhook endpoint; `faults` lists each invalid field.";
    invalid_event_type UNPROCESSABLE_ENTITY "invalid-event-type" "Invalid event type"
        "The document is not a valid event type; `faults` lists each invalid field. A schema that does not compile and an example that does not match the schema are among them.";
    schema_mismatch UNPROCESSABLE_ENTITY "schema-mismatch" "Schema mismatch"
        "The data of the event does not match the schema of its event type, and `schemaCheck` of the namespace is `reject`; `pointer` is the place in the data and `rule` the keyword of the schema.";
    invalid_selector UNPROCESSABLE_ENTITY "invalid-selector" "Invalid selector"
        "The selector or the options of a replay or purge are invalid; `faults` lists each invalid field.";
    invalid_function UNPROCESSABLE_ENTITY "invalid-function" "Invalid function"
        "The document is not a valid function or agent; `faults` lists each invalid field. A source at a forbidden address is one of them (`outbound.allow`).";
    invalid_body UNPROCESSABLE_ENTITY "invalid-body" "Invalid body"
        "The body has invalid members for this action; `faults` lists each.";
    immutable UNPROCESSABLE_ENTITY "immutable" "Immutable field"
        "The field cannot change after the resource is created.";
    backlog_full TOO_MANY_REQUESTS "backlog-full" "Backlog full"
        "A matching subscription is at its backlog limit; retry after `Retry-After`.";
    limit_reached TOO_MANY_REQUESTS "limit-reached" "Limit reached"
        "A configured limit is reached; the detail names it.";
    rate_limited TOO_MANY_REQUESTS "rate-limited" "Too many requests"
        "The client sends more requests than `functions.rateLimits` allows; retry after `Retry-After`.";
    headers_too_large REQUEST_HEADER_FIELDS_TOO_LARGE "headers-too-large" "Headers too large"
        "The request has more than 100 headers, or they are larger than `limits.headerBytes`.";
    internal INTERNAL_SERVER_ERROR "internal" "Internal error"
        "The server failed; see the log of the server.";
    identity_provider BAD_GATEWAY "identity-provider" "Identity provider failed"
        "The identity provider of `auth.oidc` did not answer, or answered with an error; the detail has its words.";
    function_broken BAD_GATEWAY "function-broken" "Function failed"
        "The function exited or closed the connection before it responded; see the log of the function.";
    function_unavailable SERVICE_UNAVAILABLE "function-unavailable" "Function unavailable"
        "No version of the function can be called now; the detail quotes its conditions.";
    overloaded SERVICE_UNAVAILABLE "overloaded" "Overloaded"
        "The server had no memory for the request or its response (`limits.heldBytes`) within `limits.bodyTimeout`; retry after `Retry-After`.";
    too_many_connections SERVICE_UNAVAILABLE "too-many-connections" "Too many connections"
        "`limits.connections` connections are open; retry after `Retry-After`.";
    not_ready SERVICE_UNAVAILABLE "not-ready" "Not ready"
        "The server is starting or recovering.";
    shutting_down SERVICE_UNAVAILABLE "shutting-down" "Shutting down"
        "The server is shutting down and accepts no new requests.";
    storage_failed SERVICE_UNAVAILABLE "storage-failed" "Storage failed"
        "A write could not be synced; restart the server to accept events again.";
    function_timeout GATEWAY_TIMEOUT "function-timeout" "Function timed out"
        "The function did not respond within `retry.timeout`.";
    disk_full INSUFFICIENT_STORAGE "disk-full" "Disk full"
        "The disk has no room for new events. Accepted events are safe and are still delivered. The server accepts events again when there is room.";
}

impl Problem {
    fn new(kind: &'static ProblemKind, detail: String) -> Problem {
        let detail = without_codes(&detail);
        Problem { kind, detail, faults: Vec::new(), extra: Map::new(), retry_after: None }
    }

    /// Adds faults: all that were found, not only the first.
    pub fn faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Problem {
        self.faults.extend(faults);
        self
    }

    /// The same kind with another detail, without faults and members.
    pub fn about(self, detail: String) -> Problem {
        Problem { detail, faults: Vec::new(), extra: Map::new(), ..self }
    }

    pub fn fault(self, path: impl Into<String>, message: impl Into<String>) -> Problem {
        self.faults([Fault::new(path, message)])
    }

    /// Adds an extension member, such as `waiting` for a 409.
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Problem {
        self.extra.insert(member.to_owned(), value.into());
        self
    }

    pub fn retry_after(mut self, wait: Duration) -> Problem {
        self.retry_after = Some(wait);
        self
    }

    pub fn kind(&self) -> &'static ProblemKind {
        self.kind
    }

    pub fn status(&self) -> StatusCode {
        self.kind.status
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a problem contains only JSON values")
    }

    /// Converts to a response of this server directly, without axum.
    pub fn into_http(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.to_json()));
        *response.status_mut() = self.status();
        response.headers_mut().extend(self.headers());
        response
    }

    /// For responses that are written directly. These never include a challenge for a token.
    pub fn into_raw_response(self) -> RawResponse {
        RawResponse {
            status: self.status(),
            content_type: Some(CONTENT_TYPE.into()),
            retry_after: self.retry_seconds(),
            body: self.to_json(),
            rest: None,
        }
    }

    /// Rounds up to whole seconds, at least one.
    fn retry_seconds(&self) -> Option<u64> {
        self.retry_after.map(|wait| wait.as_millis().div_ceil(1000).max(1) as u64)
    }

    fn headers(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let content = HeaderValue::from_static(CONTENT_TYPE);
        let challenge = (self.status() == StatusCode::UNAUTHORIZED)
            .then(|| (header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"klambda\"")));
        let retry = self.retry_seconds().map(|wait| (header::RETRY_AFTER, HeaderValue::from(wait)));
        [Some((header::CONTENT_TYPE, content)), challenge, retry].into_iter().flatten()
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &format_args!("{TYPE_BASE}{}", self.kind.slug))?;
        map.serialize_entry("title", self.kind.title)?;
        map.serialize_entry("status", &self.kind.status.as_u16())?;
        map.serialize_entry("detail", &self.detail)?;
        if !self.faults.is_empty() {
            map.serialize_entry("faults", &self.faults)?;
        }
        for (member, value) in &self.extra {
            map.serialize_entry(member, value)?;
        }
        map.end()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        self.into_http().map(axum::body::Body::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn reads_as_rfc_9457() {
        let problem = Problem::events_waiting("3 events are pending in subscription orders")
            .with("waiting", 3)
            .fault("/metadata/name", "still in use")
            .retry_after(Duration::from_millis(1500));
        let json: Value = serde_json::from_slice(&problem.to_json()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "type": "https://knative-lambda.dev/problems/events-waiting",
                "title": "Events pending",
                "status": 409,
                "detail": "3 events are pending in subscription orders",
                "faults": [{"path": "/metadata/name", "message": "still in use"}],
                "waiting": 3
            })
        );
        let response = problem.into_http();
        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
    }

    #[test]
    fn a_refused_token_is_challenged() {
        let response = Problem::unauthorized("no token").into_response();
        assert_eq!(response.headers()["www-authenticate"], "Bearer realm=\"klambda\"");
    }

    #[test]
    fn slugs_are_unique_and_readable() {
        let slugs: HashSet<_> = KINDS.iter().map(|kind| kind.slug).collect();
        assert_eq!(slugs.len(), KINDS.len());
        for kind in KINDS {
            assert!(kind.status.is_client_error() || kind.status.is_server_error(), "{}", kind.slug);
            assert!(kind.slug.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", kind.slug);
            assert!(kind.about.ends_with('.'), "{}", kind.slug);
        }
    }
}
