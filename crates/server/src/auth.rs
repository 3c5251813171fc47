//! Authentication. If there was never a token, every client may do everything. That is why the server then listens only on
//! loopback.
//!
//! A token is never logged and never part of an error.

mod fetch;
mod file;
mod issued;
mod jwt;
mod mark;
pub mod oidc;
pub mod session;

pub use file::{Error, Tokens};
pub use issued::{Issued, LoadError, Refused};
pub use jwt::{Error as JwtError, Jwt, SignedIn, keep as keep_keys};
pub use mark::set as set_mark;
use oidc::{Oidc, Unverified};
use session::{Credentials, Origin, Sessions};

use crate::problem::Problem;
use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use klambda_access::{Identity, Token};
use klambda_dispatch::Engine;
use klambda_dispatch::runner::Clock;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// All ways to authenticate.
#[derive(Debug, Default)]
pub struct Access {
    file: Option<Tokens>,
    /// Set once the engine has recovered.
    issued: OnceLock<Issued>,
    jwt: Option<Jwt>,
    oidc: Option<Oidc>,
    /// True with a token file or an issuer. Otherwise the data folder decides, once the engine has recovered.
    needs_token: OnceLock<bool>,
    sessions: Sessions,
}

/// The identity of a client. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Who {
    /// Shared by all clients that authenticate this way.
    Common(&'static Identity),
    Own(Arc<Identity>),
}

/// Why a header does not identify a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    NoToken,
    WrongToken,
    ExpiredToken,
    /// The engine has not recovered yet.
    NotReady,
    /// The keys of the issuer are not fetched yet.
    NoKeys,
    /// An invalid JWT, and the reason.
    Refused(&'static str),
    /// A valid JWT whose claims give no role.
    NoRole,
    /// The session of the page has ended, or its token has.
    SessionEnded,
}

static ANONYMOUS: Identity = Identity::admin("anonymous");
static TOKEN_FILE: Identity = Identity::admin("token-file");

const NO_TOKEN: &str = "this server requires a token: Authorization: Bearer <token>";
const WRONG_TOKEN: &str = "the token is invalid, expired or revoked";
const EXPIRED_TOKEN: &str = "the token has expired; an admin can create a new one (klambda token create)";
/// Added if the server was started without a token file and without an issuer.
const STILL_ON: &str = "authentication is on because this data folder has had tokens; if you have no valid token, \
                        restart the server with a token file (tokenFile)";

impl Access {
    pub fn open(token_file: Option<&Path>, jwt: Option<Jwt>) -> Result<Access, Error> {
        let file = token_file.map(Tokens::load).transpose()?;
        let access = Access { file, jwt, ..Access::default() };
        if access.is_configured() {
            access.settle(true);
        }
        Ok(access)
    }

    /// Adds the sign-in of the page at an identity provider.
    pub fn with_sign_in(self, oidc: Option<Oidc>) -> Access {
        Access { oidc, ..self }
    }

    /// Whether no token is required. False while that is unknown.
    pub fn is_open(&self) -> bool {
        self.needs_token.get() == Some(&false)
    }

    /// Whether the configuration allows another way to authenticate than issued tokens.
    fn is_configured(&self) -> bool {
        self.file.is_some() || self.jwt.is_some()
    }

    /// Sets whether a token is required. Only the first call counts.
    pub fn settle(&self, needs_token: bool) {
        let _ = self.needs_token.set(needs_token);
    }

    pub fn who(&self, authorization: Option<&[u8]>) -> Result<Who, Unknown> {
        match self.needs_token.get() {
            Some(true) => {}
            Some(false) => return Ok(Who::Common(&ANONYMOUS)),
            None => return Err(Unknown::NotReady),
        }
        self.of_token(authorization.and_then(bearer).ok_or(Unknown::NoToken)?)
    }

