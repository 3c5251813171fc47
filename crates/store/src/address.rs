//! The address of a record in the log.

use klambda_core::ids::Locator;
use klambda_core::lane::Entry;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An offset in bytes from the beginning of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LogAddress(pub u64);

impl LogAddress {
    /// Once the log is durable up to this address, the record at `self` is durable.
    pub const fn after(self) -> LogAddress {
        LogAddress(self.0 + 1)
    }
}

impl fmt::Display for LogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<LogAddress> for Locator {
    fn from(at: LogAddress) -> Locator {
        Locator::new(at.0)
    }
}

impl From<Locator> for LogAddress {
    fn from(locator: Locator) -> LogAddress {
        LogAddress(locator.raw())
    }
}

/// A pending event with an address in the log.
pub trait Kept {
    fn address(&self) -> LogAddress;
}

impl Kept for Entry {
    fn address(&self) -> LogAddress {
        self.at.into()
    }
}
