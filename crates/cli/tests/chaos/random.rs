//! Chance that can be had again.

use std::time::{SystemTime, UNIX_EPOCH};

/// Splitmix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// From `KLAMBDA_SEED`, or of its own; printed with a test that fails.
    pub fn from_environment() -> Random {
        let given =
            std::env::var("KLAMBDA_SEED").ok().map(|text| text.parse().expect("KLAMBDA_SEED is a number"));
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
        let seed = given.unwrap_or_else(now);
        println!("KLAMBDA_SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// One of its own for each part of a test.
    pub fn split(&mut self) -> Random {
        Random(self.next())
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for n in (1..items.len()).rev() {
            items.swap(n, self.below(n as u64 + 1) as usize);
        }
    }
}
