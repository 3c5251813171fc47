//! `POST /api/v1/events`: the hot path. One parse, one hand-over to the engine, one answer written by hand.

use crate::api::{Api, Gate};
use crate::body::Body;
use crate::params::Params;
use crate::problem::Problem;
use crate::refusal;
use crate::router::Accept;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use klambda_core::binding;
use klambda_dispatch::{Judged, Status};
use serde_json::{Value, json};
use std::io::Write;

impl Accept for Gate {
    async fn accept(&self, head: &Parts, body: Bytes) -> Response<Body> {
        match self.api() {
            Ok(api) => accept(api, head, body).await.unwrap_or_else(Problem::into_http),
            Err(problem) => problem.into_http(),
        }
    }
}

async fn accept(api: &Api, head: &Parts, body: Bytes) -> Result<Response<Body>, Problem> {
    if head.uri.query().is_some() {
        Params::none(&head.uri)?;
    }
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let headers = head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let (_, events) = binding::parse(content_type, headers, body, &api.limits).map_err(|refused| {
        let is_batch =
            content_type.is_some_and(|text| text.to_ascii_lowercase().contains("cloudevents-batch"));
        refusal::refusal(refused, is_batch)
    })?;
    let judged = api.handle.accept(events).await.map_err(|_| api.stopped())?;
    Ok(answer(&judged))
}

/// Any accepted: 202; else any skipped: 200; else what the worst of them says.
fn answer(judged: &[Judged]) -> Response<Body> {
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
    let worst = worst.unwrap_or_else(|| Problem::internal("no event was judged"));
    worst.with("results", judged.iter().map(result).collect::<Vec<Value>>()).into_http()
}

fn results(judged: &[Judged], status: StatusCode) -> Response<Body> {
    let mut body = Vec::with_capacity(32 + judged.len() * 128);
    body.extend_from_slice(b"{\"results\":[");
    for (n, one) in judged.iter().enumerate() {
        if n > 0 {
            body.push(b',');
        }
        write_result(&mut body, one);
    }
    body.extend_from_slice(b"]}");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn write_result(out: &mut Vec<u8>, one: &Judged) {
    const WRITES: &str = "a Vec takes every write";
    if let Status::Rejected(_) = &one.status {
        return serde_json::to_writer(out, &result(one)).expect(WRITES);
    }
    out.extend_from_slice(b"{\"id\":");
    serde_json::to_writer(&mut *out, &one.id).expect(WRITES);
    out.extend_from_slice(b",\"source\":");
    serde_json::to_writer(&mut *out, &one.source).expect(WRITES);
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

/// For the rare ones.
fn result(one: &Judged) -> Value {
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

    fn judged(status: Status) -> Judged {
        Judged { id: Some("e\"1".into()), source: Some("/shop".into()), status }
    }

    fn body(response: Response<Body>) -> (u16, Value) {
        let status = response.status().as_u16();
        let mut body = std::pin::pin!(response.into_body());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(Some(Ok(frame))) = hyper::body::Body::poll_frame(body.as_mut(), &mut cx)
        else {
            panic!("the body is whole")
        };
        (status, serde_json::from_slice(&frame.into_data().unwrap()).unwrap())
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
        let (status, json) = body(answer(&[rejected]));
        assert_eq!(status, 507);
        assert_eq!(json["type"], "https://knative-lambda.dev/problems/disk-full");
        assert_eq!(json["results"][0]["status"], "rejected");
    }
}
