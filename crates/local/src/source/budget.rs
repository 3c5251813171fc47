//! The remaining budget of a fetch: bytes, files and time. Every write is deducted first.

use super::{Error, Fetched, Limits};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

#[derive(Clone, Debug)]
pub struct Budget {
    bytes_max: u64,
    files_max: u64,
    bytes: u64,
    files: u64,
    limits: Limits,
    deadline: Instant,
}

/// Below this size an archive may unpack to any multiple of its size, because text compresses well.
const RATIO_FREE_BYTES: u64 = 16 << 20;

impl Budget {
    pub fn new(limits: &Limits, deadline: Instant) -> Budget {
        Budget {
            bytes_max: limits.unpacked_bytes,
            files_max: limits.files,
            bytes: 0,
            files: 0,
            limits: limits.clone(),
            deadline,
        }
    }

    /// The budget for an archive of this size: limits the unpacked size to the allowed ratio.
    pub fn of_archive(limits: &Limits, packed_bytes: u64, deadline: Instant) -> Budget {
        let allowed = packed_bytes.saturating_mul(limits.ratio).max(RATIO_FREE_BYTES);
        Budget { bytes_max: limits.unpacked_bytes.min(allowed), ..Budget::new(limits, deadline) }
    }

    /// Deducts one entry of any kind.
    pub fn entry(&mut self) -> Result<(), Error> {
        self.files += 1;
        if self.files > self.files_max {
            return Err(Error::TooLarge(format!(
                "more than {} files; remove files that the function does not need",
                self.files_max
            )));
        }
        self.in_time()
    }

    pub fn take(&mut self, bytes: u64) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.bytes_max {
            let what = match self.bytes_max < self.limits.unpacked_bytes {
                true => format!("the archive unpacks to more than {} times its size", self.limits.ratio),
                false => format!("more than {} bytes unpacked", self.bytes_max),
            };
            return Err(Error::TooLarge(what));
        }
        self.in_time()
    }

    fn in_time(&self) -> Result<(), Error> {
        match Instant::now() > self.deadline {
            true => Err(Error::Timeout(self.limits.time)),
            false => Ok(()),
        }
    }

    /// Copies a file in chunks, so that a wrong size in a header is detected before the disk is full.
    pub fn copy(&mut self, from: &mut impl Read, to: &mut impl Write) -> Result<(), Error> {
        let mut piece = vec![0; 64 << 10];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    self.take(count as u64)?;
                    to.write_all(&piece[..count])?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::BadArchive(error.to_string())),
            }
        }
    }

    pub fn fetched(&self) -> Fetched {
        Fetched { files: self.files, bytes: self.bytes, revision: None }
    }
}

/// A relative path of plain names. Only such paths are written.
pub fn plain_path(path: &Path) -> Result<PathBuf, Error> {
    let escapes = || Error::UnsafeArchive(format!("the path {path:?} leaves the folder"));
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(escapes()),
        }
    }
    let bytes = path.as_os_str().as_encoded_bytes();
    // A backslash is a separator on other systems, and a NUL ends a name early.
    if bytes.iter().any(|byte| matches!(byte, b'\\' | 0)) {
        return Err(escapes());
    }
    Ok(plain)
}

/// Whether a link at `at` (a plain path through real folders) to `target` stays inside the folder. `..` is allowed only at
/// the start of the target: after a name, it could start from wherever another link leads.
pub fn link_stays_inside(at: &Path, target: &Path) -> bool {
    let mut depth = at.components().count().saturating_sub(1);
    let mut named = false;
    for component in target.components() {
        match component {
            Component::Normal(_) => named = true,
            Component::CurDir => {}
            Component::ParentDir if !named && depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}
