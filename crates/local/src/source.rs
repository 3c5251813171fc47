//! Fetches the source of a function into a new folder, within limits.
//!
//! All input is untrusted: an archive may name paths outside its folder, link out of it, or unpack to more than fits on the
//! disk; a repository may do the same. A rejected source leaves nothing behind.

use klambda_outbound::{Forbidden, Reach};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::time::error::Elapsed;

pub mod archive;
mod budget;
mod folder;
mod git;
mod inline;
mod object;

use budget::Budget;

/// Where the source of a function is stored.
#[derive(Clone, Debug)]
pub enum Source {
    Inline(Inline),
    Git(Git),
    Object(Object),
    Folder(PathBuf),
}

/// Code inside the manifest.
#[derive(Clone, Debug)]
pub struct Inline {
    pub language: Language,
    /// `file.function`
    pub handler: String,
    pub code: String,
    /// The content of the dependency file of the language. Empty means none.
    pub dependencies: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    NodeJs,
    Python,
    Go,
}

#[derive(Clone, Debug)]
pub struct Git {
    pub url: String,
    /// A branch, a tag or a commit. Empty means the default branch.
    pub reference: String,
    /// A folder in the repository. Empty means all of it.
    pub path: String,
    pub credentials: Credentials,
}

/// One archive in a bucket, or all objects under a prefix that ends in `/`.
#[derive(Clone, Debug)]
pub struct Object {
    pub store: Store,
    pub bucket: String,
    pub key: String,
    /// An endpoint other than that of the provider. Required for MinIO.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    pub credentials: Credentials,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    S3,
    Minio,
    Gcs,
}

/// Resolved secrets. Never printed.
#[derive(Clone, Default)]
pub enum Credentials {
    #[default]
    None,
    /// User name and password or token, for git over HTTP.
    Basic { username: String, password: String },
    /// A private key, for git over ssh.
    SshKey { private_key: String },
    /// For S3 and MinIO.
    AccessKey { id: String, secret: String, session_token: Option<String> },
    /// A service account key as JSON, for Google Cloud Storage.
    ServiceAccount { json: String },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Credentials::None => "Credentials::None",
            Credentials::Basic { .. } => "Credentials::Basic(hidden)",
            Credentials::SshKey { .. } => "Credentials::SshKey(hidden)",
            Credentials::AccessKey { .. } => "Credentials::AccessKey(hidden)",
            Credentials::ServiceAccount { .. } => "Credentials::ServiceAccount(hidden)",
        })
    }
}

/// Limits of one fetch.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Size of an archive in transfer.
    pub transfer_bytes: u64,
    /// Size of all files together, unpacked.
    pub unpacked_bytes: u64,
    pub files: u64,
    /// Maximum ratio of unpacked to packed size. Small archives are exempt.
    pub ratio: u64,
    pub time: Duration,
    /// The allowed schemes of git URLs.
    pub git_schemes: Vec<String>,
    /// The addresses that a source may be fetched from.
    pub reach: Reach,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            transfer_bytes: 256 << 20,
            unpacked_bytes: 512 << 20,
            files: 20_000,
            ratio: 200,
            time: Duration::from_secs(120),
            git_schemes: ["https", "http", "ssh", "git"].map(String::from).to_vec(),
            reach: Reach::ANYWHERE,
        }
    }
}

/// The result of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    pub files: u64,
    pub bytes: u64,
    /// The revision of the source, if it has one: a commit or an ETag.
    pub revision: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("source not found: {0}")]
    NotFound(String),
    #[error("access to the source denied: {0}")]
    Refused(String),
    #[error("source is not safe to copy: {0}")]
    Unsafe(String),
    #[error("source is too large: {0}")]
    TooLarge(String),
    #[error("archive is not safe to unpack: {0}")]
    UnsafeArchive(String),
    #[error("could not read the archive: {0}")]
    BadArchive(String),
    #[error("fetching the source timed out after {0:?}; raise the timeout or make the source smaller")]
    Timeout(Duration),
    #[error("invalid source: {0}")]
    BadReference(String),
    #[error("the source must not be fetched from there: {0}")]
    Forbidden(#[from] Forbidden),
    #[error("could not reach the source: {0}")]
    Unreachable(String),
    #[error("{0} is not installed on the server; install it to fetch this source")]
    ToolMissing(&'static str),
    #[error("could not write the source: {0}")]
    Io(#[from] std::io::Error),
}

impl Error {
    /// The reason for conditions and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::NotFound(_) => "NotFound",
            Error::Refused(_) => "Refused",
            Error::Unsafe(_) => "Unsafe",
            Error::TooLarge(_) => "TooLarge",
            Error::UnsafeArchive(_) => "UnsafeArchive",
            Error::BadArchive(_) => "BadArchive",
            Error::Timeout(_) => "Timeout",
            Error::BadReference(_) => "BadReference",
            Error::Forbidden(_) => "Forbidden",
            Error::Unreachable(_) => "Unreachable",
            Error::ToolMissing(_) => "ToolMissing",
            Error::Io(_) => "Io",
        }
    }

    /// Whether a retry can succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Timeout(_) | Error::Unreachable(_) | Error::Io(_))
    }
}

