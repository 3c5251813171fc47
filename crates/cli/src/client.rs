//! The REST API over HTTP: JSON in, JSON out, problem documents as errors.

use crate::args::Global;
use crate::exit::Usage;
use crate::output::one_line;
use crate::route::Route;
use anyhow::Context;
use serde_json::Value;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use ureq::http::{self, Method};
use ureq::tls::{PemItem, RootCerts, TlsConfig};

pub struct Client {
    agent: ureq::Agent,
    base: String,
    bearer: Option<String>,
    timeout: Duration,
    /// What is asked for is in this one, unless it says otherwise.
    namespace: String,
}

/// Stands for all namespaces, in lists.
const ALL_NAMESPACES: &str = "*";

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "cannot reach {url}: {reason}; start a server with `klambda serve`, or name another one with --server"
    )]
    Unreachable { url: String, reason: String },
    #[error("cannot reach {url}: the server there speaks http, not https; use --server {plain}")]
    PlainHttp { url: String, plain: String },
    #[error("{0}")]
    Problem(Problem),
    #[error("{url} did not answer like a klambda server: {reason}")]
    Garbled { url: String, reason: String },
}

/// An RFC 9457 problem document, or what can be said of an error answer that carries none.
#[derive(Debug)]
pub struct Problem {
    pub status: u16,
    pub body: Value,
}

/// Some of a list, and whether there is more of it.
#[derive(Debug)]
pub struct Page {
    pub items: Vec<Value>,
    pub more: bool,
}

/// The largest answer taken into memory; streams have no limit.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
const PAGE_MAX: usize = 1_000;

impl Client {
    pub fn new(global: &Global) -> anyhow::Result<Client> {
        let base = base_url(&global.server)?;
        let bearer = global.token_file.as_deref().map(read_token).transpose()?;
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(global.timeout))
            .user_agent(concat!("klambda/", env!("CARGO_PKG_VERSION")));
        if is_loopback(&base) {
            // A proxy named in the environment cannot reach this machine's own loopback.
            config = config.proxy(None);
        }
        if let Some(file) = &global.ca_file {
            config = config.tls_config(TlsConfig::builder().root_certs(read_certificates(file)?).build());
        }
        let namespace = global.namespace.clone().unwrap_or_else(|| "default".to_owned());
        Ok(Client { agent: config.build().new_agent(), base, bearer, timeout: global.timeout, namespace })
    }

    /// Lists are of all namespaces from here on.
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

    pub fn post(&self, route: &Route, body: Option<&Value>) -> Result<Answer, Error> {
        self.call(Method::POST, route, body.map(Body::json))
    }

    pub fn post_as(&self, route: &Route, body: String, content_type: &str) -> Result<Answer, Error> {
        self.call(Method::POST, route, Some(Body::new(body, content_type)))
    }

    /// Sends what is not ours to read, and hands back the answer as it came.
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

    /// Opens an answer that is read as it comes: only connecting and the answer's head are timed.
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
        let carries_body = matches!(method, Method::POST | Method::PUT);
        let mut request = http::Request::builder()
            .method(method)
            .uri(route.to_url(&self.base, &self.namespace))
            .header("accept", accept);
        if let Some(bearer) = &self.bearer {
            request = request.header("authorization", bearer);
        }
        if let Some(body) = &body {
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
            (200..=299, Err(_)) => Err(self.garbled("the answer is not JSON")),
            (300..=399, _) => Err(self.garbled(&format!("it answers {status}, a redirection"))),
            (_, Ok(body)) => Err(Error::Problem(Problem { status, body })),
            (_, Err(_)) => Err(Error::Problem(Problem { status, body: Value::Null })),
        }
    }

    fn transport(&self, error: ureq::Error) -> Error {
        use ureq::Error as E;
        let url = self.base.clone();
        if url.starts_with("https:") && error.to_string().contains("InvalidContentType") {
            return Error::PlainHttp { plain: url.replacen("https", "http", 1), url };
        }
        match error {
            E::Timeout(_) => {
                let reason = format!("no answer within {} ms", self.timeout.as_millis());
                Error::Unreachable { url, reason }
            }
            E::Io(io) => Error::Unreachable { url, reason: io_reason(&io) },
            E::HostNotFound => Error::Unreachable { url, reason: "no such host".to_owned() },
            E::ConnectionFailed => Error::Unreachable { url, reason: "connection failed".to_owned() },
            E::Tls(_) | E::Rustls(_) | E::Pem(_) => Error::Unreachable { url, reason: error.to_string() },
            other => Error::Garbled { url, reason: other.to_string() },
        }
    }

    fn garbled(&self, reason: &str) -> Error {
        Error::Garbled { url: self.base.clone(), reason: reason.to_owned() }
    }
}

