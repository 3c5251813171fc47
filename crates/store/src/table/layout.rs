//! The fixed parts of a table file: reading of checked blocks, the footer, and the top block.

use super::block::{CRC_BYTES, Rows, unseal};
use super::{Error, Times};
use crate::bloom::Filter;
use crate::disk::{File, read_exact_at};
use klambda_core::time::Millis;
use klambda_core::wire::Reader;
use std::io;
use std::sync::Arc;

pub(super) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"klambdaT";
pub(super) const FOOTER_BYTES: usize = 128;
const FOOTER_PAYLOAD_BYTES: usize = FOOTER_BYTES - CRC_BYTES;
const VERSION_AT: usize = FOOTER_PAYLOAD_BYTES - MAGIC.len() - 4;

/// The end of the file: these fields in order, zeros, `VERSION` as 4 bytes, `MAGIC`, the checksum.
#[derive(Clone, Copy)]
pub(super) struct Footer {
    pub(super) top_offset: u64,
    pub(super) top_len: u64,
    pub(super) file_len: u64,
    pub(super) rows: u64,
    pub(super) tombstones: u64,
    /// Stored as two numbers. Without times, the minimum is greater than the maximum.
    pub(super) times: Option<Times>,
}

/// The part of an open table that stays in memory.
pub(super) struct Top {
    pub(super) groups: Vec<Group>,
    pub(super) smallest: Box<[u8]>,
    pub(super) largest: Box<[u8]>,
}

/// A run of data blocks with the index block that lists them.
pub(super) struct Group {
    pub(super) separator: Box<[u8]>,
    pub(super) data_offset: u64,
    pub(super) index: Extent,
    pub(super) filter: Option<Filter>,
}

#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) len: u64,
}

pub(super) struct Source {
    pub(super) name: String,
    pub(super) file: Arc<dyn File>,
    pub(super) len: u64,
}

impl Source {
    pub(super) fn new(name: &str, file: Arc<dyn File>) -> Result<Source, Error> {
        let len = file.len().map_err(|source| Error::Io { file: name.to_owned(), source })?;
        Ok(Source { name: name.to_owned(), file, len })
    }

    pub(super) fn damaged(&self, offset: u64, what: &'static str) -> Error {
        Error::Damaged { file: self.name.clone(), offset, what }
    }

    /// Reads a block, verifies its checksum and removes it.
    pub(super) fn read_block(&self, extent: Extent) -> Result<Vec<u8>, Error> {
        let Extent { offset, len } = extent;
        // A length from a damaged file must not allocate unlimited memory.
        let fits = extent.end().is_some_and(|end| end <= self.len);
        let len = usize::try_from(len).ok().filter(|_| fits);
        let len = len.ok_or_else(|| self.damaged(offset, "a block extends beyond the end of the file"))?;
        let mut block = vec![0; len];
        match read_exact_at(&*self.file, &mut block, offset) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(self.damaged(offset, "the file is shorter than before"));
            }
            Err(source) => return Err(Error::Io { file: self.name.clone(), source }),
        }
        unseal(&mut block, offset).map_err(|what| self.damaged(offset, what))?;
        Ok(block)
    }
}

impl Extent {
    pub(super) fn end(self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

impl Group {
    /// The data block after `before`, from its value in the index.
    pub(super) fn next_block(&self, before: Extent, value: Option<&[u8]>) -> Result<Extent, &'static str> {
        let [len] = value.and_then(varints).ok_or("a block has no length")?;
        let next = Extent { offset: before.offset + before.len, len };
        match len > 0 && next.end().is_some_and(|end| end <= self.index.offset) {
            true => Ok(next),
            false => Err("a block extends beyond its group"),
        }
    }
}

impl Footer {
    pub(super) fn read(source: &Source) -> Result<Footer, Error> {
        let len = FOOTER_BYTES as u64;
        let offset = source
            .len
            .checked_sub(len)
            .ok_or_else(|| source.damaged(0, "the file is shorter than a footer"))?;
        let bytes = source.read_block(Extent { offset, len })?;
        let footer = Footer::decode(&bytes).map_err(|version| match version {
            Some(found) => Error::Version { file: source.name.clone(), found },
            None => source.damaged(offset, "the file has no table footer"),
        })?;
        let fits = footer.file_len == source.len && footer.top().end() == Some(offset);
        if fits { Ok(footer) } else { Err(source.damaged(offset, "the footer does not match the file")) }
    }

