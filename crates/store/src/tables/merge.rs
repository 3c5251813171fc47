//! Merges by size: a few tables of similar size and adjacent age become one.
//!
//! A table is merged with the newer tables next to it when these together have about its size. So the size of the
//! table that contains a row about doubles with each rewrite, and a row is written O(log n) times. If there are still
//! more than `TABLES_MAX` tables, the cheapest adjacent tables are merged regardless of their sizes, because every
//! read searches every table.

use super::TableSet;
use crate::disk::Disk;
use crate::table::{Error, Merged, Options, Table, Times, Writer};
use std::ops::Range;

const FAN_IN_MIN: usize = 4;
/// Smaller tables are treated as this size: opening and syncing a file costs more than its bytes.
const SMALL_BYTES: u64 = 64 << 10;
const TABLES_MAX: usize = 12;

/// Tables to merge. The plan holds them open, so it can run on another thread while sets change.
#[derive(Clone)]
pub struct MergePlan {
    /// Newest first, adjacent in age.
    tables: Vec<Table>,
    with_oldest: bool,
}

impl TableSet {
    /// The next merge, if one is due. Run only one plan at a time, because plans of one set may overlap.
    pub fn plan_merge(&self) -> Option<MergePlan> {
        self.plan_merge_up_to(u64::MAX)
    }

    /// Like `plan_merge`, but limits the result to about this many rows, as long as there are few tables.
    pub fn plan_merge_up_to(&self, rows_max: u64) -> Option<MergePlan> {
        let sizes: Vec<u64> = self.tables.iter().map(Table::bytes).collect();
        let rows: u64 = self.tables.iter().map(Table::rows).sum();
        let row_bytes = self.bytes() / rows.max(1);
        choose(&sizes, rows_max.saturating_mul(row_bytes)).map(|chosen| self.plan(chosen))
    }

    /// Replaces the tables of the plan with the merged table. The tables must not have been merged in another way in
    /// the meantime. Omits a merged table without rows, or one whose tables were all dropped.
    pub fn with_merged(&self, plan: &MergePlan, merged: Table) -> TableSet {
        let mut merged = Some(merged).filter(|merged| merged.rows() > 0);
        let replaced = self.tables.iter().filter_map(|table| match plan.contains(table) {
            true => merged.take(),
            false => Some(table.clone()),
        });
        replaced.collect()
    }

    fn plan(&self, chosen: Range<usize>) -> MergePlan {
        MergePlan { with_oldest: chosen.end == self.tables.len(), tables: self.tables[chosen].to_vec() }
    }
}

impl MergePlan {
    pub fn names(&self) -> Vec<String> {
        self.tables.iter().map(|table| table.name().to_owned()).collect()
    }

    /// Number of bytes to read.
    pub fn bytes(&self) -> u64 {
        self.tables.iter().map(Table::bytes).sum()
    }

    /// Writes one table with the newest version of every key. Its bytes are synced, its name is not. A row is deleted
    /// if `keep(key, value)` is false. Tombstones are kept as long as an older table could contain the key. Takes no
    /// locks. On failure, it removes the new file.
    pub fn run(
        &self,
        disk: &dyn Disk,
        new_name: &str,
        keep: &dyn Fn(&[u8], &[u8]) -> bool,
    ) -> Result<Table, Error> {
        let outcome = self.write(disk, new_name, keep);
        if outcome.is_err() {
            // Report the first error. An unreferenced file does no harm.
            let _ = disk.remove(new_name);
        }
        outcome
    }

    fn write(
        &self,
        disk: &dyn Disk,
        new_name: &str,
        keep: &dyn Fn(&[u8], &[u8]) -> bool,
    ) -> Result<Table, Error> {
        let bloom = self.tables.iter().any(Table::has_filters);
        let mut writer = Writer::new(disk, new_name, Options { bloom })?;
        writer.set_times(self.times());
        let mut rows = Merged::new(&self.tables, b"")?;
        while let Some((key, value)) = rows.next()? {
            let value = value.filter(|value| keep(key, value));
            if value.is_some() || !self.with_oldest {
                writer.add(key, value)?;
            }
        }
        writer.finish()
    }

    /// The union of the time spans; `None` if one of the tables never expires.
    fn times(&self) -> Option<Times> {
        let mut times = self.tables.iter().map(Table::times);
        let first = times.next()??;
        times.try_fold(first, |all, times| Some(all.union(times?)))
    }

    fn contains(&self, table: &Table) -> bool {
        self.tables.iter().any(|planned| planned.name() == table.name())
    }
}

