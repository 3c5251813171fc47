//! Errors over HTTP: problem documents (RFC 9457) with a stable `type`, what was wrong and what to do.
//!
//! [`KINDS`] is the whole table of them; the documentation quotes it. One constructor per kind, so that a
//! status and a title can never disagree.

use crate::answer::Answer;
use crate::body::Body;
use axum::response::IntoResponse;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
pub use klambda_core::fault::Fault;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};
use std::time::Duration;

/// Where the kinds are described; a slug completes it.
pub const TYPE_BASE: &str = "https://knative-lambda.dev/problems/";
const CONTENT_TYPE: &str = "application/problem+json";

/// One kind of trouble, with the status and title every problem of it shares.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    pub slug: &'static str,
    pub title: &'static str,
    pub status: StatusCode,
    /// What it means and what to do, one sentence, for the reference.
    pub about: &'static str,
}

#[derive(Clone, Debug)]
pub struct Problem {
    kind: &'static Kind,
    detail: String,
    faults: Vec<Fault>,
    extra: Map<String, Value>,
    retry_after: Option<Duration>,
}

macro_rules! kinds {
    ($($name:ident $status:ident $slug:literal $title:literal $about:literal;)+) => {
        mod kind {
            use super::Kind;
            use http::StatusCode;
            $(#[allow(non_upper_case_globals)]
            pub(super) static $name: Kind =
                Kind { slug: $slug, title: $title, status: StatusCode::$status, about: $about };)+
        }

        /// Every kind of problem this server answers with.
        pub static KINDS: &[&Kind] = &[$(&kind::$name),+];

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
        "The request could not be read: its first line, a header, a query parameter or the JSON is malformed.";
    invalid_event BAD_REQUEST "invalid-event" "Invalid event"
        "The event is no valid CloudEvent; `faults` names each attribute.";
    invalid_batch BAD_REQUEST "invalid-batch" "Invalid batch"
        "The batch could not be read as a JSON array of events, or holds more events than `limits.batchEvents`.";
    unauthorized UNAUTHORIZED "unauthorized" "Token missing or wrong"
        "Send `Authorization: Bearer <token>` with a token that is valid on this server.";
    foreign_origin FORBIDDEN "foreign-origin" "Foreign origin"
        "A web page of another origin made the request; `--allow-host` admits the page's host.";
    forbidden FORBIDDEN "forbidden" "Not allowed"
        "The token lacks a role in the namespace of the request; the detail names the role that is needed and what the token has.";
    not_found NOT_FOUND "not-found" "Not found"
        "There is no such resource.";
    method_not_allowed METHOD_NOT_ALLOWED "method-not-allowed" "Method not allowed"
        "The resource exists but does not speak this method; `Allow` lists those it does.";
    not_acceptable NOT_ACCEPTABLE "not-acceptable" "Not acceptable"
        "None of the formats in `Accept` is one the resource has.";
    request_timeout REQUEST_TIMEOUT "request-timeout" "Request took too long"
        "The request did not arrive in full within `limits.bodyTimeout`.";
    conflict CONFLICT "conflict" "Conflict"
        "The resource's present state does not allow this.";
    events_waiting CONFLICT "events-waiting" "Events are waiting"
        "The subscription still holds `waiting` events: say `?drain=true` or `?discard=true`.";
    exists PRECONDITION_FAILED "exists" "Exists already"
        "The request said `If-None-Match: *`, and the resource is there.";
    gone GONE "gone" "No longer kept"
        "The log no longer holds events that old; `oldest` is the first position it has.";
    lanes_parked CONFLICT "lanes-parked" "Lanes are parked"
        "A change of ordering needs its parked lanes resolved first, or `?discard=true`.";
    too_large PAYLOAD_TOO_LARGE "too-large" "Too large"
        "The body or an event is larger than `limits.bodyBytes` or `limits.eventBytes`.";
    uri_too_long URI_TOO_LONG "uri-too-long" "Address too long"
        "The path with its query is longer than the server reads.";
    unsupported_media_type UNSUPPORTED_MEDIA_TYPE "unsupported-media-type" "Unsupported media type"
        "The resource does not read this `Content-Type`.";
    foreign_host MISDIRECTED_REQUEST "foreign-host" "Foreign host"
        "`Host` is no name of this server; `--allow-host` adds names.";
    invalid_subscription UNPROCESSABLE_ENTITY "invalid-subscription" "Invalid subscription"
        "The document is no valid subscription; `faults` names each field.";
    invalid_selector UNPROCESSABLE_ENTITY "invalid-selector" "Invalid selector"
        "The selector or the options of a replay or purge are not valid; `faults` names each field.";
    invalid_function UNPROCESSABLE_ENTITY "invalid-function" "Invalid function"
        "The document is no valid function or agent; `faults` names each field.";
    invalid_body UNPROCESSABLE_ENTITY "invalid-body" "Invalid body"
        "The body's members are not those the action takes; `faults` names each.";
    immutable UNPROCESSABLE_ENTITY "immutable" "Field cannot change"
        "The field is fixed when the resource is created.";
    backlog_full TOO_MANY_REQUESTS "backlog-full" "Backlog full"
        "A subscription that matches the event is at its backlog limit; send again after `Retry-After`.";
    limit_reached TOO_MANY_REQUESTS "limit-reached" "Limit reached"
        "A configured limit of the server is reached; the detail names it.";
    rate_limited TOO_MANY_REQUESTS "rate-limited" "Too many requests"
        "The client asks more often than `functions.rateLimits` allows; ask again after `Retry-After`.";
    headers_too_large REQUEST_HEADER_FIELDS_TOO_LARGE "headers-too-large" "Headers too large"
        "The request has more than 100 headers, or they are larger than `limits.headerBytes`.";
    internal INTERNAL_SERVER_ERROR "internal" "Internal error"
        "The server failed; its log says more.";
    function_broken BAD_GATEWAY "function-broken" "Function broke off"
        "The function ended, or closed the connection, before it had answered; its logs say more.";
    function_unavailable SERVICE_UNAVAILABLE "function-unavailable" "Function cannot serve"
        "No version of the function can be called now; the detail is what its conditions say.";
    overloaded SERVICE_UNAVAILABLE "overloaded" "Overloaded"
        "There was no room for the request or its answer in `limits.heldBytes` within `limits.bodyTimeout`; send again after `Retry-After`.";
    too_many_connections SERVICE_UNAVAILABLE "too-many-connections" "Too many connections"
        "`limits.connections` are open; try again after `Retry-After`.";
    not_ready SERVICE_UNAVAILABLE "not-ready" "Not ready"
        "The server is starting or recovering.";
    shutting_down SERVICE_UNAVAILABLE "shutting-down" "Shutting down"
        "The server is stopping and accepts nothing new.";
    storage_failed SERVICE_UNAVAILABLE "storage-failed" "Storage failed"
        "A write could not be synced; nothing is acknowledged until the server is restarted.";
    function_timeout GATEWAY_TIMEOUT "function-timeout" "Function took too long"
        "The function did not answer within its time (`retry.timeout`).";
    disk_full INSUFFICIENT_STORAGE "disk-full" "Disk full"
        "There is no room for new events; what was accepted is safe and drains. Service resumes with room.";
}

impl Problem {
    fn new(kind: &'static Kind, detail: String) -> Problem {
        Problem { kind, detail, faults: Vec::new(), extra: Map::new(), retry_after: None }
    }

    /// All that is wrong at once, not the first thing only.
    pub fn faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Problem {
        self.faults.extend(faults);
        self
    }

    /// The same kind, of something else.
    pub fn about(self, detail: String) -> Problem {
        Problem { detail, faults: Vec::new(), extra: Map::new(), ..self }
    }

    pub fn fault(self, path: impl Into<String>, message: impl Into<String>) -> Problem {
        self.faults([Fault::new(path, message)])
    }

    /// An extension member, such as `waiting` beside a 409.
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Problem {
        self.extra.insert(member.to_owned(), value.into());
        self
    }

    pub fn retry_after(mut self, wait: Duration) -> Problem {
        self.retry_after = Some(wait);
        self
    }

    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    pub fn status(&self) -> StatusCode {
        self.kind.status
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a problem holds only JSON values")
    }

    /// As a response of this server, without a detour over axum.
    pub fn into_http(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.to_json()));
        *response.status_mut() = self.status();
        response.headers_mut().extend(self.headers());
        response
    }

    /// For answers that are written by hand; a challenge for a token is never among them.
    pub fn into_answer(self) -> Answer {
        Answer {
            status: self.status(),
            content_type: Some(CONTENT_TYPE.into()),
            retry_after: self.retry_seconds(),
            body: self.to_json(),
            rest: None,
        }
    }

    /// Whole seconds only, and never "at once": a wait shorter than a second is still a wait.
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
        let problem = Problem::events_waiting("3 events wait in subscription orders")
            .with("waiting", 3)
            .fault("/metadata/name", "still in use")
            .retry_after(Duration::from_millis(1500));
        let json: Value = serde_json::from_slice(&problem.to_json()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "type": "https://knative-lambda.dev/problems/events-waiting",
                "title": "Events are waiting",
                "status": 409,
                "detail": "3 events wait in subscription orders",
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
