//! `GET /api/v1/lambda/functions/{name}/logs`: the output of a function and of its builds.

use super::kind_of;
use crate::api::{Api, TAILS_MAX, go_on};
use crate::auth::Opener;
use crate::extract::Path;
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use crate::shutdown::Shutdown;
use crate::stream::{ByteStream, CHUNK_BYTES, ChunkSender, EVENT_STREAM, wants_stream};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri, header};
use klambda_control::Name;
use klambda_core::quantity::parse_duration_ms;
use klambda_core::time::Millis;
use klambda_functions::logs::{Line, Part, Query};
use klambda_functions::platform::Logs;
use std::io::Write;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Unless something else selects the lines.
const TAIL_DEFAULT: usize = 100;
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// With `?follow=true`, or if the client accepts a stream, sends Server-Sent Events. They continue unless `?follow=false`.
pub async fn show(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    const KNOWN: [&str; 7] = ["tail", "follow", "since", "build", "previous", "generation", "eventId"];
    let params = Params::read(&uri, &KNOWN);
    let name = Name::new(&namespace, &name);
    let accepts = wants_stream(&headers);
    let query = query(&params, accepts, api.clock.now());
    params.finish()?;
    api.control.find(kind_of(&uri), &name)?;
    let form = if accepts || query.follow { Form::Messages } else { Form::List };
    let logs = api.control.logs(&name, query.clone());
    if logs.is_none() && query.follow {
        let why = "functions are not started yet, so there is no log";
        return Err(Problem::function_unavailable(why).retry_after(Duration::from_secs(1)));
    }
    stream(&api, api.opener(&headers), logs, form)
}

fn query(params: &Params, accepts: bool, now: Millis) -> Query {
    let (build, previous) = (params.flag("build"), params.flag("previous"));
    let follow = params.flag("follow") || (accepts && params.text("follow").is_none());
    let event_id = params.owned("eventId");
    if build && previous {
        params.fault("previous", "cannot be combined with build");
    }
    if build && event_id.is_some() {
        params.fault("eventId", "cannot be combined with build: a build handles no events");
    }
    if follow && previous {
        params.fault("previous", "cannot be followed: the replica has ended");
    }
    let part = match (build, previous) {
        (true, _) => Part::Build,
        (_, true) => Part::Previous,
        _ => Part::Replicas,
    };
    let (since, generation) = (params.parsed("since", |text| since(text, now)), params.number("generation"));
    let is_selected = part != Part::Replicas || since.is_some() || generation.is_some() || event_id.is_some();
    let tail = params.number("tail").map(|tail| usize::try_from(tail).unwrap_or(usize::MAX));
    let tail = tail.or((!is_selected).then_some(TAIL_DEFAULT));
    Query { part, tail, since, generation, event_id, follow }
}

/// A duration before now, or a time.
fn since(text: &str, now: Millis) -> Result<Millis, String> {
    let wrong = || {
        format!(
            "`{text}` is neither a duration, such as 10m, nor an RFC 3339 time, such as 2026-08-01T12:00:00Z"
        )
    };
    match parse_duration_ms(text) {
        Ok(ago) => Ok(now - ago),
        Err(_) => Millis::parse_rfc3339(text).ok_or_else(wrong),
    }
}

/// The form of the response.
#[derive(Clone, Copy)]
enum Form {
    /// One JSON document.
    List,
    /// Server-Sent Events.
    Messages,
}

impl Form {
    fn content_type(self) -> &'static str {
        match self {
            Form::List => "application/json",
            Form::Messages => EVENT_STREAM,
        }
    }

    fn start(self) -> &'static str {
        match self {
            Form::List => r#"{"items":["#,
            Form::Messages => ": log lines\n\n",
        }
    }

    fn end(self) -> &'static str {
        match self {
            Form::List => r#"],"next":null}"#,
            Form::Messages => "",
        }
    }

    fn lines(self, lines: &[Line], is_first: bool) -> serde_json::Result<Vec<u8>> {
        let mut text = Vec::new();
        for (index, line) in lines.iter().enumerate() {
            match self {
                Form::List if is_first && index == 0 => serde_json::to_writer(&mut text, line)?,
                Form::List => {
                    text.push(b',');
                    serde_json::to_writer(&mut text, line)?;
                }
                Form::Messages => {
                    let line_json = serde_json::to_string(line)?;
                    let _ = write!(text, "id: {}\ndata: {line_json}\n\n", line.number);
                }
            }
        }
        Ok(text)
    }
}

