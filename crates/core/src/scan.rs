//! Fast checks of short texts, which run for every event.

/// True if the predicate holds for every byte. Always checks all bytes, because the compiler can vectorize a loop
/// without early exit.
#[inline]
pub fn all(bytes: &[u8], is: impl Fn(u8) -> bool) -> bool {
    bytes.iter().fold(true, |all, byte| all & is(*byte))
}

/// Counts how often the pair occurs. Vectorized in the same way.
pub fn count_pairs(bytes: &[u8], pair: [u8; 2]) -> usize {
    // The count within a block must fit into a `u8`.
    const BLOCK: usize = 240;
    let following = bytes.get(1..).unwrap_or_default();
    let blocks = bytes.chunks(BLOCK).zip(following.chunks(BLOCK));
    blocks.map(|(block, following)| usize::from(count_in_block(block, following, pair))).sum()
}

fn count_in_block(block: &[u8], following: &[u8], [first, second]: [u8; 2]) -> u8 {
    let pairs = block.iter().zip(following);
    // The count never wraps. A checked addition would dominate the cost.
    pairs.fold(0, |count, (a, b)| u8::wrapping_add(count, u8::from((*a == first) & (*b == second))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_wherever_they_stand() {
        for length in 0..1000 {
            let mut bytes = vec![b'\r'; length];
            assert_eq!(count_pairs(&bytes, *b"\r\n"), 0);
            bytes.iter_mut().skip(1).step_by(2).for_each(|byte| *byte = b'\n');
            assert_eq!(count_pairs(&bytes, *b"\r\n"), length / 2);
            assert_eq!(count_pairs(&bytes, *b"\n\r"), length.saturating_sub(1) / 2);
        }
    }

    #[test]
    fn one_byte_that_is_not_so_is_enough() {
        for length in 0..100 {
            let mut bytes = vec![b'a'; length];
            assert!(all(&bytes, |byte| byte == b'a'));
            for at in 0..length {
                bytes[at] = b'b';
                assert!(!all(&bytes, |byte| byte == b'a'));
                bytes[at] = b'a';
            }
        }
    }
}
