//! The durable state: a log that is the single truth, and sorted tables of what the log amounts to.

pub mod disk;
