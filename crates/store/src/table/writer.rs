//! Writes a table from rows in key order. Uses memory for a few blocks, the top block, and the hashes of one group.

use super::block::{Builder, CRC_BYTES, checksum, shared_len};
use super::layout::{FOOTER_BYTES, Footer};
use super::{Error, Table, Times, hash};
use crate::bloom::Filter;
use crate::disk::{Disk, File};
use klambda_core::planted::{self, Bug};
use klambda_core::wire::{put_bytes, put_varint};
use std::io;
use std::sync::Arc;

const DATA_BLOCK_BYTES: usize = 8 << 10;
const INDEX_BLOCK_BYTES: usize = 2 << 10;
const WRITE_BYTES: usize = 256 << 10;
/// Syncs after this many bytes. One long sync at the end would delay the syncs of the log.
const SYNC_BYTES: u64 = 4 << 20;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Write Bloom filters, which an open table keeps in memory. Useful if most lookups are for absent keys.
    pub bloom: bool,
}

pub struct Writer {
    out: Output,
    options: Options,
    data: Builder,
    index: Builder,
    top: Builder,
    /// Separators of the current data block and the current group.
    block_separator: Vec<u8>,
    group_separator: Vec<u8>,
    group_offset: u64,
    hashes: Vec<u64>,
    smallest: Vec<u8>,
    last_key: Vec<u8>,
    rows: u64,
    tombstones: u64,
    times: Option<Times>,
}

impl Writer {
    /// Creates the file, or truncates an existing one of this name.
    pub fn new(disk: &dyn Disk, name: &str, options: Options) -> Result<Writer, Error> {
        let file = disk.create(name).map_err(|source| Error::Io { file: name.to_owned(), source })?;
        Ok(Writer {
            out: Output { name: name.to_owned(), file, buffer: Vec::new(), written: 0, synced: 0 },
            options,
            data: Builder::default(),
            index: Builder::default(),
            top: Builder::default(),
            block_separator: Vec::new(),
            group_separator: Vec::new(),
            group_offset: 0,
            hashes: Vec::new(),
            smallest: Vec::new(),
            last_key: Vec::new(),
            rows: 0,
            tombstones: 0,
            times: None,
        })
    }

    /// Adds a row, or a tombstone if there is no value. Keys must ascend strictly. After an error, the file is
    /// unusable and should be removed.
    pub fn add(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        assert!(self.rows == 0 || *self.last_key < *key, "table {}: keys must ascend", self.out.name);
        if self.rows == 0 {
            self.smallest = key.to_vec();
        }
        if self.data.is_empty() {
            self.begin_block(key);
        }
        self.data.push(key, value);
        self.rows += 1;
        self.tombstones += u64::from(value.is_none());
        if self.options.bloom {
            self.hashes.push(hash(key));
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        if self.data.len() >= DATA_BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    /// Sets the result of `Table::times`. A table without times never expires.
    pub fn set_times(&mut self, times: Option<Times>) {
        self.times = times;
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the table with its bytes synced. The caller syncs the name, once for several tables.
    pub fn finish(mut self) -> Result<Table, Error> {
        self.end_block()?;
        self.end_group()?;
        let top_offset = self.out.position();
        let top_len = self.write_top()?;
        let file_len = top_offset + top_len + FOOTER_BYTES as u64;
        let Writer { rows, tombstones, times, .. } = self;
        let footer = Footer { top_offset, top_len, file_len, rows, tombstones, times };
        self.out.append_block(&footer.encode())?;
        self.out.finish()?;
        Table::load(&self.out.name, self.out.file)
    }

    fn begin_block(&mut self, first: &[u8]) {
        let len = if self.rows == 0 { 0 } else { shared_len(&self.last_key, first) + 1 };
        self.block_separator.clear();
        self.block_separator.extend_from_slice(&first[..len]);
        if self.index.is_empty() {
            self.group_separator.clone_from(&self.block_separator);
        }
    }

    fn end_block(&mut self) -> Result<(), Error> {
        if self.data.is_empty() {
            return Ok(());
        }
        let mut len = Vec::new();
        put_varint(&mut len, self.out.append_block(self.data.bytes())?);
        self.data.clear();
        self.index.push(&self.block_separator, Some(&len));
        if self.index.len() >= INDEX_BLOCK_BYTES { self.end_group() } else { Ok(()) }
    }

    fn end_group(&mut self) -> Result<(), Error> {
        if self.index.is_empty() {
            return Ok(());
        }
        let data_len = self.out.position() - self.group_offset;
        let index_len = self.out.append_block(self.index.bytes())?;
        let filter_len = match self.options.bloom {
            true => self.out.append_block(Filter::build(&self.hashes).as_bytes())?,
            false => 0,
        };
        let mut lens = Vec::new();
        [data_len, index_len, filter_len].iter().for_each(|len| put_varint(&mut lens, *len));
        self.top.push(&self.group_separator, Some(&lens));
        self.index.clear();
        self.hashes.clear();
        self.group_offset = self.out.position();
        Ok(())
    }

    fn write_top(&mut self) -> Result<u64, Error> {
        let mut top = Vec::new();
        put_bytes(&mut top, &self.smallest);
        put_bytes(&mut top, &self.last_key);
        top.extend_from_slice(self.top.bytes());
        self.out.append_block(&top)
    }
}

/// Writes the file sequentially in large writes.
struct Output {
    name: String,
    file: Arc<dyn File>,
    buffer: Vec<u8>,
    written: u64,
    synced: u64,
}

impl Output {
    fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends the bytes and their checksum. Returns the length of both.
    fn append_block(&mut self, bytes: &[u8]) -> Result<u64, Error> {
        let crc = checksum(self.position(), bytes);
        self.buffer.extend_from_slice(bytes);
        self.buffer.extend_from_slice(&crc.to_le_bytes());
        if self.buffer.len() >= WRITE_BYTES {
            self.write().map_err(|source| self.failed(source))?;
        }
        Ok((bytes.len() + CRC_BYTES) as u64)
    }

    fn finish(&mut self) -> Result<(), Error> {
        if planted::is_on(Bug::TableUnsynced) {
            return self.write().map_err(|source| self.failed(source));
        }
        self.write().and_then(|()| self.file.sync()).map_err(|source| self.failed(source))
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write_at(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        if self.written - self.synced >= SYNC_BYTES {
            self.file.sync()?;
            self.synced = self.written;
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Io { file: self.name.clone(), source }
    }
}
