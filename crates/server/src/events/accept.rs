//! `POST /api/v1/events`: the hot path. One parse, one call of the engine, one response written directly.

use crate::api::{Api, blocking};
use crate::ingress;
use crate::problem::Problem;
use crate::raw_response::RawResponse;
use crate::refusal;
use crate::traces::Arrival;
use bytes::Bytes;
use http::StatusCode;
use klambda_core::binding::{self, Parsed, Rejected};
use klambda_core::event::Event;
use klambda_core::namespace;
use klambda_dispatch::{EventResult, Sender, Status};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::atomic::Ordering;

/// The events of a request, and its trace if the server exports traces.
pub struct Accepting {
    events: Events,
    arrival: Option<Arrival>,
}

/// Parsing a large batch takes a while, so it is left to another thread.
enum Events {
    Read(Vec<Result<Event, Rejected>>),
    Batch { content_type: String, body: Bytes },
}

const LARGE_BATCH: usize = 32 << 10;

pub fn read<'a>(
    api: &Api,
    content_type: Option<&str>,
    headers: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
    body: Bytes,
) -> Result<Accepting, RawResponse> {
    let arrival = api.traces.as_ref().map(|_| Arrival::new(headers.clone()));
    if let Some(content_type) = content_type
        && body.len() >= LARGE_BATCH
        && is_batch(Some(content_type))
    {
        let events = Events::Batch { content_type: content_type.to_owned(), body };
        return Ok(Accepting { events, arrival });
    }
    let parsed = parse(content_type, headers, body, &api.intake.limits)?;
    Ok(Accepting { events: Events::Read(counted(api, parsed)), arrival })
}

pub async fn commit(api: &Api, sender: Sender, accepting: Accepting) -> RawResponse {
    let mut events = match accepting.events {
        Events::Read(events) => events,
        Events::Batch { content_type, body } => {
            let limits = api.intake.limits.clone();
            let read = move || parse(Some(&content_type), std::iter::empty(), body, &limits);
            match blocking(read).await {
                Ok(Ok(parsed)) => counted(api, parsed),
                Ok(Err(answer)) => return answer,
                Err(problem) => return problem.into_raw_response(),
            }
        }
    };
    let traced = accepting.arrival.zip(api.tracer()).map(|(arrival, tracer)| {
        let namespace = sender.namespace.as_deref().unwrap_or(namespace::DEFAULT);
        let recorded = arrival.begin(tracer, namespace, &mut events);
        (arrival, tracer, recorded)
    });
    match ingress::take(api, sender, events).await {
        Ok(judged) => {
            let answer = answer(&judged);
            if let Some((arrival, tracer, recorded)) = traced {
                arrival.end(tracer, recorded, &judged, answer.status);
            }
            answer
        }
        Err(problem) => problem.into_raw_response(),
    }
}

fn parse<'a>(
    content_type: Option<&str>,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    body: Bytes,
    limits: &binding::Limits,
) -> Result<Parsed, RawResponse> {
    binding::parse(content_type, headers, body, limits)
        .map_err(|refused| refusal::refusal(refused, is_batch(content_type)).into_raw_response())
}

fn counted(api: &Api, parsed: Parsed) -> Vec<Result<Event, Rejected>> {
    if parsed.unversioned > 0 {
        api.intake.unversioned.fetch_add(parsed.unversioned as u64, Ordering::Relaxed);
    }
    parsed.events
}

fn is_batch(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|text| text.to_ascii_lowercase().contains("cloudevents-batch"))
}

/// 202 if any event is accepted; else 200 if any is skipped; else the status of the worst rejection.
fn answer(judged: &[EventResult]) -> RawResponse {
    let any = |wanted: fn(&Status) -> bool| judged.iter().any(|one| wanted(&one.status));
    if any(|status| matches!(status, Status::Accepted { .. })) {
        return results(judged, StatusCode::ACCEPTED);
    }
    if judged.is_empty() || any(|status| matches!(status, Status::Skipped { .. })) {
        return results(judged, StatusCode::OK);
    }
    let problems = judged.iter().filter_map(|one| match &one.status {
        Status::Rejected(rejected) => Some(refusal::rejection(rejected)),
        _ => None,
    });
    let worst = problems.max_by_key(|problem| problem.status().as_u16());
    let worst = worst.unwrap_or_else(|| Problem::internal("no event was processed"));
    let worst = match judged.len() {
        1 => worst,
        // Of several rejections, the worst sets only the status. Each result explains its own event.
        rejected => worst
            .about(format!("all {rejected} events were rejected; see results for the reason of each"))
            .with("rejected", rejected),
    };
    worst.with("results", judged.iter().map(result).collect::<Vec<Value>>()).into_raw_response()
}

