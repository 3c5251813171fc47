//! One file of the log.
//!
//! # Layout
//! ```text
//! segment  = header (64 bytes) frame* zero*            pre-zeroed to its full length before it is used
//! header   = magic u32, version u32, base u64, previous_end u64, first_position u64, created_ms u64, capacity u64,
//!            reserved 12 bytes, crc u32
//! frame    = frame header (32 bytes) record* padding to 32 bytes
//!            magic u32, length u32 (of the records), first_position u64, synced u64, count u32, crc u32
//! record   = length u32, crc u32 (of its address and body), body
//! ```
//! An address is `base` + offset in the file. Checksums cover addresses, so bytes that stand in the wrong place, or that
//! an earlier life of the file left behind, are never taken for good. `synced` says how far the log was durable when the
//! frame was written: that is how recovery tells a torn tail from damage.

use crate::disk::{Disk, File, read_exact_at};
use klambda_core::ids::{Address, Position};
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use std::io;
use std::sync::Arc;

pub const HEADER: u64 = 64;
pub const FRAME_HEADER: usize = 32;
pub const FRAME_ALIGN: u64 = 32;
pub const RECORD_HEADER: usize = 8;
pub const FORMAT_VERSION: u32 = 1;
const MAGIC: u32 = 0x6b6c_616d;
const FRAME_MAGIC: u32 = 0x6b6c_6672;

#[derive(Clone)]
pub struct Segment {
    pub file: Arc<dyn File>,
    pub base: Address,
    pub capacity: u64,
    /// Where the log ended in the segment before.
    pub previous_end: Address,
    pub first_position: Position,
    pub created: Millis,
}

impl Segment {
    pub fn name(base: Address) -> String {
        format!("log-{:016x}", base.0)
    }

    pub fn base_of(name: &str) -> Option<Address> {
        u64::from_str_radix(name.strip_prefix("log-")?, 16).ok().map(Address)
    }

    pub fn start(&self) -> Address {
        Address(self.base.0 + HEADER)
    }

    pub fn end(&self) -> Address {
        Address(self.base.0 + self.capacity)
    }

    pub fn offset(&self, at: Address) -> u64 {
        at.0 - self.base.0
    }

    /// Takes a zeroed file into use.
    pub fn begin(
        disk: &dyn Disk,
        spare: &str,
        file: Arc<dyn File>,
        segment: SegmentHeader,
    ) -> io::Result<Segment> {
        file.write_at(&segment.encode(), 0)?;
        disk.rename(spare, &Segment::name(segment.base))?;
        Ok(segment.with(file))
    }

    pub fn open(disk: &dyn Disk, base: Address) -> io::Result<Option<Segment>> {
        let file = disk.open(&Segment::name(base))?;
        let mut bytes = [0; HEADER as usize];
        if file.len()? < HEADER {
            return Ok(None);
        }
        read_exact_at(&*file, &mut bytes, 0)?;
        Ok(SegmentHeader::decode(&bytes).filter(|header| header.base == base).map(|header| header.with(file)))
    }

    /// A file that says nothing of itself, to look for frames in.
    pub(crate) fn without_header(disk: &dyn Disk, base: Address) -> io::Result<Segment> {
        let file = disk.open(&Segment::name(base))?;
        let nothing = SegmentHeader {
            base,
            capacity: file.len()?,
            previous_end: Address(u64::MAX),
            first_position: Position(0),
            created: Millis::ZERO,
        };
        Ok(nothing.with(file))
    }
}

/// No header says more: a petabyte of log, a terabyte of segment.
const ADDRESS_MAX: u64 = 1 << 50;
const CAPACITY_MAX: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub base: Address,
    pub capacity: u64,
    pub previous_end: Address,
    pub first_position: Position,
    pub created: Millis,
}

impl SegmentHeader {
    fn with(self, file: Arc<dyn File>) -> Segment {
        Segment {
            file,
            base: self.base,
            capacity: self.capacity,
            previous_end: self.previous_end,
            first_position: self.first_position,
            created: self.created,
        }
    }

