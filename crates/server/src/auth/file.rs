//! The tokens of the token file, one per line. Each of them is an admin. The file may change while the server runs: it is
//! read again within a second of a change, or immediately on request.

use klambda_core::os_error::in_words;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, fs, io};
use subtle::{Choice, ConstantTimeEq};

pub struct Tokens {
    path: PathBuf,
    current: RwLock<Loaded>,
    started: Instant,
    /// Milliseconds since `started` of the last check of the file.
    looked: AtomicU64,
    /// The last check found no token in the file, or no file. An editor that writes the file may be the reason, so the
    /// tokens stay valid until the next check.
    was_empty: AtomicBool,
}

struct Loaded {
    tokens: Vec<Box<[u8]>>,
    /// `None` if there is no file.
    stamp: Option<Stamp>,
}

/// Changes when the file changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    inode: u64,
    length: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not read the token file {path}: {}", in_words(source))]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the token file {path} contains no token: write one token per line")]
    Empty { path: PathBuf },
    #[error(
        "line {line} of the token file {path} is not a token: use visible ASCII characters without spaces"
    )]
    Malformed { path: PathBuf, line: usize },
}

impl Error {
    /// True if no token is left: the file has none, or there is no file.
    fn is_empty(&self) -> bool {
        match self {
            Error::Empty { .. } => true,
            Error::Unreadable { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Error::Malformed { .. } => false,
        }
    }
}

/// Twice this and the check interval of open streams are less than the second within which a revoked token must stop
/// working.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl Tokens {
    pub fn load(path: &Path) -> Result<Tokens, Error> {
        let loaded = Loaded::read(path)?;
        Ok(Tokens {
            path: path.to_owned(),
            current: RwLock::new(loaded),
            started: Instant::now(),
            looked: AtomicU64::new(0),
            was_empty: AtomicBool::new(false),
        })
    }

    /// Whether this is one of the tokens.
    pub fn has(&self, given: &[u8]) -> bool {
        self.look_again();
        self.knows(given)
    }

    /// Reads the file now. A file without tokens, or no file, revokes all of them. If the file is unusable in another
    /// way, the old tokens stay valid, so that a mistake in one line locks nobody out. The server logs a warning.
    pub fn reload(&self) {
        match Loaded::read(&self.path) {
            Ok(loaded) => {
                let count = loaded.tokens.len();
                self.set(loaded);
                tracing::info!(count, "Token file loaded");
            }
            Err(error) if error.is_empty() => {
                self.set(Loaded { tokens: Vec::new(), stamp: Stamp::of(&self.path).ok() });
                tracing::warn!(%error, "All tokens of the token file are revoked");
            }
            Err(error) => tracing::warn!(%error, "Could not load the token file; keeping the old tokens"),
        }
    }

    fn set(&self, loaded: Loaded) {
        *self.current.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = loaded;
    }

    fn knows(&self, given: &[u8]) -> bool {
        let current = self.current.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Compares every token completely, so that the time reveals only the number of tokens.
        let known = current.tokens.iter().fold(Choice::from(0), |known, token| known | token.ct_eq(given));
        known.into()
    }

    fn look_again(&self) {
        let now = self.started.elapsed().as_millis() as u64;
        let looked = self.looked.load(Ordering::Relaxed);
        if now.saturating_sub(looked) < LOOK_EVERY.as_millis() as u64
            || self.looked.compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let stamp = self.current.read().unwrap_or_else(|poisoned| poisoned.into_inner()).stamp;
        if Stamp::of(&self.path).ok() == stamp {
            return self.was_empty.store(false, Ordering::Relaxed);
        }
        let is_empty = Loaded::read(&self.path).is_err_and(|error| error.is_empty());
        if !is_empty || self.was_empty.swap(true, Ordering::Relaxed) {
            self.was_empty.store(false, Ordering::Relaxed);
            self.reload();
        }
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Loaded {
    fn read(path: &Path) -> Result<Loaded, Error> {
        let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
        // Read the stamp first: a change between the two reads is seen at the next check.
        let stamp = Some(Stamp::of(path).map_err(unreadable)?);
        let text = fs::read(path).map_err(unreadable)?;
        let mut tokens = Vec::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let token = line.trim_ascii();
            if !token.iter().all(u8::is_ascii_graphic) {
                return Err(Error::Malformed { path: path.to_owned(), line: index + 1 });
            }
            if !token.is_empty() {
                tokens.push(token.into());
            }
        }
        if tokens.is_empty() {
            return Err(Error::Empty { path: path.to_owned() });
        }
        Ok(Loaded { tokens, stamp })
    }
}

impl Stamp {
    pub(super) fn of(path: &Path) -> io::Result<Stamp> {
        let metadata = fs::metadata(path)?;
        Ok(Stamp { modified: metadata.modified().ok(), inode: metadata.ino(), length: metadata.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn any_line_of_the_file_is_a_token() {
        let file = file("first\r\n\n  second-token \n");
        let tokens = Tokens::load(file.path()).unwrap();
        assert!(tokens.has(b"first"));
        assert!(tokens.has(b"second-token"));
        for wrong in ["", "firs", "firstt", "first second"] {
            assert!(!tokens.has(wrong.as_bytes()), "{wrong}");
        }
        assert!(!format!("{tokens:?}").contains("first"));
    }

    #[test]
    fn a_change_is_taken_and_a_broken_file_is_not() {
        let file = file("old");
        let tokens = Tokens::load(file.path()).unwrap();
        fs::write(file.path(), "newer").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !tokens.has(b"newer") {
            assert!(Instant::now() < deadline, "the change was never seen");
            std::thread::yield_now();
        }
        assert!(!tokens.has(b"old"));
        fs::write(file.path(), "not a token\n").unwrap();
        tokens.reload();
        assert!(tokens.has(b"newer"));
    }

    #[test]
    fn a_file_that_is_emptied_or_removed_revokes_its_tokens() {
        for is_removed in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("tokens");
            fs::write(&path, "token").unwrap();
            let tokens = Tokens::load(&path).unwrap();
            if is_removed {
                fs::remove_file(&path).unwrap()
            } else {
                fs::write(&path, "\n").unwrap()
            }
            let begun = Instant::now();
            while tokens.has(b"token") {
                assert!(begun.elapsed() < Duration::from_secs(10), "the token is still valid");
                std::thread::yield_now();
            }
            assert!(begun.elapsed() > LOOK_EVERY, "one look at the file is not enough");
            fs::write(&path, "another").unwrap();
            tokens.reload();
            assert!(tokens.has(b"another") && !tokens.has(b"token"));
        }
    }

    #[test]
    fn files_that_hold_no_tokens_are_named() {
        assert!(matches!(Tokens::load(file("\n\n").path()), Err(Error::Empty { .. })));
        assert!(matches!(
            Tokens::load(file("good\nnot good\n").path()),
            Err(Error::Malformed { line: 2, .. })
        ));
        assert!(matches!(Tokens::load(Path::new("/nowhere/token")), Err(Error::Unreadable { .. })));
    }
}
