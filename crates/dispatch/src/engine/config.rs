//! The configuration of the engine.

use hashbrown::HashMap;
use klambda_core::breaker;
use klambda_core::kinds::Strategy;
use klambda_core::trace::Sampler;
use klambda_store::log;

#[derive(Clone, Debug)]
pub struct Config {
    /// For the index and buffers together.
    pub memory_bytes: usize,
    pub log: log::Options,
    /// Open requests of all subscriptions.
    pub concurrency: u32,
    /// Bytes of events in flight that are not sent yet.
    pub unsent_bytes_max: usize,
    pub retention_age_ms: u64,
    /// 0 means no limit.
    pub retention_bytes: u64,
    pub marks_max: u64,
    pub subscriptions_max: usize,
    pub namespaces_max: usize,
    pub breaker: breaker::Limits,
    /// By event type; other types use the documented defaults.
    pub strategies: HashMap<String, Strategy>,
    pub metric_types_max: usize,
    /// Maximum number of events in one response of a function.
    pub replies_max: usize,
    /// Maximum length of a chain of replies, where a function's reply triggers another reply. A longer chain counts
    /// as a loop.
    pub hops_max: u32,
    /// Attempts of each webhook endpoint that are listed.
    pub deliveries_max: u64,
    /// Limits of the audit log.
    pub audit_entries_max: u64,
    pub audit_age_ms: u64,
    /// Which traces are recorded, for the ids in log lines. `None` if no traces are recorded.
    pub sampler: Option<Sampler>,
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
            deliveries_max: 10_000,
            audit_entries_max: 100_000,
            audit_age_ms: 90 * 24 * 3_600_000,
            sampler: None,
        }
    }
}
