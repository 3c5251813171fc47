//! A body that arrives over time, stored in pieces, so that nothing is copied or allocated in advance: it takes little more
//! memory than the bytes that have arrived.

use bytes::Bytes;

/// Size of the first piece, and of the largest.
const PIECE_BYTES_MIN: usize = 4 << 10;
const PIECE_BYTES_MAX: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct BodyBuffer {
    full: Vec<Vec<u8>>,
    full_bytes: usize,
    last: Vec<u8>,
}

impl BodyBuffer {
    pub(crate) fn len(&self) -> usize {
        self.full_bytes + self.last.len()
    }

    /// The piece to fill next, and how many bytes it has room for: at least one, unless no bytes are missing.
    pub(crate) fn spare(&mut self, missing: usize) -> (&mut Vec<u8>, usize) {
        if self.last.len() == self.last.capacity() {
            let size = self.len().clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX).min(missing);
            let last = std::mem::replace(&mut self.last, Vec::with_capacity(size));
            self.full_bytes += last.len();
            if !last.is_empty() {
                self.full.push(last);
            }
        }
        let room = (self.last.capacity() - self.last.len()).min(missing);
        (&mut self.last, room)
    }

    pub(crate) fn extend(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (piece, room) = self.spare(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            piece.extend_from_slice(now);
            bytes = later;
        }
    }

    /// All bytes in one piece.
    pub(crate) fn into_whole(mut self) -> Vec<u8> {
        if self.full.is_empty() {
            return self.last;
        }
        let mut whole = Vec::with_capacity(self.len());
        self.full.push(self.last);
        for piece in self.full {
            whole.extend_from_slice(&piece);
        }
        whole
    }

    /// The pieces.
    pub(crate) fn into_chunks(self) -> impl Iterator<Item = Bytes> {
        self.full.into_iter().chain([self.last]).map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_little_is_set_aside() {
        for length in [0, 1, 4096, 4097, 100_000, 1_000_000] {
            let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let (mut pieces, mut filled) = (BodyBuffer::default(), BodyBuffer::default());
            for part in bytes.chunks(777) {
                pieces.extend(part);
            }
            while filled.len() < length {
                let (at, missing) = (filled.len(), length - filled.len());
                let (piece, room) = filled.spare(missing);
                assert!((1..=missing).contains(&room));
                piece.extend_from_slice(&bytes[at..at + room.min(1500)]);
            }
            for pieces in [&pieces, &filled] {
                let capacity: usize = pieces.full.iter().chain([&pieces.last]).map(Vec::capacity).sum();
                assert!(capacity <= length + length.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX), "{capacity}");
            }
            assert_eq!(filled.into_whole(), bytes);
            let parts: Vec<Bytes> = pieces.into_chunks().collect();
            assert_eq!(parts.concat(), bytes);
        }
    }
}