    pub(super) fn top(&self) -> Extent {
        Extent { offset: self.top_offset, len: self.top_len }
    }

    pub(super) fn encode(&self) -> [u8; FOOTER_PAYLOAD_BYTES] {
        let times = self.times.unwrap_or(Times { min: Millis::NEVER, max: Millis::ZERO });
        let counts = [self.top_offset, self.top_len, self.file_len, self.rows, self.tombstones];
        let fields = counts.into_iter().chain([times.min.0, times.max.0]);
        let mut bytes = [0; FOOTER_PAYLOAD_BYTES];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes[VERSION_AT..VERSION_AT + 4].copy_from_slice(&VERSION.to_le_bytes());
        bytes[VERSION_AT + 4..].copy_from_slice(&MAGIC);
        bytes
    }

    /// The fields, or the version if it is a different one.
    fn decode(bytes: &[u8]) -> Result<Footer, Option<u32>> {
        let (fields, tail) = bytes.split_at_checked(VERSION_AT).ok_or(None)?;
        let (version, magic) = tail.split_first_chunk().ok_or(None)?;
        if magic != MAGIC {
            return Err(None);
        }
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Some(u32::from_le_bytes(*version)));
        }
        let mut fields = fields.as_chunks().0.iter().map(|field| u64::from_le_bytes(*field));
        let mut next = || fields.next().ok_or(None);
        let (top_offset, top_len, file_len) = (next()?, next()?, next()?);
        let (rows, tombstones) = (next()?, next()?);
        let times = Times { min: Millis(next()?), max: Millis(next()?) };
        let times = (times.min <= times.max).then_some(times);
        Ok(Footer { top_offset, top_len, file_len, rows, tombstones, times })
    }
}

impl Top {
    pub(super) fn read(source: &Source, extent: Extent) -> Result<Top, Error> {
        let top = source.read_block(extent)?;
        let bad = |what| source.damaged(extent.offset, what);
        let mut reader = Reader::new(&top);
        let mut bound =
            || reader.bytes().map_err(|_| bad("the smallest or largest key is missing")).map(Into::into);
        let (smallest, largest) = (bound()?, bound()?);
        let mut rows = Rows::new(reader.rest());
        let mut groups = Vec::new();
        let mut offset = 0;
        while rows.advance().map_err(bad)? {
            let lens = rows.value().and_then(varints);
            let [data, index, filter] = lens.ok_or_else(|| bad("a group has no lengths"))?;
            let fits = [data, index, filter].iter().try_fold(offset, |end: u64, len| end.checked_add(*len));
            let end = fits
                .filter(|end| *end <= extent.offset)
                .ok_or_else(|| bad("a group extends beyond the top block"))?;
            let index = Extent { offset: offset + data, len: index };
            let filter = read_filter(source, Extent { offset: end - filter, len: filter })?;
            groups.push(Group { separator: rows.key().into(), data_offset: offset, index, filter });
            offset = end;
        }
        groups.shrink_to_fit();
        match offset == extent.offset {
            true => Ok(Top { groups, smallest, largest }),
            false => Err(bad("the groups do not fill the file")),
        }
    }
}

/// Parses exactly N varints.
fn varints<const N: usize>(value: &[u8]) -> Option<[u64; N]> {
    let (mut numbers, mut reader) = ([0; N], Reader::new(value));
    for number in &mut numbers {
        *number = reader.varint().ok()?;
    }
    reader.is_empty().then_some(numbers)
}

fn read_filter(source: &Source, extent: Extent) -> Result<Option<Filter>, Error> {
    if extent.len == 0 {
        return Ok(None);
    }
    let bytes = source.read_block(extent)?;
    let filter = Filter::from_bytes(&bytes)
        .ok_or_else(|| source.damaged(extent.offset, "a filter has an invalid length"))?;
    Ok(Some(filter))
}
