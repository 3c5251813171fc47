//! JWTs of one trusted issuer. The keys of the issuer verify them; two claims give the role and the namespaces.
//!
//! A verified token is remembered by its hash until it expires, so that a client that sends the same token repeatedly costs
//! one verification.

mod keys;
mod provider;
mod source;

pub use source::{Error, keep};

use super::Unknown;
use crate::config;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header, get_current_timestamp};
use keys::Keys;
use klambda_access::{Grant, Hash, Identity, Namespaces, Role};
use klambda_functions::name::is_label;
use serde_json::{Map, Value};
use source::Source;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, RwLock};
use std::time::Duration;

/// Allowed clock difference.
const LEEWAY_SECONDS: u64 = 60;
const TOKEN_BYTES_MAX: usize = 16 << 10;
const SEEN_MAX: usize = 10_000;
const NAMESPACES_MAX: usize = 100;
const SUBJECT_CHARS_MAX: usize = 200;

pub struct Jwt {
    issuer: String,
    audience: String,
    /// The audience of ID tokens: the client id of the page.
    client: Option<String>,
    role_claim: String,
    namespaces_claim: String,
    source: Source,
    keys: RwLock<Option<Keys>>,
    seen: RwLock<HashMap<(Use, Hash), VerifiedToken>>,
}

/// What a token is for. A token for one use is not valid for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Use {
    /// Requests to the API, with `Authorization`.
    Api,
    /// A session of the page, after a sign-in.
    Session,
}

/// A verified ID token of a sign-in.
#[derive(Debug)]
pub struct SignedIn {
    pub identity: Arc<Identity>,
    /// The time until the token expires.
    pub valid_for: Duration,
}

/// A verified token.
struct VerifiedToken {
    identity: Arc<Identity>,
    /// In seconds since the epoch.
    until: u64,
}

type Claims = Map<String, Value>;

impl Jwt {
    /// `None` if no issuer is configured. A key file must exist; a URL may respond later.
    pub fn open(config: &config::Jwt) -> Result<Option<Jwt>, Error> {
        let (Some(issuer), Some(audience)) = (&config.issuer, &config.audience) else { return Ok(None) };
        provider::install();
        let (source, keys) = Source::open(config)?;
        Ok(Some(Jwt {
            issuer: issuer.clone(),
            audience: audience.clone(),
            client: None,
            role_claim: config.role_claim.clone(),
            namespaces_claim: config.namespaces_claim.clone(),
            source,
            keys: RwLock::new(keys),
            seen: RwLock::default(),
        }))
    }

    /// Also accepts ID tokens for this client, for sessions of the page.
    pub fn with_client(self, client: Option<String>) -> Jwt {
        Jwt { client, ..self }
    }

    /// Whether a token looks like a JWT: its header is a JSON object in base64.
    pub fn is_like(given: &[u8]) -> bool {
        given.starts_with(b"eyJ") && given.iter().filter(|byte| **byte == b'.').count() == 2
    }

    pub fn who(&self, given: &[u8]) -> Result<Arc<Identity>, Unknown> {
        self.who_for(given, Use::Api)
    }

    /// The identity of a session that an ID token opened.
    pub fn who_of_session(&self, id_token: &[u8]) -> Result<Arc<Identity>, Unknown> {
        self.who_for(id_token, Use::Session)
    }

    fn who_for(&self, given: &[u8], purpose: Use) -> Result<Arc<Identity>, Unknown> {
        let (key, now) = ((purpose, Hash::of(given)), get_current_timestamp());
        let seen = self.seen.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(seen) = seen.get(&key).filter(|seen| now < seen.until) {
            return Ok(Arc::clone(&seen.identity));
        }
        drop(seen);
        let claims = self.verify(given, purpose)?;
        let identity = Arc::new(self.identity(&claims).ok_or(Unknown::NoRole)?);
        let until = expiry(&claims).unwrap_or(now).saturating_add(LEEWAY_SECONDS);
        self.remember(key, VerifiedToken { identity: Arc::clone(&identity), until }, now);
        Ok(identity)
    }

    /// Verifies the ID token at the end of a sign-in that used this nonce.
    pub fn sign_in(&self, id_token: &[u8], nonce: &str) -> Result<SignedIn, Unknown> {
        let claims = self.verify(id_token, Use::Session)?;
        if claims.get("nonce").and_then(Value::as_str) != Some(nonce) {
            return Err(Unknown::Refused("the ID token belongs to another sign-in (nonce)"));
        }
        let seconds = expiry(&claims).unwrap_or_default().saturating_sub(get_current_timestamp());
        if seconds == 0 {
            return Err(Unknown::Refused("the ID token has expired; compare the clocks of both servers"));
        }
        let identity = Arc::new(self.identity(&claims).ok_or(Unknown::NoRole)?);
        Ok(SignedIn { identity, valid_for: Duration::from_secs(seconds) })
    }

