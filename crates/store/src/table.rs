//! An immutable file of rows in key order. A row has a key and either a value or a tombstone.
//!
//! # Constraints
//! - Written once from front to back, synced, never changed. The caller makes its name durable and records it in a
//!   list.
//! - Memory use is small for any number of rows. An open table keeps only the top block (about 100 bytes per 2 MB)
//!   and its filters, if it has any (10 bits per row). Everything else is read on demand.
//! - Checksums cover every byte, and every read from the disk verifies them.
//!
//! # Layout
//! ```text
//! file   = group* top footer                    nothing between, nothing after
//! group  = data+ index filter?
//! data   = rows crc                             about 8 KiB; longer if one row is
//! index  = rows crc                             about 2 KiB; one row per data block: separator -> length of the block
//! filter = bits crc                             a Bloom filter over the group's keys, see `bloom`
//! top    = smallest largest rows crc            one row per group: separator -> lengths of its data, index, filter
//! footer = 128 bytes, crc included              see `Footer`
//! crc    = CRC-32 of the block's offset in the file (8 bytes) and the block, 4 bytes
//! ```
//! Integers are little-endian. Lengths inside blocks are varints and include the checksum. The module `block`
//! describes the rows. Offsets are not stored: each block begins where the previous one ends. A separator is the
//! shortest key that is greater than every key before its block and not greater than any key in it.
//!
//! # Failure
//! - An unfinished file has no footer and does not open.
//! - A wrong checksum or an impossible length is `Error::Damaged` with the location. A read never returns partial or
//!   guessed data: it is correct or an error. No file content can cause a panic.
//! - A footer of another format version is `Error::Version`. The size, place and checksum of the footer never change.
//! - An I/O error is returned as `Error::Io`; the table stays usable.

mod block;
mod cursor;
mod layout;
mod verify;
mod writer;

pub(crate) use cursor::Merged;
pub use cursor::{Row, Scan};
pub use writer::{Options, Writer};

use crate::disk::{Disk, File};
use block::{Rows, visit_up_to};
use klambda_core::os_error::in_words;
use klambda_core::time::Millis;
use layout::{Extent, Footer, Group, Source, Top, VERSION};
use siphasher::sip::SipHasher13;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle to a table. Clones share the open file.
#[derive(Clone)]
pub struct Table(Arc<Inner>);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{file} is damaged at byte {offset}: {what}")]
    Damaged { file: String, offset: u64, what: &'static str },
    #[error("{file} has table format {found}, but this version supports only format {VERSION}")]
    Version { file: String, found: u32 },
    #[error("{file}: {}", in_words(source))]
    Io { file: String, source: io::Error },
}

impl Error {
    /// True if file names may be lost, so that only a restart shows the state of the folder.
    pub fn are_names_lost(&self) -> bool {
        matches!(self, Error::Io { source, .. } if crate::disk::are_names_lost(source))
    }
}

/// The time span of the rows in a table, as set by its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub min: Millis,
    pub max: Millis,
}

struct Inner {
    source: Source,
    footer: Footer,
    top: Top,
    /// The index block that was read last, with the number of its group. A small table has only one.
    recent: Mutex<Option<(usize, Arc<Vec<u8>>)>>,
}

impl Table {
    pub fn open(disk: &dyn Disk, name: &str) -> Result<Table, Error> {
        let file = disk.open(name).map_err(|source| Error::Io { file: name.to_owned(), source })?;
        Table::load(name, file)
    }

