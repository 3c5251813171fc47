//! Rate limits and counts all requests for functions and agents.

use super::limits::Standing;
use crate::api::Gate;
use crate::problem::Problem;
use crate::router::Peer;
use axum::body::HttpBody as _;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};
use klambda_crash::Lock;
use klambda_dispatch::metrics::Histogram;
use std::collections::BTreeMap;
use std::time::Instant;

/// Method, and path with unnamed parameters.
pub type Endpoint = (&'static str, String);

#[derive(Default)]
pub struct Requests(Lock<Counted>);

#[derive(Clone, Default)]
pub struct Counted {
    pub endpoints: BTreeMap<Endpoint, OfEndpoint>,
    /// Requests rejected for their rate, by path.
    pub limited: BTreeMap<String, u64>,
}

#[derive(Clone, Default)]
pub struct OfEndpoint {
    pub by_status: BTreeMap<u16, u64>,
    pub micros: Histogram,
    pub bytes: Histogram,
}

impl Requests {
    pub fn read(&self) -> Counted {
        self.0.lock().clone()
    }

    fn add(&self, endpoint: Endpoint, status: StatusCode, micros: u64, bytes: u64) {
        let mut counted = self.0.lock();
        if status == StatusCode::TOO_MANY_REQUESTS {
            *counted.limited.entry(endpoint.1.clone()).or_default() += 1;
        }
        let of = counted.endpoints.entry(endpoint).or_default();
        *of.by_status.entry(status.as_u16()).or_default() += 1;
        of.micros.add(micros);
        of.bytes.add(bytes);
    }
}

pub async fn pass(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let Ok(api) = gate.api() else { return next.run(request).await };
    let began = Instant::now();
    let method = word(request.method());
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let path = path.unwrap_or_default();
    let length = request.body().size_hint().exact().unwrap_or(0);
    let client = request.extensions().get::<Peer>().copied();
    let standing = client.and_then(|Peer(client)| api.limiter.ask(client, request.method(), began));
    let mut response = match standing.as_ref().and_then(|standing| standing.wait) {
        Some(wait) => Problem::rate_limited("this client sends too many requests; try again later")
            .retry_after(wait)
            .into_response(),
        None => next.run(request).await,
    };
    standing.iter().for_each(|standing: &Standing| standing.tell(response.headers_mut(), api.clock.now()));
    let micros = began.elapsed().as_micros() as u64;
    api.requests.add((method, path), response.status(), micros, length);
    response
}

fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
