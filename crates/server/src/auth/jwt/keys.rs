//! The public keys of an issuer (JWKS, RFC 7517), each with its allowed algorithms.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header};
use serde::Deserialize;
use serde_json::Value;

pub struct Keys(Vec<Key>);

pub struct Key {
    id: Option<String>,
    pub key: DecodingKey,
    /// The key determines the algorithms. The algorithm in a token must match.
    pub algorithms: Vec<Algorithm>,
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

const KEYS_MAX: usize = 100;

impl Keys {
    /// Ignores keys of unknown types, secret keys, and keys that are not for signatures.
    pub fn parse(text: &[u8]) -> Result<Keys, String> {
        let set: Set = serde_json::from_slice(text).map_err(|error| format!("not a valid JWKS: {error}"))?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("more than {KEYS_MAX} keys"));
        }
        let keys: Vec<Key> = set.keys.into_iter().filter_map(Key::read).collect();
        if keys.is_empty() {
            return Err("no key for signatures with RSA, P-256, P-384 or Ed25519".to_owned());
        }
        Ok(Keys(keys))
    }

    /// The key that a token names. If it names none, exactly one key must fit.
    pub fn find(&self, header: &Header) -> Option<&Key> {
        let mut fitting = self.0.iter().filter(|key| {
            key.algorithms.contains(&header.alg) && (header.kid.is_none() || header.kid == key.id)
        });
        let first = fitting.next()?;
        (header.kid.is_some() || fitting.next().is_none()).then_some(first)
    }
}

impl Key {
    fn read(value: Value) -> Option<Key> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let mut algorithms = algorithms(&jwk.algorithm);
        if let Some(only) = jwk.common.key_algorithm {
            algorithms.retain(|algorithm| KeyAlgorithm::from(*algorithm) == only);
        }
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        (!algorithms.is_empty()).then_some(Key { id: jwk.common.key_id, key, algorithms })
    }
}

fn algorithms(parameters: &AlgorithmParameters) -> Vec<Algorithm> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    match parameters {
        AlgorithmParameters::RSA(_) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(parameters) => match parameters.curve {
            EllipticCurve::P256 => vec![ES256],
            EllipticCurve::P384 => vec![ES384],
            _ => Vec::new(),
        },
        AlgorithmParameters::OctetKeyPair(parameters) => match parameters.curve {
            EllipticCurve::Ed25519 => vec![EdDSA],
            _ => Vec::new(),
        },
        // This includes symmetric keys, which are no secret once published.
        _ => Vec::new(),
    }
}
