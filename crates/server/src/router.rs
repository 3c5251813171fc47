//! The path of a request: health checks, guard, token, then either the handler of events or the resources.
//!
//! `POST /api/v1/events` is the hot path: one comparison of method and path, one collected body, one call. Everything else
//! goes through an axum [`Router`], with one file per resource.

use crate::access_log;
use crate::auth::{Access, Unknown, Who};
use crate::body::{self, Body};
use crate::connection::Connection;
use crate::fast_path::Post;
use crate::guard::Guard;
use crate::listener::Service;
use crate::namespace::{self, Scope};
use crate::params::Params;
use crate::post_handler::{PostHandler, PostTarget};
use crate::problem::Problem;
use crate::raw_response::RawResponse;
use crate::response_memory::ResponseMemory;
use crate::routes::{PRODUCER, demand};
use crate::traces;
use crate::ui::is_page;
use axum::Router;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, header};
use hyper::body::{Body as _, Incoming};
use klambda_access::Reach;
use klambda_dispatch::traces::Tracer;
use std::net::IpAddr;
use std::sync::Arc;
use tower::ServiceExt;

/// The path for sending events.
pub const EVENTS: &str = "/api/v1/events";
const HEALTH: [&str; 2] = ["/healthz", "/health"];
const READY: &str = "/readyz";

/// The address of the client.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

pub struct App<P> {
    pub guard: Guard,
    pub access: Arc<Access>,
    pub body_bytes: usize,
    pub(crate) response_memory: ResponseMemory,
    pub posts: P,
    pub router: Router,
    pub logs_requests: bool,
}

/// The resources, with problems for unknown paths and methods. Call this on the finished router: routes added later would
/// answer a wrong method without a problem.
pub fn routes(resources: Router) -> Router {
    resources.fallback(no_resource).method_not_allowed_fallback(no_method)
}

impl<P: PostHandler> Service for App<P> {
    async fn call(&self, request: Request<Incoming>, connection: &Connection) -> Response<Body> {
        let line = self.logs_requests.then(|| access_log::Line::begin(&request, connection));
        let trace = self.posts.tracer().and_then(|tracer| traced(tracer, &request));
        let response = self.respond(request, connection).await;
        if let Some(trace) = trace {
            trace.end(response.status());
        }
        if let Some(line) = line {
            line.end(&response);
        }
        response
    }
}

enum Admitted {
    Health,
    Request(Asked),
}

/// Facts about a request before its body is read.
struct Asked {
    /// `None` for public resources.
    who: Option<Who>,
    /// The namespace in its URL.
    named: Option<Scope>,
}

impl Asked {
    fn scope(&self) -> Scope {
        self.named.clone().unwrap_or_else(|| Scope::unnamed(self.who.as_ref()))
    }
}

