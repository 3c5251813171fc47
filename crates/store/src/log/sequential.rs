//! Reads records whose addresses mostly ascend, with few reads from the disk.

use super::{Error, LogReader};
use crate::address::LogAddress;
use crate::segment::{self, RECORD_HEADER, Segment};

/// How much is read at once: little at first and for records that are far apart, more while records follow each other.
const AHEAD_BYTES_MIN: usize = 4 << 10;
const AHEAD_BYTES_MAX: usize = 128 << 10;

/// A reader with a buffer. A page of records that lie together costs a few reads instead of one per record.
pub struct Sequential {
    reader: LogReader,
    /// A part of a segment, from `start` on.
    window: Vec<u8>,
    start: LogAddress,
    ahead: usize,
}

impl LogReader {
    pub fn sequential(&self) -> Sequential {
        let (window, start) = (Vec::new(), LogAddress(0));
        Sequential { reader: self.clone(), window, start, ahead: AHEAD_BYTES_MIN }
    }
}

impl Sequential {
    /// The body of a record, with its checksum verified.
    pub fn read(&mut self, at: LogAddress) -> Result<&[u8], Error> {
        if self.held(at).is_none() {
            self.fill(at)?;
        }
        let damaged = || self.damaged(at);
        let offset = self.offset_of(at).ok_or_else(damaged)?;
        segment::record_body(&self.window[offset..], at).ok_or_else(damaged)
    }

    fn held(&self, at: LogAddress) -> Option<&[u8]> {
        segment::body_at(&self.window, self.offset_of(at)?)
    }

    /// The place of an address in the window.
    fn offset_of(&self, at: LogAddress) -> Option<usize> {
        let offset = usize::try_from(at.0.checked_sub(self.start.0)?).ok()?;
        (offset < self.window.len()).then_some(offset)
    }

    fn fill(&mut self, at: LogAddress) -> Result<(), Error> {
        let segment = self.reader.segment_of(at).ok_or(Error::Gone(at))?;
        let end = self.start.0 + self.window.len() as u64;
        let is_next = at >= self.start && at.0 <= end + AHEAD_BYTES_MIN as u64;
        self.ahead = if is_next { (self.ahead * 2).min(AHEAD_BYTES_MAX) } else { AHEAD_BYTES_MIN };
        self.start = at;
        self.read_up_to(&segment, 0, self.ahead)?;
        let header = self.window.first_chunk::<RECORD_HEADER>();
        let total = header.map_or(0, |header| RECORD_HEADER + segment::u32_at(header, 0) as usize);
        let held = self.window.len();
        // A length from a damaged header must not allocate unlimited memory.
        if total > held && segment.offset(at) + total as u64 <= segment.capacity {
            self.read_up_to(&segment, held, total)?;
        }
        Ok(())
    }

    /// Reads into the window from `from` to `to`, or to the end of the file.
    fn read_up_to(&mut self, segment: &Segment, from: usize, to: usize) -> Result<(), Error> {
        self.window.resize(to, 0);
        let offset = segment.offset(self.start) + from as u64;
        let read = segment.file.read_at(&mut self.window[from..], offset);
        let io = |source| Error::Io { file: Segment::name(segment.base), source };
        self.window.truncate(from + *read.as_ref().unwrap_or(&0));
        read.map(drop).map_err(io)
    }

    fn damaged(&self, at: LogAddress) -> Error {
        let segment = self.reader.segment_of(at);
        let (base, offset) = segment.map_or((at, 0), |segment| (segment.base, segment.offset(at)));
        let what = "the checksum of a record does not match".into();
        Error::Damaged { file: Segment::name(base), offset, what }
    }
}
