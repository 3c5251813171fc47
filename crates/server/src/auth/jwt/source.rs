//! The source of the keys of an issuer: a file or a URL. Keys are reloaded while the server runs. If that fails, the old keys
//! stay valid.

use super::Jwt;
use super::keys::Keys;
use crate::auth::Access;
use crate::auth::fetch::fetch;
use crate::auth::file::Stamp;
use crate::config;
use crate::shutdown::Shutdown;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Minimum time between two fetches, and after a failed one.
const PAUSE: Duration = Duration::from_secs(10);
/// How often a file is checked.
const LOOK: Duration = Duration::from_millis(500);

pub enum Source {
    File {
        path: PathBuf,
        /// The stamp of the file at its first read.
        stamp: Option<Stamp>,
    },
    Url(Url),
}

pub struct Url {
    url: String,
    refresh: Duration,
    pub(super) pause: Duration,
    fetched: Mutex<Option<Instant>>,
    /// A token named an unknown key.
    wanted: Notify,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not read auth.jwt.jwksFile {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("auth.jwt.jwksFile {path} is invalid: {message}")]
    Malformed { path: PathBuf, message: String },
    #[error("set auth.jwt.jwksFile or auth.jwt.jwksUrl")]
    NoSource,
}

impl Source {
    pub fn open(config: &config::Jwt) -> Result<(Source, Option<Keys>), Error> {
        match (&config.jwks_file, &config.jwks_url) {
            (Some(path), _) => {
                // Read the stamp first: a change between the two reads is seen at the next check.
                let stamp = Stamp::of(path).ok();
                Ok((Source::File { path: path.clone(), stamp }, Some(read(path)?)))
            }
            (None, Some(url)) => {
                let (fetched, wanted) = (Mutex::new(None), Notify::new());
                Ok((
                    Source::Url(Url {
                        url: url.clone(),
                        refresh: config.refresh,
                        pause: PAUSE,
                        fetched,
                        wanted,
                    }),
                    None,
                ))
            }
            (None, None) => Err(Error::NoSource),
        }
    }

    /// For an unknown key: whether the issuer may have it now. If so, the keys are fetched.
    pub fn may_have_news(&self) -> bool {
        match self {
            Source::File { .. } => false,
            Source::Url(url) => {
                let is_due = url.fetched().is_none_or(|at| at.elapsed() >= url.pause);
                if is_due {
                    url.wanted.notify_one();
                }
                is_due
            }
        }
    }
}

fn read(path: &Path) -> Result<Keys, Error> {
    let text = std::fs::read(path).map_err(|source| Error::Unreadable { path: path.to_owned(), source })?;
    Keys::parse(&text).map_err(|message| Error::Malformed { path: path.to_owned(), message })
}

/// Keeps the keys up to date until shutdown.
pub async fn keep(access: Arc<Access>, shutdown: Shutdown) {
    let Some(jwt) = access.jwt() else { return };
    let keeping = async {
        match &jwt.source {
            Source::File { path, stamp } => watch(jwt, path, *stamp).await,
            Source::Url(url) => follow(jwt, url).await,
        }
    };
    tokio::select! {
        () = shutdown.requested() => {}
        () = keeping => {}
    }
}

async fn watch(jwt: &Jwt, path: &Path, mut known: Option<Stamp>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let now = Stamp::of(path).ok();
        if now.is_none() || now == known {
            continue;
        }
        known = now;
        read_again(jwt, path);
    }
}

pub(super) fn read_again(jwt: &Jwt, path: &Path) {
    match read(path) {
        Ok(keys) => {
            jwt.set_keys(keys);
            tracing::info!(issuer = jwt.issuer, "Loaded the keys of the token issuer");
        }
        Err(error) => {
            tracing::warn!(%error, "Could not load the keys of the token issuer; keeping the old keys")
        }
    }
}

async fn follow(jwt: &Jwt, url: &Url) {
    loop {
        let fetched = fetch(&url.url).await.and_then(|text| Keys::parse(&text));
        *url.fetched.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Instant::now());
        let next = match fetched {
            Ok(keys) => {
                jwt.set_keys(keys);
                tracing::debug!(issuer = jwt.issuer, "Fetched the keys of the token issuer");
                url.refresh
            }
            Err(error) => {
                tracing::warn!(
                    url = url.url,
                    error,
                    "Could not fetch the keys of the token issuer; retrying"
                );
                url.pause
            }
        };
        tokio::time::sleep(url.pause.min(next)).await;
        tokio::select! {
            () = tokio::time::sleep(next.saturating_sub(url.pause)) => {}
            () = url.wanted.notified() => {}
        }
    }
}

impl Url {
    fn fetched(&self) -> Option<Instant> {
        *self.fetched.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
