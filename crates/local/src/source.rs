//! Fetching a function's source into a fresh folder, within limits.
//!
//! Whatever comes from outside is untrusted: an archive may name paths outside its folder, link out of it, or unpack to
//! more than the disk holds; a repository may do the same. What is refused leaves nothing behind.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

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
    std::fs::create_dir(into)?;
    let (working, mut worked) = mpsc::channel(1);
    let fetch = Fetch { into, limits, deadline: Instant::now() + limits.time, working };
    let fetched = match tokio::time::timeout(limits.time, fetch.run(source)).await {
        Ok(fetched) => fetched,
        Err(_) => Err(Error::Timeout(limits.time)),
    };
    drop(fetch);
    if fetched.is_err() {
        // Nobody writes into the folder any more.
        let _: Option<()> = worked.recv().await;
        let _ = std::fs::remove_dir_all(into);
    }
    fetched
}

/// One fetch: where to, and how much it may take.
struct Fetch<'a> {
    into: &'a Path,
    limits: &'a Limits,
    deadline: Instant,
    /// Held by whoever works on files: that cannot be cancelled, but it sees the deadline itself.
    working: mpsc::Sender<()>,
}

impl Fetch<'_> {
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
        let working = self.working.clone();
        let task = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(working);
            result
        });
        match task.await {
            Ok(result) => result,
            Err(panic) => Err(Error::Io(std::io::Error::other(panic))),
        }
    }

    /// For what is made on the way: on the same disk.
    fn beside(&self) -> &Path {
        self.into.parent().unwrap_or(Path::new("."))
    }
}