fn stream(api: &Api, opener: Opener, logs: Option<Box<dyn Logs>>, form: Form) -> Result<Response, Problem> {
    let permit = api.turns.tails.clone().try_acquire_owned().map_err(|_| {
        Problem::limit_reached(format!("{TAILS_MAX} clients already read logs"))
            .retry_after(Duration::from_secs(5))
    })?;
    let (chunks, stream) = ByteStream::new(&api.connections.held.answers);
    go_on(run(logs, chunks, api.shutdown.clone(), opener, permit, form));
    let headers = [(header::CONTENT_TYPE, form.content_type()), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(stream)).into_response())
}

async fn run(
    logs: Option<Box<dyn Logs>>,
    chunks: ChunkSender,
    shutdown: Shutdown,
    opener: Opener,
    permit: OwnedSemaphorePermit,
    form: Form,
) {
    let is_complete = tokio::select! {
        () = shutdown.requested() => false,
        () = opener.revoked() => false,
        () = chunks.closed() => false,
        sent = send(logs, &chunks, form) => sent.is_some(),
    };
    if !is_complete && matches!(form, Form::List) {
        // A list that is cut must not look complete.
        chunks.fail(std::io::Error::other("the list was interrupted")).await;
    }
    drop(permit);
}

/// Ends after the last line, or when the function is deleted.
async fn send(logs: Option<Box<dyn Logs>>, chunks: &ChunkSender, form: Form) -> Option<()> {
    chunks.say(form.start()).await?;
    let mut is_first = true;
    if let Some(mut logs) = logs {
        while let Some(lines) = next(&mut *logs, chunks, form).await? {
            let room = chunks.room(CHUNK_BYTES).await;
            chunks.send(form.lines(&lines, is_first).ok()?, room).await?;
            is_first = false;
        }
    }
    chunks.say(form.end()).await
}

/// The next lines. A stream that waits for them shows that it lives.
async fn next(logs: &mut dyn Logs, chunks: &ChunkSender, form: Form) -> Option<Option<Vec<Line>>> {
    let mut next = logs.next();
    loop {
        match tokio::time::timeout(KEEP_ALIVE, &mut next).await {
            Ok(lines) => return Some(lines),
            Err(_) if matches!(form, Form::Messages) => chunks.say(": keep-alive\n\n").await?,
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Query, Result<(), Problem>) {
        const KNOWN: [&str; 7] = ["tail", "follow", "since", "build", "previous", "generation", "eventId"];
        let params = Params::read(&format!("/x?{text}").parse().unwrap(), &KNOWN);
        (query(&params, false, Millis(1_000_000)), params.finish())
    }

    #[test]
    fn lines_are_selected_and_every_wrong_parameter_is_named() {
        assert_eq!(read("").0.tail, Some(100));
        let (query, checked) = read("since=10m&tail=5&eventId=e&generation=2");
        assert!(checked.is_ok());
        assert_eq!((query.since, query.tail, query.generation), (Some(Millis(400_000)), Some(5), Some(2)));
        let (query, _) = read("since=1970-01-01T00:00:07Z&build=true");
        assert_eq!((query.since, query.tail, query.part), (Some(Millis(7000)), None, Part::Build));
        let bad = "build=true&previous=true&follow=true&eventId=e&since=soon&generation=x";
        let json = String::from_utf8(read(bad).1.unwrap_err().to_json()).unwrap();
        for part in
            ["combined with build", "cannot be followed", "eventId", "`soon` is neither", "generation"]
        {
            assert!(json.contains(part), "{part} not in {json}");
        }
    }
}