/// What a request carries, and what its headers say of that.
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

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What a function throws is no problem document.
        let thrown = &self.body["error"];
        match (self.body["title"].as_str(), thrown["message"].as_str()) {
            (Some(title), _) => write!(f, "{title}")?,
            (None, Some(message)) => write!(f, "{}: {message}", thrown["type"].as_str().unwrap_or("Error"))?,
            (None, None) => write!(f, "the server answered {}", self.status)?,
        }
        let detail = in_flags(self.body["detail"].as_str().unwrap_or_default());
        if !detail.is_empty() {
            write!(f, ": {detail}")?;
        }
        if self.is("unauthorized") {
            write!(f, "; --token-file names the file that holds it")?;
        }
        for fault in self.body["faults"].as_array().into_iter().flatten() {
            let path = fault["path"].as_str().unwrap_or_default();
            let message = fault["message"].as_str().unwrap_or_default();
            let colon = if path.is_empty() { "" } else { ": " };
            let fault = in_flags(&format!("{path}{colon}{message}"));
            // Of a single fault the detail has told already.
            if !detail.ends_with(&fault) {
                write!(f, "\n  {fault}")?;
            }
        }
        for (member, title) in [("lanes", "parked lanes"), ("sources", "sources")] {
            let listed = self.body[member].as_array().into_iter().flatten();
            let listed: Vec<&str> = listed.filter_map(Value::as_str).collect();
            if !listed.is_empty() {
                write!(f, "\n  {title}: {}", one_line(&listed.join(", ")))?;
            }
        }
        Ok(())
    }
}

impl Problem {
    /// Whether its type ends like this.
    fn is(&self, slug: &str) -> bool {
        self.body["type"].as_str().and_then(|kind| kind.rsplit('/').next()) == Some(slug)
    }
}

/// Replaces the REST parameters in a text of the server by the flags of the commands.
fn in_flags(text: &str) -> String {
    let flags = [("?drain=true", "--drain"), ("?discard=true", "--discard"), ("?source=", "--source")];
    flags.iter().fold(text.to_owned(), |text, (parameter, flag)| text.replace(parameter, flag))
}

/// `next` is a cursor or, for events, a position.
fn cursor_text(next: &Value) -> Option<String> {
    match next {
        Value::String(cursor) => Some(cursor.clone()),
        Value::Number(position) => Some(position.to_string()),
        _ => None,
    }
}

fn io_reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        std::io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        _ => error.to_string(),
    }
}

fn base_url(server: &str) -> Result<String, Usage> {
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

fn read_token(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).map_err(|error| Usage::file(file, &error))?;
    // The server's own file may hold several, one per line: any of them opens it.
    match text.lines().map(str::trim).find(|line| !line.is_empty()) {
        Some(token) => Ok(format!("Bearer {token}")),
        None => Err(Usage::file(file, &"the token file is empty").into()),
    }
}

fn read_certificates(file: &Path) -> anyhow::Result<RootCerts> {
    let pem = std::fs::read(file).map_err(|error| Usage::file(file, &error))?;
    let mut certificates = Vec::new();
    for item in ureq::tls::parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(|| file.display().to_string())? {
            certificates.push(certificate);
        }
    }
    match certificates.is_empty() {
        true => Err(Usage(format!("{}: no certificate in it", file.display())).into()),
        false => Ok(RootCerts::new_with_certs(&certificates)),
    }
}
