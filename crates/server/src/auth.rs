//! Who makes a request. Without any tokens configured everybody may do everything, which is why the server then listens
//! on loopback only.
//!
//! A token is never logged and never part of an error.

mod file;
mod issued;
mod jwt;

pub use file::{Error, Tokens};
pub use issued::{Issued, LoadError, Refused};
pub use jwt::{Error as JwtError, Jwt, keep as keep_keys};

use crate::problem::Problem;
use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use klambda_access::{Identity, Token};
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// All the ways to be known.
#[derive(Debug, Default)]
pub struct Access {
    file: Option<Tokens>,
    /// There once the engine has recovered.
    issued: OnceLock<Issued>,
    jwt: Option<Jwt>,
}

/// Who makes a request. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Who {
    /// The same for everybody who comes this way.
    Common(&'static Identity),
    Own(Arc<Identity>),
}

/// Why nobody is known by a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    NoToken,
    WrongToken,
    /// Nobody can tell before the engine has recovered.
    NotReady,
    /// Nobody can tell before the keys of the issuer are there.
    NoKeys,
    /// A JWT that is not valid, and why.
    Refused(&'static str),
    /// A JWT that is valid, but whose claims give no role.
    NoRole,
}

static ANONYMOUS: Identity = Identity::admin("anonymous");
static TOKEN_FILE: Identity = Identity::admin("token-file");

impl Access {
    pub fn open(token_file: Option<&Path>, jwt: Option<Jwt>) -> Result<Access, Error> {
        Ok(Access { file: token_file.map(Tokens::load).transpose()?, issued: OnceLock::new(), jwt })
    }

    /// Whether nobody needs a token.
    pub fn is_open(&self) -> bool {
        self.file.is_none() && self.jwt.is_none()
    }

    pub fn who(&self, authorization: Option<&[u8]>) -> Result<Who, Unknown> {
        if self.is_open() {
            return Ok(Who::Common(&ANONYMOUS));
        }
        let given = authorization.and_then(bearer).ok_or(Unknown::NoToken)?;
        let mut unknown = Unknown::WrongToken;
        if Token::is_like(given) {
            match self.issued.get().map(|issued| issued.who(given)) {
                Some(Some(identity)) => return Ok(Who::Own(identity)),
                Some(None) => {}
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

    pub(crate) fn jwt(&self) -> Option<&Jwt> {
        self.jwt.as_ref()
    }

    /// From now on the tokens that were issued are known.
    pub fn load(&self, issued: Issued) {
        // A second time changes nothing: the first engine is the one that runs.
        let _ = self.issued.set(issued);
    }

    pub fn issued(&self) -> Result<&Issued, Problem> {
        self.issued.get().ok_or_else(|| Unknown::NotReady.into())
    }

    pub fn of(&self, headers: &HeaderMap) -> Result<Who, Problem> {
        let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        self.who(authorization).map_err(Problem::from)
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
            Unknown::NoToken => {
                Problem::unauthorized("this server needs a token: Authorization: Bearer <token>")
            }
            Unknown::WrongToken => {
                Problem::unauthorized("the token is not valid on this server, or no longer")
            }
            Unknown::Refused(why) => Problem::unauthorized(why),
            Unknown::NoRole => Problem::forbidden(
                "the token's claims give no role: it needs those that auth.jwt.roleClaim and auth.jwt.namespacesClaim name",
            ),
            Unknown::NoKeys => Problem::not_ready("the keys of the token's issuer are being fetched")
                .retry_after(Duration::from_secs(1)),
            Unknown::NotReady => {
                Problem::not_ready("the server is recovering; it knows its tokens when that is done")
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

/// How often an open stream checks its token.
const STREAM_LOOK: Duration = Duration::from_millis(250);

/// What opened a stream. The stream ends when this is no longer valid.
pub struct Opener {
    access: Arc<Access>,
    authorization: Option<HeaderValue>,
}

impl Opener {
    pub fn new(access: Arc<Access>, headers: &HeaderMap) -> Opener {
        Opener { access, authorization: headers.get(header::AUTHORIZATION).cloned() }
    }

    /// Returns when the token was revoked; where nobody needs one, never.
    pub async fn revoked(&self) {
        if self.access.is_open() {
            return std::future::pending().await;
        }
        let authorization = self.authorization.as_ref().map(HeaderValue::as_bytes);
        while self.access.who(authorization).is_ok() {
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
        let access = Access::default();
        assert!(access.is_open());
        assert_eq!(access.who(Some(b"Bearer whatever")).unwrap().name, "anonymous");
    }
}
