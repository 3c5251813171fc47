//! All state that is looked up by key. Rows that changed since the last checkpoint are in memory, the others in
//! tables.
//!
//! A checkpoint freezes the changed rows at one point in time, writes them to a new table and then drops them from
//! memory. Until then, the log alone makes them durable, so a change costs no disk access.

use crate::table::Error;
use crate::tables::TableSet;
use klambda_core::planted::{self, Bug};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Key to value, or to `None` if the row is deleted.
pub type Changed = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// Memory per row in addition to key and value.
const ROW_OVERHEAD: usize = 80;

#[derive(Default)]
pub struct Rows {
    changed: Changed,
    changed_bytes: usize,
    frozen: Option<Arc<Changed>>,
    frozen_bytes: usize,
    tables: TableSet,
    read: AtomicU64,
}

impl Rows {
    pub fn new(tables: TableSet) -> Rows {
        Rows { tables, ..Rows::default() }
    }

    /// The number of rows read so far. The difference between two calls measures the work of a step.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.read.fetch_add(1, Ordering::Relaxed);
        let memory = self.changed.get(key).or_else(|| self.frozen.as_ref()?.get(key));
        match memory {
            Some(value) => Ok(value.as_ref().map(|value| value.to_vec())),
            None => self.tables.get(key),
        }
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.change(key, Some(value));
    }

    pub fn delete(&mut self, key: &[u8]) {
        self.change(key, None);
    }

    fn change(&mut self, key: &[u8], value: Option<&[u8]>) {
        let size = |value: Option<&[u8]>| value.map_or(0, <[u8]>::len);
        self.changed_bytes += size(value);
        // Most keys are new, so one search is worth the copy of a key that is there already.
        match self.changed.entry(key.into()) {
            Entry::Occupied(mut old) => {
                self.changed_bytes -= size(old.get().as_deref());
                old.insert(value.map(Into::into));
            }
            Entry::Vacant(place) => {
                self.changed_bytes += key.len() + ROW_OVERHEAD;
                place.insert(value.map(Into::into));
            }
        }
    }

    /// Up to `limit` rows whose keys have this prefix, starting at `from`, in order.
    pub fn scan(&self, prefix: &[u8], from: &[u8], limit: usize) -> Result<Vec<Row>, Error> {
        let from = from.max(prefix);
        let mut newest = memory_rows(&self.changed, from).peekable();
        let empty = Changed::new();
        let mut frozen = memory_rows(self.frozen.as_deref().unwrap_or(&empty), from).peekable();
        let mut tables = self.tables.scan(from);
        let mut stored = tables.next().transpose()?;
        let mut found = Vec::new();
        while found.len() < limit {
            let next = [
                newest.peek().map(|row| row.0),
                frozen.peek().map(|row| row.0),
                stored.as_ref().map(|row| row.0.as_slice()),
            ];
            let Some(key) = next.into_iter().flatten().min().filter(|key| key.starts_with(prefix)) else {
                break;
            };
            let [in_newest, in_frozen, in_stored] = next.map(|other| other == Some(key));
            let changed = newest.next_if(|_| in_newest);
            let froze = frozen.next_if(|_| in_frozen);
            let below = match in_stored {
                true => std::mem::replace(&mut stored, tables.next().transpose()?),
                false => None,
            };
            // Skips deleted rows without collecting them.
            found.extend(match changed.or(froze) {
                Some((key, value)) => value.map(|value| (key.to_vec(), value.to_vec())),
                None => below.and_then(|(key, value)| value.map(|value| (key, value))),
            });
        }
        self.read.fetch_add(found.len() as u64, Ordering::Relaxed);
        Ok(found)
    }

    /// Memory used, without the tables.
    pub fn memory_bytes(&self) -> usize {
        self.changed_bytes + self.frozen.as_ref().map_or(0, |_| self.frozen_bytes)
    }

    /// Size of the rows that changed since the last freeze.
    pub fn changed_bytes(&self) -> usize {
        self.changed_bytes
    }

    /// Freezes the changed rows for a checkpoint. Only one checkpoint may run at a time.
    pub fn freeze(&mut self) -> Arc<Changed> {
        assert!(self.frozen.is_none(), "only one checkpoint may run at a time");
        self.frozen_bytes = std::mem::take(&mut self.changed_bytes);
        let frozen = Arc::new(std::mem::take(&mut self.changed));
        self.frozen = Some(frozen.clone());
        frozen
    }

    /// The checkpoint failed: the frozen rows count as changed again, except where a newer change exists.
    pub fn thaw(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        for (key, value) in frozen.iter() {
            if !self.changed.contains_key(key) {
                self.change(key, value.as_deref());
            }
        }
    }

    /// The checkpoint is durable. Drops the frozen rows.
    pub fn settle(&mut self, tables: TableSet) {
        if planted::is_on(Bug::CheckpointForgets) {
            self.changed.clear();
            self.changed_bytes = 0;
        }
        self.frozen = None;
        self.tables = tables;
    }

    pub fn replace_tables(&mut self, tables: TableSet) {
        self.tables = tables;
    }

    pub fn tables(&self) -> &TableSet {
        &self.tables
    }
}

fn memory_rows<'a>(changed: &'a Changed, from: &[u8]) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> {
    let range = (Bound::Included(from), Bound::Unbounded);
    changed.range::<[u8], _>(range).map(|(key, value)| (&**key, value.as_deref()))
}