fn results(judged: &[EventResult], status: StatusCode) -> RawResponse {
    let mut body = Vec::with_capacity(32 + judged.len() * 128);
    body.extend_from_slice(b"{\"results\":[");
    for (n, one) in judged.iter().enumerate() {
        if n > 0 {
            body.push(b',');
        }
        write_result(&mut body, one);
    }
    body.extend_from_slice(b"]}");
    RawResponse { status, content_type: Some("application/json".into()), retry_after: None, body, rest: None }
}

fn write_result(out: &mut Vec<u8>, one: &EventResult) {
    const WRITES: &str = "writing to a Vec cannot fail";
    if let Status::Rejected(_) = &one.status {
        return serde_json::to_writer(out, &result(one)).expect(WRITES);
    }
    out.extend_from_slice(b"{\"id\":");
    write_text(out, one.id.as_deref());
    out.extend_from_slice(b",\"source\":");
    write_text(out, one.source.as_deref());
    match &one.status {
        Status::Accepted { position } => {
            write!(out, ",\"status\":\"accepted\",\"position\":{position}}}").expect(WRITES);
        }
        Status::Skipped { reason } => {
            write!(out, ",\"status\":\"skipped\",\"reason\":\"{reason}\"}}").expect(WRITES);
        }
        Status::Rejected(_) => {}
    }
}

/// Plain text, which ids nearly always are, is written unchanged.
fn write_text(out: &mut Vec<u8>, text: Option<&str>) {
    let is_plain =
        |text: &str| text.bytes().fold(true, |plain, b| plain & (b >= b' ' && b != b'"' && b != b'\\'));
    match text.filter(|text| is_plain(text)) {
        Some(text) => {
            out.push(b'"');
            out.extend_from_slice(text.as_bytes());
            out.push(b'"');
        }
        None => serde_json::to_writer(out, &text).expect("writing to a Vec cannot fail"),
    }
}

/// For rejected events, which are rare.
fn result(one: &EventResult) -> Value {
    let mut result = json!({"id": one.id, "source": one.source, "status": one.status.name()});
    if let Status::Rejected(rejected) = &one.status {
        result["problem"] = serde_json::to_value(refusal::rejection(rejected)).unwrap_or_default();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_core::ids::Position;
    use klambda_dispatch::Rejection;

    fn judged(status: Status) -> EventResult {
        EventResult { id: Some("e\"1".into()), source: Some("/shop".into()), status }
    }

    fn body(answer: RawResponse) -> (u16, Value) {
        (answer.status.as_u16(), serde_json::from_slice(&answer.body).unwrap())
    }

    #[test]
    fn one_status_for_many() {
        let accepted = judged(Status::Accepted { position: Position(7) });
        let skipped = judged(Status::Skipped { reason: "duplicate" });
        let rejected = judged(Status::Rejected(Rejection::DiskFull));
        let (status, json) = body(answer(&[skipped.clone(), rejected.clone(), accepted]));
        assert_eq!(status, 202);
        assert_eq!(json["results"][2]["position"], 7);
        assert_eq!(json["results"][2]["id"], "e\"1");
        assert_eq!(json["results"][1]["problem"]["status"], 507);
        assert_eq!(body(answer(&[rejected.clone(), skipped])).0, 200);
        let invalid = |path: &str| {
            let faults = vec![klambda_core::fault::Fault::new(path, "wrong")];
            judged(Status::Rejected(Rejection::Invalid { faults, cause: binding::Cause::Invalid }))
        };
        let (status, json) = body(answer(&[invalid("[0].id"), invalid("[1].id")]));
        assert_eq!((status, &json["rejected"], &json["faults"]), (400, &json!(2), &Value::Null));
        assert!(json["detail"].as_str().unwrap().contains("all 2 events"), "{json}");
        assert_eq!(json["results"][1]["problem"]["faults"][0]["path"], "[1].id");
        let (status, json) = body(answer(&[rejected]));
        assert_eq!(status, 507);
        assert_eq!(json["type"], "https://knative-lambda.dev/problems/disk-full");
        assert_eq!(json["results"][0]["status"], "rejected");
    }
}
