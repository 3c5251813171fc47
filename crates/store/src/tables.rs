//! A set of tables that behaves like one sorted map. The newest version of a key counts.
//!
//! A set is immutable: adding, merging and dropping tables create a new set, and reads on the old one continue.
//! Before the caller uses a new set, it must record which tables belong to it (`names`). The caller also removes
//! files that belong to no set.

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
    /// `names`: newest first, as returned by `names`.
    pub fn open(disk: &dyn Disk, names: &[String]) -> Result<TableSet, Error> {
        names.iter().map(|name| Table::open(disk, name)).collect()
    }

    /// The value of the key; `None` if the key is absent or deleted.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let hash = table::hash(key);
        for table in self.tables.iter() {
            if let Some(version) = table.get_hashed(key, hash)? {
                return Ok(version);
            }
        }
        Ok(None)
    }

    /// The newest version of every key from this one on, in order. A deleted key appears as a tombstone or not at
    /// all.
    pub fn scan(&self, from: &[u8]) -> Scan {
        Scan::new(&self.tables, from)
    }

    /// Like `scan`, without deleted keys.
    pub fn scan_live(&self, from: &[u8]) -> impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), Error>> + use<> {
        let live = |(key, value): Row| value.map(|value| (key, value));
        self.scan(from).filter_map(move |row| row.map(live).transpose())
    }

    pub fn with_new(&self, newest: Table) -> TableSet {
        std::iter::once(newest).chain(self.tables.iter().cloned()).collect()
    }

    /// The set without these tables. Only the oldest tables can be removed without exposing older versions of a key.
    pub fn without(&self, names: &[String]) -> TableSet {
        self.tables.iter().filter(|table| !names.iter().any(|name| name == table.name())).cloned().collect()
    }

    /// The oldest table, if all its rows are from before this time. Removing it exposes no older versions.
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
