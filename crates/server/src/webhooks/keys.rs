//! Signing keys: `whsec_…` for HMAC, `whsk_…` with the public key `whpk_…` for Ed25519.

use crate::api::Api;
use crate::problem::Problem;
use crate::secrets::{Asked, seal, vault::Vault};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use klambda_core::time::Millis;
use klambda_core::webhook::{Document, PREFIX, Signature};
use klambda_dispatch::client::webhook::{CURRENT, PREVIOUS, PREVIOUS_UNTIL};
use klambda_secrets::{Change, Value};
use ring::signature::{Ed25519KeyPair, KeyPair};
use std::collections::BTreeMap;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A new signing key, and what its owner may see of it.
pub struct NewKey {
    private: Zeroizing<String>,
    /// For Ed25519. An HMAC key is shown itself, because both sides need it.
    public: Option<String>,
}

impl NewKey {
    pub fn random(kind: Signature) -> Result<NewKey, Problem> {
        let random = Zeroizing::new(crate::tokens::random()?);
        let encoded = Zeroizing::new(BASE64.encode(*random));
        match kind {
            Signature::Hmac => {
                Ok(NewKey { private: Zeroizing::new(format!("whsec_{}", *encoded)), public: None })
            }
            Signature::Ed25519 => {
                let pair = Ed25519KeyPair::from_seed_unchecked(&*random)
                    .map_err(|_| Problem::internal("could not create a key pair"))?;
                let public = format!("whpk_{}", BASE64.encode(pair.public_key()));
                Ok(NewKey { private: Zeroizing::new(format!("whsk_{}", *encoded)), public: Some(public) })
            }
        }
    }

    /// Adds the key to an answer: `secret`, or `publicKey`.
    pub fn show(&self, body: &mut serde_json::Value) {
        match &self.public {
            Some(public) => body["publicKey"] = public.as_str().into(),
            None => body["secret"] = self.private.as_str().into(),
        }
    }

    fn value(&self) -> Value {
        Zeroizing::new(self.private.as_bytes().to_vec())
    }

    /// As the only key of an endpoint.
    pub async fn seal(&self, api: &Api, namespace: &str, name: &str) -> Result<Change, Problem> {
        seal_all(api, namespace, name, [(CURRENT.to_owned(), self.value())].into()).await
    }
}

async fn seal_all(
    api: &Api,
    namespace: &str,
    name: &str,
    values: BTreeMap<String, Value>,
) -> Result<Change, Problem> {
    seal(api, namespace, &format!("{PREFIX}{name}"), Arc::new(Asked::whole(values))).await
}

/// The keys of an endpoint after a rotation.
pub struct Rotated {
    namespace: String,
    name: String,
    values: BTreeMap<String, Value>,
    until: Millis,
    /// The version of the secret before. `None` if there was no secret.
    pub version: Option<u64>,
}

impl Rotated {
    /// The current key becomes the previous one. A key that cannot be read is replaced.
    pub async fn read(
        vault: &Vault,
        document: &Document,
        key: &NewKey,
        until: Millis,
    ) -> Result<Rotated, Problem> {
        let Document { namespace, name, .. } = document;
        let stored = vault.fetch(namespace, &format!("{PREFIX}{name}")).await.map_err(Problem::internal)?;
        let version = stored.as_ref().map(|stored| stored.secret.version);
        let previous = stored.and_then(|stored| stored.get(CURRENT).ok().flatten());
        let mut values = BTreeMap::from([(CURRENT.to_owned(), key.value())]);
        if let Some(previous) = previous {
            values.insert(PREVIOUS.to_owned(), previous);
            values.insert(PREVIOUS_UNTIL.to_owned(), Zeroizing::new(until.0.to_string().into_bytes()));
        }
        Ok(Rotated { namespace: namespace.clone(), name: name.clone(), values, until, version })
    }

    pub fn previous_until(&self) -> Option<Millis> {
        self.values.contains_key(PREVIOUS).then_some(self.until)
    }

    pub async fn seal(self, api: &Api) -> Result<Change, Problem> {
        seal_all(api, &self.namespace, &self.name, self.values).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_dispatch::client::webhook::SigningKey;

    #[test]
    fn a_new_key_signs_and_only_its_public_part_is_shown() {
        for kind in [Signature::Hmac, Signature::Ed25519] {
            let (key, other) = (NewKey::random(kind).expect("a key"), NewKey::random(kind).expect("a key"));
            assert_ne!(*key.private, *other.private);
            let signs = SigningKey::parse(key.private.as_bytes(), kind).expect("usable");
            assert!(signs.sign("id", "1", b"body").starts_with("v1"));
            let mut body = serde_json::json!({});
            key.show(&mut body);
            let shows_private = body.to_string().contains(&key.private[6..]);
            assert_eq!(shows_private, kind == Signature::Hmac, "{kind:?}");
        }
    }
}
