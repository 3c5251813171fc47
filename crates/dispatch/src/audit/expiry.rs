//! Limits the audit log by age and by number of entries.
//!
//! When there are too many entries, only namespaces with more than their share lose entries, the oldest first. The share
//! is the largest number for which the log fits into its limit. So a busy namespace removes its own history and not that
//! of others: of N namespaces, each keeps at least its newest 1/N of the limit. Entries without a namespace count as one
//! more namespace.

use super::{Audited, KIND, Numbers, key};
use crate::engine::{Engine, Failure};
use klambda_store::record::{DocumentChange, Record};
use std::collections::BTreeMap;

/// Maximum number of entries deleted at once.
const DELETE_MAX: usize = 250;
/// Maximum number of entries read at once.
const READ_MAX: usize = 1000;
const EXPIRE_EVERY_MS: u64 = 60_000;
/// Time between two portions. Entries are deleted faster than clients can add them.
const PORTION_MS: u64 = 20;

/// The number of entries of each namespace. Counted in portions when there may be too many, then kept up to date.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Entries with a lower number are counted.
    counted: u64,
    entries: u64,
    namespaces: BTreeMap<Option<String>, Count>,
}

#[derive(Debug, PartialEq, Eq)]
struct Count {
    entries: u64,
    /// The namespace has no entry with a lower number.
    first: u64,
}

/// How many entries each namespace must lose.
type Excess = BTreeMap<Option<String>, u64>;

impl Counts {
    /// No entry is counted yet.
    pub fn from(first: u64) -> Counts {
        Counts { counted: first, entries: 0, namespaces: BTreeMap::new() }
    }

    /// Counts an entry that was just written, unless older ones are not counted yet.
    pub fn add_new(&mut self, number: u64, namespace: Option<&str>) {
        if self.counted == number {
            self.add(number, namespace.map(str::to_owned));
        }
    }

    fn add(&mut self, number: u64, namespace: Option<String>) {
        let count = self.namespaces.entry(namespace).or_insert(Count { entries: 0, first: number });
        count.entries += 1;
        self.entries += 1;
        self.counted = number + 1;
    }

    fn remove(&mut self, audited: &Audited) {
        if audited.number >= self.counted {
            return;
        }
        self.entries -= 1;
        let namespace = &audited.entry.namespace;
        let Some(count) = self.namespaces.get_mut(namespace) else { return };
        count.entries -= 1;
        if count.entries == 0 {
            self.namespaces.remove(namespace);
        }
    }

    /// The number of entries that every namespace may keep.
    fn share(&self, entries_max: u64) -> u64 {
        let mut counts: Vec<u64> = self.namespaces.values().map(|count| count.entries).collect();
        counts.sort_unstable();
        let (mut left, mut namespaces) = (entries_max, counts.len() as u64);
        for count in counts {
            if count > left / namespaces {
                return left / namespaces;
            }
            (left, namespaces) = (left - count, namespaces - 1);
        }
        u64::MAX
    }

    fn excess(&self, entries_max: u64) -> Excess {
        let share = self.share(entries_max);
        let over = self.namespaces.iter().filter(|(_, count)| count.entries > share);
        over.map(|(namespace, count)| (namespace.clone(), count.entries - share)).collect()
    }

    /// No entry of these namespaces has a lower number.
    fn first_of(&self, namespaces: &Excess) -> Option<u64> {
        namespaces.keys().filter_map(|namespace| Some(self.namespaces.get(namespace)?.first)).min()
    }

    fn set_first(&mut self, namespaces: &Excess, first: u64) {
        for namespace in namespaces.keys() {
            if let Some(count) = self.namespaces.get_mut(namespace) {
                count.first = count.first.max(first);
            }
        }
    }
}

impl Engine {
    /// Once per minute, deletes entries that exceed the age or count limit. Large numbers are deleted in portions.
    pub(crate) fn expire_audit(&mut self) -> Result<(), Failure> {
        if self.maintenance.expire_audit_at > self.now || self.must_write().is_err() {
            return Ok(());
        }
        self.maintenance.expire_audit_at = self.now + EXPIRE_EVERY_MS;
        let has_more_old = self.delete_old_audit()?;
        if has_more_old || self.count_audit()? || self.delete_excess_audit()? {
            self.maintenance.expire_audit_at = self.now + PORTION_MS;
        }
        Ok(())
    }

    /// Deletes entries that are too old. Returns whether there may be more.
    fn delete_old_audit(&mut self) -> Result<bool, Failure> {
        let first = self.audit_numbers()?.first;
        let oldest = self.audit_scan(first, DELETE_MAX)?;
        let is_old = |audited: &Audited| self.now.since(audited.time) > self.config.audit_age_ms;
        let old = oldest.partition_point(is_old);
        self.delete_audit(&oldest[..old])?;
        let numbers = self.audit_numbers()?;
        numbers.first = match oldest.get(old) {
            Some(kept) => kept.number,
            None => oldest.last().map_or(numbers.next, |last| last.number + 1),
        };
        Ok(old == DELETE_MAX)
    }

    /// Counts a portion of entries if there may be too many. Returns whether some are not counted yet.
    fn count_audit(&mut self) -> Result<bool, Failure> {
        let entries_max = self.config.audit_entries_max;
        let Numbers { first, next, counts } = self.audit_numbers()?;
        counts.counted = counts.counted.max(*first);
        let (range, counted) = (*next - *first, counts.counted);
        if range <= entries_max || counted == *next {
            return Ok(false);
        }
        let portion = self.audit_scan(counted, READ_MAX)?;
        let Numbers { next, counts, .. } = self.audit_numbers()?;
        for audited in portion {
            counts.add(audited.number, audited.entry.namespace);
        }
        Ok(counts.counted < *next)
    }

    /// Deletes a portion of the entries above the share of their namespace. Returns whether there are more.
    fn delete_excess_audit(&mut self) -> Result<bool, Failure> {
        let entries_max = self.config.audit_entries_max;
        let counts = &self.audit_numbers()?.counts;
        let mut excess = counts.excess(entries_max);
        let Some(mut end) = counts.first_of(&excess) else { return Ok(false) };
        let mut deleted = Vec::new();
        for audited in self.audit_scan(end, READ_MAX)? {
            if deleted.len() == DELETE_MAX || excess.is_empty() {
                break;
            }
            end = audited.number + 1;
            let namespace = &audited.entry.namespace;
            let Some(left) = excess.get_mut(namespace) else { continue };
            *left -= 1;
            if *left == 0 {
                excess.remove(namespace);
            }
            deleted.push(audited);
        }
        self.delete_audit(&deleted)?;
        self.audit_numbers()?.counts.set_first(&excess, end);
        Ok(!excess.is_empty())
    }

    fn delete_audit(&mut self, entries: &[Audited]) -> Result<(), Failure> {
        if entries.is_empty() {
            return Ok(());
        }
        let keys: Vec<String> = entries.iter().map(|audited| key(audited.number)).collect();
        let changes = keys.iter().map(|key| DocumentChange { kind: KIND, key, content: None }).collect();
        self.commit(&Record::Documents { time: self.now, changes })?;
        let counts = &mut self.audit_numbers()?.counts;
        entries.iter().for_each(|audited| counts.remove(audited));
        Ok(())
    }
}
