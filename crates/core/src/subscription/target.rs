//! Where events are delivered: the URL, how to speak to it, and with which certificates.

use super::header::read_headers;
use super::{FunctionName, Protocol, Target, Tls, UrlTarget};
use crate::fields::Fields;
use crate::namespace::is_label;
use std::borrow::Cow;

const URL_BYTES_MAX: usize = 4096;

pub(super) fn read_target(spec: &Fields<'_>) -> Target {
    if spec.get("target").is_none() {
        spec.fault("target", "missing: name at least target.url");
    }
    let target = spec.child("target", &["url", "function", "headers", "protocol", "tls"]);
    if target.get("function").is_some() {
        return read_function(&target);
    }
    let url =
        if spec.get("target").is_some_and(|value| value.is_object()) { target.required("url") } else { "" };
    let protocol = target.choice("protocol");
    let tls = read_tls(&target);
    match check_url(url) {
        Ok(scheme) => check_scheme(&target, scheme, protocol),
        Err(_) if target.get("url").is_none_or(|value| !value.is_string()) => {}
        Err(message) => target.fault("url", message),
    }
    Target::Url(UrlTarget { url: url.to_owned(), headers: read_headers(&target), protocol, tls })
}

fn read_function(target: &Fields<'_>) -> Target {
    for name in ["url", "headers", "protocol", "tls"] {
        if target.get(name).is_some() {
            target.fault(name, "cannot be given together with function");
        }
    }
    let function = target.child("function", &["namespace", "name"]);
    let label = |field: &str| {
        let text = function.required(field);
        if function.get(field).is_some_and(|value| value.is_string()) && !is_label(text) {
            function
                .fault(field, "has 1 to 63 of a-z, 0-9 and -, and begins and ends with a letter or digit");
        }
        text.to_owned()
    };
    Target::Function(FunctionName { namespace: label("namespace"), name: label("name") })
}

impl Target {
    pub fn url(&self) -> Option<&UrlTarget> {
        match self {
            Target::Url(target) => Some(target),
            Target::Function(_) => None,
        }
    }

    pub fn function(&self) -> Option<&FunctionName> {
        match self {
            Target::Url(_) => None,
            Target::Function(function) => Some(function),
        }
    }

    /// What it is called: its URL, or `function://<namespace>.<name>`.
    pub fn address(&self) -> Cow<'_, str> {
        match self {
            Target::Url(target) => Cow::Borrowed(&target.url),
            Target::Function(FunctionName { namespace, name }) => {
                Cow::Owned(format!("function://{namespace}.{name}"))
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

fn check_scheme(target: &Fields<'_>, scheme: Scheme, protocol: Protocol) {
    if scheme == Scheme::Https && protocol == Protocol::H2c {
        target.fault("protocol", "h2c is HTTP/2 without TLS: it needs an http:// URL");
    }
    if scheme == Scheme::Http && target.get("tls").is_some() {
        target.fault("tls", "needs an https:// URL");
    }
}

fn read_tls(target: &Fields<'_>) -> Tls {
    let tls = target.child("tls", &["caFile", "certFile", "keyFile"]);
    let file = |name: &str| {
        let path = tls.text(name)?;
        if path.is_empty() {
            tls.fault(name, "must not be empty");
        }
        Some(path.to_owned())
    };
    let read = Tls { ca_file: file("caFile"), cert_file: file("certFile"), key_file: file("keyFile") };
    match (&read.cert_file, &read.key_file) {
        (Some(_), None) => tls.fault("keyFile", "missing: a client certificate needs its key"),
        (None, Some(_)) => tls.fault("certFile", "missing: a key needs its client certificate"),
        _ => {}
    }
    read
}

fn check_url(url: &str) -> Result<Scheme, String> {
    if url.len() > URL_BYTES_MAX {
        return Err(format!("longer than {URL_BYTES_MAX} bytes"));
    }
    if url.contains('#') {
        return Err("must not have a fragment (#…)".to_owned());
    }
    let uri: http::Uri = url.parse().map_err(|error| format!("not a URL: {error}"))?;
    let scheme = match uri.scheme_str() {
        Some("http") => Scheme::Http,
        Some("https") => Scheme::Https,
        _ => return Err("must begin with http:// or https://".to_owned()),
    };
    let authority = uri.authority().ok_or("must name a host")?;
    if authority.as_str().contains('@') {
        return Err("must not hold a user or password: send them in a header from a file or the environment"
            .to_owned());
    }
    if authority.host().is_empty() || authority.host() == "[]" {
        return Err("must name a host".to_owned());
    }
    let port = authority.as_str()[authority.host().len()..].strip_prefix(':');
    match port.map(str::parse::<u16>) {
        Some(Err(_) | Ok(0)) => Err("the port must be between 1 and 65535".to_owned()),
        _ => Ok(scheme),
    }
}

#[cfg(test)]
mod tests {
    use super::check_url;

    #[test]
    fn urls_are_checked() {
        for good in
            ["http://127.0.0.1:9000/", "https://h", "http://[::1]:80/a?b=c", "http://a-b.example:1/x%20y"]
        {
            assert!(check_url(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "h",
            "/path",
            "ftp://h/",
            "http://",
            "http:///x",
            "http://u:p@h/",
            "http://h/#f",
            "http://h:0/",
            "http://h:99999/",
            "http://h:x/",
            "http://h:/",
            "http://a b/",
            "http://h/\n",
            "http://[]/",
            "mailto:a@b",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }
}
