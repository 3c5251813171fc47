//! Changing the encryption key.
//!
//! 1. The key file gets a new first key and keeps the old ones.
//! 2. Every secret is sealed again, some in each step of the engine.
//!
//! Old keys stay in the file, because a backup may need them. The report names those that no secret uses.
//!
//! A crash at any point leaves a file whose keys open every secret. A start that finds secrets with an old key continues
//! with the second step.
//!
//! **Invariant:** a write is stored only if its values are sealed with the first key at that moment ([`Vault::put`]). So no
//! secret gets an old key after the second step has passed it.

use super::vault::{self, KIND, Origin, Vault};
use super::writes::Error;
use klambda_dispatch::documents::{self, Expected, Write};
use klambda_dispatch::runner::{Handle, Stopped};
use klambda_secrets::{EncryptionKey, KeyRing, Known, NoRandomness, Secret};
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

const PAGE: usize = 16;
/// The most bytes that one step of the engine writes, unless a single secret is larger.
const STEP_BYTES_MAX: usize = 2 << 20;
const NAMED_MAX: usize = 100;
/// Maximum number of keys in the key file.
const RING_MAX: usize = 100;

/// The result of a change of keys.
#[derive(Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "RekeyReport")]
pub struct Report {
    /// The id of the key that is in use now.
    pub key: String,
    /// Secrets that were sealed again.
    pub resealed: usize,
    /// The ids of keys that no secret uses. They are kept for backups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unused_keys: Vec<String>,
    /// Secrets that could not be opened, as `NAMESPACE/NAME`; the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum RekeyError {
    #[error("the key is being changed already")]
    UnderWay,
    #[error(
        "the key comes from the variable {}: put a new key before the old one there (separated by a comma), restart the \
         server, and run this again",
        vault::VARIABLE
    )]
    OneInVariable,
    #[error(
        "the key file has {RING_MAX} keys: remove keys that no backup needs, restart the server, and run this again"
    )]
    TooManyKeys,
    #[error(transparent)]
    Vault(#[from] Error),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// A secret that is sealed again and not yet stored.
struct Resealed {
    key: String,
    version: u64,
    content: Vec<u8>,
    known: Known,
}

impl Vault {
    /// The right to change keys, which one task has at a time.
    pub fn begin_rekey(&self) -> Result<OwnedSemaphorePermit, RekeyError> {
        Arc::clone(&self.rekeying).try_acquire_owned().map_err(|_| RekeyError::UnderWay)
    }

    /// The first step. Waits for the disk.
    pub fn add_key(&self) -> Result<(), RekeyError> {
        let ring = self.ring_to_seal()?;
        match self.origin() {
            Origin::File(file) => {
                // Somebody may have added keys to the file since the start.
                let ring = ring.joined(&file.read().map_err(Error::from)?);
                if ring.len() >= RING_MAX {
                    return Err(RekeyError::TooManyKeys);
                }
                let ring = ring.with_first(EncryptionKey::random().map_err(Error::from)?);
                file.write(&ring).map_err(Error::from)?;
                self.set_ring(ring);
                Ok(())
            }
            Origin::Variable if ring.len() > 1 => Ok(()),
            Origin::Variable => Err(RekeyError::OneInVariable),
        }
    }

    /// Whether a change of keys was begun and not finished.
    pub fn is_rekey_open(&self) -> bool {
        let ring = self.ring();
        let is_old =
            |id: &String| ring.first().is_some_and(|first| first.id() != id) && ring.get(id).is_some();
        matches!(self.origin(), Origin::File(_)) && self.used_keys().iter().any(is_old)
    }

    /// The second step.
    pub async fn finish_rekey(self: Arc<Self>, handle: &Handle) -> Result<Report, RekeyError> {
        let ring = self.ring();
        let Some(first) = ring.first() else { return Ok(Report::default()) };
        let mut report = Report { key: first.id().to_owned(), ..Report::default() };
        let mut after: Option<String> = None;
        loop {
            let from = after.clone();
            let page = handle.query(move |engine| engine.documents(KIND, from.as_deref(), PAGE)).await?;
            let page = page.map_err(|failure| Error::from(documents::Error::from(failure)))?;
            let Some(last) = page.last().map(|last| last.key.clone()) else { break };
            let resealed = reseal(Arc::clone(&ring), page, &mut report).await?;
            if self.store(handle, resealed, &mut report).await? {
                after = Some(last);
            }
        }
        // The answer comes when all changes so far are durable, so no crash brings back a secret that needs an old key.
        let used = handle.command(move |_| self.used_keys()).await?;
        report.unused_keys = ring.unused(&used);
        Ok(report)
    }

    /// Whether all of them were stored. A secret that somebody else wrote meanwhile must be read again.
    async fn store(
        self: &Arc<Self>,
        handle: &Handle,
        resealed: Vec<Resealed>,
        report: &mut Report,
    ) -> Result<bool, RekeyError> {
        let mut rest = resealed;
        while !rest.is_empty() {
            let group: Vec<Resealed> = rest.drain(..group_length(&rest)).collect();
            let (vault, count) = (Arc::clone(self), group.len());
            let stored = handle.command(move |engine| {
                let writes: Vec<Write> = group.iter().map(Resealed::write).collect();
                engine.put_documents(&writes, &[])?;
                group.into_iter().for_each(|one| vault.note(&one.key, Some(one.known)));
                Ok::<_, documents::Error>(())
            });
            match stored.await? {
                Ok(()) => report.resealed += count,
                Err(documents::Error::Conflict { .. }) => return Ok(false),
                Err(error) => return Err(Error::from(error).into()),
            }
        }
        Ok(true)
    }
}

/// Encrypts values with the new key that were encrypted with an old one. Runs on a thread of its own.
async fn reseal(
    ring: Arc<KeyRing>,
    page: Vec<documents::Stored>,
    report: &mut Report,
) -> Result<Vec<Resealed>, RekeyError> {
    let done = tokio::task::spawn_blocking(move || {
        let (mut resealed, mut unreadable) = (Vec::new(), Vec::new());
        for stored in page {
            match reseal_one(&ring, &stored)? {
                Sealing::Done(one) => resealed.push(one),
                Sealing::Nothing => {}
                Sealing::Unreadable => unreadable.push(stored.key),
            }
        }
        Ok::<_, NoRandomness>((resealed, unreadable))
    });
    let (resealed, unreadable) = done.await.map_err(|_| Stopped)?.map_err(Error::from)?;
    for name in unreadable {
        if report.unreadable.len() < NAMED_MAX && !report.unreadable.contains(&name) {
            report.unreadable.push(name);
        }
    }
    Ok(resealed)
}

enum Sealing {
    Done(Resealed),
    Nothing,
    Unreadable,
}

fn reseal_one(ring: &KeyRing, stored: &documents::Stored) -> Result<Sealing, NoRandomness> {
    let (Some(first), Ok(mut secret)) = (ring.first(), Secret::decode(&stored.content)) else {
        return Ok(Sealing::Unreadable);
    };
    let (namespace, name) = vault::split(&stored.key);
    if secret.reseal(ring, first, namespace, name)? {
        let (content, known) = (secret.encode(), secret.known());
        return Ok(Sealing::Done(Resealed {
            key: stored.key.clone(),
            version: stored.version,
            content,
            known,
        }));
    }
    let is_first = |known: &Known| known.keys.values().all(|key| key.sealed_by == first.id());
    Ok(if is_first(&secret.known()) { Sealing::Nothing } else { Sealing::Unreadable })
}

/// How many fit into one step, and at least one.
fn group_length(resealed: &[Resealed]) -> usize {
    let mut bytes = 0;
    let fits = |one: &&Resealed| {
        bytes += one.content.len();
        bytes <= STEP_BYTES_MAX
    };
    resealed.iter().take_while(fits).count().max(1)
}

impl Resealed {
    fn write(&self) -> Write {
        let (key, content) = (self.key.clone(), Some(self.content.clone()));
        Write { kind: KIND.to_owned(), key, content, expected: Expected::Version(self.version) }
    }
}
