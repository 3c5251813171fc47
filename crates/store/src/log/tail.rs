//! The end of the log, cached in memory.

use crate::address::LogAddress;
use crate::segment::{self, RECORD_HEADER};
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
        let index = self.frames.partition_point(|(start, _)| *start <= at).checked_sub(1)?;
        let (start, frame) = &self.frames[index];
        let offset = usize::try_from(at.0 - start.0).ok()?;
        let length = segment::u32_at(frame.get(offset..offset + RECORD_HEADER)?, 0) as usize;
        let body = offset + RECORD_HEADER;
        (body + length <= frame.len()).then(|| frame.slice(body..body + length))
    }
}
