//! A set of tables as one sorted map: the newest version of a key counts.
//!
//! A set is a value: adding, merging and dropping tables make a new set, and reads on the old one go on. Which tables
//! make up the set is for the caller to write down (`names`) before the set is used, and to remove the files that are
//! in no set any more.

mod merge;

pub use merge::MergePlan;

use crate::disk::Disk;
use crate::table::{self, Error, Row, Scan, Table};
use klambda_core::time::Millis;
use std::sync::Arc;

/// Clones are cheap.
#[derive(Clone, Default)]
pub struct TableSet {
    /// Newest first.
    tables: Arc<[Table]>,
}

impl TableSet {
    /// `names` are newest first, as `names` gave them.
    pub fn open(disk: &dyn Disk, names: &[String]) -> Result<TableSet, Error> {
        names.iter().map(|name| Table::open(disk, name)).collect()
    }

    /// The value, unless the key is absent or deleted.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let hash = table::hash(key);
        for table in self.tables.iter() {
            if let Some(version) = table.get_hashed(key, hash)? {
                return Ok(version);
            }
        }
        Ok(None)
    }

    /// The newest version of every key from this one on, in order; of a deleted key that is a tombstone or nothing.
    pub fn scan(&self, from: &[u8]) -> Scan {
        Scan::new(&self.tables, from)
    }

    /// As `scan`, without what is deleted.
    pub fn scan_live(&self, from: &[u8]) -> impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), Error>> + use<> {
        let live = |(key, value): Row| value.map(|value| (key, value));
        self.scan(from).filter_map(move |row| row.map(live).transpose())
    }

    pub fn with_new(&self, newest: Table) -> TableSet {
        std::iter::once(newest).chain(self.tables.iter().cloned()).collect()
    }

    /// Without the tables of these names. Only the oldest of a set may go without changing what keys it answers for.
    pub fn without(&self, names: &[String]) -> TableSet {
        self.tables.iter().filter(|table| !names.iter().any(|name| name == table.name())).cloned().collect()
    }

    /// The oldest table, if its time is wholly before this: without it nothing older comes to light.
    pub fn oldest_before(&self, before: Millis) -> Option<&Table> {
        self.tables.last().filter(|table| table.times().is_some_and(|times| times.max < before))
    }

    /// Newest first.
    pub fn names(&self) -> Vec<String> {
        self.tables.iter().map(|table| table.name().to_owned()).collect()
    }

    /// Newest first.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    pub fn bytes(&self) -> u64 {
        self.tables.iter().map(Table::bytes).sum()
    }

    pub fn memory_bytes(&self) -> u64 {
        self.tables.iter().map(Table::memory_bytes).sum()
    }
}

impl FromIterator<Table> for TableSet {
    fn from_iter<I: IntoIterator<Item = Table>>(newest_first: I) -> TableSet {
        TableSet { tables: newest_first.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests;
