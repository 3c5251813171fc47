//! The disk interface: the few operations that the store needs. A simulator can implement it and tear, fail and
//! reorder the operations.
//!
//! The disk is one flat folder; names contain no slashes. A write is durable only after `File::sync`. A created,
//! renamed or removed name is durable only after `Disk::sync_names`.

use klambda_core::os_error::in_words;
use std::io;
use std::sync::Arc;

pub trait Disk: Send + Sync {
    /// Creates the file, or truncates an existing one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens for reading and writing; fails with `NotFound` if the file does not exist.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    fn list(&self) -> io::Result<Vec<String>>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Replaces `to` atomically.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// If this fails while names are unsynced, some names are lost. It then keeps failing until the folder is
    /// reopened.
    fn sync_names(&self) -> io::Result<()>;
    /// Number of bytes that can still be written, if known.
    fn free_bytes(&self) -> Option<u64>;
}

pub trait File: Send + Sync {
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// When this returns, data and length are on the disk. After an error, the state of all unsynced writes is
    /// unknown.
    fn sync(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    /// A hint that nothing will read this file soon, so its cached pages can be released.
    fn uncache(&self) {}
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Reads exactly `buf.len()` bytes or fails with `UnexpectedEof`.
pub fn read_exact_at(file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    match file.read_at(buf, offset)? {
        n if n == buf.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A sync of names failed. Names may be lost, and only a restart can continue.
#[derive(Debug, thiserror::Error)]
#[error("could not sync file names: {}", in_words(.0))]
struct NamesLost(#[source] io::Error);

/// Like `Disk::sync_names`, but returns an error that `are_names_lost` recognizes.
pub fn sync_names(disk: &dyn Disk) -> io::Result<()> {
    disk.sync_names().map_err(|source| io::Error::other(NamesLost(source)))
}

pub fn are_names_lost(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|source| source.is::<NamesLost>())
}
