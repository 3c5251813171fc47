//! The REST API over HTTP: JSON in, JSON out, problem documents as errors.

mod problem;

pub use problem::Problem;

use crate::contexts::{Connection, exposure};
use crate::exit::Usage;
use crate::route::Route;
use crate::tls;
use anyhow::Context;
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::{self, Method};
use ureq::tls::{PemItem, RootCerts, TlsConfig};

#[derive(Clone)]
pub struct Client {
    agent: ureq::Agent,
    base: String,
    bearer: Option<String>,
    timeout: Duration,
    /// The namespace of requests that name none.
    namespace: String,
    ca_file: Option<PathBuf>,
}

/// Means all namespaces, in lists.
const ALL_NAMESPACES: &str = "*";

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "cannot reach {url}: {reason}; start a server with `klambda serve`, or use --server to name another one"
    )]
    Unreachable { url: String, reason: String },
    /// The server is there, but no secure connection to it.
    #[error("cannot connect to {url}: {reason}")]
    Tls { url: String, reason: String },
    #[error("{0}")]
    Problem(Problem),
    #[error("{url} is not a klambda server: {reason}")]
    Garbled { url: String, reason: String },
}

/// A part of a list.
#[derive(Debug)]
pub struct Page {
    pub items: Vec<Value>,
    pub more: bool,
}

/// The largest response that is read into memory. Streams have no limit.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
const PAGE_MAX: usize = 1_000;
/// A larger body is sent when the server has agreed to read it. Otherwise the server closes the connection while the body
/// is on its way, and its answer is lost.
const ASKS_FIRST_BYTES: usize = 1 << 20;

