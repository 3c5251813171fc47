//! Protects a local server from web pages: it serves only requests that use one of its own names, and pages only if they
//! were loaded from it.
//!
//! A page that resolves its own name to 127.0.0.1 shows that name in `Host`. A page that calls `http://localhost` directly
//! shows its own name in `Origin`. Both are rejected here, before anything is read.

use crate::problem::Problem;
use http::{HeaderMap, Uri, header};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The host names of this server.
#[derive(Clone, Debug)]
pub struct Guard {
    listen: IpAddr,
    allowed: Vec<Allowed>,
}

/// A host name from the configuration. With a port, only that port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Allowed {
    host: String,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `Host` is missing, repeated or malformed.
    NoHost,
    ForeignHost(String),
    ForeignOrigin(String),
}

/// `host[:port]` from a header. Case and a trailing dot are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Authority<'a> {
    host: &'a str,
    port: Option<u16>,
}

impl Guard {
    /// Returns invalid entries of `allow_hosts` as faults.
    pub fn new(listen: SocketAddr, allow_hosts: &[String]) -> Result<Guard, Vec<String>> {
        let (mut allowed, mut faults) = (Vec::new(), Vec::new());
        for entry in allow_hosts {
            match Authority::parse(entry) {
                Some(name) => allowed.push(Allowed { host: name.host.to_ascii_lowercase(), port: name.port }),
                None => faults.push(entry.clone()),
            }
        }
        if faults.is_empty() { Ok(Guard { listen: listen.ip(), allowed }) } else { Err(faults) }
    }

    /// Checks whether a request may be served. `local` is the local address of its connection.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap, local: IpAddr) -> Result<(), Refusal> {
        let host = self.host(uri, headers, local)?;
        match single(headers, header::ORIGIN) {
            One::None => Ok(()),
            One::Value(origin) if self.is_own_origin(origin, host) => Ok(()),
            One::Value(origin) => Err(Refusal::ForeignOrigin(origin.to_owned())),
            One::Unreadable => Err(Refusal::ForeignOrigin(String::new())),
        }
    }

    /// The same for a request without a host in its first line, given its only `Host` and `Origin`.
    pub(crate) fn admits(&self, host: &str, origin: Option<&str>, local: IpAddr) -> bool {
        let Ok(host) = self.known(host, local) else { return false };
        origin.is_none_or(|origin| self.is_own_origin(origin, host))
    }

    fn host<'a>(
        &self,
        uri: &'a Uri,
        headers: &'a HeaderMap,
        local: IpAddr,
    ) -> Result<Authority<'a>, Refusal> {
        let One::Value(text) = single(headers, header::HOST) else { return Err(Refusal::NoHost) };
        let host = self.known(text, local)?;
        // `GET http://elsewhere/ HTTP/1.1` is a proxy request. The host in its URL counts like `Host`.
        match uri.authority() {
            Some(named) => self.known(named.as_str(), local),
            None => Ok(host),
        }
    }

    fn known<'a>(&self, text: &'a str, local: IpAddr) -> Result<Authority<'a>, Refusal> {
        let host = Authority::parse(text).ok_or(Refusal::NoHost)?;
        if self.is_own(host, local) { Ok(host) } else { Err(Refusal::ForeignHost(text.to_owned())) }
    }

    fn is_own(&self, host: Authority<'_>, local: IpAddr) -> bool {
        if host.host.eq_ignore_ascii_case("localhost") {
            return true;
        }
        // DNS cannot rebind a literal address, so the local address is one of our names. 0.0.0.0 is not, because browsers use it
        // for this machine.
        let own = |ip: IpAddr| {
            ip.is_loopback() || (!ip.is_unspecified() && (ip == self.listen || ip == local.to_canonical()))
        };
        host.ip().is_some_and(own) || self.is_allowed(host)
    }

    fn is_allowed(&self, name: Authority<'_>) -> bool {
        self.allowed.iter().any(|allowed| {
            allowed.host.eq_ignore_ascii_case(name.host)
                && allowed.port.is_none_or(|port| Some(port) == name.port)
        })
    }

    /// A page of this server or of an allowed host. Another port of the same machine is another origin, because any program
    /// may listen there.
    fn is_own_origin(&self, origin: &str, host: Authority<'_>) -> bool {
        let Some((scheme, rest)) = origin.split_once("://") else { return false };
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return false,
        };
        let Some(page) = Authority::parse(rest) else { return false };
        let same_port = page.port.unwrap_or(default_port) == host.port.unwrap_or(default_port);
        (same_port && page.host.eq_ignore_ascii_case(host.host)) || self.is_allowed(page)
    }
}

