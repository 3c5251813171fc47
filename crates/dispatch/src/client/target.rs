//! A target prepared for calls: parsed once per document, not once per call.

use super::own_headers::OwnHeaders;
use super::pool::{self, Certificates, Pool};
use super::webhook::Opened;
use http::Uri;
use klambda_core::address::ReplicaAddress;
use klambda_core::subscription::{Document, FunctionName, HeaderValue, Protocol, Target, Tls};
use klambda_core::webhook;
use klambda_crash::Lock;
use klambda_outbound::Reach;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub struct Prepared {
    /// Kept alive, so that its address identifies this document.
    pub document: Arc<Document>,
    pub uri: Uri,
    /// Request line and `host` header for HTTP/1.1.
    pub start: Vec<u8>,
    pub headers: OwnHeaders,
    /// The target's own headers contain the trace context, so the event's is not added.
    pub own_trace: bool,
    pub timeout: Duration,
    /// The target is a function, local or remote, so events in its responses are accepted.
    pub is_function: bool,
    pub way: Way,
    /// The secrets of a webhook endpoint.
    pub opened: Opened,
}

pub enum Way {
    Http1(Arc<Pool>),
    H2c(Arc<Pool>),
    Function(Replicas),
}

/// The replicas of a function that were called so far.
pub struct Replicas {
    pub function: FunctionName,
    pools: Lock<HashMap<ReplicaAddress, Arc<Pool>>>,
}

/// At this number of replicas the pools are cleared, which forgets replicas that no longer exist.
const REPLICAS_MAX: usize = 64;

impl Replicas {
    /// The connections to one replica. `pool` creates them if there are none.
    pub fn pool(
        &self,
        address: &ReplicaAddress,
        pool: impl FnOnce(pool::Key) -> Result<Arc<Pool>, String>,
    ) -> Result<Arc<Pool>, String> {
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.get(address) {
            return Ok(pool.clone());
        }
        if pools.len() >= REPLICAS_MAX {
            pools.clear();
        }
        let made = pool(pool::Key::of_replica(address))?;
        pools.insert(address.clone(), made.clone());
        Ok(made)
    }
}

const USER_AGENT: &str = concat!("knative-lambda/", env!("CARGO_PKG_VERSION"));

impl Prepared {
    pub fn new(
        document: Arc<Document>,
        reach: Reach,
        pool: impl FnOnce(pool::Key) -> Result<Arc<Pool>, String>,
    ) -> Result<Prepared, String> {
        let target = &document.spec.target;
        let uri: Uri = target.address().parse().map_err(|error| format!("target.url: {error}"))?;
        let way = match target {
            Target::Function(function) => {
                Way::Function(Replicas { function: function.clone(), pools: Lock::default() })
            }
            Target::Endpoint(endpoint) => Way::Http1(pool(endpoint_key(&uri, endpoint, &document, reach)?)?),
            Target::Url(target) => match target.protocol {
                Protocol::Http1 => Way::Http1(pool(pool_key(&uri, target.protocol, &target.tls, reach)?)?),
                Protocol::H2c => Way::H2c(pool(pool_key(&uri, target.protocol, &target.tls, reach)?)?),
            },
        };
        let headers = target.url().map_or(&[][..], |target| &target.headers);
        Ok(Prepared {
            start: start(&uri),
            headers: OwnHeaders::new(with_user_agent(headers))?,
            own_trace: headers.iter().any(|(name, _)| name == "traceparent"),
            timeout: Duration::from_millis(document.spec.retry.timeout_ms),
            is_function: target.function().is_some() || Document::is_managed(&document.name),
            way,
            uri,
            document,
            opened: Opened::default(),
        })
    }
}

#[cfg(test)]
impl Prepared {
    pub fn pool(&self) -> Arc<Pool> {
        match &self.way {
            Way::Http1(pool) | Way::H2c(pool) => pool.clone(),
            Way::Function(_) => panic!("a function has a pool for each replica"),
        }
    }
}

fn pool_key(uri: &Uri, protocol: Protocol, tls: &Tls, reach: Reach) -> Result<pool::Key, String> {
    let host = uri.host().filter(|host| !host.is_empty()).ok_or("target.url has no host")?;
    let https = uri.scheme_str() == Some("https");
    Ok(pool::Key {
        host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
        port: uri.port_u16().unwrap_or(if https { 443 } else { 80 }),
        tls: https.then(|| Certificates::Files(files(tls))),
        shared: protocol == Protocol::H2c,
        socket: None,
        owner: None,
        reach,
    })
}

fn files(tls: &Tls) -> pool::Files {
    pool::Files { ca: tls.ca_file.clone(), certificate: tls.cert_file.clone(), key: tls.key_file.clone() }
}

/// The connections of a webhook endpoint are its own, and all of them have the certificates of its secrets.
fn endpoint_key(
    uri: &Uri,
    endpoint: &webhook::Spec,
    document: &Document,
    reach: Reach,
) -> Result<pool::Key, String> {
    let mut key = pool_key(uri, Protocol::Http1, &Tls::default(), reach)?;
    key.owner = Some(document.full_name().into_owned());
    if key.tls.is_some() && !endpoint.tls.is_default() {
        key.tls = Some(Certificates::Secrets(endpoint.tls.clone()));
    }
    Ok(key)
}

fn start(uri: &Uri) -> Vec<u8> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let slash = if path.starts_with('/') { "" } else { "/" };
    let host = uri.authority().map_or("", |authority| authority.as_str());
    format!("POST {slash}{path} HTTP/1.1\r\nhost: {host}\r\n").into_bytes()
}

fn with_user_agent(headers: &[(String, HeaderValue)]) -> Vec<(String, HeaderValue)> {
    let mut headers = headers.to_vec();
    if !headers.iter().any(|(name, _)| name == "user-agent") {
        headers.push(("user-agent".into(), HeaderValue::Literal(USER_AGENT.into())));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_line_always_has_a_path() {
        for (url, expected) in [
            ("http://h", "POST / HTTP/1.1\r\nhost: h\r\n"),
            ("http://h:81?a=b", "POST /?a=b HTTP/1.1\r\nhost: h:81\r\n"),
            ("http://[::1]:80/a%20b?c", "POST /a%20b?c HTTP/1.1\r\nhost: [::1]:80\r\n"),
        ] {
            let uri = url.parse().expect("a URL");
            assert_eq!(String::from_utf8(start(&uri)).expect("text"), expected);
        }
    }
}
