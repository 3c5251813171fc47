//! How the rest of the program reads secrets.

use crate::key::KeyRing;
use crate::seal::{OpenError, Place, Value};
use crate::secret::Secret;
use klambda_core::time::Millis;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Finds stored secrets.
pub trait Reader: Send + Sync {
    /// The metadata of a secret. Never waits.
    fn known(&self, namespace: &str, name: &str) -> Option<Arc<Known>>;

    /// The secret itself. Waits for the store, so call it on a thread that may wait. The error says why the store did not
    /// answer.
    fn read(&self, namespace: &str, name: &str) -> Result<Option<Stored>, String>;
}

/// The metadata of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub version: u64,
    pub updated_at: Millis,
    pub keys: BTreeMap<String, KnownKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownKey {
    /// The length of the value.
    pub bytes: usize,
    pub sealed_by: String,
}

impl Known {
    /// Differs between any two writes, also when the secret was deleted and created again.
    pub fn revision(&self) -> String {
        format!("{}@{}", self.version, self.updated_at.0)
    }

    /// Keys whose values cannot be opened with these encryption keys.
    pub fn unreadable<'a>(&'a self, keys: &'a KeyRing) -> impl Iterator<Item = &'a str> {
        let is_lost = |key: &KnownKey| keys.get(&key.sealed_by).is_none();
        self.keys.iter().filter(move |(_, key)| is_lost(key)).map(|(name, _)| name.as_str())
    }
}

/// A secret with the keys to open it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub namespace: String,
    pub name: String,
    pub secret: Secret,
    pub ring: Arc<KeyRing>,
}

impl Stored {
    pub fn get(&self, key: &str) -> Result<Option<Value>, OpenError> {
        let place = Place { namespace: &self.namespace, name: &self.name, key };
        self.secret.open(&self.ring, place)
    }

    /// Whether some value cannot be opened because its encryption key is missing.
    pub fn lacks_key(&self) -> bool {
        self.secret.known().unreadable(&self.ring).next().is_some()
    }
}
