//! A consistent copy of the data folder of a running engine, as a tar archive. Unpacked into an empty folder it is a
//! data folder, so restoring means unpacking and starting.
//!
//! Tables never change, and only the durable part of the log is copied, padded with zeros like a fresh segment. All
//! files are opened at one instant, so later changes, even a deleted file, do not affect the copy.

use crate::engine::Engine;
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::disk::File;
use klambda_store::manifest::{self, Manifest};
use klambda_store::segment::Segment;
use klambda_store::witness;
use std::io::{self, Read, Write};
use std::sync::Arc;

pub struct Snapshot {
    manifest: Manifest,
    tables: Vec<(String, Arc<dyn File>)>,
    segments: Vec<Segment>,
    durable: LogAddress,
    taken: Millis,
    /// Files beside those of the store, with their names.
    added: Vec<(String, Vec<u8>)>,
}

impl Engine {
    pub fn snapshot(&self) -> Snapshot {
        let tables = self.store.rows.tables().tables().iter().chain(self.store.marks.tables().tables());
        let durable = self.store.log.synced();
        let mut segments = self.store.log.segments();
        // A segment without durable records is created again after a restore.
        segments.retain(|segment| segment.base <= durable);
        Snapshot {
            manifest: self.store.manifest.clone(),
            tables: tables.map(|table| (table.name().to_owned(), table.file())).collect(),
            segments,
            durable,
            taken: self.now,
            added: Vec::new(),
        }
    }
}

impl Snapshot {
    /// Adds a file to the copy. Its name must differ from those of the store's own files.
    pub fn add_file(&mut self, name: &str, content: Vec<u8>) {
        self.added.push((name.to_owned(), content));
    }

    /// The number of bytes to be written, without the headers of the archive.
    pub fn bytes(&self) -> io::Result<u64> {
        let tables: u64 = self.tables.iter().map(|(_, file)| file.len()).sum::<io::Result<u64>>()?;
        Ok(tables + self.segments.iter().map(|segment| segment.capacity).sum::<u64>())
    }

    /// Blocks until everything is written. The manifest comes last, so a truncated copy has none and is rejected.
    pub fn write_tar(&self, out: impl Write) -> io::Result<()> {
        self.write_tar_after(out, |_| Ok(()))
    }

    /// The same, with files of other parts before it.
    pub fn write_tar_after<W: Write>(
        &self,
        out: W,
        before: impl FnOnce(&mut tar::Builder<W>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut archive = tar::Builder::new(out);
        before(&mut archive)?;
        for (name, file) in &self.tables {
            let length = file.len()?;
            self.append(&mut archive, name, length, Part { file: &**file, at: 0, end: length, length })?;
        }
        for segment in &self.segments {
            let end = self.durable.min(segment.end());
            let part =
                Part { file: &*segment.file, at: 0, end: segment.offset(end), length: segment.capacity };
            self.append(&mut archive, &Segment::name(segment.base), segment.capacity, part)?;
        }
        for (name, content) in &self.added {
            self.append(&mut archive, name, content.len() as u64, content.as_slice())?;
        }
        // Everything copied was durable, so an unreadable end of a copy is never an unfinished write.
        let synced = witness::encode(self.durable);
        self.append(&mut archive, witness::NAME, synced.len() as u64, synced.as_slice())?;
        let manifest = self.manifest.encode()?;
        self.append(&mut archive, manifest::NAME, manifest.len() as u64, manifest.as_slice())?;
        archive.into_inner()?.flush()
    }

    fn append<W: Write>(
        &self,
        archive: &mut tar::Builder<W>,
        name: &str,
        length: u64,
        content: impl Read,
    ) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(length);
        header.set_mode(0o600);
        header.set_mtime(self.taken.0 / 1000);
        archive.append_data(&mut header, name, content)
    }
}

/// The beginning of a file, padded with zeros.
struct Part<'a> {
    file: &'a dyn File,
    at: u64,
    end: u64,
    length: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let until = if self.at < self.end { self.end } else { self.length };
        let n = usize::try_from(until - self.at).unwrap_or(usize::MAX).min(buf.len());
        if self.at < self.end {
            klambda_store::disk::read_exact_at(self.file, &mut buf[..n], self.at)?;
        } else {
            buf[..n].fill(0);
        }
        self.at += n as u64;
        Ok(n)
    }
}
