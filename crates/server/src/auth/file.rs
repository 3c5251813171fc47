//! The tokens of the token file, one per line. Each of them is an admin. The file may change while the server runs: it is
//! read again within a second of a change, or immediately on request.

use klambda_core::os_error::in_words;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, fs, io};
use subtle::{Choice, ConstantTimeEq};

pub struct Tokens {
    path: PathBuf,
    current: RwLock<Loaded>,
    started: Instant,
    /// Milliseconds since `started` of the last check of the file.
    looked: AtomicU64,
}

struct Loaded {
    tokens: Vec<Box<[u8]>>,
    stamp: Stamp,
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

/// Together with the check interval of open streams, this is less than the second within which a revoked token must stop
/// working.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Tokens {
    pub fn load(path: &Path) -> Result<Tokens, Error> {
        let loaded = Loaded::read(path)?;
        Ok(Tokens {
            path: path.to_owned(),
            current: RwLock::new(loaded),
            started: Instant::now(),
            looked: AtomicU64::new(0),
        })
    }

    /// Whether this is one of the tokens.
    pub fn has(&self, given: &[u8]) -> bool {
        self.look_again();
        self.knows(given)
    }

    /// Reads the file now. If the file is unusable, the old tokens stay valid, so that a half-written file locks nobody
    /// out. The server logs a warning.
    pub fn reload(&self) {
        match Loaded::read(&self.path) {
            Ok(loaded) => {
                let count = loaded.tokens.len();
                *self.current.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = loaded;
                tracing::info!(count, "Token file loaded");
            }
            Err(error) => tracing::warn!(%error, "Could not load the token file; keeping the old tokens"),
        }
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
        if Stamp::of(&self.path).is_ok_and(|now| now != stamp) {
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
        let stamp = Stamp::of(path).map_err(unreadable)?;
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
        fs::write(file.path(), " \n").unwrap();
        tokens.reload();
        assert!(tokens.has(b"newer"));
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
