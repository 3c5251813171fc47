//! Writes of secrets, in steps of the engine.

use super::vault::{KIND, Vault, full, is_signing};
use klambda_dispatch::Engine;
use klambda_dispatch::documents::{self, Expected, Write};
use klambda_dispatch::operate;
use klambda_secrets::{Change, EncryptionKey, KeyFileError, NoRandomness, Secret};
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no secret {name} in namespace {namespace}")]
    NotFound { namespace: String, name: String },
    #[error("there are {0} secrets already (limits.secrets): delete those that are not used")]
    Limit(usize),
    #[error(transparent)]
    Invalid(#[from] klambda_secrets::Refused),
    #[error("the stored secret {name} of namespace {namespace} is damaged: replace all of its values")]
    Damaged { namespace: String, name: String },
    #[error(transparent)]
    Namespace(#[from] operate::Refused),
    #[error(transparent)]
    Store(#[from] documents::Error),
    #[error(
        "the key file {} is missing or does not have the key in use, {key}: put the file back; \
         `klambda backup DIR --with-key` writes the keys that the server holds to DIR/secrets.key",
        .file.display()
    )]
    KeyGone { file: PathBuf, key: String },
    #[error("secret {name} already exists in namespace {namespace}")]
    Exists { namespace: String, name: String },
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

/// The result of a write.
#[derive(Debug, PartialEq, Eq)]
pub enum Put {
    Created,
    Changed,
    /// The values were sealed with a key that is no longer the first. Nothing is stored.
    Outdated,
}

impl Vault {
    pub fn put(
        &self,
        engine: &mut Engine,
        namespace: &str,
        name: &str,
        change: Change,
    ) -> Result<Put, Error> {
        engine.namespace_id(namespace)?;
        let ring = self.ring();
        let first = ring.first().map(EncryptionKey::id);
        if change.set.values().any(|sealed| Some(sealed.sealed_by()) != first) {
            return Ok(Put::Outdated);
        }
        let before = self.before(engine, namespace, name, change.replace)?;
        if before.is_none() && !change.replace && change.set.is_empty() {
            return Err(not_found(namespace, name));
        }
        let put = if before.is_none() { Put::Created } else { Put::Changed };
        if before.is_none() && !is_signing(name) {
            self.must_have_room()?;
        }
        let secret = Secret::changed(before, change, engine.now())?;
        engine.put_documents(&[write(&full(namespace, name), Some(secret.encode()))], &[])?;
        self.note(&full(namespace, name), Some(secret.known()));
        Ok(put)
    }

    fn before(
        &self,
        engine: &Engine,
        namespace: &str,
        name: &str,
        replace: bool,
    ) -> Result<Option<Secret>, Error> {
        let stored = engine.document(KIND, &full(namespace, name)).map_err(documents::Error::from)?;
        match stored.map(|stored| Secret::decode(&stored.content)).transpose() {
            Ok(secret) => Ok(secret),
            Err(_) if replace => Ok(None),
            Err(_) => Err(Error::Damaged { namespace: namespace.to_owned(), name: name.to_owned() }),
        }
    }

    fn must_have_room(&self) -> Result<(), Error> {
        let count = self.count();
        if count < self.secrets_max { Ok(()) } else { Err(Error::Limit(count)) }
    }

    pub fn delete(&self, engine: &mut Engine, namespace: &str, name: &str) -> Result<(), Error> {
        let key = full(namespace, name);
        let stored = engine.document(KIND, &key).map_err(documents::Error::from)?;
        stored.ok_or_else(|| not_found(namespace, name))?;
        engine.put_documents(&[write(&key, None)], &[])?;
        self.note(&key, None);
        Ok(())
    }
}

fn write(key: &str, content: Option<Vec<u8>>) -> Write {
    Write { kind: KIND.to_owned(), key: key.to_owned(), content, expected: Expected::Any }
}

fn not_found(namespace: &str, name: &str) -> Error {
    Error::NotFound { namespace: namespace.to_owned(), name: name.to_owned() }
}
