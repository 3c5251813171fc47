//! Sign-in to the page with OpenID Connect: the authorization code flow with PKCE
//! ([why this way](../../../../docs/decisions/0025-sign-in-with-openid-connect.md)).
//!
//! The server keeps nothing between the two requests of a sign-in. The browser holds a random cookie, and `state`, `nonce` and
//! the PKCE verifier follow from this cookie and a key that only this process knows.

mod provider;

use crate::config;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use provider::Provider;
use reqwest::Url;
use ring::digest::{SHA256, digest};
use ring::hmac;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

/// Where the provider sends the browser back to.
pub const CALLBACK: &str = "/ui/callback";
/// How long a user may take at the provider.
pub const ATTEMPT_AGE_MAX: Duration = Duration::from_secs(600);
/// The environment variable that holds the client secret itself.
pub const VARIABLE: &str = "KLAMBDA_AUTH_OIDC_CLIENT_SECRET";
const EXCHANGES_MAX: usize = 16;
const SECRET_BYTES_MAX: u64 = 4096;

pub struct Oidc {
    issuer: String,
    client: String,
    secret: Secret,
    /// Without a slash at the end.
    public_url: String,
    scopes: String,
    provider: Provider,
    key: hmac::Key,
    exchanges: Semaphore,
}

/// The client secret. A file is read for each sign-in, so that it can change while the server runs.
enum Secret {
    /// A public client: PKCE alone protects the code.
    None,
    Given(Zeroizing<String>),
    File(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{VARIABLE} and auth.oidc.clientSecretFile are both set; remove one of them")]
    Twice,
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("no random source available: {0}")]
    Randomness(getrandom::Error),
}

#[derive(Debug, thiserror::Error)]
#[error("could not read auth.oidc.clientSecretFile {path}: {why}")]
pub struct SecretError {
    path: PathBuf,
    why: String,
}

/// Why a sign-in did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "this browser did not start the sign-in, or started it more than 10 minutes ago; open the page and sign in again"
    )]
    OtherAttempt,
    #[error("the answer of the identity provider is incomplete: {0} is missing")]
    Incomplete(&'static str),
    #[error("the identity provider did not sign you in: {0}")]
    Denied(String),
    #[error("{EXCHANGES_MAX} sign-ins are being completed; try again soon")]
    Busy,
    #[error("the identity provider {issuer} failed: {why}")]
    Provider { issuer: String, why: String },
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// The parameters that the provider adds to the callback.
#[derive(Default)]
pub struct Returned {
    pub code: Option<String>,
    pub state: Option<String>,
    pub issuer: Option<String>,
    pub error: Option<String>,
    pub error_description: Option<String>,
}

/// The first request of a sign-in: where the browser goes, and the cookie that it brings back.
pub struct Start {
    pub location: String,
    pub cookie: String,
}

/// An ID token that is not verified yet, and the nonce that it must have.
pub struct Unverified {
    pub id_token: Zeroizing<String>,
    pub nonce: String,
}

impl Oidc {
    /// `None` if the configuration names no client.
    pub fn open(config: &config::Auth) -> Result<Option<Oidc>, OpenError> {
        let config::Auth { jwt, oidc } = config;
        let (Some(issuer), Some(client), Some(public_url)) = (&jwt.issuer, &oidc.client_id, &oidc.public_url)
        else {
            return Ok(None);
        };
        let secret = Secret::find(oidc.client_secret_file.as_ref())?;
        secret.read()?;
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(key.as_mut_slice()).map_err(OpenError::Randomness)?;
        Ok(Some(Oidc {
            issuer: issuer.clone(),
            client: client.clone(),
            secret,
            public_url: public_url.trim_end_matches('/').to_owned(),
            scopes: oidc.scopes.join(" "),
            provider: Provider::new(issuer),
            key: hmac::Key::new(hmac::HMAC_SHA256, key.as_slice()),
            exchanges: Semaphore::new(EXCHANGES_MAX),
        }))
    }

    /// The host of the provider, which people recognize.
    pub fn provider_name(&self) -> String {
        let url = Url::parse(&self.issuer).ok();
        url.and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_else(|| self.issuer.clone())
    }

    pub fn is_https(&self) -> bool {
        self.public_url.starts_with("https:")
    }

    pub async fn start(&self, random: [u8; 32]) -> Result<Start, Error> {
        let provider = self.provider.discover().await.map_err(|why| self.failed(why))?;
        let cookie = format!("{}.{}", now() + ATTEMPT_AGE_MAX.as_secs(), encode(&random));
        let mut location = provider.authorization_endpoint.clone();
        location
            .query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client)
            .append_pair("redirect_uri", &self.redirect_uri())
            .append_pair("scope", &self.scopes)
            .append_pair("state", &self.derive("state", &cookie))
            .append_pair("nonce", &self.derive("nonce", &cookie))
            .append_pair("code_challenge", &challenge(&self.derive("verifier", &cookie)))
            .append_pair("code_challenge_method", "S256");
        Ok(Start { location: location.into(), cookie })
    }

    /// Exchanges the code of the provider for an ID token. `cookie` is the one of [`Oidc::start`].
    pub async fn finish(&self, cookie: Option<&str>, returned: Returned) -> Result<Unverified, Error> {
        let cookie = cookie.filter(|cookie| is_fresh(cookie)).ok_or(Error::OtherAttempt)?;
        let state = returned.state.ok_or(Error::Incomplete("state"))?;
        if !bool::from(state.as_bytes().ct_eq(self.derive("state", cookie).as_bytes())) {
            return Err(Error::OtherAttempt);
        }
        if returned.issuer.is_some_and(|issuer| issuer != self.issuer) {
            return Err(Error::OtherAttempt);
        }
        if let Some(error) = returned.error {
            return Err(Error::Denied(provider::in_words(&error, returned.error_description.as_deref())));
        }
        let code = returned.code.ok_or(Error::Incomplete("code"))?;
        let _turn = self.exchanges.try_acquire().map_err(|_| Error::Busy)?;
        let verifier = Zeroizing::new(self.derive("verifier", cookie));
        let secret = self.secret.read()?;
        let grant = provider::Grant {
            client: &self.client,
            secret: secret.as_ref().map(|secret| secret.as_str()),
            code: &code,
            verifier: &verifier,
            redirect_uri: &self.redirect_uri(),
        };
        let id_token = self.provider.exchange(&grant).await.map_err(|why| self.failed(why))?;
        Ok(Unverified { id_token, nonce: self.derive("nonce", cookie) })
    }

    fn redirect_uri(&self) -> String {
        format!("{}{CALLBACK}", self.public_url)
    }

    fn derive(&self, purpose: &str, cookie: &str) -> String {
        encode(hmac::sign(&self.key, format!("{purpose} {cookie}").as_bytes()).as_ref())
    }

    fn failed(&self, why: String) -> Error {
        tracing::warn!(issuer = self.issuer, error = why, "The identity provider failed during a sign-in");
        Error::Provider { issuer: self.issuer.clone(), why }
    }
}

