//! The frame under construction in memory: its header, then its records.

use crate::address::LogAddress;
use crate::segment::{self, FRAME_HEADER, FrameHeader, RECORD_HEADER};
use bytes::Bytes;
use klambda_core::ids::Position;

pub(super) struct FrameBuffer {
    pub bytes: Vec<u8>,
    pub count: u32,
    /// The position of the first event in the frame, or of the next event if the frame has none.
    pub position: Position,
    pub start: LogAddress,
    /// A group of records is being appended. All of them must go into this frame.
    pub grouped: bool,
}

impl FrameBuffer {
    pub fn new(start: LogAddress, position: Position) -> FrameBuffer {
        FrameBuffer { bytes: vec![0; FRAME_HEADER], count: 0, position, start, grouped: false }
    }

    /// The address of the next record.
    pub fn end(&self) -> LogAddress {
        LogAddress(self.start.0 + self.bytes.len() as u64)
    }

    /// The end address of the frame if a record of this length is added.
    pub fn end_with(&self, length: usize) -> LogAddress {
        let end = self.end().0 + (RECORD_HEADER + length) as u64;
        LogAddress(end.next_multiple_of(segment::FRAME_ALIGN))
    }

    /// Adds a record, which `encode` writes in place.
    pub fn push(&mut self, length_max: usize, encode: &mut dyn FnMut(&mut Vec<u8>)) -> LogAddress {
        let (start, at) = (self.bytes.len(), self.end());
        self.bytes.extend_from_slice(&[0; RECORD_HEADER]);
        encode(&mut self.bytes);
        let (_, record) = self.bytes.split_at_mut(start);
        let (header, body) = record.split_at_mut(RECORD_HEADER);
        assert!(body.len() <= length_max, "a record is longer than its declared maximum");
        header[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        header[4..].copy_from_slice(&segment::checksum(at, body).to_le_bytes());
        self.count += 1;
        at
    }

    /// Writes the header of the frame.
    pub fn seal(&mut self, synced: LogAddress) -> FrameHeader {
        assert!(!self.grouped, "a frame must not be sealed within a group");
        let header = FrameHeader {
            length: (self.bytes.len() - FRAME_HEADER) as u32,
            first_position: self.position,
            synced,
            count: self.count,
        };
        self.bytes[..FRAME_HEADER].copy_from_slice(&header.encode(self.start));
        header
    }

    /// Starts the next frame at this address.
    pub fn restart(&mut self, start: LogAddress, position: Position) {
        self.bytes.truncate(FRAME_HEADER);
        (self.start, self.position, self.count) = (start, position, 0);
    }

    /// The bytes of a record in this frame. They never left the memory, so their checksum is not verified.
    pub fn body(&self, at: LogAddress) -> Option<&[u8]> {
        segment::body_at(&self.bytes, usize::try_from(at.0.checked_sub(self.start.0)?).ok()?)
    }

    /// The body of a record in this frame.
    pub fn record(&self, at: LogAddress) -> Option<Bytes> {
        let offset = usize::try_from(at.0.checked_sub(self.start.0)?).ok()?;
        segment::record_body(self.bytes.get(offset..)?, at).map(Bytes::copy_from_slice)
    }
}