    fn verify(&self, given: &[u8], purpose: Use) -> Result<Claims, Unknown> {
        if given.len() > TOKEN_BYTES_MAX {
            return Err(Unknown::Refused("the token is too long"));
        }
        let audience = match purpose {
            Use::Api => &self.audience,
            Use::Session => self.client.as_ref().ok_or(Unknown::WrongToken)?,
        };
        let header =
            decode_header(given).map_err(|_| Unknown::Refused("could not read the header of the token"))?;
        if header.crit.is_some() {
            return Err(Unknown::Refused("the token requires an unknown extension (crit)"));
        }
        let keys = self.keys.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let keys = keys.as_ref().ok_or(Unknown::NoKeys)?;
        let Some(key) = keys.find(&header) else {
            return Err(match self.source.may_have_news() {
                true => Unknown::NoKeys,
                false => Unknown::Refused("the token is not signed with a key of the issuer"),
            });
        };
        let mut validation = Validation::new(header.alg);
        validation.algorithms = key.algorithms.clone();
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let decoded = decode::<Claims>(given, &key.key, &validation);
        let claims = decoded.map_err(|error| Unknown::Refused(reason(error.kind())))?.claims;
        if purpose == Use::Session && !is_for_client(&claims, audience) {
            return Err(Unknown::Refused("the ID token was issued to another client (azp)"));
        }
        Ok(claims)
    }

    /// The identity in the claims. `None` if they give no role.
    fn identity(&self, claims: &Claims) -> Option<Identity> {
        let role = Role::parse(claims.get(&self.role_claim)?.as_str()?)?;
        // These roles are for one endpoint, which no claim names.
        if role.is_of_endpoint() {
            return None;
        }
        let namespaces = match claims.get(&self.namespaces_claim)? {
            Value::String(all) if all == "*" => Namespaces::All,
            Value::String(one) => Namespaces::Named([one.clone()].into()),
            Value::Array(names) => {
                let names: Option<BTreeSet<String>> =
                    names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
                Namespaces::Named(names?)
            }
            _ => return None,
        };
        if let Namespaces::Named(names) = &namespaces
            && (names.is_empty() || names.len() > NAMESPACES_MAX || !names.iter().all(|name| is_label(name)))
        {
            return None;
        }
        let subject = claims.get("sub").and_then(Value::as_str).unwrap_or("somebody");
        let subject: String = subject.chars().filter(|c| !c.is_control()).take(SUBJECT_CHARS_MAX).collect();
        Some(Identity { name: format!("jwt/{subject}").into(), grant: Grant { role, namespaces } })
    }

    fn remember(&self, key: (Use, Hash), new: VerifiedToken, now: u64) {
        let mut seen = self.seen.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if seen.len() >= SEEN_MAX {
            seen.retain(|_, seen| now < seen.until);
        }
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(key, new);
    }

    /// Sets new keys. Tokens that the old keys verified must be verified again.
    fn set_keys(&self, keys: Keys) {
        *self.keys.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(keys);
        self.seen.write().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
    }
}

/// OpenID Connect Core, 3.1.3.7: with several audiences, or if it is there, `azp` is the client.
fn is_for_client(claims: &Claims, client: &str) -> bool {
    let has_more = matches!(claims.get("aud"), Some(Value::Array(all)) if all.len() > 1);
    match claims.get("azp") {
        Some(party) => party.as_str() == Some(client),
        None => !has_more,
    }
}

/// In seconds since the epoch.
fn expiry(claims: &Claims) -> Option<u64> {
    claims.get("exp").and_then(Value::as_f64).map(|exp| exp as u64)
}

fn reason(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ExpiredSignature => "the token has expired",
        ErrorKind::ImmatureSignature => "the token is not valid yet",
        ErrorKind::InvalidIssuer => "the token is from another issuer",
        ErrorKind::InvalidAudience => "the token is for another audience",
        ErrorKind::InvalidSignature => "the signature of the token is wrong",
        ErrorKind::InvalidAlgorithm => "the algorithm of the token does not match the key of the issuer",
        ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => {
            "the claim exp, iss or aud is missing or malformed"
        }
        _ => "could not read the token",
    }
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
