//! Stored secrets: documents of the engine, with their metadata in memory.
//!
//! Secrets change in steps of the engine, and the metadata changes in the same step as the document. The locks are held
//! for a lookup or an insertion only.

use super::writes::Error;
use crate::config::Config;
use klambda_core::namespace::Within;
use klambda_core::webhook;
use klambda_dispatch::runner::Handle;
use klambda_dispatch::secrets::{Opening, Secrets, Values};
use klambda_dispatch::{Engine, Failure};
use klambda_secrets::{
    EncryptionKey, KeyFile, KeyFileError, KeyRing, Known, Malformed, Reader, Secret, Stored,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

pub const KIND: &str = "secret";
/// The environment variable that holds the keys themselves.
pub const VARIABLE: &str = "KLAMBDA_SECRETS_KEY";
/// The key file in the data folder.
pub const KEY_FILE: &str = "secrets.key";
const PAGE: usize = 16;
const WARNINGS_MAX: usize = 20;

pub struct Vault {
    table: RwLock<BTreeMap<String, Arc<Known>>>,
    ring: RwLock<Arc<KeyRing>>,
    origin: Origin,
    /// Held while the first key is made.
    making: Mutex<()>,
    handle: OnceLock<Handle>,
    pub(super) secrets_max: usize,
    /// One change of keys at a time.
    pub(super) rekeying: Arc<Semaphore>,
}

/// Where the keys come from.
#[derive(Debug)]
pub enum Origin {
    File(KeyFile),
    Variable,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    File(#[from] KeyFileError),
    #[error("the keys of secrets in {VARIABLE} cannot be used: {0}")]
    Variable(Malformed),
    #[error("the key file {} does not exist", .0.display())]
    NoFile(PathBuf),
    #[error("{VARIABLE} and secrets.keyFile both say where the keys of secrets are: remove one of them")]
    Twice,
    #[error("secrets cannot be read from the store: {0}")]
    Store(#[from] Failure),
}

impl Vault {
    /// Reads the keys.
    pub fn open(config: &Config) -> Result<Vault, OpenError> {
        let (ring, origin) = read_keys(&config.data, config.secrets.key_file.as_deref())?;
        Ok(Vault {
            table: RwLock::default(),
            ring: RwLock::new(Arc::new(ring)),
            origin,
            making: Mutex::default(),
            handle: OnceLock::new(),
            secrets_max: config.limits.secrets,
            rekeying: Arc::new(Semaphore::new(1)),
        })
    }

    /// Reads the metadata of all secrets, and warns about those that cannot be opened.
    pub fn load(&self, engine: &Engine) -> Result<(), OpenError> {
        let mut unreadable = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = engine.documents(KIND, after.as_deref(), PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            for stored in page {
                match Secret::decode(&stored.content) {
                    Ok(secret) => self.note(&stored.key, Some(secret.known())),
                    Err(why) => unreadable.push((stored.key, why.to_string())),
                }
            }
        }
        unreadable.extend(self.lost());
        warn(&unreadable);
        Ok(())
    }

    /// Secrets whose key is missing, and which key it is.
    fn lost(&self) -> Vec<(String, String)> {
        let ring = self.ring();
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let why = |known: &Known| {
            let key = known.keys.values().find(|key| ring.get(&key.sealed_by).is_none())?;
            Some(format!("the encryption key {} is missing", key.sealed_by))
        };
        table.iter().filter_map(|(name, known)| Some((name.clone(), why(known)?))).collect()
    }

    /// From now on secrets can be read.
    pub fn start(&self, handle: Handle) {
        // A second start changes nothing, because there is one engine.
        let _ = self.handle.set(handle);
    }

    pub fn ring(&self) -> Arc<KeyRing> {
        Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_ring(&self, ring: KeyRing) {
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ring);
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The keys, with one to seal with: the first use makes the key file. Waits for the disk.
    pub fn ring_to_seal(&self) -> Result<Arc<KeyRing>, Error> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.ring();
        let Origin::File(file) = &self.origin else { return Ok(known) };
        if let Some(first) = known.first() {
            // A secret that is stored without its key on disk would be lost with the next restart.
            return match file.read()?.get(first.id()) {
                Some(_) => Ok(known),
                None => Err(Error::KeyGone { file: file.path().to_owned(), key: first.id().to_owned() }),
            };
        }
        // Perhaps somebody put the file back since the start.
        let mut ring = file.read()?;
        if ring.is_empty() {
            ring = ring.with_first(EncryptionKey::random()?);
            file.write(&ring)?;
            tracing::info!(file = %file.path().display(), "Key file of secrets created; keep a copy of it");
        }
        self.set_ring(ring);
        Ok(self.ring())
    }

    /// By name, from the one after `after` on; and whether there are more.
    pub fn list(
        &self,
        within: &Within,
        after: Option<&str>,
        limit: usize,
    ) -> (Vec<(String, Arc<Known>)>, bool) {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let wanted = table.range::<str, _>((start, Bound::Unbounded));
        let wanted = wanted.filter(|(key, _)| within.has(split(key).0) && !is_signing(split(key).1));
        let mut found: Vec<_> =
            wanted.take(limit + 1).map(|(key, known)| (key.clone(), Arc::clone(known))).collect();
        let more = found.len() > limit;
        found.truncate(limit);
        (found, more)
    }

    /// One secret of a namespace, if it has any.
    pub fn any_of(&self, namespace: &str) -> Option<String> {
        let (found, _) = self.list(&Within::one(namespace), None, 1);
        found.first().map(|(key, _)| split(key).1.to_owned())
    }

    /// The ids of all keys that stored values are sealed with.
    pub(super) fn used_keys(&self) -> BTreeSet<String> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.values().flat_map(|known| known.keys.values()).map(|key| key.sealed_by.clone()).collect()
    }

    /// The number of secrets that users created. Signing keys are limited with the endpoints that they belong to.
    pub(super) fn count(&self) -> usize {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.keys().filter(|key| !is_signing(split(key).1)).count()
    }

    pub(super) fn note(&self, key: &str, known: Option<Known>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some(known) => drop(table.insert(key.to_owned(), Arc::new(known))),
            None => drop(table.remove(key)),
        }
    }

    /// The metadata of any secret, also of signing keys.
    pub fn metadata(&self, namespace: &str, name: &str) -> Option<Arc<Known>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&full(namespace, name)).cloned()
    }

    /// Namespaces and names of all webhook endpoints with signing keys.
    pub fn endpoints(&self) -> Vec<(String, String)> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let endpoint = |key: &String| {
            let (namespace, name) = split(key);
            Some((namespace.to_owned(), name.strip_prefix(webhook::PREFIX)?.to_owned()))
        };
        table.keys().filter_map(endpoint).collect()
    }

    /// Reads a secret without blocking the thread.
    pub async fn fetch(&self, namespace: &str, name: &str) -> Result<Option<Stored>, String> {
        let mut stored = self.fetch_once(namespace, name).await?;
        // A change of keys may have sealed the secret again and removed its old key since it was read.
        if stored.as_ref().is_some_and(|stored| stored.lacks_key()) {
            stored = self.fetch_once(namespace, name).await?;
        }
        Ok(stored)
    }

    async fn fetch_once(&self, namespace: &str, name: &str) -> Result<Option<Stored>, String> {
        let handle = self.handle.get().ok_or("the server is starting")?;
        let read =
            handle.document(KIND, &full(namespace, name)).await.map_err(|stopped| stopped.to_string())?;
        let Some(found) = read.map_err(|failure| failure.to_string())? else { return Ok(None) };
        let secret = Secret::decode(&found.content).map_err(|why| why.to_string())?;
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Ok(Some(Stored { namespace, name, secret, ring: self.ring() }))
    }
}