/// The newest run of adjacent tables that is worth merging. `sizes`: newest first.
fn choose(sizes: &[u64], merged_max: u64) -> Option<Range<usize>> {
    let mut runs = (0..sizes.len()).map(|start| growing_run(sizes, start, merged_max));
    let grown = runs.find(|run| run.len() >= FAN_IN_MIN);
    grown.or_else(|| (sizes.len() > TABLES_MAX).then(|| cheapest_run(sizes))?)
}

/// The longest run from `start` in which each table is at most a quarter larger than all newer ones together. The
/// tolerance is needed because tables with the same number of rows differ slightly in size.
fn growing_run(sizes: &[u64], start: usize, merged_max: u64) -> Range<usize> {
    let mut sizes = sizes[start..].iter().map(|size| *size.max(&SMALL_BYTES));
    let mut sum = sizes.next().unwrap_or(0);
    let joining = sizes.take_while(|size| {
        let joins = *size <= sum + sum / 4;
        sum += size;
        joins && sum <= merged_max
    });
    start..start + 1 + joining.count()
}

fn cheapest_run(sizes: &[u64]) -> Option<Range<usize>> {
    let runs = (0..=sizes.len().checked_sub(FAN_IN_MIN)?).map(|start| start..start + FAN_IN_MIN);
    runs.min_by_key(|run| sizes[run.clone()].iter().sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_of_similar_size_are_merged() {
        const MB: u64 = 1 << 20;
        assert_eq!(choose(&[], u64::MAX), None);
        assert_eq!(choose(&[MB, MB, MB], u64::MAX), None);
        assert_eq!(choose(&[MB, MB, MB, MB], u64::MAX), Some(0..4));
        assert_eq!(choose(&[MB, MB, MB, 4 * MB], u64::MAX), None);
        assert_eq!(choose(&[MB, MB + 9, MB - 9, MB + 5, 4 * MB, 11 * MB], u64::MAX), Some(0..5));
        assert_eq!(choose(&[MB, 9 * MB, 9 * MB, MB, 19 * MB, 99 * MB], u64::MAX), Some(1..5));
        assert_eq!(choose(&[1, 100, 10_000, 60_000], u64::MAX), Some(0..4));
    }

    /// Adds tables of these sizes and runs all planned merges. Returns bytes written per byte added.
    fn amplification(flushes: impl Iterator<Item = u64>) -> f64 {
        let (mut sizes, mut flushed, mut written) = (Vec::new(), 0, 0);
        for size in flushes {
            sizes.insert(0, size);
            flushed += size;
            written += size;
            while let Some(run) = choose(&sizes, u64::MAX) {
                let merged: u64 = sizes[run.clone()].iter().sum();
                written += merged;
                sizes.splice(run, [merged]);
            }
            assert!(sizes.len() <= TABLES_MAX, "{sizes:?}");
        }
        written as f64 / flushed as f64
    }

    #[test]
    fn each_byte_is_written_a_few_times() {
        let times = amplification(std::iter::repeat_n(4 << 20, 4096));
        println!("16 GB in 4 MB flushes: each byte is written {times:.1} times");
        assert!(times < 7.5, "{times}");
    }

    #[test]
    fn a_set_that_is_held_to_a_size_loses_little_at_once_and_each_byte_is_written_a_few_times() {
        const ALL: u64 = 64 << 20;
        for flush in (16..22).flat_map(|exponent| [1_u64 << exponent, 3 << (exponent - 1)]) {
            let (mut sizes, mut flushed, mut written) = (Vec::new(), 0, 0);
            while flushed < 8 * ALL {
                sizes.insert(0, flush);
                flushed += flush;
                written += flush;
                while let Some(run) = choose(&sizes, ALL / 4) {
                    let merged: u64 = sizes[run.clone()].iter().sum();
                    written += merged;
                    sizes.splice(run, [merged]);
                }
                while sizes.iter().sum::<u64>() > ALL {
                    let oldest = sizes.pop().expect("the set has many tables");
                    assert!(oldest <= ALL / 3, "{oldest} of flushes of {flush}");
                }
            }
            assert!(written < 8 * flushed, "{} times for flushes of {flush}", written / flushed);
        }
    }

    proptest! {
        #[test]
        fn uneven_flushes_stay_few_tables(exponents in prop::collection::vec(10_u32..27, 1..400)) {
            let times = amplification(exponents.iter().map(|exponent| 1 << exponent));
            prop_assert!(times < 12.0, "{}", times);
        }
    }
}
