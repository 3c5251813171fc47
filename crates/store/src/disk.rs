//! The disk seam: the handful of operations the store needs, so that a simulator can tear, fail and reorder them.
//!
//! One flat folder, names without slashes. A write is durable only after `File::sync`; a created, renamed or
//! removed name only after `Disk::sync_names`.

use std::io;
use std::sync::Arc;

pub trait Disk: Send + Sync {
    /// Creates the file, or empties it if it is there.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens for reading and writing; `NotFound` if it is not there.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    fn list(&self) -> io::Result<Vec<String>>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Replaces `to` atomically.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Once it failed with names to sync, it fails until the folder is opened again: some of them are lost.
    fn sync_names(&self) -> io::Result<()>;
    /// Bytes that can still be written, if the disk can tell.
    fn free_bytes(&self) -> Option<u64>;
}

pub trait File: Send + Sync {
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Data and length are on the disk when this returns. After an error nothing may be assumed of any unsynced write.
    fn sync(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    /// Nobody will read this soon: the memory that caches it can be used for something else. A hint, no more.
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

/// Names may be lost with this: there is no way to go on without a restart.
#[derive(Debug, thiserror::Error)]
#[error("names could not be made durable: {0}")]
struct NamesLost(#[source] io::Error);

/// As `Disk::sync_names`, with an error that `are_names_lost` knows.
pub fn sync_names(disk: &dyn Disk) -> io::Result<()> {
    disk.sync_names().map_err(|source| io::Error::other(NamesLost(source)))
}

pub fn are_names_lost(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|source| source.is::<NamesLost>())
}
