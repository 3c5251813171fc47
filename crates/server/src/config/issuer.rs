//! Settings about an issuer: which belong together, and which addresses are safe.

use http::Uri;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Authentication besides the tokens of the server itself.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Auth {
    pub jwt: Jwt,
    pub oidc: Oidc,
}

/// Sign-in to the page at the issuer of the JWTs. The client secret itself is never part of the configuration.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Oidc {
    pub client_id: Option<String>,
    pub client_secret_file: Option<PathBuf>,
    /// The address of this server as browsers use it.
    pub public_url: Option<String>,
    pub scopes: Vec<String>,
}

/// A trusted issuer of JWTs.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Jwt {
    pub issuer: Option<String>,
    pub audience: Option<String>,
    pub jwks_file: Option<PathBuf>,
    pub jwks_url: Option<String>,
    pub refresh: Duration,
    pub role_claim: String,
    pub namespaces_claim: String,
}

impl Default for Jwt {
    fn default() -> Jwt {
        Jwt {
            issuer: None,
            audience: None,
            jwks_file: None,
            jwks_url: None,
            refresh: Duration::from_secs(300),
            role_claim: "klambda/role".to_owned(),
            namespaces_claim: "klambda/namespaces".to_owned(),
        }
    }
}

impl Default for Oidc {
    fn default() -> Oidc {
        Oidc {
            client_id: None,
            client_secret_file: None,
            public_url: None,
            scopes: vec!["openid".to_owned()],
        }
    }
}

/// A setting and what is wrong with it.
type Fault = (&'static str, &'static str);

pub fn faults(auth: &Auth) -> Vec<Fault> {
    [jwt_faults(&auth.jwt), oidc_faults(auth)].concat()
}

/// All settings that are needed to verify the tokens of an issuer must be set, or none.
fn jwt_faults(jwt: &Jwt) -> Vec<Fault> {
    let given =
        [jwt.issuer.is_some(), jwt.audience.is_some(), jwt.jwks_file.is_some() || jwt.jwks_url.is_some()];
    let mut found = Vec::new();
    if given.contains(&true) && given.contains(&false) {
        found.push(("auth.jwt", "set issuer, audience, and jwksFile or jwksUrl: all of them or none"));
    }
    if jwt.jwks_file.is_some() && jwt.jwks_url.is_some() {
        found.push(("auth.jwt", "set either jwksFile or jwksUrl"));
    }
    if jwt.jwks_url.as_deref().is_some_and(|url| !is_safe(url)) {
        found.push((
            "auth.jwt.jwksUrl",
            "must be an https URL, because anyone who can change the keys can forge tokens",
        ));
    }
    found
}

/// A sign-in needs the issuer, and an address of this server that the request cannot choose.
fn oidc_faults(auth: &Auth) -> Vec<Fault> {
    let Auth { jwt, oidc } = auth;
    let mut found = Vec::new();
    if oidc.client_id.is_some() != oidc.public_url.is_some() {
        found.push(("auth.oidc", "set both clientId and publicUrl, or none of them"));
    }
    if oidc.client_secret_file.is_some() && oidc.client_id.is_none() {
        found.push(("auth.oidc.clientSecretFile", "needs auth.oidc.clientId and auth.oidc.publicUrl"));
    }
    if oidc.client_id.is_some() {
        match jwt.issuer.as_deref() {
            None => found.push(("auth.oidc", "needs auth.jwt: its issuer signs the users in")),
            Some(issuer) if !is_safe(issuer) => found.push((
                "auth.jwt.issuer",
                "must be an https URL for auth.oidc, because it is where users sign in",
            )),
            Some(_) => {}
        }
    }
    if oidc.public_url.as_deref().is_some_and(|url| !is_origin(url)) {
        found.push((
            "auth.oidc.publicUrl",
            "must be an https URL (or http on loopback) without path and query, such as https://klambda.example.com",
        ));
    }
    let is_scope = |scope: &String| !scope.is_empty() && scope.bytes().all(|byte| byte.is_ascii_graphic());
    if !oidc.scopes.iter().all(is_scope) || !oidc.scopes.iter().any(|scope| scope == "openid") {
        found.push(("auth.oidc.scopes", "must be words without spaces, and one of them must be openid"));
    }
    found
}

/// Whether a URL has only a scheme, a host and a port.
fn is_origin(url: &str) -> bool {
    let parsed = url.parse::<Uri>();
    let is_plain = parsed.is_ok_and(|url| url.path() == "/" && url.query().is_none());
    is_plain && is_safe(url) && !url.contains(['@', '#'])
}

/// Whether the connection to this URL cannot be tampered with.
pub(crate) fn is_safe(url: &str) -> bool {
    let Ok(url) = url.parse::<Uri>() else { return false };
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match url.scheme_str() {
        Some("https") => !host.is_empty(),
        Some("http") => is_local,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Overrides;
    use crate::config::sources::tests::{read, wrong};

    #[test]
    fn an_issuer_is_configured_whole_or_not_at_all() {
        let whole =
            "auth: {jwt: {issuer: i, audience: a, jwksUrl: 'https://i.example/jwks', roleClaim: role}}";
        let config = read(whole, &[("KLAMBDA_AUTH_JWT_REFRESH", "1m")], Overrides::default()).unwrap();
        assert_eq!((config.auth.jwt.role_claim.as_str(), config.auth.jwt.refresh.as_secs()), ("role", 60));
        let public = "auth: {jwt: {issuer: 'https://i.example', audience: a, jwksFile: k}, \
                      oidc: {clientId: c, publicUrl: 'https://k.example:8443'}}";
        let config = read(public, &[], Overrides::default()).unwrap();
        assert_eq!(config.own_hosts(), ["k.example:8443"], "the public URL is a name of this server");
        for (yaml, part) in [
            ("auth: {jwt: {issuer: i, audience: a}}", "all of them or none"),
            ("auth: {jwt: {jwksFile: k}}", "all of them or none"),
            ("auth: {jwt: {issuer: i, audience: a, jwksFile: k, jwksUrl: 'https://h/k'}}", "either"),
            ("auth: {jwt: {issuer: i, audience: a, jwksUrl: 'http://h/k'}}", "https"),
            ("auth: {jwt: {issuer: i, audience: a, jwksUrl: 'file:///k'}}", "https"),
            ("auth: {oidc: {clientId: c}}", "both clientId and publicUrl"),
            ("auth: {oidc: {clientId: c, publicUrl: 'https://k.example'}}", "needs auth.jwt"),
            ("auth: {oidc: {clientId: c, publicUrl: 'http://k.example'}}", "https"),
            ("auth: {oidc: {clientId: c, publicUrl: 'https://k.example/path'}}", "without path"),
            ("auth: {oidc: {scopes: [profile]}}", "openid"),
            ("auth: {oidc: {scopes: ['openid profile']}}", "without spaces"),
            ("auth: {oidc: {clientSecretFile: f}}", "needs auth.oidc.clientId"),
            ("auth: {oidc: {clientSecret: s}}", "unknown setting"),
            ("auth: {jwt: {roleClaim: ''}}", "empty"),
            ("auth: {jwt: {refresh: 1s}}", "at least 10s"),
        ] {
            let found = wrong(yaml, &[]);
            assert!(found.iter().any(|(_, message)| message.contains(part)), "{yaml}: {found:?}");
        }
        let local = whole.replace("https://i.example", "http://127.0.0.1:8081");
        assert!(read(&local, &[], Overrides::default()).is_ok());
    }
}
