//! The way of a request: health, guard, token, then either straight to the accept function or to the resources.
//!
//! `POST /api/v1/events` is the hot path: one comparison of method and path, one collected body, one call.
//! Everything else goes through an axum [`Router`], one file per resource.

use crate::auth::Tokens;
use crate::body::{Body, Budget, Received};
use crate::connection::Connection;
use crate::guard::Guard;
use crate::listener::Service;
use crate::problem::Problem;
use axum::Router;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, header};
use hyper::body::{Body as _, Incoming};
use std::future::Future;
use std::sync::Arc;
use tower::ServiceExt;

/// Where events are posted.
pub const EVENTS: &str = "/api/v1/events";
const HEALTH: &str = "/healthz";
const READY: &str = "/readyz";

/// Takes the body of a `POST /api/v1/events`; answers when its events are committed.
pub trait Accept: Send + Sync + 'static {
    fn accept(&self, head: &Parts, body: Bytes) -> impl Future<Output = Response<Body>> + Send;
}

pub struct App<A> {
    pub guard: Guard,
    pub tokens: Option<Arc<Tokens>>,
    pub body_bytes: usize,
    pub budget: Arc<Budget>,
    pub accept: A,
    pub router: Router,
}

/// The resources, with problems for what none of them answers. Call it on the finished router: routes that are
/// added later would answer a wrong method without a problem.
pub fn routes(resources: Router) -> Router {
    resources.fallback(no_resource).method_not_allowed_fallback(no_method)
}

impl<A: Accept> Service for App<A> {
    async fn call(&self, request: Request<Incoming>, connection: &Connection) -> Response<Body> {
        let (head, body) = request.into_parts();
        let unread = !body.is_end_stream();
        match self.admit(&head, connection) {
            Ok(Admitted::Health) => health(),
            Ok(Admitted::Request) => self.answer(head, body, connection).await,
            Err(problem) => {
                if unread {
                    connection.leave_unread();
                }
                problem.into_http()
            }
        }
    }
}

enum Admitted {
    Health,
    Request,
}

impl<A: Accept> App<A> {
    fn admit(&self, head: &Parts, connection: &Connection) -> Result<Admitted, Problem> {
        let path = head.uri.path();
        // Whoever watches the process knows neither its names nor its tokens.
        if path == HEALTH && (head.method == Method::GET || head.method == Method::HEAD) {
            return Ok(Admitted::Health);
        }
        self.guard.check(&head.uri, &head.headers, connection.local).map_err(|refusal| refusal.problem())?;
        if let Some(tokens) = &self.tokens
            && path != READY
        {
            tokens.check(&head.headers)?;
        }
        Ok(Admitted::Request)
    }

    async fn answer(&self, head: Parts, body: Incoming, connection: &Connection) -> Response<Body> {
        // Held to the end of this function: its bytes count until the answer is known.
        let mut received = match Received::collect(body, self.body_bytes, &self.budget, connection).await {
            Ok(received) => received,
            Err(problem) => return closing(problem.into_http()),
        };
        if head.method == Method::POST && head.uri.path() == EVENTS {
            return self.accept.accept(&head, received.take()).await;
        }
        let request = Request::from_parts(head, axum::body::Body::from(received.take()));
        // Boxed, since the future of a connection should be no larger than the hot path needs.
        let Ok(response) = Box::pin(self.router.clone().oneshot(request)).await;
        response.map(Body::from)
    }
}

fn health() -> Response<Body> {
    let mut response = Response::new(Body::from("ok\n"));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// The rest of the request is not read, so nothing can follow it.
fn closing(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn no_resource(request: axum::extract::Request) -> impl IntoResponse {
    Problem::not_found(format!("there is nothing at {}", request.uri().path()))
}

async fn no_method(request: axum::extract::Request) -> impl IntoResponse {
    Problem::method_not_allowed(format!("{} does not answer {}", request.uri().path(), request.method()))
}
