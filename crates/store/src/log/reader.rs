//! Reads the log: a record by its address, frame by frame, or from a position.

use super::{Error, read};
use crate::address::LogAddress;
use crate::segment::{self, FRAME_HEADER, FrameHeader, RECORD_HEADER, Segment};
use bytes::Bytes;
use klambda_core::ids::Position;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// Reads the durable part of the log from any thread.
#[derive(Clone)]
pub struct LogReader {
    pub(super) segments: Arc<RwLock<VecDeque<Segment>>>,
    pub(super) synced: Arc<AtomicU64>,
}

/// One frame read from the log.
pub struct Frame {
    pub first_position: Position,
    pub bytes: Bytes,
    pub records: Vec<(LogAddress, std::ops::Range<usize>)>,
    pub next: LogAddress,
}

impl LogReader {
    pub fn synced(&self) -> LogAddress {
        LogAddress(self.synced.load(Ordering::Acquire))
    }

    pub fn oldest(&self) -> Option<Segment> {
        read(&self.segments).front().cloned()
    }

    /// The segment that contains this address.
    pub fn segment_of(&self, at: LogAddress) -> Option<Segment> {
        let segments = read(&self.segments);
        let index = segments.partition_point(|segment| segment.base <= at).checked_sub(1)?;
        segments.get(index).filter(|segment| at < segment.end()).cloned()
    }

    pub fn read(&self, at: LogAddress) -> Result<Bytes, Error> {
        const GUESS: usize = 2048;
        let segment = self.segment_of(at).ok_or(Error::Gone(at))?;
        let io = |source| Error::Io { file: Segment::name(segment.base), source };
        let offset = segment.offset(at);
        let mut bytes = vec![0; GUESS];
        let n = segment.file.read_at(&mut bytes, offset).map_err(io)?;
        bytes.truncate(n);
        let length = bytes.first_chunk::<4>().map_or(0, |head| u32::from_le_bytes(*head) as usize);
        let total = RECORD_HEADER + length;
        if total > bytes.len() && offset + total as u64 <= segment.capacity {
            bytes.resize(total, 0);
            let more = segment.file.read_at(&mut bytes[n..], offset + n as u64).map_err(io)?;
            bytes.truncate(n + more);
        }
        match segment::record_body(&bytes, at) {
            Some(_) => Ok(Bytes::from(bytes).slice(RECORD_HEADER..total)),
            None => Err(Error::Damaged {
                file: Segment::name(segment.base),
                offset,
                what: "the checksum of a record does not match".into(),
            }),
        }
    }

    /// The frame at `at`, or the first frame of the next segment if the segment ends there. `None` at the durable end
    /// of the log.
    pub fn frame(&self, at: LogAddress) -> Result<Option<Frame>, Error> {
        let mut at = at;
        loop {
            if at >= self.synced() {
                return Ok(None);
            }
            let segment = self.segment_of(at).ok_or(Error::Gone(at))?;
            let at_start = at.max(segment.start());
            if at_start >= self.synced() {
                return Ok(None);
            }
            if let Some(frame) = self.frame_in(&segment, at_start)? {
                return Ok(Some(frame));
            }
            at = self.next_segment(&segment, at_start)?;
        }
    }

    fn next_segment(&self, segment: &Segment, at: LogAddress) -> Result<LogAddress, Error> {
        let segments = read(&self.segments);
        match segments.iter().find(|next| next.base > segment.base) {
            Some(next) if next.previous_end == at => Ok(next.start()),
            _ => Err(Error::Damaged {
                file: Segment::name(segment.base),
                offset: segment.offset(at),
                what: "a frame is missing or its header is damaged".into(),
            }),
        }
    }

    pub(super) fn frame_in(&self, segment: &Segment, at: LogAddress) -> Result<Option<Frame>, Error> {
        let file = || Segment::name(segment.base);
        let offset = segment.offset(at);
        let mut header = [0; FRAME_HEADER];
        let n =
            segment.file.read_at(&mut header, offset).map_err(|source| Error::Io { file: file(), source })?;
        let Some(header) = FrameHeader::decode(&header[..n], at) else { return Ok(None) };
        let mut bytes = vec![0; FRAME_HEADER + header.length as usize];
        crate::disk::read_exact_at(&*segment.file, &mut bytes, offset)
            .map_err(|source| Error::Io { file: file(), source })?;
        let records = segment::records(&bytes, at, &header).ok_or_else(|| Error::Damaged {
            file: file(),
            offset,
            what: "the checksum of a record does not match".into(),
        })?;
        let next = LogAddress(at.0 + header.stride());
        Ok(Some(Frame { first_position: header.first_position, bytes: bytes.into(), records, next }))
    }

    /// Returns the address of the frame with the event after `position`. Reading from there yields every later event.
    pub fn seek(&self, position: Position) -> Result<LogAddress, Error> {
        let wanted = Position(position.0.saturating_add(1));
        let segment = {
            let segments = read(&self.segments);
            let index =
                segments.partition_point(|segment| segment.first_position <= wanted).saturating_sub(1);
            segments.get(index).cloned()
        };
        let Some(segment) = segment else { return Ok(LogAddress(0)) };
        let mut at = segment.start();
        let mut header = [0; FRAME_HEADER];
        let mut found = at;
        while at < self.synced() && at < segment.end() {
            let n = segment.file.read_at(&mut header, segment.offset(at)).unwrap_or(0);
            let Some(frame) = FrameHeader::decode(&header[..n], at) else { break };
            if frame.first_position > wanted {
                break;
            }
            found = at;
            at = LogAddress(at.0 + frame.stride());
        }
        Ok(found)
    }
}
