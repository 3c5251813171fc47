//! Newtypes for numbers that must never be confused.

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// The position of an event in the log, counted from 1. It defines the arrival order.
    Position(u64)
);
number!(
    /// The producer's sequence number of an event within its key. It defines the delivery order and may have gaps.
    Sequence(u64)
);
number!(
    /// The number of an event within its lane (`lanesequence`), assigned by the lane: contiguous from 1. Zero means
    /// not assigned yet.
    LaneNumber(u64)
);
number!(
    /// The number of an entry in the feed of a webhook endpoint, counted from 1.
    FeedNumber(u64)
);
number!(
    /// Identifies a subscription while it exists; never reused.
    SubscriptionId(u32)
);
number!(
    /// Identifies a namespace while it exists; never reused. Zero is the default namespace.
    NamespaceId(u64)
);

/// The location of an event in a log. Only the log that created it can interpret it. A later event has a higher
/// locator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locator(u64);

impl Locator {
    pub const fn new(raw: u64) -> Locator {
        Locator(raw)
    }

    /// The value that the log passed to `new`.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// Parses a number without sign or leading zeros, so that every id has exactly one spelling.
pub fn plain_number(text: &str) -> Option<u64> {
    let is_plain = text == "0" || text.starts_with(|first: char| matches!(first, '1'..='9'));
    // The check of the first character also excludes a sign.
    text.parse().ok().filter(|_| is_plain)
}

/// A version 4 UUID from these random bytes.
pub fn uuid(random: [u8; 16]) -> String {
    let bits = u128::from_be_bytes(random) & !(0xf << 76 | 0x3 << 62) | (0x4 << 76 | 0x2 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_spelling() {
        assert_eq!(["0", "6", "18446744073709551615"].map(plain_number), [Some(0), Some(6), Some(u64::MAX)]);
        for other in ["", "+6", "-6", "06", "00", " 6", "6 ", "6.0", "0x6", "18446744073709551616", "٦"] {
            assert_eq!(plain_number(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_uuid_says_that_it_is_random() {
        assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
