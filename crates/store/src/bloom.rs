//! A blocked Bloom filter. Every key uses a single 64-byte block, so a test costs one cache line.
//!
//! A key uses about 14 bits and 7 probes. At most 0.4% of absent keys are false positives; there are no false
//! negatives. A false positive costs the read of a table block, about fifty times the cost of the test.

const BITS_PER_KEY: usize = 14;
const PROBES: u32 = 7;
const BLOCK_BYTES: usize = 64;
const BLOCK_BITS: usize = BLOCK_BYTES * 8;
/// The number of hash bits that address one bit of a block.
const PROBE_BITS: u32 = BLOCK_BITS.ilog2();

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// One or more whole blocks.
    bits: Box<[u8]>,
}

impl Filter {
    /// `hashes` must be well mixed: the upper half selects the block, all bits select the probes.
    pub fn build(hashes: &[u64]) -> Filter {
        let blocks = (hashes.len() * BITS_PER_KEY).div_ceil(BLOCK_BITS).max(1);
        let mut bits = vec![0; blocks * BLOCK_BYTES].into_boxed_slice();
        for &hash in hashes {
            let start = block_start(hash, bits.len());
            let block = &mut bits[start..start + BLOCK_BYTES];
            probes(hash).for_each(|bit| block[bit / 8] |= 1 << (bit % 8));
        }
        Filter { bits }
    }

    /// Reads a filter from the output of `as_bytes`. `None` if the length is invalid.
    pub fn from_bytes(bytes: &[u8]) -> Option<Filter> {
        let whole = !bytes.is_empty() && bytes.len().is_multiple_of(BLOCK_BYTES);
        whole.then(|| Filter { bits: bytes.into() })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bits
    }

    pub fn may_contain(&self, hash: u64) -> bool {
        let start = block_start(hash, self.bits.len());
        let block = &self.bits[start..start + BLOCK_BYTES];
        probes(hash).all(|bit| block[bit / 8] & (1 << (bit % 8)) != 0)
    }
}

/// Maps the hash evenly to a block by multiplication, which is cheaper than division.
fn block_start(hash: u64, filter_bytes: usize) -> usize {
    let blocks = (filter_bytes / BLOCK_BYTES) as u64;
    (((hash >> 32) * blocks) >> 32) as usize * BLOCK_BYTES
}

fn probes(hash: u64) -> impl Iterator<Item = usize> {
    // Keys of one block share their upper bits. Mixing makes all probes depend on the lower bits.
    let mixed = (hash ^ (hash >> 29)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..PROBES).map(move |n| (mixed >> (n * PROBE_BITS)) as usize % BLOCK_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use siphasher::sip::SipHasher13;

    fn hash(n: u64) -> u64 {
        SipHasher13::new().hash(&n.to_le_bytes())
    }

    #[test]
    fn few_false_positives_and_no_false_negatives() {
        for keys in [1, 51, 52, 1_000, 40_000, 300_000] {
            let hashes: Vec<u64> = (0..keys).map(hash).collect();
            let built = Filter::build(&hashes);
            let filter = Filter::from_bytes(built.as_bytes()).expect("a filter of valid length");
            assert_eq!(filter, built);
            assert!(hashes.iter().all(|&h| filter.may_contain(h)));
            let wrong = (keys..keys + 200_000).filter(|&n| filter.may_contain(hash(n))).count();
            assert!(wrong <= 800, "{wrong} false positives in 200,000 absent keys, with {keys} keys");
        }
    }

    #[test]
    fn other_lengths_are_no_filter() {
        assert_eq!(Filter::from_bytes(&[]), None);
        assert_eq!(Filter::from_bytes(&[0; 63]), None);
        assert_eq!(Filter::from_bytes(&[0; 65]), None);
    }
}
