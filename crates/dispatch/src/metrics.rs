//! Counters, used by one thread. Labels are subscriptions, types and reasons, never keys.

use hashbrown::HashMap;
use klambda_core::outcome::Reason;
use std::collections::BTreeMap;

#[derive(Clone)]
pub struct Metrics {
    types_max: usize,
    /// By type and result.
    pub received: HashMap<(String, &'static str), u64>,
    types: HashMap<String, TypeId>,
    pub duplicates: BTreeMap<(String, &'static str), u64>,
    pub early: BTreeMap<String, u64>,
    pub order_violations: BTreeMap<String, u64>,
    pub gaps: BTreeMap<String, u64>,
    pub without_key: BTreeMap<String, u64>,
    processed: HashMap<String, Vec<(TypeId, Processed)>>,
    pub dead_letters: BTreeMap<(String, Reason), u64>,
    pub dead_letters_dropped: BTreeMap<(String, &'static str), u64>,
    pub backlog_rejected: BTreeMap<String, u64>,
    /// Events rejected by the limits of a namespace.
    pub namespace_rejected: BTreeMap<(String, &'static str), u64>,
    pub unmatched: u64,
    /// Events rejected because of the disk.
    pub unavailable: u64,
    pub damaged: u64,
    pub breaker_opened: u64,
    /// How often a subscription had to wait for memory.
    pub room_waits: u64,
    pub marks_expired_early: u64,
    pub tail_cut: u64,
    pub checkpoints: u64,
    pub checkpoint_failures: u64,
    /// Duration of each commit in microseconds, and its number of events.
    pub commit_micros: Histogram,
    pub commit_events: Histogram,
    pub accept_micros: Histogram,
}

/// Identifies an event type that has its own label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeId(u16);

impl TypeId {
    /// All types without their own label.
    const OTHER: TypeId = TypeId(u16::MAX);
}

/// Calls of targets.
#[derive(Clone, Debug, Default)]
pub struct Processed {
    pub delivered: u64,
    pub failed: u64,
    pub took_ms: Histogram,
    /// Time from the acceptance of an event to its delivery.
    pub delivered_after_ms: Histogram,
}

/// Counts by powers of two: bucket `n` counts values below 2^n.
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

    /// Adds all values of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(own, more)| *own += more);
        self.count += other.count;
        self.sum += other.sum;
    }

    /// The upper bound and cumulative count of each bucket.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut total = 0;
        self.buckets.iter().enumerate().map(move |(n, count)| {
            total += count;
            ((1u64 << n) - 1, total)
        })
    }
}

const OTHER: &str = "other";
/// Maximum number of types with their own label per subscription; calls for other types count as `other`.
const PROCESSED_TYPES_MAX: usize = 16;

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
            namespace_rejected: BTreeMap::new(),
            unmatched: 0,
            unavailable: 0,
            damaged: 0,
            breaker_opened: 0,
            room_waits: 0,
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
        let kind = if self.type_id(kind) == TypeId::OTHER { OTHER } else { kind };
        match self.received.get_mut(&Label(kind, result)) {
            Some(count) => *count += 1,
            None => {
                self.received.insert((kind.to_owned(), result), 1);
            }
        }
    }

    /// The label that `kind` is counted under.
    pub fn type_id(&mut self, kind: &str) -> TypeId {
        if let Some(known) = self.types.get(kind) {
            return *known;
        }
        let next = self.types.len();
        if next >= self.types_max || next >= usize::from(u16::MAX) {
            return TypeId::OTHER;
        }
        let id = TypeId(next as u16);
        self.types.insert(kind.to_owned(), id);
        id
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

    pub fn forget_namespace(&mut self, namespace: &str) {
        self.namespace_rejected.retain(|(name, _), _| name != namespace);
    }

    /// `limit` is the name of the limit.
    pub fn namespace_rejected(&mut self, namespace: &str, limit: &'static str) {
        *self.namespace_rejected.entry((namespace.to_owned(), limit)).or_default() += 1;
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

    /// Counts a call. If it succeeded, `delivered_after_ms` is the time since the event was accepted.
    pub fn processed(
        &mut self,
        subscription: &str,
        kind: TypeId,
        delivered_after_ms: Option<u64>,
        took_ms: u64,
    ) {
        let by_type = match self.processed.get_mut(subscription) {
            Some(by_type) => by_type,
            None => self.processed.entry(subscription.to_owned()).or_default(),
        };
        let processed = of_type(by_type, kind);
        processed.took_ms.add(took_ms);
        match delivered_after_ms {
            Some(age_ms) => {
                processed.delivered += 1;
                processed.delivered_after_ms.add(age_ms);
            }
            None => processed.failed += 1,
        }
    }

    /// Calls of a subscription by event type.
    pub fn processed_of(&self, subscription: &str) -> BTreeMap<&str, &Processed> {
        let names: HashMap<u16, &str> = self.types.iter().map(|(name, id)| (id.0, name.as_str())).collect();
        let name = |id: &TypeId| names.get(&id.0).copied().unwrap_or(OTHER);
        let by_type = self.processed.get(subscription).into_iter().flatten();
        by_type.map(|(id, processed)| (name(id), processed)).collect()
    }

    /// Calls for a subscription, whatever the type of their events.
    pub fn calls_of(&self, subscription: &str) -> impl Iterator<Item = &Processed> {
        self.processed.get(subscription).into_iter().flatten().map(|(_, processed)| processed)
    }

    /// Removes the labels of a deleted subscription.
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

fn of_type(by_type: &mut Vec<(TypeId, Processed)>, kind: TypeId) -> &mut Processed {
    let is_full = by_type.len() >= PROCESSED_TYPES_MAX;
    let known = by_type.iter().position(|(known, _)| *known == kind);
    let other = |by_type: &[(TypeId, Processed)]| by_type.iter().position(|(id, _)| *id == TypeId::OTHER);
    let at = match known.or_else(|| if is_full { other(by_type) } else { None }) {
        Some(at) => at,
        None => {
            by_type.push((if is_full { TypeId::OTHER } else { kind }, Processed::default()));
            by_type.len() - 1
        }
    };
    &mut by_type[at].1
}

fn count(counts: &mut BTreeMap<String, u64>, subscription: &str) {
    match counts.get_mut(subscription) {
        Some(count) => *count += 1,
        None => {
            counts.insert(subscription.to_owned(), 1);
        }
    }
}

/// Looks up a pair of labels without owning them.
#[derive(Hash)]
struct Label<'a>(&'a str, &'static str);

impl hashbrown::Equivalent<(String, &'static str)> for Label<'_> {
    fn equivalent(&self, key: &(String, &'static str)) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_beyond_the_bound_are_counted_together() {
        let mut metrics = Metrics::new(20);
        for n in 0..30 {
            let kind = metrics.type_id(&format!("t{n}"));
            metrics.processed("s", kind, (n % 2 == 0).then_some(5), 1);
        }
        let seen = metrics.processed_of("s");
        assert_eq!(seen.len(), PROCESSED_TYPES_MAX + 1, "{:?}", seen.keys());
        assert_eq!((seen["t0"].delivered, seen["t1"].failed), (1, 1));
        assert_eq!(seen[OTHER].delivered + seen[OTHER].failed, 14);
        metrics.forget("s");
        assert!(metrics.processed_of("s").is_empty());
    }
}