    fn of_token(&self, given: &[u8]) -> Result<Who, Unknown> {
        let mut unknown = Unknown::WrongToken;
        if Token::is_like(given) {
            match self.issued.get().map(|issued| issued.who(given)) {
                Some(Ok(identity)) => return Ok(Who::Own(identity)),
                Some(Err(why)) => unknown = why,
                None => unknown = Unknown::NotReady,
            }
        } else if let Some(jwt) = self.jwt.as_ref().filter(|_| Jwt::is_like(given)) {
            match jwt.who(given) {
                Ok(identity) => return Ok(Who::Own(identity)),
                Err(why) => unknown = why,
            }
        }
        let is_of_file = self.file.as_ref().is_some_and(|file| file.has(given));
        if is_of_file { Ok(Who::Common(&TOKEN_FILE)) } else { Err(unknown) }
    }

    /// The end of a sign-in: who the ID token names. Waits a moment for keys that the issuer has changed.
    pub async fn sign_in(&self, unverified: &Unverified) -> Result<SignedIn, Problem> {
        let jwt = self.jwt.as_ref().ok_or(Unknown::WrongToken)?;
        let deadline = Instant::now() + KEYS_PATIENCE;
        loop {
            match jwt.sign_in(unverified.id_token.as_bytes(), &unverified.nonce) {
                Err(Unknown::NoKeys) if Instant::now() < deadline => tokio::time::sleep(STREAM_LOOK).await,
                result => return Ok(result?),
            }
        }
    }

    /// The sign-in at an identity provider, if there is one.
    pub fn oidc(&self) -> Option<&Oidc> {
        self.oidc.as_ref()
    }

    pub(crate) fn jwt(&self) -> Option<&Jwt> {
        self.jwt.as_ref()
    }

    /// Loads the issued tokens and decides whether a token is required. Returns whether the data folder still lacks its
    /// mark.
    pub fn load(&self, engine: &Engine, clock: Clock, tokens_max: usize) -> Result<bool, LoadError> {
        let issued = Issued::load(engine, clock, tokens_max)?;
        let is_marked = mark::is_set(engine)?;
        let needs_token = self.is_configured() || is_marked || !issued.is_empty();
        // A second call has no effect: the first engine stays in use.
        let _ = self.issued.set(issued);
        self.settle(needs_token);
        if needs_token && !self.is_configured() {
            tracing::warn!(
                "Authentication is on because this data folder has had tokens. If you have no valid token, set \
                 tokenFile to regain access"
            );
        }
        Ok(needs_token && !is_marked)
    }

    pub fn issued(&self) -> Result<&Issued, Problem> {
        self.issued.get().ok_or_else(|| Unknown::NotReady.into())
    }

    pub fn of(&self, headers: &HeaderMap) -> Result<Who, Problem> {
        self.who_has(&Credentials::of(headers)).map_err(|unknown| self.problem(unknown))
    }

    /// The identity behind the credentials of a request: a token, or a session of the page.
    pub fn who_has(&self, credentials: &Credentials) -> Result<Who, Unknown> {
        let id = match credentials {
            Credentials::Header(authorization) => {
                return self.who(authorization.as_ref().map(HeaderValue::as_bytes));
            }
            _ if self.is_open() => return self.who(None),
            Credentials::Foreign => return Err(Unknown::Refused(session::FOREIGN)),
            Credentials::Session(id) => id,
        };
        let (origin, token) = self.sessions.token(id).ok_or(Unknown::SessionEnded)?;
        let who = match (origin, &self.jwt) {
            (Origin::Token, _) => self.of_token(&token),
            (Origin::IdToken, Some(jwt)) => jwt.who_of_session(&token).map(Who::Own),
            (Origin::IdToken, None) => Err(Unknown::SessionEnded),
        };
        who.map_err(|unknown| match unknown {
            Unknown::NotReady | Unknown::NoKeys => unknown,
            _ => Unknown::SessionEnded,
        })
    }

    /// Whether a token is valid, given as the value of `Authorization`.
    pub fn check(&self, authorization: &[u8]) -> Result<Who, Problem> {
        self.who(Some(authorization)).map_err(|unknown| self.problem(unknown))
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    fn problem(&self, unknown: Unknown) -> Problem {
        let text = match unknown {
            Unknown::NoToken => NO_TOKEN,
            Unknown::WrongToken => WRONG_TOKEN,
            Unknown::ExpiredToken => EXPIRED_TOKEN,
            other => return other.into(),
        };
        match self.is_configured() {
            true => Problem::unauthorized(text),
            false => Problem::unauthorized(format!("{text}; {STILL_ON}")),
        }
    }

    /// Reads the token file now.
    pub fn reload(&self) {
        if let Some(file) = &self.file {
            file.reload();
        }
    }
}

impl Deref for Who {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        match self {
            Who::Common(identity) => identity,
            Who::Own(identity) => identity,
        }
    }
}

