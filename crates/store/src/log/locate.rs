//! Maps the address of a record to the position of its event. A record does not contain its position. The header of
//! its frame has the position of the first event, and frames are found by walking the headers from the beginning of
//! the segment.

use super::{Error, LogReader};
use crate::address::LogAddress;
use crate::segment::{self, FRAME_HEADER, FrameHeader, Segment};
use klambda_core::ids::Position;

/// Headers are read in pieces of this size, so that a walk needs few reads.
const PIECE: usize = 1 << 20;

impl LogReader {
    /// The positions of the events at these addresses; `None` where there is no durable event.
    pub fn positions(&self, at: &[LogAddress]) -> Result<Vec<Option<Position>>, Error> {
        let mut wanted: Vec<(LogAddress, usize)> = at.iter().enumerate().map(|(n, at)| (*at, n)).collect();
        wanted.sort_unstable();
        let mut found = vec![None; at.len()];
        let mut walk: Option<Walk> = None;
        for (at, n) in wanted {
            if at >= self.synced() {
                break;
            }
            if walk.as_ref().is_none_or(|walk| at >= walk.segment.end()) {
                walk = self.segment_of(at).map(Walk::new);
            }
            let Some(walk) = &mut walk else { continue };
            found[n] = self.position_in(walk, at)?;
        }
        Ok(found)
    }

    fn position_in(&self, walk: &mut Walk, at: LogAddress) -> Result<Option<Position>, Error> {
        if !walk.reach(at)? {
            return Ok(None);
        }
        let Some(frame) = self.frame_in(&walk.segment, walk.at)? else { return Ok(None) };
        let mut position = frame.first_position;
        for (record_at, range) in frame.records {
            let is_event = crate::record::is_event(&frame.bytes[range]);
            if record_at == at {
                return Ok(is_event.then_some(position));
            }
            position.0 += u64::from(is_event);
        }
        Ok(None)
    }
}

/// Walks forward through a segment, frame by frame.
struct Walk {
    segment: Segment,
    at: LogAddress,
    piece: Vec<u8>,
    piece_at: LogAddress,
}

impl Walk {
    fn new(segment: Segment) -> Walk {
        Walk { at: segment.start(), piece_at: segment.start(), piece: Vec::new(), segment }
    }

    /// Moves to the frame that contains this address. Returns false if there is none.
    fn reach(&mut self, wanted: LogAddress) -> Result<bool, Error> {
        while let Some(header) = self.header()? {
            let next = LogAddress(self.at.0 + header.stride());
            if wanted < next {
                return Ok(wanted >= self.at);
            }
            self.at = next;
        }
        Ok(false)
    }

    fn header(&mut self) -> Result<Option<FrameHeader>, Error> {
        let offset = usize::try_from(self.at.0 - self.piece_at.0).unwrap_or(usize::MAX);
        let has_it = offset.checked_add(FRAME_HEADER).is_some_and(|end| end <= self.piece.len());
        if has_it {
            return Ok(FrameHeader::decode(&self.piece[offset..], self.at));
        }
        if self.at.0 + FRAME_HEADER as u64 > self.segment.end().0 {
            return Ok(None);
        }
        self.piece.resize(PIECE, 0);
        let read = self.segment.file.read_at(&mut self.piece, self.segment.offset(self.at));
        let io = |source| Error::Io { file: segment::Segment::name(self.segment.base), source };
        let n = read.map_err(io)?;
        self.piece.truncate(n);
        self.piece_at = self.at;
        Ok(FrameHeader::decode(&self.piece, self.at))
    }
}