/// The keys of a data folder; `named` is the file that the configuration names.
pub fn read_keys(data: &Path, named: Option<&Path>) -> Result<(KeyRing, Origin), OpenError> {
    let variable = std::env::var(VARIABLE).ok().filter(|keys| !keys.trim().is_empty()).map(Zeroizing::new);
    match (variable, named) {
        (Some(_), Some(_)) => Err(OpenError::Twice),
        (Some(keys), None) => {
            // Several keys fit on the one line of a variable.
            let lines = Zeroizing::new(keys.replace([',', ' '], "\n"));
            Ok((KeyRing::parse(&lines).map_err(OpenError::Variable)?, Origin::Variable))
        }
        (None, named) => {
            let file = KeyFile::new(named.map_or_else(|| data.join(KEY_FILE), Path::to_owned));
            Ok((file.read()?, Origin::File(file)))
        }
    }
}

/// For functions and users. Signing keys do not exist for them.
impl Reader for Vault {
    fn known(&self, namespace: &str, name: &str) -> Option<Arc<Known>> {
        if is_signing(name) { None } else { self.metadata(namespace, name) }
    }

    fn read(&self, namespace: &str, name: &str) -> Result<Option<Stored>, String> {
        if is_signing(name) {
            return Ok(None);
        }
        tokio::runtime::Handle::current().block_on(self.fetch(namespace, name))
    }
}

/// For calls of webhook endpoints.
impl Secrets for Vault {
    fn open<'a>(&'a self, namespace: &'a str, name: &'a str) -> Opening<'a> {
        Box::pin(async move {
            let stored = self.fetch(namespace, name).await?;
            let stored = stored.ok_or_else(|| format!("secret {name} does not exist"))?;
            let mut values = Values::new();
            for key in stored.secret.keys() {
                let value = stored.get(key).map_err(|error| format!("secret {name}: {error}"))?;
                values.extend(value.map(|value| (key.to_owned(), value)));
            }
            Ok(values)
        })
    }
}

/// Whether a secret holds the signing keys of a webhook endpoint.
pub fn is_signing(name: &str) -> bool {
    name.starts_with(webhook::PREFIX)
}

fn warn(unreadable: &[(String, String)]) {
    for (name, why) in unreadable.iter().take(WARNINGS_MAX) {
        let (namespace, name) = split(name);
        tracing::warn!(
            namespace,
            secret = name,
            why,
            "Secret cannot be read; add its key to the key file and restart the server, or set it again"
        );
    }
    if let Some(more) = unreadable.len().checked_sub(WARNINGS_MAX).filter(|more| *more > 0) {
        tracing::warn!(more, "More secrets cannot be read");
    }
}

pub fn full(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Namespace and name.
pub fn split(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}
