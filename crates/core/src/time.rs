//! Wall-clock times as plain numbers. Nothing here reads a clock: the caller passes `now`.

use serde::{Deserialize, Serialize};
use std::ops::{Add, Sub};

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    pub const ZERO: Millis = Millis(0);
    pub const NEVER: Millis = Millis(u64::MAX);

    /// Milliseconds from `earlier` to this time; zero if the clock went backwards.
    pub fn since(self, earlier: Millis) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time in RFC 3339 format, in UTC.
    pub fn rfc3339(self) -> String {
        jiff::Timestamp::from_millisecond(i64::try_from(self.0).unwrap_or(i64::MAX))
            .unwrap_or(jiff::Timestamp::MAX)
            .to_string()
    }

    pub fn parse_rfc3339(text: &str) -> Option<Millis> {
        let at: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(at.as_millisecond()).ok().map(Millis)
    }
}

impl Add<u64> for Millis {
    type Output = Millis;
    fn add(self, ms: u64) -> Millis {
        Millis(self.0.saturating_add(ms))
    }
}

impl Sub<u64> for Millis {
    type Output = Millis;
    fn sub(self, ms: u64) -> Millis {
        Millis(self.0.saturating_sub(ms))
    }
}
