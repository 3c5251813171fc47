//! Numbers that must never be mixed up.

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
    /// The place of an event in the log, counted from 1: arrival order.
    Position(u64)
);
number!(
    /// Where a record stands in the log, in bytes from the log's beginning.
    Address(u64)
);
number!(
    /// The producer's sequence of an event within its key. May have gaps; decides order.
    Sequence(u64)
);
number!(
    /// Our own number of an event within its lane (`lanesequence`): contiguous from 1. Zero: no place taken yet.
    LaneNumber(u64)
);
number!(
    /// A subscription for as long as it exists; never given twice.
    SubscriptionId(u32)
);
number!(
    /// A namespace for as long as it exists; never given twice. Zero: the default one.
    NamespaceId(u64)
);

/// A number without a sign or leading zeros, so that every id has one spelling.
pub fn plain_number(text: &str) -> Option<u64> {
    let is_plain = text == "0" || text.starts_with(|first: char| matches!(first, '1'..='9'));
    // A sign can only come first.
    text.parse().ok().filter(|_| is_plain)
}

/// A UUID of version 4 with these random bytes.
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