    fn encode(&self) -> [u8; HEADER as usize] {
        let mut out = [0; HEADER as usize];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[8..16].copy_from_slice(&self.base.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.previous_end.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.first_position.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.created.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.capacity.to_le_bytes());
        let crc = crc32fast::hash(&out[..60]);
        out[60..64].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; HEADER as usize]) -> Option<SegmentHeader> {
        let good = u32_at(bytes, 0) == MAGIC
            && u32_at(bytes, 4) == FORMAT_VERSION
            && u32_at(bytes, 60) == crc32fast::hash(&bytes[..60])
            // Sums of addresses and capacities stay far below what a number can hold.
            && u64_at(bytes, 8) <= ADDRESS_MAX
            && u64_at(bytes, 40) <= CAPACITY_MAX;
        good.then(|| SegmentHeader {
            base: Address(u64_at(bytes, 8)),
            previous_end: Address(u64_at(bytes, 16)),
            first_position: Position(u64_at(bytes, 24)),
            created: Millis(u64_at(bytes, 32)),
            capacity: u64_at(bytes, 40),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of records, without header and padding.
    pub length: u32,
    /// The position the first event of this frame has, or would have.
    pub first_position: Position,
    pub synced: Address,
    pub count: u32,
}

impl FrameHeader {
    pub fn encode(&self, at: Address) -> [u8; FRAME_HEADER] {
        let mut out = [0; FRAME_HEADER];
        out[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..16].copy_from_slice(&self.first_position.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.synced.0.to_le_bytes());
        out[24..28].copy_from_slice(&self.count.to_le_bytes());
        let crc = checksum(at, &out[..28]);
        out[28..32].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8], at: Address) -> Option<FrameHeader> {
        let bytes: &[u8; FRAME_HEADER] = bytes.first_chunk()?;
        if u32_at(bytes, 0) != FRAME_MAGIC || u32_at(bytes, 28) != checksum(at, &bytes[..28]) {
            return None;
        }
        Some(FrameHeader {
            length: u32_at(bytes, 4),
            first_position: Position(u64_at(bytes, 8)),
            synced: Address(u64_at(bytes, 16)),
            count: u32_at(bytes, 24),
        })
    }

    /// Bytes from this frame's beginning to the next one's.
    pub fn stride(&self) -> u64 {
        (FRAME_HEADER as u64 + u64::from(self.length)).next_multiple_of(FRAME_ALIGN)
    }
}

/// The records of a frame: address and body of each. `None` as soon as something does not fit.
pub fn records(
    frame: &[u8],
    at: Address,
    header: &FrameHeader,
) -> Option<Vec<(Address, std::ops::Range<usize>)>> {
    let end = FRAME_HEADER + header.length as usize;
    let mut offset = FRAME_HEADER;
    // A wrong count must not reserve memory.
    let mut found = Vec::with_capacity(header.count.min(header.length / RECORD_HEADER as u32) as usize);
    while offset < end {
        let address = Address(at.0 + offset as u64);
        let body = record_body(frame.get(offset..end)?, address)?;
        let start = offset + RECORD_HEADER;
        offset = start + body.len();
        found.push((address, start..offset));
    }
    (found.len() == header.count as usize).then_some(found)
}

/// The body of the record that begins at `bytes`, if it is whole and right.
pub fn record_body(bytes: &[u8], at: Address) -> Option<&[u8]> {
    let header: &[u8; RECORD_HEADER] = bytes.first_chunk()?;
    let length = u32_at(header, 0) as usize;
    let body = bytes.get(RECORD_HEADER..RECORD_HEADER.checked_add(length)?)?;
    (u32_at(header, 4) == checksum(at, body) || planted::is_on(Bug::ChecksumIgnored)).then_some(body)
}

pub fn checksum(at: Address, body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&at.0.to_le_bytes());
    crc.update(&(body.len() as u32).to_le_bytes());
    crc.update(body);
    crc.finalize()
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
