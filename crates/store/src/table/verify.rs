//! Verification of a whole table file.

use super::block::Rows;
use super::{Error, Table, hash};
use crate::bloom::Filter;
use std::sync::Arc;

impl Table {
    /// Reads the whole file again and verifies all checksums, the order of the keys and the counts.
    pub fn verify(&self) -> Result<(), Error> {
        let fresh = Table::load(self.name(), Arc::clone(&self.0.source.file))?;
        let mut found = Totals::default();
        for group in 0..fresh.0.top.groups.len() {
            fresh.verify_group(group, &mut found)?;
        }
        let (source, footer, top) = (&fresh.0.source, &fresh.0.footer, &fresh.0.top);
        let counted = (found.rows, found.tombstones) == (footer.rows, footer.tombstones);
        let bounded = *top.smallest == *found.first.unwrap_or_default() && *top.largest == *found.last;
        match counted && bounded {
            true => Ok(()),
            false => Err(source.damaged(footer.top_offset, "the counts or bounds do not match the rows")),
        }
    }

    fn verify_group(&self, number: usize, found: &mut Totals) -> Result<(), Error> {
        let (source, group) = (&self.0.source, &self.0.top.groups[number]);
        let mut blocks = Vec::new();
        self.visit_index(number, |separator, extent| blocks.push((separator.to_vec(), extent)))?;
        if blocks.first().is_none_or(|(first, _)| **first != *group.separator) {
            return Err(source
                .damaged(group.index.offset, "the index does not begin with the separator of its group"));
        }
        for (separator, extent) in blocks {
            let block = source.read_block(extent)?;
            let outcome = found.add_block(&separator, &block, group.filter.as_ref());
            outcome.map_err(|what| source.damaged(extent.offset, what))?;
        }
        Ok(())
    }
}

/// The totals of the rows seen so far.
#[derive(Default)]
struct Totals {
    rows: u64,
    tombstones: u64,
    first: Option<Vec<u8>>,
    last: Vec<u8>,
}

impl Totals {
    fn add_block(
        &mut self,
        separator: &[u8],
        block: &[u8],
        filter: Option<&Filter>,
    ) -> Result<(), &'static str> {
        if self.rows > 0 && *self.last >= *separator {
            return Err("a block begins before the previous one ends");
        }
        let mut rows = Rows::new(block);
        while rows.advance()? {
            if rows.key() < separator {
                return Err("a key is below the separator of its block");
            }
            if filter.is_some_and(|filter| !filter.may_contain(hash(rows.key()))) {
                return Err("the filter does not contain a key");
            }
            self.first.get_or_insert_with(|| rows.key().to_vec());
            self.rows += 1;
            self.tombstones += u64::from(rows.value().is_none());
        }
        self.last.clear();
        self.last.extend_from_slice(rows.key());
        match block.is_empty() {
            false => Ok(()),
            true => Err("a block has no rows"),
        }
    }
}