    /// Looks up a key: `None` if absent, `Some(None)` for a tombstone, else the value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Option<Vec<u8>>>, Error> {
        self.get_hashed(key, hash(key))
    }

    /// Like `get`, for callers that search several tables with the same hash.
    pub(crate) fn get_hashed(&self, key: &[u8], hash: u64) -> Result<Option<Option<Vec<u8>>>, Error> {
        let Some(extent) = self.find_block(key, hash)? else { return Ok(None) };
        let block = self.0.source.read_block(extent)?;
        let mut found = None;
        let visited = visit_up_to(&block, key, |value, here| {
            found = here.then_some(value);
            Ok(())
        });
        visited.map_err(|what| self.0.source.damaged(extent.offset, what))?;
        Ok(found.map(|value| value.map(<[u8]>::to_vec)))
    }

    /// The rows from this key on, in order, including tombstones. Ends after an error.
    pub fn scan(&self, from: &[u8]) -> Scan {
        Scan::new(std::slice::from_ref(self), from)
    }

    pub fn name(&self) -> &str {
        &self.0.source.name
    }

    /// The open file. It stays readable even if its name is removed.
    pub fn file(&self) -> Arc<dyn File> {
        self.0.source.file.clone()
    }

    /// Number of rows, including tombstones.
    pub fn rows(&self) -> u64 {
        self.0.footer.rows
    }

    pub fn tombstones(&self) -> u64 {
        self.0.footer.tombstones
    }

    pub fn bytes(&self) -> u64 {
        self.0.source.len
    }

    pub fn times(&self) -> Option<Times> {
        self.0.footer.times
    }

    pub fn has_filters(&self) -> bool {
        self.0.top.groups.iter().any(|group| group.filter.is_some())
    }

    /// Memory used by the open table.
    pub fn memory_bytes(&self) -> u64 {
        let groups = self.0.top.groups.iter().map(|group| {
            let filter = group.filter.as_ref().map_or(0, |filter| filter.as_bytes().len());
            size_of::<Group>() + group.separator.len() + filter
        });
        let recent = lock(&self.0.recent).as_ref().map_or(0, |(_, index)| index.capacity());
        let fixed = size_of::<Inner>() + self.0.top.smallest.len() + self.0.top.largest.len();
        (fixed + groups.sum::<usize>() + recent) as u64
    }

    fn load(name: &str, file: Arc<dyn File>) -> Result<Table, Error> {
        let source = Source::new(name, file)?;
        let footer = Footer::read(&source)?;
        let top = Top::read(&source, footer.top())?;
        Ok(Table(Arc::new(Inner { source, footer, top, recent: Mutex::new(None) })))
    }

    /// The only data block that can contain the key.
    fn find_block(&self, key: &[u8], hash: u64) -> Result<Option<Extent>, Error> {
        let Top { groups, smallest, largest } = &self.0.top;
        if *key < **smallest || *key > **largest {
            return Ok(None);
        }
        let Some(number) = self.group_of(key) else { return Ok(None) };
        let group = &groups[number];
        if group.filter.as_ref().is_some_and(|filter| !filter.may_contain(hash)) {
            return Ok(None);
        }
        let mut found = Extent { offset: group.data_offset, len: 0 };
        let visited = visit_up_to(&self.recent_index(number)?, key, |value, _| {
            found = group.next_block(found, value)?;
            Ok(())
        });
        visited.map_err(|what| self.0.source.damaged(group.index.offset, what))?;
        Ok((found.len > 0).then_some(found))
    }

    /// The last group whose separator is not greater than the key.
    fn group_of(&self, key: &[u8]) -> Option<usize> {
        self.0.top.groups.partition_point(|group| *group.separator <= *key).checked_sub(1)
    }

    /// The data blocks of the group, starting with the one that can contain `from`.
    fn blocks_from(&self, group: usize, from: &[u8]) -> Result<Vec<Extent>, Error> {
        let mut extents = Vec::new();
        self.visit_index(group, |separator, extent| {
            if separator <= from {
                extents.clear();
            }
            extents.push(extent);
        })?;
        Ok(extents)
    }

    /// Passes the separator and extent of every data block of the group to `each`.
    fn visit_index(&self, number: usize, mut each: impl FnMut(&[u8], Extent)) -> Result<(), Error> {
        let group = &self.0.top.groups[number];
        let bad = |what| self.0.source.damaged(group.index.offset, what);
        let mut rows = Rows::new(self.read_index(number)?);
        let mut extent = Extent { offset: group.data_offset, len: 0 };
        while rows.advance().map_err(bad)? {
            extent = group.next_block(extent, rows.value()).map_err(bad)?;
            each(rows.key(), extent);
        }
        match extent.end() == Some(group.index.offset) {
            true => Ok(()),
            false => Err(bad("the blocks do not fill their group")),
        }
    }

    fn read_index(&self, group: usize) -> Result<Vec<u8>, Error> {
        self.0.source.read_block(self.0.top.groups[group].index)
    }

    fn recent_index(&self, group: usize) -> Result<Arc<Vec<u8>>, Error> {
        if let Some((_, index)) = lock(&self.0.recent).as_ref().filter(|(of, _)| *of == group) {
            return Ok(Arc::clone(index));
        }
        // Read without holding the lock, so that other readers do not wait for the disk.
        let index = Arc::new(self.read_index(group)?);
        *lock(&self.0.recent) = Some((group, Arc::clone(&index)));
        Ok(index)
    }
}

impl Times {
    pub fn union(self, other: Times) -> Times {
        Times { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// This hash is part of the file format: the filters contain it.
pub(crate) fn hash(key: &[u8]) -> u64 {
    SipHasher13::new_with_keys(0x6b6c_616d_6264_6121, 0x7461_626c_6573_2e31).hash(key)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The content is a cached copy of bytes on the disk. A panic cannot leave it half written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
