//! The engine's limits.

use hashbrown::HashMap;
use klambda_core::breaker;
use klambda_core::kinds::Strategy;
use klambda_store::log;

#[derive(Clone, Debug)]
pub struct Config {
    /// For index and buffers together.
    pub memory_bytes: usize,
    pub log: log::Options,
    /// Requests open at once, over all subscriptions.
    pub concurrency: u32,
    /// Bytes of events that are on their way to targets and not sent yet.
    pub unsent_bytes_max: usize,
    pub retention_age_ms: u64,
    /// Zero: no limit.
    pub retention_bytes: u64,
    pub marks_max: u64,
    pub subscriptions_max: usize,
    pub namespaces_max: usize,
    pub breaker: breaker::Limits,
    /// By event type; others as documented.
    pub strategies: HashMap<String, Strategy>,
    pub metric_types_max: usize,
    /// Events that one answer of a function may hold.
    pub replies_max: usize,
    /// How far events may go from function to function: an answer to an answer, and so on. More is taken for a loop.
    pub hops_max: u32,
    /// Of the audit log.
    pub audit_entries_max: u64,
    pub audit_age_ms: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            memory_bytes: 128 << 20,
            log: log::Options::default(),
            concurrency: 4096,
            unsent_bytes_max: 24 << 20,
            retention_age_ms: 7 * 24 * 3_600_000,
            retention_bytes: 0,
            marks_max: 20_000_000,
            subscriptions_max: 10_000,
            namespaces_max: 1_000,
            breaker: breaker::Limits::default(),
            strategies: HashMap::new(),
            metric_types_max: 100,
            replies_max: 100,
            hops_max: 16,
            audit_entries_max: 100_000,
            audit_age_ms: 90 * 24 * 3_600_000,
        }
    }
}
