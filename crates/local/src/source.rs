//! Fetching a function's source into a fresh folder, within limits.
//!
//! Whatever comes from outside is untrusted: an archive may name paths outside its folder, link out of it, or unpack to
//! more than the disk holds; a repository may do the same. What is refused leaves nothing behind.

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

/// Where a function's source is kept.
#[derive(Clone, Debug)]
pub enum Source {
    Inline(Inline),
    Git(Git),
    Object(Object),
    Folder(PathBuf),
}

/// Code that stands in the manifest itself.
#[derive(Clone, Debug)]
pub struct Inline {
    pub language: Language,
    /// `file.function`
    pub handler: String,
    pub code: String,
    /// The text of the language's own file of dependencies; empty means none.
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
    /// A branch, a tag or a commit; empty means the remote's default branch.
    pub reference: String,
    /// A folder inside the repository; empty means all of it.
    pub path: String,
    pub credentials: Credentials,
}

/// One archive in a bucket, or all objects under a prefix that ends in `/`.
#[derive(Clone, Debug)]
pub struct Object {
    pub store: Store,
    pub bucket: String,
    pub key: String,
    /// Another address than the provider's own; a MinIO always has one.
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

/// Secrets, already resolved. Never printed.
#[derive(Clone, Default)]
pub enum Credentials {
    #[default]
    None,
    /// Name and password or token, for git over HTTP.
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

/// How much one fetch may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Of an archive as it is transferred.
    pub transfer_bytes: u64,
    /// Of all files together, unpacked.
    pub unpacked_bytes: u64,
    pub files: u64,
    /// How many times larger than its transfer an archive may unpack. Small ones are not asked.
    pub ratio: u64,
    pub time: Duration,
    /// Which schemes a git address may have.
    pub git_schemes: Vec<String>,
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
        }
    }
}

/// What was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    pub files: u64,
    pub bytes: u64,
    /// Which state of the source this is, where it has names for them: a commit, an ETag.
    pub revision: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("source not found: {0}")]
    NotFound(String),
    #[error("source refused: {0}")]
    Refused(String),
    #[error("source cannot be taken as it is: {0}")]
    Unsafe(String),
    #[error("source is too large: {0}")]
    TooLarge(String),
    #[error("archive is not safe to unpack: {0}")]
    UnsafeArchive(String),
    #[error("archive cannot be read: {0}")]
    BadArchive(String),
    #[error("source was not fetched within {0:?}; raise the time limit or make the source smaller")]
    Timeout(Duration),
    #[error("bad reference to a source: {0}")]
    BadReference(String),
    #[error("source cannot be reached: {0}")]
    Unreachable(String),
    #[error("{0} is not installed on this machine; install it to fetch this source")]
    ToolMissing(&'static str),
    #[error("writing the source: {0}")]
    Io(#[from] std::io::Error),
}

impl Error {
    /// One word for conditions and metrics.
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
            Error::Unreachable(_) => "Unreachable",
            Error::ToolMissing(_) => "ToolMissing",
            Error::Io(_) => "Io",
        }
    }

    /// Whether the same fetch may go better a little later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Timeout(_) | Error::Unreachable(_) | Error::Io(_))
    }
}

/// Brings the source into `into`, which must not exist yet. After an error it does not exist either.
pub async fn fetch(source: &Source, into: &Path, limits: &Limits) -> Result<Fetched, Error> {
    let (fetch, worked) = Fetch::begin(into, limits)?;
    let fetched = tokio::time::timeout(limits.time, fetch.run(source)).await;
    fetch.end(fetched, worked).await
}

/// How long work on files may take to notice that its time is over.
const NOTICE: Duration = Duration::from_secs(1);
/// Reads that block although their fetch is over. Each holds a thread; at this many nothing more is fetched from files.
const BLOCKED_MAX: usize = 16;
static BLOCKED: AtomicUsize = AtomicUsize::new(0);

/// One fetch: where to, and how much it may take.
struct Fetch<'a> {
    into: &'a Path,
    limits: &'a Limits,
    deadline: Instant,
    /// Held by whoever works on files: that cannot be cancelled, but it sees the deadline itself.
    working: mpsc::Sender<()>,
}

impl<'a> Fetch<'a> {
    fn begin(into: &'a Path, limits: &'a Limits) -> Result<(Fetch<'a>, mpsc::Receiver<()>), Error> {
        std::fs::create_dir(into)?;
        let (working, worked) = mpsc::channel(1);
        Ok((Fetch { into, limits, deadline: Instant::now() + limits.time, working }, worked))
    }

    /// After an error the folder is removed, once nobody writes into it any more. A read that blocks is not waited for:
    /// it is left to a thread that removes the folder when the read returns.
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
        tracing::warn!(folder = %into.display(), "A read of a source blocks; the fetch ends without it.");
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

    /// Work on files, which must not hold up other tasks.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if BLOCKED.load(Ordering::Relaxed) >= BLOCKED_MAX {
            return Err(Error::Unreachable(format!("{BLOCKED_MAX} reads of earlier sources still block")));
        }
        let working = self.working.clone();
        let (answer, answered) = oneshot::channel();
        // A thread of its own: one of the runtime's would be missing elsewhere if a read blocks for ever.
        std::thread::Builder::new().name("klambda-fetch".into()).spawn(move || {
            let result = work();
            drop(working);
            let _ = answer.send(result);
        })?;
        answered.await.unwrap_or_else(|_| Err(Error::Io(std::io::Error::other("the fetch broke off"))))
    }

    /// For what is made on the way: on the same disk.
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
        assert!(into.exists(), "it may still be written into");
        drop(unblock);
        let until = Instant::now() + Duration::from_secs(10);
        while into.exists() {
            assert!(Instant::now() < until, "the folder stays");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
