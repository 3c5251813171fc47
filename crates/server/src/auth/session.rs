//! Sessions of the page. The cookie holds a random id. The server holds the hash of the id, and the token that signed in,
//! encrypted with a key that follows from the id. So the server cannot read the token between two requests.
//!
//! The token is checked with each request, so a session ends with its token.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue, header};
use klambda_access::Hash;
use klambda_crash::Lock;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// The name of the cookie.
pub const COOKIE: &str = "klambda-session";
/// A page of another site cannot send this header without a permission that the server never gives.
pub const PAGE_HEADER: &str = "klambda-page";
pub const FOREIGN: &str = "a session is only for the page of this server: the header klambda-page is missing, or another \
                           site sent the request";

/// The oldest session ends if there are more.
const SESSIONS_MAX: usize = 1000;
pub const AGE_MAX: Duration = Duration::from_secs(12 * 3600);

/// How a request identifies its sender.
#[derive(Clone)]
pub enum Credentials {
    /// The header `Authorization`, or nothing.
    Header(Option<HeaderValue>),
    /// The id of a session.
    Session(Zeroizing<String>),
    /// The cookie of a session in a request that the page did not make.
    Foreign,
}

#[derive(Default)]
pub struct Sessions(Lock<HashMap<Hash, Session>>);

struct Session {
    origin: Origin,
    sealed: Vec<u8>,
    opened: Instant,
    ends: Instant,
}

/// The way in which the user signed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// With a token that is valid for requests, too.
    Token,
    /// At the identity provider, which issued an ID token.
    IdToken,
}

impl Credentials {
    pub fn of(headers: &HeaderMap) -> Credentials {
        let authorization = headers.get(header::AUTHORIZATION);
        match cookie(headers).filter(|_| authorization.is_none()) {
            None => Credentials::Header(authorization.cloned()),
            Some(_) if !is_from_page(headers) => Credentials::Foreign,
            Some(id) => Credentials::Session(Zeroizing::new(id.to_owned())),
        }
    }
}

/// Whether the page of this server made the request.
pub fn is_from_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    headers.contains_key(PAGE_HEADER) && site.is_none_or(|site| site == "same-origin")
}

/// The id of the session.
pub fn cookie(headers: &HeaderMap) -> Option<&str> {
    cookie_named(headers, COOKIE)
}

pub fn cookie_named<'h>(headers: &'h HeaderMap, wanted: &str) -> Option<&'h str> {
    let values = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = values.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == wanted).map(|(_, id)| id)
}

impl Sessions {
    /// Opens a session for a valid token. Returns its id.
    pub fn open(&self, token: &str, origin: Origin, age: Duration, random: [u8; 32]) -> String {
        let id = BASE64_URL_SAFE_NO_PAD.encode(random);
        let opened = Instant::now();
        let session = Session { origin, sealed: seal(&id, token), opened, ends: opened + age.min(AGE_MAX) };
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| !session.is_over());
        if sessions.len() >= SESSIONS_MAX {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.opened).map(|(hash, _)| *hash);
            oldest.map(|hash| sessions.remove(&hash));
        }
        sessions.insert(Hash::of(id.as_bytes()), session);
        id
    }

    /// The token that the session stands for.
    pub(super) fn token(&self, id: &str) -> Option<(Origin, Zeroizing<Vec<u8>>)> {
        let (origin, sealed) = {
            let sessions = self.0.lock();
            let session = sessions.get(&Hash::of(id.as_bytes()))?;
            (!session.is_over()).then(|| (session.origin, session.sealed.clone()))?
        };
        Some((origin, unseal(id, sealed)?))
    }

    pub fn close(&self, id: &str) {
        self.0.lock().remove(&Hash::of(id.as_bytes()));
    }
}

impl Session {
    fn is_over(&self) -> bool {
        Instant::now() >= self.ends
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sessions(…)")
    }
}

/// Each id is used for one token, so the nonce can be constant.
fn key(id: &str) -> Option<LessSafeKey> {
    let mut text = Zeroizing::new(b"klambda session ".to_vec());
    text.extend_from_slice(id.as_bytes());
    UnboundKey::new(&CHACHA20_POLY1305, digest(&SHA256, &text).as_ref()).ok().map(LessSafeKey::new)
}

fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn seal(id: &str, token: &str) -> Vec<u8> {
    let mut text = token.as_bytes().to_vec();
    let sealed = key(id).map(|key| key.seal_in_place_append_tag(nonce(), Aad::empty(), &mut text));
    // Sealing fails only for texts of many gigabytes. Without a text the session is not valid.
    if sealed.is_some_and(|sealed| sealed.is_ok()) { text } else { Vec::new() }
}

fn unseal(id: &str, sealed: Vec<u8>) -> Option<Zeroizing<Vec<u8>>> {
    let mut text = Zeroizing::new(sealed);
    let length = key(id)?.open_in_place(nonce(), Aad::empty(), &mut text).ok()?.len();
    text.truncate(length);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_id_opens_the_token() {
        let sessions = Sessions::default();
        let id = sessions.open("klt_secret", Origin::Token, AGE_MAX, [7; 32]);
        let other = BASE64_URL_SAFE_NO_PAD.encode([8; 32]);
        let (origin, token) = sessions.token(&id).unwrap();
        assert_eq!((origin, token.as_slice()), (Origin::Token, b"klt_secret".as_slice()));
        assert_eq!(sessions.token(&other), None);
        let sealed = sessions.0.lock().values().next().unwrap().sealed.clone();
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_eq!(unseal(&other, sealed), None);
        sessions.close(&id);
        assert_eq!(sessions.token(&id), None);
    }

    #[test]
    fn a_session_ends_with_its_time() {
        let sessions = Sessions::default();
        let id = sessions.open("t", Origin::IdToken, Duration::ZERO, [7; 32]);
        assert_eq!(sessions.token(&id), None);
        let id = sessions.open("t", Origin::IdToken, Duration::from_secs(60), [8; 32]);
        assert_eq!(sessions.token(&id).unwrap().0, Origin::IdToken);
        assert_eq!(sessions.0.lock().len(), 1, "a new session removes those that have ended");
    }

    #[test]
    fn the_oldest_session_makes_room() {
        let sessions = Sessions::default();
        let ids: Vec<String> = (0..=SESSIONS_MAX)
            .map(|n| {
                let mut random = [0; 32];
                random[..8].copy_from_slice(&(n as u64).to_le_bytes());
                sessions.open("t", Origin::Token, AGE_MAX, random)
            })
            .collect();
        assert_eq!(sessions.0.lock().len(), SESSIONS_MAX);
        assert!(sessions.token(&ids[0]).is_none() && sessions.token(&ids[1]).is_some());
    }

    #[test]
    fn a_cookie_counts_only_from_the_page() {
        let headers = |pairs: &[(&'static str, &str)]| {
            HeaderMap::from_iter(pairs.iter().map(|(name, value)| {
                (http::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            }))
        };
        let cookie = ("cookie", "a=b; klambda-session=id");
        let page = (PAGE_HEADER, "1");
        let of = |pairs: &[(&'static str, &str)]| Credentials::of(&headers(pairs));
        assert!(matches!(of(&[cookie]), Credentials::Foreign));
        assert!(matches!(of(&[cookie, page, ("sec-fetch-site", "same-site")]), Credentials::Foreign));
        assert!(matches!(of(&[cookie, page]), Credentials::Session(id) if *id == "id"));
        assert!(matches!(of(&[cookie, ("authorization", "Bearer t")]), Credentials::Header(Some(_))));
        assert!(matches!(of(&[]), Credentials::Header(None)));
    }
}