/// Fetches the source into `into`, which must not exist yet. After an error it does not exist either.
pub async fn fetch(source: &Source, into: &Path, limits: &Limits) -> Result<Fetched, Error> {
    let (fetch, worked) = Fetch::begin(into, limits)?;
    let fetched = tokio::time::timeout(limits.time, fetch.run(source)).await;
    fetch.end(fetched, worked).await
}

/// How long file operations may take to notice that the time is over.
const NOTICE: Duration = Duration::from_secs(1);
/// Limit on blocked reads of finished fetches. Each holds a thread. At the limit, no files are fetched.
const BLOCKED_MAX: usize = 16;
static BLOCKED: AtomicUsize = AtomicUsize::new(0);

/// One fetch: its target folder and its limits.
struct Fetch<'a> {
    into: &'a Path,
    limits: &'a Limits,
    deadline: Instant,
    /// Held by every file operation. These cannot be cancelled, but check the deadline themselves.
    working: mpsc::Sender<()>,
}

impl<'a> Fetch<'a> {
    fn begin(into: &'a Path, limits: &'a Limits) -> Result<(Fetch<'a>, mpsc::Receiver<()>), Error> {
        std::fs::create_dir(into)?;
        let (working, worked) = mpsc::channel(1);
        Ok((Fetch { into, limits, deadline: Instant::now() + limits.time, working }, worked))
    }

    /// After an error, removes the folder when nobody writes into it any more. Does not wait for a blocked read: a thread
    /// removes the folder when that read returns.
    async fn end(
        self,
        fetched: Result<Result<Fetched, Error>, Elapsed>,
        mut worked: mpsc::Receiver<()>,
    ) -> Result<Fetched, Error> {
        let Fetch { into, limits, working, .. } = self;
        drop(working);
        let fetched = fetched.unwrap_or(Err(Error::Timeout(limits.time)));
        if fetched.is_ok() {
            return fetched;
        }
        if tokio::time::timeout(NOTICE, worked.recv()).await.is_ok() {
            let _ = std::fs::remove_dir_all(into);
            return fetched;
        }
        tracing::warn!(folder = %into.display(), "Reading a source is blocked; ending the fetch without it");
        let into = into.to_path_buf();
        BLOCKED.fetch_add(1, Ordering::Relaxed);
        let waited = std::thread::Builder::new().name("klambda-blocked".into()).spawn(move || {
            let _: Option<()> = worked.blocking_recv();
            let _ = std::fs::remove_dir_all(into);
            BLOCKED.fetch_sub(1, Ordering::Relaxed);
        });
        waited.map_err(Error::Io)?;
        fetched
    }

    async fn run(&self, source: &Source) -> Result<Fetched, Error> {
        match source {
            Source::Inline(inline) => inline::write(inline, self),
            Source::Git(git) => git::clone(git, self).await,
            Source::Object(object) => object::download(object, self).await,
            Source::Folder(folder) => self.copy(folder.clone()).await,
        }
    }

    fn budget(&self) -> Budget {
        Budget::new(self.limits, self.deadline)
    }

    async fn copy(&self, from: PathBuf) -> Result<Fetched, Error> {
        let (into, budget) = (self.into.to_path_buf(), self.budget());
        self.blocking(move || folder::copy(&from, &into, budget)).await
    }

    /// Runs file operations, which must not block other tasks.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if BLOCKED.load(Ordering::Relaxed) >= BLOCKED_MAX {
            return Err(Error::Unreachable(format!(
                "{BLOCKED_MAX} reads of earlier sources are still blocked"
            )));
        }
        let working = self.working.clone();
        let (answer, answered) = oneshot::channel();
        // A separate thread: a read that blocks forever must not take a thread from the runtime.
        std::thread::Builder::new().name("klambda-fetch".into()).spawn(move || {
            let result = work();
            drop(working);
            let _ = answer.send(result);
        })?;
        answered.await.unwrap_or_else(|_| Err(Error::Io(std::io::Error::other("the fetch was aborted"))))
    }

    /// For temporary files: a folder on the same disk.
    fn beside(&self) -> &Path {
        self.into.parent().unwrap_or(Path::new("."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_read_that_blocks_does_not_hold_the_fetch() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("code");
        let limits = Limits { time: Duration::from_millis(50), ..Limits::default() };
        let (unblock, blocked) = std::sync::mpsc::channel::<()>();
        let (fetch, worked) = Fetch::begin(&into, &limits).unwrap();
        let read = fetch.blocking(move || {
            let _ = blocked.recv();
            Ok(Fetched { files: 0, bytes: 0, revision: None })
        });
        let fetched = tokio::time::timeout(limits.time, read).await;
        let ended = tokio::time::timeout(Duration::from_secs(10), fetch.end(fetched, worked)).await;
        assert!(matches!(ended, Ok(Err(Error::Timeout(_)))), "{ended:?}");
        assert!(into.exists(), "the blocked read may still write");
        drop(unblock);
        let until = Instant::now() + Duration::from_secs(10);
        while into.exists() {
            assert!(Instant::now() < until, "the folder was not removed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
