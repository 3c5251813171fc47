//! Blocks of rows in key order. Data, index and top blocks all have this format.
//!
//! A row is `shared, suffix length, value length + 1 or 0 for a tombstone` as varints, followed by the suffix and the
//! value. The key is the first `shared` bytes of the previous key, followed by the suffix. `shared` is the length of
//! the whole common prefix.

use klambda_core::wire::{Malformed, Reader, put_option, put_varint};
use std::cmp::Ordering;
use std::ops::Range;

pub(super) const CRC_BYTES: usize = 4;

/// Collects the rows of one block.
#[derive(Default)]
pub(super) struct Builder {
    bytes: Vec<u8>,
    last_key: Vec<u8>,
}

impl Builder {
    pub(super) fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        let shared = if self.bytes.is_empty() { 0 } else { shared_len(&self.last_key, key) };
        put_varint(&mut self.bytes, shared as u64);
        put_varint(&mut self.bytes, (key.len() - shared) as u64);
        put_option(&mut self.bytes, value.map(|value| value.len() as u64));
        self.bytes.extend_from_slice(&key[shared..]);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }
}

/// Iterates over the rows of a block without an allocation per row. Verifies that the keys ascend.
pub(super) struct Rows<B> {
    block: B,
    next: usize,
    key: Vec<u8>,
    value: Option<Range<usize>>,
    started: bool,
}

impl<B: AsRef<[u8]>> Rows<B> {
    pub(super) fn new(block: B) -> Rows<B> {
        Rows { block, next: 0, key: Vec::new(), value: None, started: false }
    }

    /// Continues with another block and reuses the buffers.
    pub(super) fn reset(&mut self, block: B) {
        self.block = block;
        self.next = 0;
        self.key.clear();
        self.value = None;
        self.started = false;
    }

    /// Moves to the next row, which `key` and `value` then return. Returns false at the end. The error describes an
    /// invalid row.
    pub(super) fn advance(&mut self) -> Result<bool, &'static str> {
        let block = self.block.as_ref();
        if self.next == block.len() {
            return Ok(false);
        }
        let row = parse_row(block, self.next).map_err(|_| MALFORMED)?;
        let suffix = &block[row.suffix];
        let old = self.key.get(row.shared..).ok_or("a row shares more bytes than the previous key has")?;
        // `shared` covers the whole common prefix, so the next byte decides the order.
        if self.started && suffix.first() <= old.first() {
            return Err("keys do not ascend");
        }
        self.key.truncate(row.shared);
        self.key.extend_from_slice(suffix);
        self.next = row.end;
        self.value = row.value;
        self.started = true;
        Ok(true)
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn value(&self) -> Option<&[u8]> {
        self.value.clone().map(|range| &self.block.as_ref()[range])
    }
}

/// Passes the values of all rows up to `target` to `each`, in order, with a flag that tells whether the key equals
/// the target. It does not reconstruct the keys: the length of the shared prefix usually shows on which side of the
/// target a row is.
pub(super) fn visit_up_to<'a>(
    block: &'a [u8],
    target: &[u8],
    mut each: impl FnMut(Option<&'a [u8]>, bool) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    let (mut at, mut matched) = (0, 0);
    while at < block.len() {
        let row = parse_row(block, at).map_err(|_| MALFORMED)?;
        let side = match row.shared.cmp(&matched) {
            // This row shares the byte in which the previous row was below the target.
            Ordering::Greater => Ordering::Less,
            // This row is greater than the previous one in a byte that the previous one shared with the target.
            Ordering::Less => Ordering::Greater,
            Ordering::Equal => {
                let (suffix, rest) = (&block[row.suffix], &target[matched..]);
                matched += shared_len(suffix, rest);
                suffix.cmp(rest)
            }
        };
        if side == Ordering::Greater {
            break;
        }
        each(row.value.map(|range| &block[range]), side == Ordering::Equal)?;
        at = row.end;
    }
    Ok(())
}

const MALFORMED: &str = "a row is malformed";

struct RawRow {
    shared: usize,
    suffix: Range<usize>,
    value: Option<Range<usize>>,
    end: usize,
}

fn parse_row(block: &[u8], at: usize) -> Result<RawRow, Malformed> {
    let mut reader = Reader::new(&block[at..]);
    let (shared, suffix_len, value_len) = (reader.varint()?, reader.varint()?, reader.option()?);
    let suffix_at = block.len() - reader.rest().len();
    let suffix_len = reader.take(to_len(suffix_len)?)?.len();
    let suffix = suffix_at..suffix_at + suffix_len;
    let end = suffix.end + reader.take(to_len(value_len.unwrap_or(0))?)?.len();
    let value = value_len.map(|_| suffix.end..end);
    Ok(RawRow { shared: to_len(shared)?, suffix, value, end })
}

fn to_len(n: u64) -> Result<usize, Malformed> {
    usize::try_from(n).map_err(|_| Malformed("length"))
}

/// The checksum of a block. It covers the offset, so a block at the wrong offset is invalid.
pub(super) fn checksum(offset: u64, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&offset.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// Verifies and removes the checksum of a block that was read at `offset`.
pub(super) fn unseal(block: &mut Vec<u8>, offset: u64) -> Result<(), &'static str> {
    let payload_len = block.len().checked_sub(CRC_BYTES).ok_or("a block is shorter than its checksum")?;
    let (payload, crc) = block.split_at(payload_len);
    if checksum(offset, payload).to_le_bytes() != crc {
        return Err("the checksum does not match");
    }
    block.truncate(payload_len);
    Ok(())
}

pub(super) fn shared_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn rows_come_back(rows: BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
            let mut builder = Builder::default();
            rows.iter().for_each(|(key, value)| builder.push(key, value.as_deref()));
            let mut walk = Rows::new(builder.bytes());
            let mut read = BTreeMap::new();
            while walk.advance().expect("the rows are well formed") {
                read.insert(walk.key().to_vec(), walk.value().map(<[u8]>::to_vec));
            }
            prop_assert_eq!(read, rows);
        }

        #[test]
        fn the_rows_up_to_a_key_are_found(
            rows in prop::collection::btree_map(prop::collection::vec(0_u8..3, 0..6), any::<Option<u8>>(), 0..60),
            target in prop::collection::vec(0_u8..3, 0..6),
        ) {
            let mut builder = Builder::default();
            rows.iter().for_each(|(key, value)| builder.push(key, value.as_ref().map(std::slice::from_ref)));
            let mut seen = Vec::new();
            let visited = visit_up_to(builder.bytes(), &target, |value, here| {
                seen.push((value.map(|value| value[0]), here));
                Ok(())
            });
            prop_assert_eq!(visited, Ok(()));
            let expected: Vec<_> = rows.range(..=target.clone()).map(|(key, value)| (*value, *key == target)).collect();
            prop_assert_eq!(seen, expected);
        }

        #[test]
        fn arbitrary_bytes_end_or_fail(bytes: Vec<u8>) {
            let mut walk = Rows::new(&bytes);
            let _ = visit_up_to(&bytes, &bytes, |_, _| Ok(()));
            while let Ok(true) = walk.advance() {
                prop_assert!(walk.key().len() + walk.value().map_or(0, <[u8]>::len) <= bytes.len());
            }
        }
    }
}
