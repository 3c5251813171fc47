//! What is counted. Plain numbers of one thread; labels are subscriptions, types and reasons, never a key.

use hashbrown::HashMap;
use klambda_core::outcome::Reason;
use std::collections::BTreeMap;

#[derive(Clone)]
pub struct Metrics {
    types_max: usize,
    /// By type and result.
    pub received: HashMap<(String, &'static str), u64>,
    types: HashMap<String, ()>,
    pub duplicates: BTreeMap<(String, &'static str), u64>,
    pub early: BTreeMap<String, u64>,
    pub order_violations: BTreeMap<String, u64>,
    pub gaps: BTreeMap<String, u64>,
    pub without_key: BTreeMap<String, u64>,
    pub processed: HashMap<String, Processed>,
    pub dead_letters: BTreeMap<(String, Reason), u64>,
    pub dead_letters_dropped: BTreeMap<(String, &'static str), u64>,
    pub backlog_rejected: BTreeMap<String, u64>,
    pub unmatched: u64,
    pub damaged: u64,
    pub breaker_opened: u64,
    pub marks_expired_early: u64,
    pub tail_cut: u64,
    pub checkpoints: u64,
    pub checkpoint_failures: u64,
    /// Bytes and events of each commit, and how long it took, in microseconds.
    pub commit_micros: Histogram,
    pub commit_events: Histogram,
    pub accept_micros: Histogram,
}

#[derive(Clone, Debug, Default)]
pub struct Processed {
    pub delivered: u64,
    pub failed: u64,
    pub took_ms: Histogram,
}

/// Counts by powers of two: bucket `n` holds values below 2^n.
#[derive(Clone, Debug)]
pub struct Histogram {
    pub buckets: [u64; Histogram::BUCKETS],
    pub count: u64,
    pub sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; Histogram::BUCKETS], count: 0, sum: 0 }
    }
}

impl Histogram {
    pub const BUCKETS: usize = 26;

    pub fn add(&mut self, value: u64) {
        let bucket = (64 - value.leading_zeros() as usize).min(Histogram::BUCKETS - 1);
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum += value;
    }

    /// Upper bound and cumulative count of each bucket.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut total = 0;
        self.buckets.iter().enumerate().map(move |(n, count)| {
            total += count;
            ((1u64 << n) - 1, total)
        })
    }
}

const OTHER: &str = "other";

impl Metrics {
    pub fn new(types_max: usize) -> Metrics {
        Metrics {
            types_max,
            received: HashMap::new(),
            types: HashMap::new(),
            duplicates: BTreeMap::new(),
            early: BTreeMap::new(),
            order_violations: BTreeMap::new(),
            gaps: BTreeMap::new(),
            without_key: BTreeMap::new(),
            processed: HashMap::new(),
            dead_letters: BTreeMap::new(),
            dead_letters_dropped: BTreeMap::new(),
            backlog_rejected: BTreeMap::new(),
            unmatched: 0,
            damaged: 0,
            breaker_opened: 0,
            marks_expired_early: 0,
            tail_cut: 0,
            checkpoints: 0,
            checkpoint_failures: 0,
            commit_micros: Histogram::default(),
            commit_events: Histogram::default(),
            accept_micros: Histogram::default(),
        }
    }

    pub fn received(&mut self, kind: &str, result: &'static str) {
        let known = self.types.contains_key(kind);
        let kind = if known || self.types.len() < self.types_max { kind } else { OTHER };
        if !self.types.contains_key(kind) {
            self.types.insert(kind.to_owned(), ());
        }
        match self.received.get_mut(&Label(kind, result)) {
            Some(count) => *count += 1,
            None => {
                self.received.insert((kind.to_owned(), result), 1);
            }
        }
    }

    pub fn duplicate(&mut self, subscription: &str, reason: &'static str) {
        *self.duplicates.entry((subscription.to_owned(), reason)).or_default() += 1;
    }

    pub fn early(&mut self, subscription: &str) {
        count(&mut self.early, subscription);
    }

    pub fn order_violation(&mut self, subscription: &str) {
        count(&mut self.order_violations, subscription);
    }

    pub fn gap(&mut self, subscription: &str) {
        count(&mut self.gaps, subscription);
    }

    pub fn without_key(&mut self, subscription: &str) {
        count(&mut self.without_key, subscription);
    }

    pub fn backlog_rejected(&mut self, subscription: &str) {
        count(&mut self.backlog_rejected, subscription);
    }

    pub fn dead_letter(&mut self, subscription: &str, reason: Reason) {
        *self.dead_letters.entry((subscription.to_owned(), reason)).or_default() += 1;
    }

    pub fn dead_letter_dropped(&mut self, subscription: &str, reason: &'static str) {
        self.dead_letters_dropped(subscription, reason, 1);
    }

    pub fn dead_letters_dropped(&mut self, subscription: &str, reason: &'static str, count: u64) {
        *self.dead_letters_dropped.entry((subscription.to_owned(), reason)).or_default() += count;
    }

    pub fn processed(&mut self, subscription: &str, delivered: bool, took_ms: u64) {
        let processed = match self.processed.get_mut(subscription) {
            Some(processed) => processed,
            None => self.processed.entry(subscription.to_owned()).or_default(),
        };
        processed.delivered += u64::from(delivered);
        processed.failed += u64::from(!delivered);
        processed.took_ms.add(took_ms);
    }

    /// A removed subscription leaves no labels behind.
    pub fn forget(&mut self, subscription: &str) {
        self.processed.remove(subscription);
        for counts in [
            &mut self.early,
            &mut self.order_violations,
            &mut self.gaps,
            &mut self.without_key,
            &mut self.backlog_rejected,
        ] {
            counts.remove(subscription);
        }
        self.duplicates.retain(|key, _| key.0 != subscription);
        self.dead_letters.retain(|key, _| key.0 != subscription);
        self.dead_letters_dropped.retain(|key, _| key.0 != subscription);
    }
}

fn count(counts: &mut BTreeMap<String, u64>, subscription: &str) {
    match counts.get_mut(subscription) {
        Some(count) => *count += 1,
        None => {
            counts.insert(subscription.to_owned(), 1);
        }
    }
}

/// Looks a pair of labels up without owning it.
#[derive(Hash)]
struct Label<'a>(&'a str, &'static str);

impl hashbrown::Equivalent<(String, &'static str)> for Label<'_> {
    fn equivalent(&self, key: &(String, &'static str)) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}
