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
//! An address is `base` plus the offset in the file. Checksums cover addresses, so bytes at the wrong place, or left
//! over from an earlier use of the file, are never accepted. `synced` is the address up to which the log was durable
//! when the frame was written. With it, recovery distinguishes a torn tail from damage.

use crate::address::LogAddress;
use crate::disk::{Disk, File, read_exact_at};
use klambda_core::ids::Position;
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
    pub base: LogAddress,
    pub capacity: u64,
    /// Where the log ended in the previous segment.
    pub previous_end: LogAddress,
    pub first_position: Position,
    pub created: Millis,
}

impl Segment {
    pub fn name(base: LogAddress) -> String {
        format!("log-{:016x}", base.0)
    }

    pub fn base_of(name: &str) -> Option<LogAddress> {
        u64::from_str_radix(name.strip_prefix("log-")?, 16).ok().map(LogAddress)
    }

    pub fn start(&self) -> LogAddress {
        LogAddress(self.base.0 + HEADER)
    }

    pub fn end(&self) -> LogAddress {
        LogAddress(self.base.0 + self.capacity)
    }

    pub fn offset(&self, at: LogAddress) -> u64 {
        at.0 - self.base.0
    }

    /// Starts to use a zeroed file as a segment.
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

    pub fn open(disk: &dyn Disk, base: LogAddress) -> io::Result<Option<Segment>> {
        let file = disk.open(&Segment::name(base))?;
        let mut bytes = [0; HEADER as usize];
        if file.len()? < HEADER {
            return Ok(None);
        }
        read_exact_at(&*file, &mut bytes, 0)?;
        Ok(SegmentHeader::decode(&bytes).filter(|header| header.base == base).map(|header| header.with(file)))
    }

    /// A file without a valid header, to search for frames.
    pub(crate) fn without_header(disk: &dyn Disk, base: LogAddress) -> io::Result<Segment> {
        let file = disk.open(&Segment::name(base))?;
        let nothing = SegmentHeader {
            base,
            capacity: file.len()?,
            previous_end: LogAddress(u64::MAX),
            first_position: Position(0),
            created: Millis::ZERO,
        };
        Ok(nothing.with(file))
    }
}

/// Limits for the values in a header: a petabyte of log, a terabyte per segment.
const ADDRESS_MAX: u64 = 1 << 50;
const CAPACITY_MAX: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub base: LogAddress,
    pub capacity: u64,
    pub previous_end: LogAddress,
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
            // With these limits, sums of addresses and capacities cannot overflow.
            && u64_at(bytes, 8) <= ADDRESS_MAX
            && u64_at(bytes, 40) <= CAPACITY_MAX;
        good.then(|| SegmentHeader {
            base: LogAddress(u64_at(bytes, 8)),
            previous_end: LogAddress(u64_at(bytes, 16)),
            first_position: Position(u64_at(bytes, 24)),
            created: Millis(u64_at(bytes, 32)),
            capacity: u64_at(bytes, 40),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Size of the records, without header and padding.
    pub length: u32,
    /// The position of the first event of this frame, or of the next event if the frame has none.
    pub first_position: Position,
    pub synced: LogAddress,
    pub count: u32,
}

impl FrameHeader {
    pub fn encode(&self, at: LogAddress) -> [u8; FRAME_HEADER] {
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

    pub fn decode(bytes: &[u8], at: LogAddress) -> Option<FrameHeader> {
        let bytes: &[u8; FRAME_HEADER] = bytes.first_chunk()?;
        if u32_at(bytes, 0) != FRAME_MAGIC || u32_at(bytes, 28) != checksum(at, &bytes[..28]) {
            return None;
        }
        Some(FrameHeader {
            length: u32_at(bytes, 4),
            first_position: Position(u64_at(bytes, 8)),
            synced: LogAddress(u64_at(bytes, 16)),
            count: u32_at(bytes, 24),
        })
    }

    /// Distance in bytes from the start of this frame to the next.
    pub fn stride(&self) -> u64 {
        (FRAME_HEADER as u64 + u64::from(self.length)).next_multiple_of(FRAME_ALIGN)
    }
}

/// The address and range of each record of a frame. `None` if any record is invalid.
pub fn records(
    frame: &[u8],
    at: LogAddress,
    header: &FrameHeader,
) -> Option<Vec<(LogAddress, std::ops::Range<usize>)>> {
    let end = FRAME_HEADER + header.length as usize;
    let mut offset = FRAME_HEADER;
    // A wrong count must not reserve memory.
    let mut found = Vec::with_capacity(header.count.min(header.length / RECORD_HEADER as u32) as usize);
    while offset < end {
        let address = LogAddress(at.0 + offset as u64);
        let body = record_body(frame.get(offset..end)?, address)?;
        let start = offset + RECORD_HEADER;
        offset = start + body.len();
        found.push((address, start..offset));
    }
    (found.len() == header.count as usize).then_some(found)
}

/// The body of the record at the beginning of `bytes`, if it is complete and its checksum matches.
pub fn record_body(bytes: &[u8], at: LogAddress) -> Option<&[u8]> {
    let header: &[u8; RECORD_HEADER] = bytes.first_chunk()?;
    let length = u32_at(header, 0) as usize;
    let body = bytes.get(RECORD_HEADER..RECORD_HEADER.checked_add(length)?)?;
    (u32_at(header, 4) == checksum(at, body) || planted::is_on(Bug::ChecksumIgnored)).then_some(body)
}

/// The body of the record at this offset. Does not verify its checksum.
pub fn body_at(bytes: &[u8], offset: usize) -> Option<&[u8]> {
    let record = bytes.get(offset..)?;
    let header: &[u8; RECORD_HEADER] = record.first_chunk()?;
    record.get(RECORD_HEADER..RECORD_HEADER.checked_add(u32_at(header, 0) as usize)?)
}

pub fn checksum(at: LogAddress, body: &[u8]) -> u32 {
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