impl Secret {
    fn find(file: Option<&PathBuf>) -> Result<Secret, OpenError> {
        let given = std::env::var(VARIABLE).ok().map(Zeroizing::new);
        match (given.filter(|given| !given.trim().is_empty()), file) {
            (Some(_), Some(_)) => Err(OpenError::Twice),
            (Some(given), None) => Ok(Secret::Given(Zeroizing::new(given.trim().to_owned()))),
            (None, Some(path)) => Ok(Secret::File(path.clone())),
            (None, None) => Ok(Secret::None),
        }
    }

    fn read(&self) -> Result<Option<Zeroizing<String>>, SecretError> {
        let path = match self {
            Secret::None => return Ok(None),
            Secret::Given(secret) => return Ok(Some(secret.clone())),
            Secret::File(path) => path,
        };
        let refused = |why: &str| SecretError { path: path.clone(), why: why.to_owned() };
        let unreadable = |error: std::io::Error| refused(&klambda_core::os_error::in_words(&error));
        if std::fs::metadata(path).map_err(unreadable)?.len() > SECRET_BYTES_MAX {
            return Err(refused("it is longer than 4096 bytes"));
        }
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(unreadable)?);
        match text.trim() {
            "" => Err(refused("it is empty")),
            secret => Ok(Some(Zeroizing::new(secret.to_owned()))),
        }
    }
}

fn encode(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn challenge(verifier: &str) -> String {
    encode(digest(&SHA256, verifier.as_bytes()).as_ref())
}

/// In seconds since the epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether the time in a cookie is still to come. The state covers the cookie, so nobody can change this time.
fn is_fresh(cookie: &str) -> bool {
    let until = cookie.split_once('.').and_then(|(until, _)| until.parse::<u64>().ok());
    until.is_some_and(|until| now() < until)
}

impl fmt::Debug for Oidc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oidc").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
