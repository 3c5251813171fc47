//! `/api/v1/webhooks/events`: the feed of an endpoint, in the form that is pushed to it.
//!
//! A receiver that missed calls reads the feed from the last event that it knows. The feed is complete, also while the
//! endpoint is paused or disabled.

mod cursor;
mod follow;
mod page;

use crate::api::{Api, TAILS_MAX};
use crate::auth::{Opener, Unknown, Who};
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::response_memory::Counted;
use crate::stream::{EVENT_STREAM, Room, accepted};
use axum::Extension;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use cursor::{Cursor, Start};
use follow::Follower;
use http::{HeaderMap, Uri, header};
use klambda_core::namespace::{Within, split};
use klambda_core::quantity::parse_duration_ms;
use klambda_core::webhook::PREFIX;
use klambda_dispatch::Engine;
use klambda_dispatch::operate::Refused;
use page::{Feed, Page};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

const TIMEOUT_MS_MAX: u64 = 60_000;
/// Endpoints that an error names.
const NAMED_MAX: usize = 100;

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A page with the events as they are pushed.
    Page,
    /// A JSON array of CloudEvents.
    Batch,
    /// Server-Sent Events, until the client disconnects.
    Stream,
}

const BATCH: &str = "application/cloudevents-batch+json";

impl Form {
    fn of(headers: &HeaderMap) -> Form {
        let form = accepted(headers).find_map(|media| match media {
            media if media.eq_ignore_ascii_case(EVENT_STREAM) => Some(Form::Stream),
            media if media.eq_ignore_ascii_case(BATCH) => Some(Form::Batch),
            _ => None,
        });
        form.unwrap_or(Form::Page)
    }
}

pub async fn read(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["endpoint", "since", "workflowId", "limit", "timeout"]);
    let form = Form::of(&headers);
    let last = headers.get("last-event-id").filter(|_| form == Form::Stream);
    let last = last.map(|value| value.to_str().unwrap_or_default().parse());
    if let Some(Err(())) = last {
        params.fault("Last-Event-ID", "must be a cursor of this feed");
    }
    let since = params.parsed("since", |text| {
        text.parse::<Start>()
            .map_err(|()| format!("`{text}` must be an eventId, or `next` of an earlier answer"))
    });
    let timeout = params.parsed("timeout", timeout).unwrap_or_default();
    let (limit, workflow) = (params.limit(), params.owned("workflowId"));
    params.finish()?;
    let name = resolve(&api, &who, &namespace, params.owned("endpoint")).await?;
    let start = last.and_then(Result::ok).or(since).unwrap_or(Start::Beginning);
    let opener = api.opener(&headers);
    let feed = Feed { api, name, workflow, is_batch: form == Form::Batch };
    if form == Form::Stream {
        return follow::open(feed, start, opener).await;
    }
    let (page, room) = wait(&feed, start, limit, timeout, &opener).await?;
    Ok(answer(&feed, page, room))
}

fn timeout(text: &str) -> Result<Duration, String> {
    match parse_duration_ms(text) {
        Ok(ms @ 0..=TIMEOUT_MS_MAX) => Ok(Duration::from_millis(ms)),
        _ => Err(format!("`{text}` must be a duration of at most 60s")),
    }
}

/// The full name of the subscription of the endpoint that is read: the named one, the token's own, or the only one.
pub async fn resolve(
    api: &Api,
    who: &Who,
    namespace: &Namespace,
    given: Option<String>,
) -> Result<String, Problem> {
    let given = given.or_else(|| who.grant.endpoint().map(str::to_owned));
    let namespace = namespace.clone();
    let looked = move |engine: &mut Engine| match given {
        Some(name) => super::find(engine, &namespace, &name).map_err(Problem::from),
        None => only_one(engine, &namespace),
    };
    api.query(looked).await?
}

fn only_one(engine: &Engine, namespace: &str) -> Result<String, Problem> {
    engine.namespace_id(namespace)?;
    let mut names = engine.endpoint_names(&Within::one(namespace));
    match names.len() {
        0 => Err(Refused::NotFound(format!("namespace {namespace} has no webhook endpoints")).into()),
        1 => Ok(names.remove(0)),
        count => {
            let short = |full: &String| split(full).1.trim_start_matches(PREFIX).to_owned();
            let shown: Vec<String> = names.iter().take(NAMED_MAX).map(short).collect();
            let detail = format!("there are {count} webhook endpoints: name one with the parameter endpoint");
            Err(Problem::bad_request(detail).with("endpoints", shown))
        }
    }
}

/// Reads a page. With a timeout, waits until there is something.
async fn wait(
    feed: &Feed,
    start: Start,
    limit: usize,
    timeout: Duration,
    opener: &Opener,
) -> Result<(Page, Room), Problem> {
    if timeout.is_zero() {
        return feed.page(start, limit).await;
    }
    let _permit = permit(&feed.api)?;
    let deadline = Instant::now() + timeout;
    let shutdown = feed.api.shutdown.clone();
    let mut follower = Follower::new(feed, start);
    tokio::select! {
        page = follower.until(deadline, limit) => page,
        () = shutdown.requested() => Err(Problem::shutting_down("the server is shutting down")),
        () = opener.revoked() => Err(Unknown::WrongToken.into()),
    }
}

/// Readers that wait count as clients that follow the log.
pub fn permit(api: &Api) -> Result<OwnedSemaphorePermit, Problem> {
    api.turns.tails.clone().try_acquire_owned().map_err(|_| {
        Problem::limit_reached(format!("{TAILS_MAX} clients already follow the log or wait for events"))
            .retry_after(Duration::from_secs(5))
    })
}

fn answer(feed: &Feed, page: Page, room: Room) -> Response {
    let next = page.next().to_string();
    if !feed.is_batch {
        let text = page.closed(&format!("],\"next\":\"{next}\"}}"));
        let headers = [(header::CONTENT_TYPE, "application/json")];
        return (Extension(Counted), headers, Body::from(room.fill(text))).into_response();
    }
    let (namespace, name) = split(&feed.name);
    let endpoint = name.trim_start_matches(PREFIX);
    let workflow = feed
        .workflow
        .as_ref()
        .map(|workflow| format!("&workflowId={}", utf8_percent_encode(workflow, NON_ALPHANUMERIC)));
    let link = format!(
        "</api/v1/namespaces/{namespace}/webhooks/events?endpoint={endpoint}{}&since={next}>; rel=\"next\"",
        workflow.unwrap_or_default()
    );
    let headers = [(header::CONTENT_TYPE, BATCH.to_owned()), (header::LINK, link)];
    (Extension(Counted), headers, Body::from(room.fill(page.closed("]")))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_header_selects_the_form() {
        for (accept, form) in [
            ("*/*", Form::Page),
            ("application/json", Form::Page),
            ("text/event-stream", Form::Stream),
            ("application/CloudEvents-Batch+json; charset=utf-8, */*", Form::Batch),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().expect("a value"))]);
            assert_eq!(Form::of(&headers), form, "{accept}");
        }
        assert_eq!(timeout("30s"), Ok(Duration::from_secs(30)));
        assert!(timeout("61s").is_err() && timeout("soon").is_err());
    }
}
