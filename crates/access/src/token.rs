//! Tokens that the server issues. The server stores the hash of a token, never the token itself.

use crate::grant::{Grant, Namespaces};
use crate::role::Role;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use klambda_core::time::Millis;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt;

/// A stored token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub name: String,
    pub grant: Grant,
    pub hash: Hash,
    pub created: Millis,
    pub created_by: String,
    /// `None` if the token is valid until it is deleted.
    pub expires: Option<Millis>,
    pub last_used: Option<Millis>,
}

/// The SHA-256 hash of a token. A token has 256 random bits, so the hash needs neither a salt nor a slow function.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash([u8; 32]);

/// A new token. It is shown only once.
pub struct Secret(String);

/// The prefix of all tokens, so that secret scanners recognize them.
const PREFIX: &str = "klt_";

impl Secret {
    pub fn new(random: [u8; 32]) -> Secret {
        Secret(format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(random)))
    }

    pub fn hash(&self) -> Hash {
        Hash::of(self.0.as_bytes())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Hash {
    pub fn of(given: &[u8]) -> Hash {
        Hash(Sha256::digest(given).into())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash(…)")
    }
}

impl Token {
    /// True if a credential looks like a token of this kind.
    pub fn is_like(given: &[u8]) -> bool {
        given.starts_with(PREFIX.as_bytes())
    }

    pub fn is_expired(&self, now: Millis) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// The representation in the API.
    pub fn to_json(&self) -> Value {
        let time = |time: Option<Millis>| time.map(Millis::rfc3339);
        let mut shown = json!({
            "name": self.name,
            "role": self.grant.role.name(),
            "namespaces": namespaces_json(&self.grant.namespaces),
            "createdAt": self.created.rfc3339(),
            "createdBy": self.created_by,
            "expiresAt": time(self.expires),
            "lastUsedAt": time(self.last_used),
        });
        if let Some(endpoint) = self.grant.endpoint() {
            shown["endpoint"] = endpoint.into();
        }
        shown
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let stored = Stored {
            name: self.name.clone(),
            role: self.grant.role.name().to_owned(),
            namespaces: match &self.grant.namespaces {
                Namespaces::All => None,
                Namespaces::Named(names) => Some(names.iter().cloned().collect()),
                Namespaces::Endpoint { namespace, .. } => Some(vec![namespace.clone()]),
            },
            endpoint: self.grant.endpoint().map(str::to_owned),
            hash: BASE64_URL_SAFE_NO_PAD.encode(self.hash.0),
            created: self.created.0,
            created_by: self.created_by.clone(),
            expires: self.expires.map(|at| at.0),
            last_used: self.last_used.map(|at| at.0),
        };
        serde_json::to_vec(&stored).unwrap_or_default()
    }

    pub fn decode(content: &[u8]) -> Result<Token, Unreadable> {
        let stored: Stored = serde_json::from_slice(content).map_err(|_| Unreadable)?;
        let hash = BASE64_URL_SAFE_NO_PAD.decode(&stored.hash).map_err(|_| Unreadable)?;
        Ok(Token {
            name: stored.name,
            grant: Grant {
                role: Role::parse(&stored.role).ok_or(Unreadable)?,
                namespaces: match (stored.namespaces, stored.endpoint) {
                    (None, None) => Namespaces::All,
                    (Some(names), None) => Namespaces::Named(names.into_iter().collect()),
                    (names, Some(name)) => {
                        let [namespace] = names.and_then(|names| names.try_into().ok()).ok_or(Unreadable)?;
                        Namespaces::Endpoint { namespace, name }
                    }
                },
            },
            hash: Hash(hash.try_into().map_err(|_| Unreadable)?),
            created: Millis(stored.created),
            created_by: stored.created_by,
            expires: stored.expires.map(Millis),
            last_used: stored.last_used.map(Millis),
        })
    }
}

/// A stored token could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a stored token is unreadable")
    }
}

impl std::error::Error for Unreadable {}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Stored {
    name: String,
    role: String,
    /// `None` means all namespaces.
    namespaces: Option<Vec<String>>,
    /// The only webhook endpoint of the token. Then there is exactly one namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    hash: String,
    created: u64,
    created_by: String,
    expires: Option<u64>,
    last_used: Option<u64>,
}

fn namespaces_json(namespaces: &Namespaces) -> Value {
    match namespaces {
        Namespaces::All => json!("*"),
        Namespaces::Named(names) => json!(names),
        Namespaces::Endpoint { namespace, .. } => json!([namespace]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(namespaces: Namespaces, hash: Hash) -> Token {
        Token {
            name: "ci".to_owned(),
            grant: Grant { role: Role::Producer, namespaces },
            hash,
            created: Millis(1_767_225_600_000),
            created_by: "token-file".to_owned(),
            expires: Some(Millis(1_767_225_700_000)),
            last_used: None,
        }
    }

    #[test]
    fn what_is_stored_reads_back_and_holds_no_secret() {
        let secret = Secret::new([7; 32]);
        assert_eq!((secret.reveal().len(), Token::is_like(secret.reveal().as_bytes())), (47, true));
        assert_ne!(secret.hash(), Secret::new([8; 32]).hash());
        let endpoint = Namespaces::Endpoint { namespace: "shop".to_owned(), name: "partner".to_owned() };
        for namespaces in [Namespaces::All, Namespaces::Named(["shop".to_owned()].into()), endpoint] {
            let token = token(namespaces, secret.hash());
            let stored = token.encode();
            assert_eq!(Token::decode(&stored), Ok(token.clone()));
            let shown = token.to_json().to_string();
            let text = String::from_utf8(stored).expect("text");
            assert!(!text.contains(&secret.reveal()[4..]) && !shown.contains("hash"), "{text} {shown}");
        }
        assert_eq!(Token::decode(b"{}"), Err(Unreadable));
    }

    #[test]
    fn it_is_valid_before_the_moment_it_expires() {
        let token = token(Namespaces::All, Hash::of(b"x"));
        assert!(!token.is_expired(Millis(1_767_225_699_999)));
        assert!(token.is_expired(Millis(1_767_225_700_000)));
        assert!(!Token { expires: None, ..token }.is_expired(Millis(u64::MAX)));
    }
}
