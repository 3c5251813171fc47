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

/// Allowed clock difference.
const LEEWAY_SECONDS: u64 = 60;
const TOKEN_BYTES_MAX: usize = 16 << 10;
const SEEN_MAX: usize = 10_000;
const NAMESPACES_MAX: usize = 100;
const SUBJECT_CHARS_MAX: usize = 200;

pub struct Jwt {
    issuer: String,
    audience: String,
    role_claim: String,
    namespaces_claim: String,
    source: Source,
    keys: RwLock<Option<Keys>>,
    seen: RwLock<HashMap<Hash, VerifiedToken>>,
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
            role_claim: config.role_claim.clone(),
            namespaces_claim: config.namespaces_claim.clone(),
            source,
            keys: RwLock::new(keys),
            seen: RwLock::default(),
        }))
    }

    /// Whether a token looks like a JWT: its header is a JSON object in base64.
    pub fn is_like(given: &[u8]) -> bool {
        given.starts_with(b"eyJ") && given.iter().filter(|byte| **byte == b'.').count() == 2
    }

    pub fn who(&self, given: &[u8]) -> Result<Arc<Identity>, Unknown> {
        if given.len() > TOKEN_BYTES_MAX {
            return Err(Unknown::Refused("the token is too long"));
        }
        let (hash, now) = (Hash::of(given), get_current_timestamp());
        let seen = self.seen.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(seen) = seen.get(&hash).filter(|seen| now < seen.until) {
            return Ok(Arc::clone(&seen.identity));
        }
        drop(seen);
        let claims = self.verify(given)?;
        let identity = Arc::new(self.identity(&claims).ok_or(Unknown::NoRole)?);
        let until = claims["exp"].as_f64().map_or(now, |exp| exp as u64).saturating_add(LEEWAY_SECONDS);
        self.remember(hash, VerifiedToken { identity: Arc::clone(&identity), until }, now);
        Ok(identity)
    }

    fn verify(&self, given: &[u8]) -> Result<Claims, Unknown> {
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
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let decoded = decode::<Claims>(given, &key.key, &validation);
        decoded.map(|decoded| decoded.claims).map_err(|error| Unknown::Refused(reason(error.kind())))
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

    fn remember(&self, hash: Hash, new: VerifiedToken, now: u64) {
        let mut seen = self.seen.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if seen.len() >= SEEN_MAX {
            seen.retain(|_, seen| now < seen.until);
        }
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(hash, new);
    }

    /// Sets new keys. Tokens that the old keys verified must be verified again.
    fn set_keys(&self, keys: Keys) {
        *self.keys.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(keys);
        self.seen.write().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
    }
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