impl From<Unknown> for Problem {
    fn from(unknown: Unknown) -> Problem {
        match unknown {
            Unknown::NoToken => Problem::unauthorized(NO_TOKEN),
            Unknown::WrongToken => Problem::unauthorized(WRONG_TOKEN),
            Unknown::ExpiredToken => Problem::unauthorized(EXPIRED_TOKEN),
            Unknown::SessionEnded => Problem::unauthorized("the session has ended; sign in again"),
            Unknown::Refused(why) => Problem::unauthorized(why),
            Unknown::NoRole => Problem::forbidden(
                "the token grants no role: it needs the claims that auth.jwt.roleClaim and auth.jwt.namespacesClaim name",
            ),
            Unknown::NoKeys => {
                Problem::not_ready("the keys of the token issuer are being fetched; try again soon")
                    .retry_after(Duration::from_secs(1))
            }
            Unknown::NotReady => {
                Problem::not_ready("the server is recovering and has not loaded its tokens; try again soon")
                    .retry_after(Duration::from_secs(1))
            }
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Who {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Who, Problem> {
        parts.extensions.get::<Who>().cloned().ok_or_else(|| Unknown::NoToken.into())
    }
}

fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// How long a sign-in waits for the keys of the issuer.
const KEYS_PATIENCE: Duration = Duration::from_secs(5);
/// How often an open stream checks its token.
const STREAM_LOOK: Duration = Duration::from_millis(250);

/// The credentials that opened a stream. The stream ends when they are no longer valid.
pub struct Opener {
    access: Arc<Access>,
    credentials: Credentials,
}

impl Opener {
    pub fn new(access: Arc<Access>, headers: &HeaderMap) -> Opener {
        Opener { access, credentials: Credentials::of(headers) }
    }

    /// Returns when the token is revoked. Never returns if no token is required.
    pub async fn revoked(&self) {
        if self.access.is_open() {
            return std::future::pending().await;
        }
        while self.access.who_has(&self.credentials).is_ok() {
            tokio::time::sleep(STREAM_LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_the_file_is_an_admin() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "first").unwrap();
        let access = Access::open(Some(file.path()), None).unwrap();
        for good in ["Bearer first", "bearer first", "Bearer   first "] {
            assert_eq!(access.who(Some(good.as_bytes())).unwrap().name, "token-file", "{good}");
        }
        for wrong in ["Bearer ", "Bearer firs", "Bearer firstt", "Bearer first second"] {
            assert_eq!(access.who(Some(wrong.as_bytes())).unwrap_err(), Unknown::WrongToken, "{wrong}");
        }
        for none in [None, Some("Bearer"), Some("Basic first"), Some("first")] {
            assert_eq!(access.who(none.map(str::as_bytes)).unwrap_err(), Unknown::NoToken, "{none:?}");
        }
    }

    #[test]
    fn while_the_engine_recovers_nobody_is_turned_away_for_good() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "klt_mine").unwrap();
        let access = Access::open(Some(file.path()), None).unwrap();
        assert_eq!(access.who(Some(b"Bearer klt_other")).unwrap_err(), Unknown::NotReady);
        assert_eq!(access.who(Some(b"Bearer klt_mine")).unwrap().name, "token-file");
        assert_eq!(access.who(Some(b"Bearer other")).unwrap_err(), Unknown::WrongToken);
    }

    #[test]
    fn without_tokens_everybody_is_an_admin() {
        let access = Access::open(None, None).unwrap();
        assert!(!access.is_open());
        assert_eq!(access.who(None).unwrap_err(), Unknown::NotReady, "the data folder may have had tokens");
        access.settle(false);
        assert!(access.is_open());
        assert_eq!(access.who(Some(b"Bearer whatever")).unwrap().name, "anonymous");
    }
}