impl Refusal {
    pub fn problem(&self) -> Problem {
        match self {
            Refusal::NoHost => {
                Problem::bad_request("the request needs exactly one Host header with a name of this server")
            }
            Refusal::ForeignHost(host) => Problem::foreign_host(format!(
                "{host} is not a name of this server; to allow it, start the server with --allow-host {}",
                bare(host)
            )),
            Refusal::ForeignOrigin(origin) => Problem::foreign_origin(format!(
                "pages of {origin} may not call this server; to allow them, start the server with --allow-host {}",
                bare(origin.rsplit_once("://").map_or(origin, |(_, host)| host))
            )),
        }
    }
}

/// The host name without its port, as `--allow-host` expects it.
fn bare(host: &str) -> &str {
    match Authority::parse(host) {
        Some(authority) if authority.host.contains(':') => host,
        Some(authority) => authority.host,
        None => "<host>",
    }
}

enum One<'a> {
    None,
    Value(&'a str),
    /// Repeated or not text: rejected.
    Unreadable,
}

fn single(headers: &HeaderMap, name: header::HeaderName) -> One<'_> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => One::None,
        (Some(value), None) => value.to_str().map_or(One::Unreadable, One::Value),
        (Some(_), Some(_)) => One::Unreadable,
    }
}

impl<'a> Authority<'a> {
    fn parse(text: &'a str) -> Option<Authority<'a>> {
        match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']')?;
                host.parse::<Ipv6Addr>().ok()?;
                Some(Authority { host, port: port(after)? })
            }
            None => {
                let end = text.find(':').unwrap_or(text.len());
                let (host, after) = text.split_at(end);
                let host = host.strip_suffix('.').unwrap_or(host);
                is_name(host).then_some(())?;
                Some(Authority { host, port: port(after)? })
            }
        }
    }

    fn ip(&self) -> Option<IpAddr> {
        if self.host.contains(':') {
            return self.host.parse::<Ipv6Addr>().ok().map(|ip| IpAddr::V6(ip).to_canonical());
        }
        self.host.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
    }
}

/// Nothing (`None` inside), or `:` and a number.
fn port(after: &str) -> Option<Option<u16>> {
    if after.is_empty() {
        return Some(None);
    }
    let digits = after.strip_prefix(':')?;
    // `u16::from_str` would accept a plus sign.
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().map(Some)
}

