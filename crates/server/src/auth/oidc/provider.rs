//! The identity provider: its discovery document, and its token endpoint.

use crate::auth::fetch::{self, fetch};
use crate::config::is_safe;
use http::header;
use reqwest::{Method, Url};
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use zeroize::Zeroizing;

/// How long a discovery document is used.
const KEPT: Duration = Duration::from_secs(3600);
/// How long a failure counts, so that many sign-ins do not flood a provider that has problems.
const PAUSE: Duration = Duration::from_secs(2);
const ID_TOKEN_BYTES_MAX: usize = 16 << 10;
const WORDS_MAX: usize = 200;
const FORM: &str = "application/x-www-form-urlencoded";

pub struct Provider {
    issuer: String,
    known: Mutex<Option<Known>>,
}

struct Known {
    result: Result<Arc<Endpoints>, String>,
    at: Instant,
}

pub struct Endpoints {
    pub authorization_endpoint: Url,
    token_endpoint: String,
    /// Whether the client secret is a part of the body, because the provider does not support HTTP Basic.
    secret_in_body: bool,
}

/// The members of the discovery document that a sign-in needs.
#[derive(Deserialize)]
struct Document {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Tokens {
    id_token: Option<String>,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
    error_description: Option<String>,
}

/// The request for an ID token.
pub struct Grant<'a> {
    pub client: &'a str,
    pub secret: Option<&'a str>,
    pub code: &'a str,
    pub verifier: &'a str,
    pub redirect_uri: &'a str,
}

impl Provider {
    pub fn new(issuer: &str) -> Provider {
        Provider { issuer: issuer.to_owned(), known: Mutex::default() }
    }

    /// The endpoints of the provider. One request at a time asks for them, the others wait.
    pub async fn discover(&self) -> Result<Arc<Endpoints>, String> {
        let mut known = self.known.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.is_recent()) {
            return known.result.clone();
        }
        let fresh = self.ask().await.map(Arc::new);
        *known = Some(Known { result: fresh.clone(), at: Instant::now() });
        fresh
    }

    async fn ask(&self) -> Result<Endpoints, String> {
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let text = fetch(&url).await.map_err(|why| format!("{url}: {why}"))?;
        let document: Document = serde_json::from_slice(&text)
            .map_err(|error| format!("{url} is not a valid discovery document: {error}"))?;
        Endpoints::of(document, &self.issuer)
    }

    /// Exchanges a code for an ID token.
    pub async fn exchange(&self, grant: &Grant<'_>) -> Result<Zeroizing<String>, String> {
        let endpoints = self.discover().await?;
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", grant.code),
            ("redirect_uri", grant.redirect_uri),
            ("code_verifier", grant.verifier),
            ("client_id", grant.client),
        ];
        let mut request = fetch::request(Method::POST, &endpoints.token_endpoint)?;
        match grant.secret {
            Some(secret) if endpoints.secret_in_body => form.push(("client_secret", secret)),
            // RFC 6749, 2.3.1: both parts are form-encoded first.
            Some(secret) => request = request.basic_auth(encoded(grant.client), Some(encoded(secret))),
            None => {}
        }
        let pairs: Vec<String> =
            form.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let body = request.header(header::CONTENT_TYPE, FORM).body(pairs.join("&"));
        let (status, text) = fetch::send(body).await?;
        if status.is_success() {
            return id_token(&text);
        }
        match serde_json::from_slice::<Refusal>(&text) {
            Ok(refusal) => Err(in_words(&refusal.error, refusal.error_description.as_deref())),
            Err(_) => Err(format!("its token endpoint answered with status {status}")),
        }
    }
}

impl Known {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < if self.result.is_ok() { KEPT } else { PAUSE }
    }
}

impl Endpoints {
    fn of(document: Document, issuer: &str) -> Result<Endpoints, String> {
        if document.issuer != issuer {
            return Err(format!(
                "its discovery document is of another issuer, {}",
                in_words(&document.issuer, None)
            ));
        }
        for url in [&document.authorization_endpoint, &document.token_endpoint] {
            if !is_safe(url) {
                return Err(format!("its endpoint {} is not an https URL", in_words(url, None)));
            }
        }
        let methods = document.token_endpoint_auth_methods_supported;
        let supports = |method: &str| methods.as_ref().is_some_and(|all| all.iter().any(|one| one == method));
        Ok(Endpoints {
            authorization_endpoint: Url::parse(&document.authorization_endpoint)
                .map_err(|error| format!("its authorization endpoint is not a URL: {error}"))?,
            token_endpoint: document.token_endpoint,
            secret_in_body: supports("client_secret_post") && !supports("client_secret_basic"),
        })
    }
}

fn id_token(text: &[u8]) -> Result<Zeroizing<String>, String> {
    let tokens: Tokens = serde_json::from_slice(text)
        .map_err(|_| "the answer of its token endpoint is not valid JSON".to_owned())?;
    let token = tokens.id_token.ok_or("it returned no ID token; auth.oidc.scopes must contain openid")?;
    match token.len() > ID_TOKEN_BYTES_MAX {
        true => Err(format!("its ID token is longer than {ID_TOKEN_BYTES_MAX} bytes")),
        false => Ok(Zeroizing::new(token)),
    }
}

/// For forms, in which every other character can be percent-encoded.
fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// An error of the provider for people, without anything that could disturb a log line or a page.
pub fn in_words(error: &str, description: Option<&str>) -> String {
    let clean = |text: &str| text.chars().filter(|c| !c.is_control()).take(WORDS_MAX).collect::<String>();
    match description {
        Some(description) => format!("{} ({})", clean(description), clean(error)),
        None => clean(error),
    }
}