impl<P: PostHandler> App<P> {
    async fn respond(&self, request: Request<Incoming>, connection: &Connection) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let unread = !body.is_end_stream();
        match self.admit(&mut head, connection) {
            Ok(Admitted::Health) => health(),
            Ok(Admitted::Request(asked)) => self.answer(head, body, asked, connection).await,
            Err(problem) => {
                if unread {
                    connection.leave_unread();
                }
                problem.into_http()
            }
        }
    }

    fn admit(&self, head: &mut Parts, connection: &Connection) -> Result<Admitted, Problem> {
        let path = head.uri.path();
        // Health checkers know neither host names nor tokens.
        if HEALTH.contains(&path) && (head.method == Method::GET || head.method == Method::HEAD) {
            return Ok(Admitted::Health);
        }
        self.guard.check(&head.uri, &head.headers, connection.local).map_err(|refusal| refusal.problem())?;
        let who = if path == READY || is_page(path) { None } else { Some(self.access.of(&head.headers)?) };
        let asked = Asked { who, named: namespace::take(&mut head.uri)? };
        if let (Some(who), true, Scope::One(namespace)) = (&asked.who, is_post(head), asked.scope()) {
            demand(who, PRODUCER, Reach::In(&namespace))?;
        }
        Ok(Admitted::Request(asked))
    }

    /// The sender of a POST request on the fast path, if it is admitted: the same as [`App::admit`], without the reasons.
    pub(crate) fn admits(&self, post: &Post<'_, '_>, local: IpAddr) -> Option<Who> {
        if !self.guard.admits(post.host, post.origin, local) {
            return None;
        }
        let who = self.access.who(post.authorization).ok()?;
        who.allows(PRODUCER, Reach::In(post.place.namespace())).then_some(who)
    }

    async fn post(&self, head: &Parts, asked: Asked, body: Bytes) -> RawResponse {
        match self.read(head, asked, body) {
            Ok(read) => self.posts.answer(read).await,
            Err(answer) => answer,
        }
    }

    fn read(&self, head: &Parts, asked: Asked, body: Bytes) -> Result<P::Read, RawResponse> {
        let namespace = asked.scope().one().map_err(Problem::into_raw_response)?;
        let who = asked.who.ok_or_else(|| Problem::from(Unknown::NoToken).into_raw_response())?;
        if head.uri.query().is_some() {
            Params::none(&head.uri).map_err(Problem::into_raw_response)?;
        }
        let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let headers = head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let headers: Vec<(&str, &[u8])> = headers.collect();
        let place = PostTarget::Events { namespace: &namespace };
        self.posts.read(place, &who, content_type, headers.iter().copied(), body)
    }

    async fn answer(
        &self,
        head: Parts,
        body: Incoming,
        mut asked: Asked,
        connection: &Connection,
    ) -> Response<Body> {
        let body = match body::collect(body, self.body_bytes, connection).await {
            Ok(body) => body,
            Err(problem) => return closing(problem.into_http()),
        };
        // A body can take a while to arrive, and the token may be revoked meanwhile.
        if asked.who.is_some() {
            match self.access.of(&head.headers) {
                Ok(who) => asked.who = Some(who),
                Err(problem) => return problem.into_http(),
            }
        }
        if is_post(&head) {
            let answer = self.post(&head, asked, body).await;
            if !ResponseMemory::is_long(answer.body.len()) {
                return answer.into();
            }
            return self.response_memory.count(answer.into()).await.map(Body::from);
        }
        let mut request = Request::from_parts(head, axum::body::Body::from(body));
        request.extensions_mut().insert(Peer(connection.peer.ip()));
        if let Some(named) = asked.named {
            request.extensions_mut().insert(named);
        }
        if let Some(who) = asked.who {
            request.extensions_mut().insert(who);
        }
        // Boxed to keep the future of a connection as small as the hot path needs.
        let Ok(response) = Box::pin(self.router.clone().oneshot(request)).await;
        self.response_memory.count(response).await.map(Body::from)
    }
}

/// Requests with events and calls of functions have spans of their own. Scrapes and the page say little.
fn traced(tracer: &Tracer, request: &Request<Incoming>) -> Option<traces::Request> {
    let (method, path) = (request.method(), request.uri().path());
    let is_own = method == Method::POST && (path.ends_with("/events") || path.ends_with("/invoke"));
    let is_api = path.starts_with("/api/") && !is_own;
    if is_api { traces::Request::begin(tracer, method, path, request.headers()) } else { None }
}

fn is_post(head: &Parts) -> bool {
    head.method == Method::POST && head.uri.path() == EVENTS
}

fn health() -> Response<Body> {
    let mut response = Response::new(Body::from("ok\n"));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// The rest of the request is not read, so no other request can follow.
fn closing(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn no_resource(request: axum::extract::Request) -> impl IntoResponse {
    Problem::not_found(format!("{} not found", namespace::decoded(request.uri().path())))
}

async fn no_method(request: axum::extract::Request) -> impl IntoResponse {
    let path = request.uri().path();
    let detail = format!("{} does not support {}", namespace::decoded(path), request.method());
    let problem = Problem::method_not_allowed(detail);
    let mut response = problem.into_response();
    if path == EVENTS {
        // The router does not know the routes of the fast path.
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET,HEAD,POST"));
    }
    response
}