impl Client {
    pub fn new(connection: Connection) -> anyhow::Result<Client> {
        let Connection { server, token_file, ca_file, namespace, timeout } = connection;
        let base = base_url(&server)?;
        let token = token_file.as_deref().map(read_token).transpose()?;
        let bearer = token.map(|token| format!("Bearer {token}"));
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(timeout))
            .user_agent(concat!("klambda/", env!("CARGO_PKG_VERSION")));
        if is_loopback(&base) {
            // A proxy named in the environment cannot reach this machine's own loopback.
            config = config.proxy(None);
        }
        if let Some(file) = &ca_file {
            config = config.tls_config(TlsConfig::builder().root_certs(read_certificates(file)?).build());
        }
        Ok(Client { agent: config.build().new_agent(), base, bearer, timeout, namespace, ca_file })
    }

    /// From here on, lists are of all namespaces.
    pub fn look_everywhere(&mut self) {
        self.namespace = ALL_NAMESPACES.to_owned();
    }

    pub fn looks_everywhere(&self) -> bool {
        self.namespace == ALL_NAMESPACES
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    pub fn get(&self, route: &Route) -> Result<Value, Error> {
        self.call(Method::GET, route, None).map(|answer| answer.body)
    }

    pub fn put(&self, route: &Route, body: &Value) -> Result<Answer, Error> {
        self.call(Method::PUT, route, Some(Body::json(body)))
    }

    pub fn put_body(&self, route: &Route, body: Body) -> Result<Answer, Error> {
        self.call(Method::PUT, route, Some(body))
    }

    pub fn patch(&self, route: &Route, body: &Value) -> Result<Answer, Error> {
        self.call(Method::PATCH, route, Some(Body::json(body)))
    }

    pub fn post(&self, route: &Route, body: Option<&Value>) -> Result<Answer, Error> {
        self.call(Method::POST, route, body.map(Body::json))
    }

    pub fn post_as(&self, route: &Route, body: String, content_type: &str) -> Result<Answer, Error> {
        self.call(Method::POST, route, Some(Body::new(body, content_type)))
    }

    /// Sends any body and returns the response unchanged.
    pub fn post_raw(&self, route: &Route, body: Body) -> Result<Vec<u8>, Error> {
        let mut response = self.send(Method::POST, route, Some(body), "*/*", Some(self.timeout))?;
        if response.status().as_u16() >= 300 {
            return Err(match self.read(response) {
                Ok(_) => self.garbled("an error that is none"),
                Err(error) => error,
            });
        }
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        body.map_err(|error| self.transport(error))
    }

    pub fn delete(&self, route: &Route) -> Result<Answer, Error> {
        self.call(Method::DELETE, route, None)
    }

    /// Follows a list page by page, up to `limit` items (0: all). `cursor` names the parameter that takes `next`.
    pub fn list_from(
        &self,
        route: &Route,
        cursor: &str,
        start: Option<impl ToString>,
        limit: usize,
    ) -> Result<Page, Error> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        let mut items = Vec::new();
        let mut next = start.map(|start| start.to_string());
        loop {
            let wanted = (limit - items.len()).min(PAGE_MAX);
            let page = route.clone().query("limit", wanted).query_opt(cursor, next.as_ref());
            let mut body = self.get(&page)?;
            let Some(Value::Array(found)) = body.get_mut("items").map(Value::take) else {
                return Err(self.garbled("a list without items"));
            };
            items.extend(found);
            next = cursor_text(&body["next"]);
            if next.is_none() || items.len() >= limit {
                let more = next.is_some() || items.len() > limit;
                items.truncate(limit);
                return Ok(Page { items, more });
            }
        }
    }

    /// Opens a response that is read as it arrives. The time limit covers the connection and the response headers.
    pub fn stream(&self, method: Method, route: &Route, accept: &str) -> Result<impl Read + use<>, Error> {
        let body = (method == Method::POST).then(|| Body::new(String::new(), "application/json"));
        let response = self.send(method, route, body, accept, None)?;
        let status = response.status().as_u16();
        if status < 300 {
            return Ok(response.into_body().into_reader());
        }
        Err(match self.read(response) {
            Ok(answer) => Error::Problem(Problem { status, body: answer.body }),
            Err(error) => error,
        })
    }

    fn call(&self, method: Method, route: &Route, body: Option<Body>) -> Result<Answer, Error> {
        let response = self.send(method, route, body, "application/json", Some(self.timeout))?;
        self.read(response)
    }

    fn send(
        &self,
        method: Method,
        route: &Route,
        body: Option<Body>,
        accept: &str,
        timeout: Option<Duration>,
    ) -> Result<http::Response<ureq::Body>, Error> {
        let carries_body = matches!(method, Method::POST | Method::PUT | Method::PATCH);
        let mut request = http::Request::builder()
            .method(method)
            .uri(route.to_url(&self.base, &self.namespace))
            .header("accept", accept);
        if let Some(bearer) = &self.bearer {
            request = request.header("authorization", bearer);
        }
        if let Some(body) = &body {
            if body.bytes.len() > ASKS_FIRST_BYTES {
                request = request.header("expect", "100-continue");
            }
            request = body.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        }
        let sent = if carries_body {
            let bytes = body.map(|body| body.bytes).unwrap_or_default();
            request.body(bytes).map_err(ureq::Error::from).and_then(|r| self.run(r, timeout))
        } else {
            request.body(()).map_err(ureq::Error::from).and_then(|r| self.run(r, timeout))
        };
        sent.map_err(|error| self.transport(error))
    }

    fn run(
        &self,
        request: http::Request<impl ureq::AsSendBody>,
        timeout: Option<Duration>,
    ) -> Result<http::Response<ureq::Body>, ureq::Error> {
        let request = self
            .agent
            .configure_request(request)
            .timeout_recv_response(Some(self.timeout))
            .timeout_global(timeout)
            .build();
        self.agent.run(request)
    }

    fn read(&self, mut response: http::Response<ureq::Body>) -> Result<Answer, Error> {
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| self.transport(error))?;
        let parsed = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&body) };
        match (status, parsed) {
            (200..=299, Ok(body)) => Ok(Answer { status, body }),
            (200..=299, Err(_)) => Err(self.garbled("the response is not JSON")),
            (300..=399, _) => Err(self.garbled(&format!("it responds with {status}, a redirection"))),
            (_, Ok(Value::Null)) => Err(Error::Problem(self.foreign(status))),
            (_, Ok(body)) => Err(Error::Problem(Problem { status, body })),
            (_, Err(_)) => Err(Error::Problem(self.foreign(status))),
        }
    }

    fn transport(&self, error: ureq::Error) -> Error {
        use ureq::Error as E;
        let url = self.base.clone();
        if let Some(fault) = tls::error_in(&error) {
            return Error::Tls { reason: tls::explain(fault, &url, self.ca_file.as_deref()), url };
        }
        if url.starts_with("http:") && broke_off(&error) && tls::speaks_tls(&url) {
            let secure = url.replacen("http", "https", 1);
            return Error::Tls {
                reason: format!("the server there speaks https, not http; use --server {secure}"),
                url,
            };
        }
        match error {
            E::Timeout(_) => {
                let reason = format!("no response within {}", span(self.timeout));
                Error::Unreachable { url, reason }
            }
            E::Io(io) => Error::Unreachable { url, reason: io_reason(&io) },
            E::HostNotFound => Error::Unreachable { url, reason: "no such host".to_owned() },
            E::ConnectionFailed => Error::Unreachable { url, reason: "connection failed".to_owned() },
            E::Tls(_) | E::Pem(_) => Error::Tls { url, reason: error.to_string() },
            other => Error::Garbled { url, reason: other.to_string() },
        }
    }

    /// An error response without a problem document, as another server or a proxy sends it.
    fn foreign(&self, status: u16) -> Problem {
        let title = format!("{} responded with status {status}; is it a klambda server?", self.base);
        Problem { status, body: json!({ "title": title }) }
    }

    fn garbled(&self, reason: &str) -> Error {
        Error::Garbled { url: self.base.clone(), reason: reason.to_owned() }
    }
}

