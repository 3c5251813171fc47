//! The access log: one line for each request (`log.access`). No query and no header appears in it, because these can contain
//! secrets.
//!
//! Connections of a server with an access log do not use the fast path, so a server without one pays nothing for it.

use crate::body::Body;
use crate::connection::Connection;
use http::{Method, Request, Response, header};
use hyper::body::{Body as _, Incoming};
use std::net::IpAddr;
use std::time::Instant;

/// Longer paths are cut.
const PATH_BYTES_MAX: usize = 512;

pub struct Line {
    began: Instant,
    method: Method,
    path: String,
    request_size: Option<u64>,
    client: IpAddr,
}

impl Line {
    pub fn begin(request: &Request<Incoming>, connection: &Connection) -> Line {
        let path = request.uri().path();
        let length = request.headers().get(header::CONTENT_LENGTH);
        Line {
            began: Instant::now(),
            method: request.method().clone(),
            path: path[..path.floor_char_boundary(PATH_BYTES_MAX)].to_owned(),
            request_size: length.and_then(|length| length.to_str().ok()?.parse().ok()),
            client: connection.peer.ip(),
        }
    }

    /// Logs when the response begins. A stream continues after that.
    pub fn end(self, response: &Response<Body>) {
        let status = response.status();
        let is_failure = status.is_client_error() || status.is_server_error();
        tracing::info!(
            method = %self.method,
            path = self.path,
            status = status.as_u16(),
            latency_ms = self.began.elapsed().as_micros() as f64 / 1e3,
            request_size = self.request_size.unwrap_or(0),
            response_size = response.body().size_hint().exact(),
            client = %self.client,
            classification = if is_failure { "failure" } else { "success" },
            "Request"
        );
    }
}