fn is_name(host: &str) -> bool {
    !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn guard(listen: &str, allow: &[&str]) -> Guard {
        let allow: Vec<_> = allow.iter().map(|name| (*name).to_owned()).collect();
        Guard::new(listen.parse().unwrap(), &allow).unwrap()
    }

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, value.parse().unwrap());
        }
        map
    }

    fn host(guard: &Guard, host: &str) -> Result<(), Refusal> {
        guard.check(&Uri::from_static("/"), &headers(&[(header::HOST, host)]), LOOPBACK)
    }

    fn origin(guard: &Guard, host: &str, origin: &str) -> bool {
        let headers = headers(&[(header::HOST, host), (header::ORIGIN, origin)]);
        guard.check(&Uri::from_static("/"), &headers, LOOPBACK).is_ok()
    }

    #[test]
    fn own_names_pass() {
        let guard = guard("127.0.0.1:8080", &["klambda.example", "only.example:8443", "10.0.0.9"]);
        for name in [
            "localhost",
            "localhost:8080",
            "LocalHost:1",
            "localhost.",
            "localhost.:8080",
            "127.0.0.1:8080",
            "127.1.2.3",
            "[::1]",
            "[::1]:8080",
            "[0:0:0:0:0:0:0:1]:8080",
            "[::ffff:127.0.0.1]:8080",
            "klambda.example",
            "KLAMBDA.example.:9999",
            "only.example:8443",
            "10.0.0.9:8080",
        ] {
            assert_eq!(host(&guard, name), Ok(()), "{name}");
        }
    }

    #[test]
    fn foreign_names_do_not() {
        let guard = guard("127.0.0.1:8080", &["klambda.example", "only.example:8443"]);
        for name in [
            "evil.example",
            "localhost.evil.example",
            "evil-localhost",
            "127.0.0.1.evil.example",
            "192.168.1.5:8080",
            "0.0.0.0:8080",
            "[::]:8080",
            "[::2]:8080",
            "sub.klambda.example",
            "only.example",
            "only.example:80",
            "2130706433",
            "127.1",
        ] {
            assert_eq!(host(&guard, name), Err(Refusal::ForeignHost(name.to_owned())), "{name}");
        }
        for nonsense in [
            "",
            ":8080",
            "user@localhost",
            "localhost@evil.example",
            "localhost:80:80",
            "localhost:+80",
            "localhost:99999",
            "localhost/..",
            "localhost evil.example",
            "[::1",
            "[::1]evil.example",
            "[::1%25eth0]",
            "::1",
            "local\u{e4}host",
        ] {
            assert_eq!(host(&guard, nonsense), Err(Refusal::NoHost), "{nonsense}");
        }
    }

    #[test]
    fn one_host_and_no_other() {
        let guard = guard("127.0.0.1:8080", &[]);
        let uri = Uri::from_static("/");
        assert_eq!(guard.check(&uri, &HeaderMap::new(), LOOPBACK), Err(Refusal::NoHost));
        let two = headers(&[(header::HOST, "localhost"), (header::HOST, "evil.example")]);
        assert_eq!(guard.check(&uri, &two, LOOPBACK), Err(Refusal::NoHost));
        let one = headers(&[(header::HOST, "localhost")]);
        let absolute = Uri::from_static("http://evil.example/api");
        assert!(matches!(guard.check(&absolute, &one, LOOPBACK), Err(Refusal::ForeignHost(_))));
    }

    #[test]
    fn an_address_is_its_own_name() {
        let everywhere = guard("0.0.0.0:8080", &[]);
        let local: IpAddr = "192.168.1.5".parse().unwrap();
        let uri = Uri::from_static("/");
        let came_by = |host| everywhere.check(&uri, &headers(&[(header::HOST, host)]), local);
        assert_eq!(came_by("192.168.1.5:8080"), Ok(()));
        assert!(came_by("192.168.1.6:8080").is_err());
        assert!(came_by("0.0.0.0:8080").is_err());
        let mapped = "::ffff:192.168.1.5".parse().unwrap();
        let dual = guard("[::]:8080", &[]);
        assert!(dual.check(&uri, &headers(&[(header::HOST, "192.168.1.5")]), mapped).is_ok());
    }

    #[test]
    fn only_pages_of_this_server_may_call() {
        let guard = guard("127.0.0.1:8080", &["shop.example"]);
        assert!(origin(&guard, "localhost:8080", "http://localhost:8080"));
        assert!(origin(&guard, "LOCALHOST:8080", "http://localhost:8080"));
        assert!(origin(&guard, "[::1]:8080", "http://[::1]:8080"));
        assert!(origin(&guard, "localhost", "https://localhost"));
        assert!(origin(&guard, "localhost:443", "https://localhost"));
        assert!(origin(&guard, "localhost:8080", "https://shop.example"));
        for foreign in [
            "http://evil.example",
            "http://localhost:3000",
            "http://127.0.0.1:8080",
            "http://localhost:8080.evil.example",
            "http://user@localhost:8080",
            "null",
            "file://",
            "chrome-extension://localhost:8080",
            "http://localhost:8080/",
            "",
        ] {
            assert!(!origin(&guard, "localhost:8080", foreign), "{foreign}");
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = Refusal::ForeignHost("evil.example:80".into()).problem();
        assert!(refused.detail().contains("--allow-host evil.example"), "{}", refused.detail());
        let refused = Refusal::ForeignOrigin("https://evil.example:444".into()).problem();
        assert!(refused.detail().contains("--allow-host evil.example"), "{}", refused.detail());
        assert_eq!(Guard::new("127.0.0.1:1".parse().unwrap(), &["a b".into()]).unwrap_err(), ["a b"]);
    }
}