/// The body of a request with its headers.
#[derive(Clone)]
pub struct Body {
    bytes: Vec<u8>,
    headers: Vec<(String, String)>,
}

impl Body {
    pub fn new(bytes: impl Into<Vec<u8>>, content_type: &str) -> Body {
        Body { bytes: bytes.into(), headers: vec![("content-type".to_owned(), content_type.to_owned())] }
    }

    pub fn header(mut self, name: &str, value: &str) -> Body {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn json(value: &Value) -> Body {
        Body::new(value.to_string(), "application/json")
    }
}

/// `30s`, `500ms`.
fn span(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{}s", time.as_secs()),
        _ => format!("{}ms", time.as_millis()),
    }
}

/// `next` is a cursor or, for events, a position.
fn cursor_text(next: &Value) -> Option<String> {
    next.as_str().map(str::to_owned)
}

/// Whether the other side ended the conversation, or answered in something other than HTTP.
fn broke_off(error: &ureq::Error) -> bool {
    use std::io::ErrorKind as K;
    match error {
        ureq::Error::Io(io) => {
            matches!(io.kind(), K::ConnectionReset | K::ConnectionAborted | K::UnexpectedEof | K::BrokenPipe)
        }
        ureq::Error::Protocol(_) => true,
        _ => false,
    }
}

fn io_reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        std::io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        _ => error.to_string(),
    }
}

pub fn base_url(server: &str) -> Result<String, Usage> {
    let url = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
    let url = url.trim_end_matches('/').to_owned();
    let wrong = || Usage(format!("--server: {server} is not an http or https URL"));
    let uri: http::Uri = url.parse().map_err(|_| wrong())?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() && uri.query().is_none() => Ok(url),
        _ => Err(wrong()),
    }
}

fn is_loopback(base: &str) -> bool {
    let uri: Option<http::Uri> = base.parse().ok();
    let host = uri.as_ref().and_then(|uri| uri.host()).unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Warns if other users can read the file.
pub fn read_token(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).map_err(|error| Usage::file(file, &error))?;
    let token = first_token(&text).ok_or_else(|| Usage::file(file, &"the token file is empty"))?;
    if let Some(warning) = exposure(file) {
        eprintln!("warning: {warning}");
    }
    Ok(token.to_owned())
}

/// The server's own file may hold several tokens, one per line. Each of them is valid.
pub fn first_token(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| !line.is_empty())
}

pub fn read_certificates(file: &Path) -> anyhow::Result<RootCerts> {
    let pem = std::fs::read(file).map_err(|error| Usage::file(file, &error))?;
    let mut certificates = Vec::new();
    for item in ureq::tls::parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(|| file.display().to_string())? {
            certificates.push(certificate);
        }
    }
    match certificates.is_empty() {
        true => Err(Usage(format!("{}: the file contains no certificate (PEM)", file.display())).into()),
        false => Ok(RootCerts::new_with_certs(&certificates)),
    }
}
