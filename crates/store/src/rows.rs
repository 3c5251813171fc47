//! All state that is looked up by key. Rows that changed since the last checkpoint are in memory, the others in
//! tables.
//!
//! A checkpoint freezes the changed rows at one point in time, writes them to a new table and then drops them from
//! memory. Until then, the log alone makes them durable, so a change costs no disk access.

use crate::table::Error;
use crate::tables::TableSet;
use hashbrown::HashMap;
use klambda_core::planted::{self, Bug};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows that changed since the last checkpoint.
#[derive(Default)]
pub struct Changed {
    /// Key to value, or to `None` if the row is deleted.
    sorted: BTreeMap<Box<[u8]>, Option<Box<[u8]>>>,
    /// Key to number, or to `DELETED`.
    numbers: HashMap<NumberKey, u64, foldhash::fast::RandomState>,
}

/// The key of a row whose value is a number. There is such a row for every event of a feed, so they are not sorted before a
/// checkpoint: a hash map takes a new key in a fraction of the time.
pub type NumberKey = [u8; 21];

/// In place of a number. Numbers start at 1.
const DELETED: u64 = 0;

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// Memory per row in addition to key and value.
const ROW_OVERHEAD: usize = 80;
/// Memory per row with a number, on average between two sizes of the hash map.
const NUMBER_BYTES: usize = 56;

impl Changed {
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty() && self.numbers.is_empty()
    }

    pub fn len(&self) -> usize {
        self.sorted.len() + self.numbers.len()
    }

    /// Passes every row to `f` in the order of the keys, `None` for a deleted row.
    pub fn for_each<E>(&self, mut f: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), E>) -> Result<(), E> {
        let mut numbers: Vec<(&NumberKey, u64)> = self.numbers.iter().map(|(key, n)| (key, *n)).collect();
        numbers.sort_unstable();
        let mut numbers = numbers.into_iter().peekable();
        for (key, value) in &self.sorted {
            while let Some((key, number)) = numbers.next_if(|(number_key, _)| number_key.as_slice() < &**key)
            {
                f(key, number_value(number).as_ref().map(<[u8; 8]>::as_slice))?;
            }
            f(key, value.as_deref())?;
        }
        numbers.try_for_each(|(key, number)| f(key, number_value(number).as_ref().map(<[u8; 8]>::as_slice)))
    }
}

fn number_value(number: u64) -> Option<[u8; 8]> {
    (number != DELETED).then(|| number.to_be_bytes())
}

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
        let memory = self.changed.sorted.get(key).or_else(|| self.frozen.as_ref()?.sorted.get(key));
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
        match self.changed.sorted.entry(key.into()) {
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

    /// The number in this row. Only `put_number` writes it.
    pub fn number(&self, key: &NumberKey) -> Result<Option<u64>, Error> {
        self.read.fetch_add(1, Ordering::Relaxed);
        let memory = self.changed.numbers.get(key).or_else(|| self.frozen.as_ref()?.numbers.get(key));
        match memory {
            Some(number) => Ok(Some(*number).filter(|number| *number != DELETED)),
            None => Ok(self.tables.get(key)?.and_then(|row| row.try_into().ok()).map(u64::from_be_bytes)),
        }
    }

    /// Sets the number in a row. It must not be 0.
    pub fn put_number(&mut self, key: &NumberKey, number: u64) {
        assert!(number != DELETED, "the numbers in rows start at 1");
        self.change_number(key, number);
    }

    pub fn delete_number(&mut self, key: &NumberKey) {
        self.change_number(key, DELETED);
    }

    fn change_number(&mut self, key: &NumberKey, number: u64) {
        if self.changed.numbers.insert(*key, number).is_none() {
            self.changed_bytes += NUMBER_BYTES;
        }
    }

    /// Up to `limit` rows whose keys have this prefix, starting at `from`, in order. Rows with numbers are not listed before
    /// a checkpoint.
    pub fn scan(&self, prefix: &[u8], from: &[u8], limit: usize) -> Result<Vec<Row>, Error> {
        let from = from.max(prefix);
        let mut newest = memory_rows(&self.changed, from).peekable();
        let empty = Changed::default();
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
        for (key, value) in &frozen.sorted {
            if !self.changed.sorted.contains_key(key) {
                self.change(key, value.as_deref());
            }
        }
        for (key, number) in &frozen.numbers {
            if !self.changed.numbers.contains_key(key) {
                self.change_number(key, *number);
            }
        }
    }

    /// The checkpoint is durable. Drops the frozen rows.
    pub fn settle(&mut self, tables: TableSet) {
        if planted::is_on(Bug::CheckpointForgets) {
            self.changed = Changed::default();
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
    changed.sorted.range::<[u8], _>(range).map(|(key, value)| (&**key, value.as_deref()))
}
