//! The end of the log, cached in memory.

use crate::address::LogAddress;
use crate::segment;
use bytes::Bytes;
use std::collections::VecDeque;

/// The newest frames as written. An event that is delivered soon after its arrival is not read from disk.
pub(super) struct Tail {
    pub(super) frames: VecDeque<(LogAddress, Bytes)>,
    pub(super) bytes: usize,
    pub(super) bytes_max: usize,
}

impl Tail {
    pub(super) fn push(&mut self, at: LogAddress, frame: Bytes) {
        self.bytes += frame.len();
        self.frames.push_back((at, frame));
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.frames.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }

    pub(super) fn read(&self, at: LogAddress) -> Option<Bytes> {
        let (frame, offset) = self.find(at)?;
        segment::body_at(frame, offset).map(|body| frame.slice_ref(body))
    }

    pub(super) fn body(&self, at: LogAddress) -> Option<&[u8]> {
        let (frame, offset) = self.find(at)?;
        segment::body_at(frame, offset)
    }

    /// The frame with this address, and the offset of the address in it.
    fn find(&self, at: LogAddress) -> Option<(&Bytes, usize)> {
        let index = self.frames.partition_point(|(start, _)| *start <= at).checked_sub(1)?;
        let (start, frame) = &self.frames[index];
        Some((frame, usize::try_from(at.0 - start.0).ok()?))
    }
}
